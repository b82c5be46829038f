//! The configuration language: the meaning of a file, by the servers that are asked.

use crate::fakes::{Fake, ask};
use crate::parsing::*;
use lookaside_routing::{
    Address, Configuration, Defaults, Destination, DestinationSettings, Destinations, PoolRouteConfig, Protocol,
    RoutingPrefix, Security,
};
use std::{collections::BTreeMap, sync::Arc};

/// The configuration of one cluster with a gutter, in all its parts.
const CLUSTER: &str = r#"
// One frontend cluster.
{
  "pools": {
    "main":   { "servers": ["10.0.0.1:5001", "10.0.0.2:5001:ascii:plain"], "server_timeout": 250 },
    "gutter": { "servers": ["[::1]:5009"], "server_timeout": 250, "connect_timeout": 50 },
    "rare":   { "servers": ["rare.example:11211"] }
  },
  "named_handles": [
    { "name": "reads", "type": "FailoverWithExptimeRoute", "normal": "PoolRoute|main", "failover": "PoolRoute|gutter",
      "failover_exptime": 10 }
  ],
  "route": {
    "type": "PrefixSelectorRoute",
    "policies": { "rare:": "PoolRoute|rare" }, /* few keys,
                                                  read seldom */
    "wildcard": {
      "type": "OperationSelectorRoute",
      "default_policy": "reads",
      "operation_policies": { "delete": { "type": "AllSyncRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"] } }
    }
  }
}"#;

/// The protocol and security of each server.
#[derive(Default)]
struct Transports(BTreeMap<String, (Protocol, Security)>);

impl Destinations for Transports {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        self.0.insert(address.to_string(), (settings.protocol, settings.security));
        Fake::hit(&address.to_string())
    }
}

#[test]
fn a_server_sets_its_transport_or_takes_its_pools() {
    use {Protocol::*, Security::*};
    let configuration = read(
        r#"{
        "pools": {
            "A": { "servers": ["a:1", "a:2:ascii", "a:3:meta:plain", "a:4:ascii:tls"], "security_mech": "ssl",
                   "protocol": "meta", "ssl_service_identity": "cache" },
            "B": { "servers": ["b:1", "b:2:ascii:ssl"] },
            "C": { "servers": ["c:1"], "inherit": "A", "unsafe_ssl_skip_verification": true }
        },
        "route": { "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B", "PoolRoute|C"] }
    }"#,
    );
    let mut transports = Transports::default();
    configuration.build(&mut transports);
    let expected = [
        ("a:1", (Meta, Tls), Some("cache")),
        ("a:2", (Text, Tls), Some("cache")),
        ("a:3", (Meta, Plain), None),
        ("a:4", (Text, Tls), Some("cache")),
        ("b:1", (Text, Plain), None),
        ("b:2", (Text, Tls), None),
        ("c:1", (Meta, UnverifiedTls), None),
    ];
    for (server, access, identity) in expected {
        assert_eq!(transports.0[server], access, "{server}");
        let policy = &configuration.tls_policies[&Address(server.into())];
        assert_eq!((policy.security, policy.certificate_name.as_deref()), (access.1, identity), "{server}");
    }
}

