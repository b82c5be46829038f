//! Pools with routes among their servers.

use crate::fakes::ask;
use crate::parsing::*;
use lookaside_routing::Handle;

/// Pools `A`, whose second entry is a route to the servers of `B`, and `B`; and a route.
fn with_mixed_pool(keys: &str, route: &str) -> String {
    format!(
        r#"{{ "pools": {{
               "A": {{ "servers": ["a:1", {{ "type": "PoolRoute", "pool": "B", "hash": "Crc32" }}, "a:2"]{keys} }},
               "B": {{ "servers": ["b:1", "b:2"] }} }},
             "route": {route} }}"#
    )
}

/// The server that each of many keys reaches.
async fn placement(text: &str) -> Vec<String> {
    let (root, _) = build(text);
    let gets: Vec<String> = (0..200).map(|key| format!("get key:{key}")).collect();
    ask(&root, &gets.iter().map(String::as_str).collect::<Vec<_>>()).await
}

#[tokio::test]
async fn the_hash_picks_among_all_entries() {
    let tags = r#", "tags": ["x", "y", "z"]"#;
    let pool_b = r#"{ "type": "PoolRoute", "pool": "B", "hash": "Crc32" }"#;
    for (keys, pool_hash, hash) in [
        ("", "", ""),
        ("", r#", "hash": {"hash_func": "Ch3", "salt": "s"}"#, r#", "hash_func": "Ch3", "salt": "s""#),
        (r#", "weights": [0.1, 0.9, 0.3]"#, "", r#", "hash_func": "WeightedCh3", "weights": [0.1, 0.9, 0.3]"#),
        (tags, r#", "hash": "Rendezvous""#, r#", "hash_func": "Rendezvous", "tags": ["x", "y", "z"]"#),
        (tags, r#", "hash": "pymemcache""#, r#", "hash_func": "pymemcache", "tags": ["x", "y", "z"]"#),
        ("", r#", "hash": "Latest""#, r#", "hash_func": "Latest""#),
        ("", r#", "hash": "LoadBalancer""#, r#", "hash_func": "LoadBalancer""#),
        (
            "",
            r#", "hash": {"hash_func": "LoadBalancer", "failover_count": 2}"#,
            r#", "hash_func": "LoadBalancer", "failover_count": 2"#,
        ),
    ] {
        let pool = with_mixed_pool(keys, &format!(r#"{{ "type": "PoolRoute", "pool": "A"{pool_hash} }}"#));
        let same = format!(
            r#"{{ "pools": {{ "one": {{ "servers": ["a:1"] }}, "two": {{ "servers": ["a:2"] }},
                              "B": {{ "servers": ["b:1", "b:2"] }} }},
                 "route": {{ "type": "HashRoute", "children": ["PoolRoute|one", {pool_b}, "PoolRoute|two"]{hash} }}
               }}"#
        );
        let placed = placement(&pool).await;
        assert_eq!(placed, placement(&same).await, "{pool_hash}");
        if hash.contains("Latest") {
            continue;
        }
        for server in ["a:1", "a:2", "b:1", "b:2"] {
            assert!(placed.iter().any(|found| found == server), "no key reaches {server} {pool_hash}");
        }
    }
}

#[tokio::test]
async fn everywhere_a_pool_is_named_its_routes_count() {
    for (route, asked) in [
        (r#""AllSyncRoute|Pool|A""#, "a:1 a:2 b:1"),
        (r#"{ "type": "AllSyncRoute", "children": ["Pool|A", "PoolRoute|C"] }"#, "a:1 a:2 b:1 c:1"),
        (r#"{ "type": "AllSyncRoute", "children": { "type": "Pool", "servers": ["d:1", "PoolRoute|C"] } }"#, "refused"),
        (
            r#"{ "type": "AllSyncRoute",
                 "children": { "type": "Pool", "servers": ["d:1", { "type": "PoolRoute", "pool": "C" }] } }"#,
            "c:1 d:1",
        ),
        (r#"{ "type": "AllSyncRoute", "children": { "type": "Pool", "inherit": "A" } }"#, "a:1 a:2 b:1"),
        (r#""AllSyncRoute|Pool|inherits""#, "a:1 a:2 b:1"),
    ] {
        let text = format!(
            r#"{{ "pools": {{
                   "A": {{ "servers": ["a:1", {{ "type": "PoolRoute", "pool": "B" }}, "a:2"] }},
                   "B": {{ "servers": ["b:1"] }}, "C": {{ "servers": ["c:1"] }}, "inherits": {{ "inherit": "A" }} }},
                 "route": {route} }}"#
        );
        if asked == "refused" {
            assert!(refusal(&text).contains("the port is missing"), "a string is a server");
            continue;
        }
        let (root, fakes) = build(&text);
        ask(&root, &["delete k"]).await;
        let reached: Vec<&str> =
            fakes.made.keys().filter(|name| !fakes.asked(name).is_empty()).map(|name| &**name).collect();
        assert_eq!(reached.join(" "), asked, "{route}");
    }
}

#[tokio::test]
async fn what_a_pool_lists_for_each_server_counts_its_routes() {
    // The weights of the servers are 0.
    let placed = placement(&with_mixed_pool(r#", "weights": [0, 1, 0]"#, r#""PoolRoute|A""#)).await;
    assert!(placed.iter().all(|server| server.starts_with("b:")), "{placed:?}");
    // A server is named by its place in the configuration.
    let configuration = read(&with_mixed_pool("", r#"{ "type": "PoolRoute", "pool": "A" }"#));
    let pool = configuration.trees[0].1.pool().expect("the pool").clone();
    assert_eq!((pool.servers.len(), pool.entry_count(), pool.entry_index(0), pool.entry_index(1)), (2, 3, 0, 2));
    assert_eq!(Handle::Server { pool, server: 1 }.label(), "Pool|A[2]");
}

#[tokio::test]
async fn a_pool_may_have_routes_only() {
    let only = r#"{ "pools": { "A": { "servers": [{ "type": "NullRoute" }, { "type": "NullRoute" }] } },
                    "route": "PoolRoute|A" }"#;
    assert_eq!(ask(&build(only).0, &["get k"]).await, ["Miss"]);
}

/// Its servers would be taken for servers that are used: flushed, covered, and connected to.
#[test]
fn a_route_of_a_pool_that_is_not_used_is_checked_and_not_built() {
    let text = r#"{ "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": [{ "type": "PoolRoute", "pool": "C" }] },
                               "C": { "servers": ["c:1"] } }, "route": "PoolRoute|A" }"#;
    assert_eq!(build(text).1.made.keys().collect::<Vec<_>>(), ["a:1"]);
}

/// With a failure domain for each entry, the next of another domain is asked.
#[tokio::test]
async fn a_route_has_the_failure_domain_and_the_tag_of_its_entry() {
    let salted = |domains: &str| {
        let policy = r#"{ "type": "DeterministicOrderPolicy", "max_tries": 3, "max_error_tries": 3,
                          "enable_failure_domains": true }"#;
        let route = format!(r#"{{ "type": "SaltedFailoverRoute", "pool": "A", "failover_policy": {policy} }}"#);
        with_mixed_pool(&format!(r#", "failure_domains": {domains}"#), &route)
    };
    // How often b is asked second, for keys of a server that fails: always, if the other server fails with it.
    let asked_second = async |domains: &str| {
        let mut fakes = FakeDestinations { down: vec!["a:1"], ..FakeDestinations::default() };
        let root = read(&salted(domains)).build(&mut fakes);
        let gets: Vec<String> = (0..100).map(|key| format!("get key:{key}")).collect();
        ask(&root, &gets.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let of_a = fakes.asked("a:1");
        let others: Vec<String> = ["b:1", "b:2"].iter().flat_map(|server| fakes.asked(server)).collect();
        (of_a.iter().filter(|get| others.contains(get)).count(), of_a.len())
    };
    let (to_route, all) = asked_second("[1, 2, 1]").await;
    assert!(all > 10 && to_route == all, "{to_route} of {all}");
    assert_eq!(asked_second("[1, 1, 2]").await, (0, all));

    let rendezvous = r#"{ "type": "FailoverRoute", "children": ["PoolRoute|B", "Pool|A"],
                          "failover_policy": { "type": "RendezvousPolicy" } }"#;
    read(&with_mixed_pool(r#", "tags": ["x", "y", "z"]"#, rendezvous));
}

#[test]
fn a_route_is_built_once_however_often_its_pool_is_used() {
    // Each use of a pool doubles the uses of the next.
    let mut pools = r#""p40": { "servers": ["a:1"] }"#.to_owned();
    for at in 0..40 {
        let next = format!(r#"{{ "type": "PoolRoute", "pool": "p{}" }}"#, at + 1);
        pools += &format!(r#", "p{at}": {{ "servers": [{next}, {next}] }}"#);
    }
    let text = format!(r#"{{ "pools": {{ {pools} }}, "route": "PoolRoute|p0" }}"#);
    assert_eq!(build(&text).1.asked_for.len(), 1);
}

/// A policy by key takes the first child's choice into account, also if that is a route among the servers of a pool.
#[tokio::test]
async fn a_route_that_comes_first_in_a_failover_has_its_hash() {
    let policy = r#"{ "type": "DeterministicOrderPolicy", "max_tries": 2, "max_error_tries": 2 }"#;
    let asked_second = async |first: &str| {
        let pools = r#""B": { "servers": ["b:1", "b:2", "b:3"] }, "C": { "servers": ["c:1", "c:2", "c:3"] },
                       "E": { "servers": [{ "type": "PoolRoute", "pool": "B" }] }"#;
        let text = format!(
            r#"{{ "pools": {{ {pools} }}, "route": {{ "type": "FailoverRoute", "failover_policy": {policy},
                  "children": [{first}, "Pool|C"] }} }}"#
        );
        let mut fakes = FakeDestinations { down: vec!["b:1", "b:2", "b:3"], ..FakeDestinations::default() };
        let root = read(&text).build(&mut fakes);
        let gets: Vec<String> = (0..100).map(|key| format!("get key:{key}")).collect();
        ask(&root, &gets.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    assert_eq!(asked_second(r#""Pool|E""#).await, asked_second(r#""PoolRoute|B""#).await);
}

#[test]
fn what_cannot_be_is_refused() {
    for (text, expected) in [
        (
            with_mixed_pool(r#", "resize_warm_up_s": 5"#, r#""PoolRoute|A""#),
            "at pools.A.resize_warm_up_s: the former owners of keys are not known where routes are among the servers",
        ),
        (
            with_mixed_pool("", r#"{ "type": "PoolRoute", "pool": "A", "hash": "pymemcache" }"#),
            r#"pymemcache picks a server by its name, and a route among the servers has none: expected "tags""#,
        ),
        (with_mixed_pool(r#", "tags": ["x", "y"]"#, r#""PoolRoute|A""#), "2 elements for 3 entries of \"servers\""),
        (
            r#"{ "pools": { "A": { "servers": ["a:1", { "type": "PoolRoute", "pool": "A" }] } }, "route": "PoolRoute|A" }"#
                .to_owned(),
            "at pools.A.servers[1].pool: a route among the servers of pool \"A\" leads back to itself: \
             Pool|A[1] -> Pool|A[1]",
        ),
        (
            r#"{ "pools": { "A": { "servers": ["a:1", "n"] , "port_override": 1 },
                            "B": { "servers": [{ "type": "HashRoute", "children": ["n"] }] } },
                 "named_handles": { "n": "PoolRoute|B" }, "route": "PoolRoute|A" }"#
                .to_owned(),
            "the named handle \"n\" leads back to itself: n -> Pool|B[0] -> n",
        ),
        (
            r#"{ "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": [{ "type": "PolRoute" }] } },
                 "route": "PoolRoute|A" }"#
                .to_owned(),
            "at pools.B.servers[0].type: no route is named \"PolRoute\"; did you mean \"PoolRoute\"?",
        ),
        (
            r#"{ "pools": { "A": { "servers": [{ "type": "NullRoute" }, 7] } }, "route": "PoolRoute|A" }"#.to_owned(),
            "at pools.A.servers[1]: expected a server as \"host:port\", or a route, found the number 7",
        ),
    ] {
        assert!(refusal(&text).contains(expected), "{expected} in {}", refusal(&text));
    }
}
