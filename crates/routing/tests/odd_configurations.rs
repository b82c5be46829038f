//! What running configurations of mcrouter have that a strict reader would refuse: unknown keys, trailing commas, one
//! for many, empty lists.

use crate::failover::Cluster;
use crate::fakes::{VERBS, ask};
use crate::parsing::*;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_routing::{
    BigValueSettings, Configuration, Context, Defaults, PlaceTimeouts, PoolEntries, PoolRouteConfig, Route,
    RoutingPrefix,
};

fn warnings(text: &str) -> Vec<String> {
    read(text).warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect()
}

#[test]
fn unknown_keys_are_ignored_with_the_nearest_known_one() {
    let text = r#"{
        "pools": { "A": { "servers": ["a:1"], "weigths": [1], "pool_locality": "cluster" } },
        "rout": 7,
        "route": { "type": "OperationSelectorRoute", "operation_policies": { "deletes": "NullRoute" },
                   "default_policy": { "type": "PoolRoute", "pool": "A", "hash": { "hash_fun": "Crc32" }, "hsh": 1 } }
    }"#;
    let found = warnings(text);
    for (path, meant) in [
        ("pools.A.weigths", Some("weights")),
        ("pools.A.pool_locality", None),
        ("rout", Some("route")),
        ("route.operation_policies.deletes", Some("delete")),
        ("route.default_policy.hsh", Some("hash")),
        ("route.default_policy.hash.hash_fun", Some("hash_func")),
    ] {
        let warning = found.iter().find(|warning| warning.starts_with(&format!("{path}: ")));
        let warning = warning.unwrap_or_else(|| panic!("{path} in {found:?}"));
        match meant {
            Some(meant) => assert!(warning.contains(&format!("did you mean {meant:?}?")), "{warning}"),
            None => assert!(!warning.contains("did you mean"), "{warning}"),
        }
    }
    assert_eq!(found.len(), 6, "{found:?}");
}