#[test]
fn tls_settings_of_the_nearer_pool_apply() {
    let security = |parent: &str, child: &str| {
        let text = format!(
            r#"{{"pools": {{"P": {{"servers": ["p:1"], {parent}}}, "C": {{"servers": ["c:1"], "inherit": "P", {child}}}}},
                 "route": "PoolRoute|C"}}"#
        );
        read(&text).tls_policies[&Address("c:1".into())].security
    };
    assert_eq!(security(r#""security_mech": "plain""#, r#""use_ssl": true"#), Security::Tls);
    assert_eq!(security(r#""security_mech": "tls""#, r#""use_ssl": false"#), Security::Plain);
    assert_eq!(security(r#""use_ssl": false"#, r#""security_mech": "tls", "use_ssl": true"#), Security::Tls);
    assert_eq!(security(r#""use_ssl": true"#, r#""server_timeout": 7"#), Security::Tls);
    let why = refusal(
        r#"{"pools": {"A": {"servers": ["a:1"], "security_mech": "plain", "use_ssl": true}}, "route": "PoolRoute|A"}"#,
    );
    assert!(why.contains("contradicts \"use_ssl\": true"), "{why}");
}

#[test]
fn a_port_either_speaks_tls_or_not() {
    let text = |pool: &str| {
        format!(r#"{{"pools": {{"A": {{"servers": ["a:1:ascii:ssl"]}}, "B": {pool}}}, "route": "PoolRoute|A"}}"#)
    };
    read(&text(r#"{"servers": ["a:1:meta:ssl"]}"#));
    let why = refusal(&text(r#"{"servers": ["a:1"]}"#));
    assert!(why.contains("at pools.B: a:1 is reached plain here, and by TLS by another pool"), "{why}");
    let why = refusal(&text(r#"{"servers": ["a:1"], "use_ssl": true, "ssl_service_identity": "b"}"#));
    assert!(why.contains("a:1 is reached by TLS as b here, and by TLS by another pool"), "{why}");
}

#[tokio::test]
async fn a_cluster_is_routed_as_configured() {
    let configuration = read(CLUSTER);
    assert_eq!(configuration.warnings, []);
    let mut fakes = FakeDestinations { down: vec!["10.0.0.1:5001"], ..FakeDestinations::default() };
    let root = configuration.build(&mut fakes);
    assert_eq!(
        fakes.asked_for,
        [
            ("10.0.0.1:5001".to_owned(), 250, 250),
            ("10.0.0.2:5001".to_owned(), 250, 250),
            ("[::1]:5009".to_owned(), 250, 50),
            ("rare.example:11211".to_owned(), 1_000, 1_000),
        ],
        "each server once, though main and gutter are named twice"
    );
    // Under Ch3 over two servers, "12345678" is at the first (which is down) and "a" at the second.
    let outcomes = ask(&root, &["get 12345678", "get a", "set 12345678 99", "delete a", "get rare:a"]).await;
    assert_eq!(outcomes, ["[::1]:5009", "10.0.0.2:5001", "Stored", "Deleted", "rare.example:11211"]);
    assert_eq!(fakes.asked("10.0.0.1:5001"), ["get 12345678", "set 12345678 99"]);
    let gutter = fakes.asked("[::1]:5009");
    assert!(gutter.contains(&"set 12345678 10".to_owned()) && gutter.contains(&"delete a".to_owned()), "{gutter:?}");
}

#[tokio::test]
async fn routes_lead_by_prefix_and_a_string_may_name_a_list_of_servers() {
    let (root, fakes) = build(
        r#"{
          "pools": { "A": { "servers": ["a1:1", "a2:1"] }, "B": { "servers": ["b1:1"], "keep_routing_prefix": true } },
          "routes": [
            { "aliases": ["/././", "/r/a/"], "route": "AllSyncRoute|Pool|A" },
            { "aliases": ["/r/b"], "route": "PoolRoute|B" }
          ]
        }"#,
    );
    ask(&root, &["set /r/a/k", "set k", "set /r/b/k", "delete /*/*/k"]).await;
    assert_eq!(fakes.asked("a1:1"), ["set k 0", "set k 0", "delete k"]);
    assert_eq!(fakes.asked("a2:1"), ["set k 0", "set k 0", "delete k"]);
    assert_eq!(fakes.asked("b1:1"), ["set /r/b/k 0", "delete /*/*/k"]);
}

#[tokio::test]
async fn every_short_form_equals_the_object_form() {
    for (short, long) in [
        (r#""PoolRoute|A""#, r#"{"type": "PoolRoute", "pool": "A"}"#),
        (r#""PoolRoute|A""#, r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "Ch3"}}"#),
        (r#""HashRoute|Pool|A""#, r#"{"type": "HashRoute", "children": "Pool|A"}"#),
        (r#""AllSyncRoute|Pool|A""#, r#"{"type": "AllSyncRoute", "children": ["Pool|A"]}"#),
        (r#""FailoverRoute|Pool|A""#, r#"{"type": "FailoverRoute", "children": ["Pool|A"]}"#),
        (
            r#""AllSyncRoute|PoolRoute|A""#,
            r#"{"type": "AllSyncRoute", "children": {"type": "PoolRoute", "pool": "A"}}"#,
        ),
        (r#""NullRoute""#, r#"{"type": "NullRoute"}"#),
        (r#""ErrorRoute|closed""#, r#"{"type": "ErrorRoute", "response": "closed"}"#),
    ] {
        let trees =
            |route| read(&format!(r#"{{"pools": {{"A": {{"servers": ["a:1", "b:1"]}}}}, "route": {route}}}"#)).trees;
        assert_eq!(trees(short), trees(long));
    }
}

#[tokio::test]
async fn a_pool_may_be_described_where_it_is_used() {
    let (root, fakes) = build(
        r#"{ "route": { "type": "FailoverRoute", "failover_errors": ["connect_error", "tko"], "children": [
               { "type": "PoolRoute", "pool": { "name": "x", "servers": ["x:1"] }, "hash": "Crc32" },
               { "type": "Pool", "name": "y", "servers": ["y:1", "z:1"] } ] } }"#,
    );
    assert_eq!(ask(&root, &["get k"]).await, ["x:1"]);
    assert_eq!(fakes.made.keys().collect::<Vec<_>>(), ["x:1", "y:1", "z:1"]);
}

#[test]
fn named_handles_may_stand_in_any_order_and_are_built_once() {
    let text = r#"{
      "pools": { "A": { "servers": ["a:1"] } },
      "named_handles": { "outer": { "type": "FailoverRoute", "children": ["inner", "inner"] }, "inner": "PoolRoute|A" },
      "route": "outer"
    }"#;
    let names: Vec<String> = read(text).named.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["inner", "outer"]);
    assert_eq!(build(text).1.asked_for.len(), 1);
}

#[tokio::test]
async fn a_pool_inherits_keys_that_it_does_not_set() {
    let (root, fakes) = build(
        r#"{ "pools": {
               "base": { "servers": ["a:1", "b:1", "c:1"], "server_timeout": 5, "keep_routing_prefix": true },
               "A": { "inherit": "B", "server_timeout": 7 },
               "B": { "inherit": "base", "servers": ["b:1"], "connect_timeout": 9 } },
             "route": "PoolRoute|A" }"#,
    );
    assert_eq!(fakes.asked_for, [("b:1".to_owned(), 7, 9)]);
    ask(&root, &["get /././k"]).await;
    assert_eq!(fakes.asked("b:1"), ["get /././k"]);
}

/// `other_clients.rs` tests the placement of keys; this tests the origin of names and weights.
#[test]
fn a_hash_sets_names_and_weights_or_takes_its_pools() {
    let hash = |pool: &str, hash: &str| {
        let text = format!(
            r#"{{"pools": {{"A": {{"servers": ["10.0.0.1:11211", "b:2"]{pool}}}}},
                "route": {{"type": "PoolRoute", "pool": "A", "hash": {hash}}}}}"#
        );
        let handle = read(&text).trees.remove(0).1;
        let PoolRouteConfig { hash, .. } = handle.config().unwrap_or_else(|| panic!("{handle:?}"));
        (hash.names.clone(), hash.weights.clone())
    };
    let names = |one: &str, two: &str| vec![one.to_owned(), two.to_owned()];
    for (pool, function, expected) in [
        ("", r#""dalli""#, (names("10.0.0.1:11211", "b:2"), vec![])),
        ("", r#""libmemcached-ketama""#, (names("10.0.0.1", "b:2"), vec![])),
        ("", r#""twemproxy-ketama:md5""#, (names("10.0.0.1", "b:2"), vec![])),
        (r#", "weights": [1, 3]"#, r#""dalli""#, (names("10.0.0.1:11211", "b:2"), vec![1.0, 3.0])),
        (r#", "tags": ["x", "y"], "weights": [0.5]"#, r#""WeightedRendezvous""#, (names("x", "y"), vec![0.5])),
        (
            r#", "tags": ["x", "y"], "weights": [1]"#,
            r#"{"hash_func": "dalli", "tags": ["s", "t"], "weights": [4, 5]}"#,
            (names("s", "t"), vec![4.0, 5.0]),
        ),
        (
            r#", "tags": ["h/1.2.3.4:1", "i/1.2.3.5:1"]"#,
            r#""spymemcached-ketama""#,
            (names("h/1.2.3.4:1", "i/1.2.3.5:1"), vec![]),
        ),
    ] {
        assert_eq!(hash(pool, function), expected, "{pool} {function}");
    }
}

#[test]
fn different_timeouts_need_different_destinations() {
    let (_, fakes) = build(
        r#"{ "pools": { "A": { "servers": ["a:1"] }, "B": { "servers": ["a:1"], "server_timeout": 5, "connect_timeout": 1000 } },
             "route": { "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"] } }"#,
    );
    assert_eq!(fakes.asked_for, [("a:1".to_owned(), 1_000, 1_000), ("a:1".to_owned(), 5, 1_000)]);
}

#[test]
fn keys_without_an_effect_are_ignored_with_a_warning() {
    let configuration = read(
        r#"{
  "pools": { "A": { "servers": ["a:1"], "hostnames": ["a"] } },
  "route": { "type": "PoolRoute", "pool": "A", "asynclog_name": "A" }
}"#,
    );
    let warnings: Vec<String> = configuration.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "line 2, column 54, at pools.A.hostnames: \"hostnames\" is ignored",
            "line 3, column 65, at route.asynclog_name: \"asynclog_name\" is ignored",
        ]
    );
}

#[test]
fn the_caller_sets_the_default_prefix() {
    let text = r#"{ "routes": { "/r/a/": "NullRoute" } }"#;
    let defaults = Defaults { prefix: RoutingPrefix::parse("/r/a/").unwrap(), ..Defaults::default() };
    assert!(Configuration::parse(text, &defaults).is_ok());
    assert_eq!(
        refusal(text),
        "line 1, column 13, at routes: no route is named /././, where keys without a prefix go; known: /r/a/. \
         Add it to a route's \"aliases\", or start with --route-prefix and one of these"
    );
}

/// Every handle, by the servers that are asked when everything is awaited.
#[tokio::test]
async fn every_handle_around_others_is_built_as_configured() {
    let text = |route: &str| {
        format!(
            r#"{{ "pools": {{ "A": {{ "servers": ["a:1"] }}, "B": {{ "servers": ["b:1", "b:2"] }} }}, "route": {route} }}"#
        )
    };
    for (route, of_get, of_delete) in [
        (r#""AllAsyncRoute|Pool|B""#, "b:1 b:2", "b:1 b:2"),
        (r#""AllInitialRoute|Pool|B""#, "b:1 b:2", "b:1 b:2"),
        (r#""AllFastestRoute|Pool|B""#, "b:1 b:2", "b:1 b:2"),
        (r#""AllMajorityRoute|Pool|B""#, "b:1 b:2", "b:1 b:2"),
        (r#""MissFailoverRoute|Pool|B""#, "b:1", "b:1 b:2"),
        (r#""RandomRoute|PoolRoute|A""#, "a:1", "a:1"),
        (r#""HostIdRoute|PoolRoute|A""#, "a:1", "a:1"),
        (r#"{"type": "OriginalClientHashRoute", "children": "Pool|B", "offset": 1}"#, "b:2", "b:2"),
        (r#"{"type": "LatestRoute", "children": "Pool|A", "failover_count": 1}"#, "a:1", "a:1"),
        (r#"{"type": "PoolRoute", "pool": "A", "hash": "Latest"}"#, "a:1", "a:1"),
        (r#"{"type": "HashRoute", "children": "Pool|A", "hash_func": "LoadBalancer"}"#, "a:1", "a:1"),
        (r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B", "exptime": 9}"#, "a:1", "a:1"),
        (
            r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "AllSyncRoute|Pool|B", "upgradingL1Exptime": 5}"#,
            "a:1",
            "a:1 b:1 b:2",
        ),
        (
            r#"{"type": "MigrateRoute", "from": "PoolRoute|A", "to": "AllSyncRoute|Pool|B", "start_time": 0}"#,
            "a:1",
            "a:1 b:1 b:2",
        ),
        (r#"{"type": "MigrateRoute", "from": "PoolRoute|A", "to": "PoolRoute|B", "start_time": 1}"#, "a:1", "a:1"),
        (r#"{"type": "BigValueRoute", "target": "PoolRoute|A", "split_threshold": 1000}"#, "a:1", "a:1"),
        (r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "AllSyncRoute|Pool|B"}"#, "a:1", "a:1 b:1 b:2"),
        (r#"{"type": "SaltedFailoverRoute", "pool": "A"}"#, "a:1", "a:1"),
        (r#"{"type": "PoolRoute", "pool": "A", "slow_warmup": {"failoverTarget": "PoolRoute|B"}}"#, "a:1", "a:1"),
        (r#"{"type": "KeySplitRoute", "destination": "PoolRoute|A", "replicas": 2}"#, "a:1", "a:1"),
        (r#"{"type": "OutstandingLimitRoute", "target": "PoolRoute|A", "max_outstanding": 5}"#, "a:1", "a:1"),
        (
            r#"{"type": "RateLimitRoute", "target": "PoolRoute|A", "rates": {"gets_rate": 0, "gets_burst": 1}}"#,
            "a:1",
            "a:1",
        ),
        (r#"{"type": "LatencyInjectionRoute", "child": "PoolRoute|A", "total_latency_ms": 5}"#, "a:1", "a:1"),
        (r#"{"type": "ModifyKeyRoute", "target": "PoolRoute|A", "set_key_suffix": "x"}"#, "a:1", "a:1"),
        (r#""LoggingRoute|PoolRoute|A""#, "a:1", "a:1"),
        (r#"{"type": "PoolRoute", "pool": "A", "max_outstanding": 1, "rates": {"gets_rate": 5}}"#, "a:1", "a:1"),
        (r#"{"type": "ShardSplitRoute", "destination": "PoolRoute|A", "shard_splits": {"1": 2}}"#, "a:1", "a:1"),
        (
            r#"{"type": "RoutingGroupRoute", "routing_group_policies": {"get_like": "PoolRoute|A"}, "default_policy": "NullRoute"}"#,
            "a:1",
            "",
        ),
        (r#"{"type": "L1L2SizeSplitRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "threshold": 9}"#, "a:1", "a:1"),
        (r#""DevNullRoute""#, "", ""),
        // Without a background there are no permits for copies.
        (
            r#"{"type": "ShadowRoute", "target": "PoolRoute|A",
                "shadows": [{"target": "PoolRoute|B", "keys_to_shadow": ["k"]}]}"#,
            "a:1",
            "a:1",
        ),
    ] {
        let (root, fakes) = build(&text(route));
        for (request, expected) in [("get k", of_get), ("delete k", of_delete)] {
            ask(&root, &[request]).await;
            let mut asked: Vec<&String> = fakes.made.keys().filter(|name| !fakes.asked(name).is_empty()).collect();
            asked.sort();
            let expected: Vec<&str> = expected.split_whitespace().collect();
            assert_eq!(asked, expected, "{request} by {route}");
        }
    }
    let warnings = read(&text(r#"{"type": "WarmUpRoute", "cold": "NullRoute", "warm": "NullRoute"}"#)).warnings;
    assert!(warnings[0].message.contains("never expire"), "{warnings:?}");
}