#[test]
fn a_known_key_that_would_change_the_placement_is_refused() {
    let text = with_route(r#"{"type": "PoolRoute", "pool": "A", "bucketize": true}"#);
    assert!(refusal(&text).contains("is not supported"), "{text}");
    assert_eq!(warnings(&with_route(r#"{"type": "PoolRoute", "pool": "A", "bucketize": false}"#)), [""; 0]);
}

#[tokio::test]
async fn one_stands_for_many_and_a_list_of_one_for_one() {
    let text = |route: &str| {
        format!(
            r#"{{ "pools": {{ "A": {{ "servers": ["a:1",], }}, "B": {{ "servers": ["b:1", "b:2"] }} }}, // trailing commas
                 "route": {route}, }}"#
        )
    };
    for (route, asked) in [
        (r#"["PoolRoute|A"]"#, "a:1"),
        (r#""Pool|A""#, "a:1"),
        (r#"[["Pool|A"], "", []]"#, "a:1"),
        (r#"{"type": "Pool", "name": "C", "servers": ["c:1"]}"#, "c:1"),
        (r#"{"type": "AllSyncRoute", "children": "PoolRoute|A"}"#, "a:1"),
        (r#"{"type": "AllSyncRoute", "children": ["", ["Pool|A", ["Pool|B"]]]}"#, "a:1 b:1 b:2"),
        (r#"{"type": "AllSyncRoute", "children": {"type": "Pool", "servers": ["c:1"]}}"#, "c:1"),
    ] {
        let (root, fakes) = build(&text(route));
        ask(&root, &["delete k"]).await;
        let mut names: Vec<&str> =
            fakes.made.keys().filter(|name| !fakes.asked(name).is_empty()).map(|name| &**name).collect();
        names.sort_unstable();
        assert_eq!(names, asked.split(' ').collect::<Vec<_>>(), "{route}");
    }
}

#[tokio::test]
async fn a_route_over_nothing_is_an_error_or_an_empty_cache() {
    let error = "SERVER_ERROR HashRoute with empty children, name: ";
    for (pool, route, expected) in [
        ("", r#""PoolRoute|A""#, format!("{error}A")),
        ("", r#"{"type": "PoolRoute", "pool": "A", "hash": "Crc32"}"#, format!("{error}A")),
        (r#", "error_on_empty": false"#, r#""PoolRoute|A""#, "Miss".to_owned()),
        ("", r#"{"type": "HashRoute", "children": []}"#, error.to_owned()),
        ("", r#"{"type": "HashRoute", "children": [], "error_on_empty": false}"#, "Miss".to_owned()),
        ("", r#""AllSyncRoute|Pool|A""#, format!("{error}children")),
        ("", r#"{"type": "FailoverRoute", "children": ""}"#, format!("{error}children")),
    ] {
        let (root, _) = build(&format!(r#"{{ "pools": {{ "A": {{ "servers": []{pool} }} }}, "route": {route} }}"#));
        let outcomes = ask(&root, &["get k"]).await;
        let expected = expected.strip_prefix("SERVER_ERROR ").unwrap_or(&expected);
        assert!(outcomes[0].contains(expected), "{route}: {outcomes:?}");
    }
}

#[test]
fn servers_may_be_socket_files_or_have_an_overridden_port() {
    for (pool, expected) in [
        (r#"["unix:/run/a.sock", "unix:/run/b.sock:ascii:plain"]"#, "/run/a.sock /run/b.sock"),
        (r#"["a:0", "b:1:ascii:plain:notcompressed"]"#, "a:0 b:1"),
        (r#"["a", "b:7", "[::1]"], "port_override": 9"#, "a:9 b:9 [::1]:9"),
        (r#"["t:1:ascii:ktls12", "u:1:ascii:fizz"]"#, "t:1 u:1"),
    ] {
        let configuration = read(&with_pool(&format!(r#"{{"servers": {pool}}}"#)));
        let PoolRouteConfig { entries: PoolEntries { pool, .. }, .. } =
            configuration.trees[0].1.config().expect("a PoolRoute");
        let servers: Vec<String> = pool.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers.join(" "), expected);
    }
}

/// The region of the default prefix is `r`.
#[test]
fn ports_and_protection_may_depend_on_the_region() {
    let defaults = Defaults { prefix: RoutingPrefix::parse("/r/c/").unwrap(), ..Defaults::default() };
    let both = r#""port_override": 1, "port_override_within_dc": 2, "port_override_cross_dc": 3"#;
    for (pool, expected) in [
        (both.to_owned(), "a:2 Plain"),
        (format!(r#"{both}, "region": "r""#), "a:2 Plain"),
        (format!(r#"{both}, "region": "s""#), "a:3 Plain"),
        (r#""port_override": 1, "port_override_cross_dc": 3"#.to_owned(), "a:1 Plain"),
        (r#""use_ssl_cross_dc": true, "region": "s""#.to_owned(), "a:7 Tls"),
        (r#""use_ssl_cross_dc": true"#.to_owned(), "a:7 Plain"),
        (r#""security_mech": "tls_to_plain", "security_mech_within_dc": "plain""#.to_owned(), "a:7 Plain"),
        (r#""security_mech": "tls_to_plain", "security_mech_within_dc": "plain", "region": "s""#.to_owned(), "a:7 Tls"),
        (r#""inherit": "far", "port_override": 4"#.to_owned(), "a:3 Tls"),
    ] {
        let far = r#""far": { "servers": [], "region": "s", "port_override_cross_dc": 3, "use_ssl_cross_dc": true }"#;
        let text =
            format!(r#"{{ "pools": {{ {far}, "A": {{ "servers": ["a:7"], {pool} }} }}, "route": "PoolRoute|A" }}"#);
        let configuration = Configuration::parse(&text, &defaults).unwrap_or_else(|error| panic!("{error}"));
        let PoolRouteConfig { entries: PoolEntries { pool: found, .. }, .. } =
            configuration.trees[0].1.config().expect("a PoolRoute");
        assert_eq!(format!("{} {:?}", found.servers[0], found.transport[0].security), expected, "{pool}");
    }
    let wrong = r#"{"servers": ["a:7"], "use_ssl_within_dc": true, "security_mech_within_dc": "plain"}"#;
    assert!(refusal(&with_pool(wrong)).contains(r#"this contradicts "use_ssl_within_dc": true"#));
    assert!(refusal(&with_pool(r#"{"servers": ["a"], "port_override_within_dc": 65536}"#)).contains("expected a port"));
}

#[test]
fn a_pool_with_weights_is_weighted_by_default() {
    let hash = |pool: &str, route: &str| {
        let text = format!(r#"{{ "pools": {{ "A": {{ "servers": ["a:1", "b:1"], {pool} }} }}, "route": {route} }}"#);
        let configuration = read(&text);
        let PoolRouteConfig { hash, entries: PoolEntries { pool, .. }, .. } =
            configuration.trees[0].1.config().expect("a PoolRoute");
        let domains: Vec<String> = pool.failure_domains.iter().map(ToString::to_string).collect();
        (hash.function.name().into_owned(), hash.weights.clone(), domains.join(" "), configuration.warnings.len())
    };
    let weighted = "WeightedCh3".to_owned();
    assert_eq!(
        hash(r#""weights": [1, 0.25]"#, r#""PoolRoute|A""#),
        (weighted.clone(), vec![1.0, 0.25], String::new(), 0)
    );
    assert_eq!(
        hash(r#""weights": [1, 0.25, 1]"#, r#""PoolRoute|A""#),
        (weighted.clone(), vec![1.0, 0.25], String::new(), 1)
    );
    assert_eq!(
        hash(r#""weights": [1]"#, r#"{"type": "PoolRoute", "pool": "A"}"#),
        (weighted, vec![1.0], String::new(), 1)
    );
    let own = hash(
        r#""weights": [1, 1], "failure_domains": [7, "rack"]"#,
        r#"{"type": "PoolRoute", "pool": "A", "hash": "Crc32"}"#,
    );
    assert_eq!((&*own.0, &*own.2), ("Crc32", "7 rack"));
}

#[test]
fn timeouts_depend_on_the_place_of_the_pool() {
    let defaults = Defaults {
        prefix: RoutingPrefix::parse("/r/c/").unwrap(),
        place_timeouts: PlaceTimeouts { cross_region_ms: Some(1), cross_cluster_ms: Some(2), within_cluster_ms: None },
        ..Defaults::default()
    };
    for (place, expected) in [
        (r#", "region": "x", "cluster": "c""#, 1),
        (r#", "region": "r", "cluster": "d""#, 2),
        (r#", "region": "r", "cluster": "c""#, 70),
        (r#", "region": "x""#, 70),
    ] {
        let text = with_pool(&format!(r#"{{"servers": ["a:1"], "server_timeout": 70{place}}}"#));
        let configuration = Configuration::parse(&text, &defaults).unwrap_or_else(|error| panic!("{error}"));
        let PoolRouteConfig { entries: PoolEntries { pool, .. }, .. } =
            configuration.trees[0].1.config().expect("a PoolRoute");
        assert_eq!(pool.settings.server_timeout_ms, expected, "{place}");
    }
}

#[tokio::test]
async fn unknown_prefixes_may_go_to_the_default_tree() {
    let text = r#"{ "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["b:1"] } },
                    "routes": { "/././": "PoolRoute|A", "/r/c/": "PoolRoute|B" } }"#;
    let keys = ["get /x/y/k", "get /x*/y/k", "get /r/c/k", "get /a/k"];
    for (is_sent, expected) in
        [(true, ["a:1", "a:1", "b:1", "a:1"]), (false, ["No rh found", "No rh found", "b:1", "a:1"])]
    {
        let defaults = Defaults { sends_unknown_prefix_to_default: is_sent, ..Defaults::default() };
        let mut fakes = FakeDestinations::default();
        let root = Configuration::parse(text, &defaults).unwrap_or_else(|error| panic!("{error}")).build(&mut fakes);
        let outcomes = ask(&root, &keys).await;
        for (outcome, expected) in outcomes.iter().zip(expected) {
            assert!(outcome.contains(expected), "{is_sent}: {outcomes:?}");
        }
    }
}

#[tokio::test]
async fn clients_may_be_allowed_to_read_only() {
    let defaults = Defaults { allows_only_gets: true, ..Defaults::default() };
    let mut fakes = FakeDestinations::default();
    let root = Configuration::parse(&with_pool(r#"{"servers": ["a:1"]}"#), &defaults).unwrap().build(&mut fakes);
    let outcomes = ask(&root, &["get k", "set k 5", "delete k", "get l"]).await;
    assert_eq!(outcomes, ["a:1", "NotStored", "NotFound", "a:1"]);
    assert_eq!(fakes.asked("a:1"), ["get k", "get l"]);
    let mut reading = Vec::new();
    for verb in VERBS {
        ask(&root, &[&format!("{verb} k")]).await;
        reading.extend((!fakes.asked("a:1").is_empty()).then_some(verb));
    }
    assert_eq!(reading, ["get", "gets", "gat", "gats", "lease-get", "metaget"]);
}

/// mcrouter's order: values are split directly above the tree, so a request is logged once, with its whole value.
#[tokio::test]
async fn values_are_split_below_the_log() {
    let big_values = Some(BigValueSettings::above(10));
    let defaults = Defaults { big_values, logs_requests: true, ..Defaults::default() };
    let configuration = Configuration::parse(&with_route(r#""PoolRoute|A""#), &defaults).unwrap();
    let (root, cluster) = Cluster::of(&configuration);
    let operation =
        Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value: "0123456789abcde".into(), cas: false };
    let outcomes = root.route(vec![Request { key: "k".into(), operation }], &Context::default()).await;
    assert_eq!(outcomes, [Ok(Reply::Stored)]);
    assert_eq!(cluster.servers["a:1"].asked().len(), 3, "two chunks and the head");
    assert_eq!(cluster.env.lines(), ["set k: stored, 0 bytes"]);
}

#[tokio::test]
async fn a_group_without_a_route_has_mcrouters_error() {
    let groups = r#"{"type": "RoutingGroupRoute", "routing_group_policies": {"get_like": "PoolRoute|A"}}"#;
    let (root, _) = build(&with_route(groups));
    assert_eq!(ask(&root, &["get k", "set k"]).await, ["a:1", "unknown result"]);
}
