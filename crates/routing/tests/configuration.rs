//! The configuration language: the meaning of a file, by the servers that are asked, and the full error messages for
//! bad ones.

mod fakes;

use fakes::{Fake, ask};
use lookaside_routing::{
    Address, Configuration, Defaults, Destination, DestinationSettings, Destinations, Failure, PoolRouteConfig,
    Protocol, RootRoute, RoutingPrefix, Security,
};
use std::{collections::BTreeMap, sync::Arc};

/// Makes fakes, and records the calls.
#[derive(Default)]
struct FakeDestinations {
    made: BTreeMap<String, Arc<Fake>>,
    asked_for: Vec<(String, u64, u64)>,
    down: Vec<&'static str>,
}

impl Destinations for FakeDestinations {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        let name = address.to_string();
        self.asked_for.push((name.clone(), settings.server_timeout_ms, settings.connect_timeout_ms));
        let fake = match self.down.contains(&&*name) {
            true => Fake::failing(&name, Failure::ConnectFailed),
            false => Fake::hit(&name),
        };
        self.made.insert(name, fake.clone());
        fake
    }
}

impl FakeDestinations {
    fn asked(&self, name: &str) -> Vec<String> {
        self.made[name].asked()
    }
}

fn read(text: &str) -> Configuration {
    Configuration::parse(text, &Defaults::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn build(text: &str) -> (RootRoute, FakeDestinations) {
    let mut fakes = FakeDestinations::default();
    (read(text).build(&mut fakes), fakes)
}

fn refusal(text: &str) -> String {
    Configuration::parse(text, &Defaults::default()).expect_err("a bad configuration").to_string()
}

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

/// A configuration with this route and a valid pool `A`.
fn with_route(route: &str) -> String {
    format!("{{\"pools\": {{\"A\": {{\"servers\": [\"a:1\"]}}}},\n\"route\": {route}}}")
}

fn with_pool(pool: &str) -> String {
    format!("{{\"pools\": {{\"main\": {{\"servers\": [\"a:1\"]}},\n\"A\": {pool}}},\n\"route\": \"PoolRoute|A\"}}")
}

#[test]
fn invalid_json_is_refused_at_the_first_error() {
    for (text, expected) in [
        ("", "line 1, column 1: the configuration is empty"),
        ("// nothing\n", "line 1, column 1: the configuration is empty"),
        ("{\n  \"route\": }", "line 2, column 12: invalid JSON: Unexpected close brace"),
        ("{\n  \"route\": \"NullRoute\",\n}", "line 2, column 23: invalid JSON: Trailing commas are not allowed"),
        ("{ route: 1 }", "line 1, column 3: invalid JSON: Expected string for object property"),
        ("{ \"route\": 'NullRoute' }", "line 1, column 12: invalid JSON: Single-quoted strings are not allowed"),
        ("{\"route\": \"NullRoute\"", "line 1, column 1: invalid JSON: Unterminated object"),
        ("[]", "line 1, column 1: expected an object with \"pools\" and \"route\", found a list"),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn a_bad_top_is_refused() {
    for (text, expected) in [
        ("{}", "line 1, column 1: \"route\" is missing: expected \"route\" or \"routes\""),
        (
            "{\"route\": \"NullRoute\",\n\"routes\": []}",
            "line 2, column 11, at routes: \"route\" and \"routes\" are both set: expected one of them",
        ),
        (
            "{\"rout\": \"NullRoute\"}",
            "line 1, column 2, at rout: nothing is named \"rout\" here; did you mean \"route\"? Known keys: macros, \
             named_handles, pools, route, routes",
        ),
        (
            "{\"route\": \"NullRoute\",\n\n\"route\": \"NullRoute\"}",
            "line 3, column 1, at route: \"route\" is given twice, first on line 1",
        ),
        (
            "{\"routes\": [{\"aliases\": [\"/././\", \"/*/x/\"], \"route\": \"NullRoute\"}]}",
            "line 1, column 35, at routes[0].aliases[1]: \"/*/x/\" is not a routing prefix: expected \
             \"/region/cluster/\", without \"*\"",
        ),
        (
            "{\"routes\": [{\"aliases\": [\"/././\"], \"route\": \"NullRoute\"},\n{\"aliases\": [\"/./.\"]}]}",
            "line 2, column 14, at routes[1].aliases[0]: /././ is given twice: expected each routing prefix once",
        ),
        (
            "{\"routes\": [{\"aliases\": [\"/././\"]}]}",
            "line 1, column 13, at routes[0]: \"route\" is missing: expected a route",
        ),
        (
            "{\"routes\": \"NullRoute\"}",
            "line 1, column 12, at routes: expected a list of {\"aliases\", \"route\"}, found the string \"NullRoute\"",
        ),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn a_bad_pool_is_refused() {
    let keys = "connect_timeout, failure_domains, flush_new_servers, inherit, keep_routing_prefix, name, protocol, \
                resize_warm_up_s, security_mech, server_timeout, servers, spare_after_ms, spares, ssl_service_identity, tags, tko_tracker, type, \
                unsafe_ssl_skip_verification, use_ssl, weights";
    for (pool, expected) in [
        ("[]", "line 2, column 6, at pools.A: expected a pool: an object with \"servers\", found a list".to_owned()),
        ("{}", "line 2, column 6, at pools.A: \"servers\" is missing: expected a list of \"host:port\"".to_owned()),
        (
            "{\"servers\": []}",
            "line 2, column 18, at pools.A.servers: pool \"A\" has 0 servers: expected 1 to 8388608".to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\", 7]}",
            "line 2, column 26, at pools.A.servers[1]: expected a server as \"host:port\", found the number 7"
                .to_owned(),
        ),
        (
            "{\"server\": [\"a:1\"]}",
            format!(
                "line 2, column 7, at pools.A.server: nothing is named \"server\" here; did you mean \"servers\"? \
                 Known keys: {keys}"
            ),
        ),
        (
            "{\"servers\": [\"a:1\"], \"server_timeout\": \"1s\"}",
            "line 2, column 45, at pools.A.server_timeout: expected milliseconds from 1 to 3600000, found the string \
             \"1s\""
                .to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"server_timeout\": 0}",
            "line 2, column 45, at pools.A.server_timeout: expected milliseconds from 1 to 3600000, found the number 0"
                .to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"keep_routing_prefix\": 1}",
            "line 2, column 50, at pools.A.keep_routing_prefix: expected true or false, found the number 1".to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"resize_warm_up_s\": 3601}",
            "line 2, column 47, at pools.A.resize_warm_up_s: expected seconds from 0 to 3600, found the number 3601"
                .to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"resize_warm_up_s\": 60, \"keep_routing_prefix\": true}",
            "line 2, column 47, at pools.A.resize_warm_up_s: the servers of a pool with \"keep_routing_prefix\" are \
             routers, which own no keys: expected 0"
                .to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"protocol\": \"caret\"}",
            "line 2, column 39, at pools.A.protocol: \"caret\" is not supported: expected \"ascii\" or \"meta\"".to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"security_mech\": \"tls_to_plain\"}",
            "line 2, column 44, at pools.A.security_mech: \"tls_to_plain\" is not supported: expected \"plain\" or \"ssl\" \
             or \"tls\""
                .to_owned(),
        ),
        (
            "{\"inherit\": \"mian\"}",
            "line 2, column 18, at pools.A.inherit: no pool is named \"mian\"; did you mean \"main\"? Known pools: A, main"
                .to_owned(),
        ),
        (
            "{\"inherit\": \"A\"}",
            "line 2, column 18, at pools.A.inherit: the pool \"A\" inherits from itself: A -> A".to_owned(),
        ),
        (
            "{\"inherit\": \"main\", \"tags\": [\"x\", \"y\"]}",
            "line 2, column 34, at pools.A.tags: 2 entries for 1 servers: expected one for each".to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"failure_domains\": [-1]}",
            "line 2, column 47, at pools.A.failure_domains[0]: expected a failure domain's number from 0 to 4294967295, \
             found the number -1"
                .to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"weights\": [\"1\"]}",
            "line 2, column 39, at pools.A.weights[0]: expected a server's weight from 0 to 1000, found the string \"1\""
                .to_owned(),
        ),
    ] {
        assert_eq!(refusal(&with_pool(pool)), expected, "{pool}");
    }
    let twice =
        "{\"pools\": {\"A\": {\"servers\": [\"a:1\"]},\n\"A\": {\"servers\": [\"b:1\"]}}, \"route\": \"NullRoute\"}";
    assert_eq!(refusal(twice), "line 2, column 1, at pools.A: \"A\" is given twice, first on line 1");
}

#[test]
fn a_bad_server_is_refused() {
    for (server, why) in [
        ("10.0.0.1", "the port is missing"),
        ("", "the host is missing"),
        (":11211", "the host is missing"),
        ("a b:1", "the host is missing"),
        ("a:", "the port is not a number from 1 to 65535"),
        ("a:0", "the port is not a number from 1 to 65535"),
        ("a:65536", "the port is not a number from 1 to 65535"),
        ("a:+1", "the port is not a number from 1 to 65535"),
        ("a:http", "the port is not a number from 1 to 65535"),
        ("[::1]", "the port is missing"),
        ("[::1", "the closing bracket is missing"),
        ("[::1]1:1", "there is no port after the bracket"),
        ("::1:11211", "the host is missing"),
        ("a:1:caret", "\"caret\" is not supported"),
        ("a:1:ascii:ktls12", "\"ktls12\" is not supported"),
        ("a:1:ascii:plain:compressed", "\"compressed\" is not supported"),
    ] {
        let expected = format!(
            "line 2, column 19, at pools.A.servers[0]: {server:?} is not a server: {why}; expected \"host:port\" or \
             \"[v6]:port\""
        );
        assert_eq!(refusal(&with_pool(&format!("{{\"servers\": [{server:?}]}}"))), expected);
    }
}

#[test]
fn a_bad_route_is_refused() {
    let routes = "AllAsyncRoute, AllFastestRoute, AllInitialRoute, AllMajorityRoute, AllSyncRoute, BigValueRoute, DevNullRoute, \
                  ErrorRoute, FailoverRoute, FailoverWithExptimeRoute, HashRoute, HostIdRoute, KeySplitRoute, \
                  L1L2CacheRoute, LatencyInjectionRoute, LatestRoute, LoggingRoute, MigrateRoute, MissFailoverRoute, \
                  ModifyExptimeRoute, ModifyKeyRoute, NullRoute, OperationSelectorRoute, OriginalClientHashRoute, \
                  OutstandingLimitRoute, PoolRoute, PrefixSelectorRoute, RandomRoute, RateLimitRoute, \
                  SaltedFailoverRoute, ShadowRoute, StagingRoute, \
                  WarmUpRoute";
    let hashes = "Ch3, ConstShard, Crc32, Rendezvous, WeightedCh3, WeightedRendezvous, dalli, gomemcache, libmemcached, \
                  libmemcached-ketama, libmemcached-ketama-weighted, pymemcache, python-memcached, spymemcached-ketama, \
                  twemproxy-ketama:crc16, twemproxy-ketama:crc32, twemproxy-ketama:crc32a, twemproxy-ketama:fnv1_32, \
                  twemproxy-ketama:fnv1_64, twemproxy-ketama:fnv1a_32, twemproxy-ketama:fnv1a_64, twemproxy-ketama:md5, \
                  twemproxy-ketama:murmur, twemproxy-ketama:one_at_a_time, twemproxy-modula:crc16, \
                  twemproxy-modula:crc32, twemproxy-modula:crc32a, twemproxy-modula:fnv1_32, twemproxy-modula:fnv1_64, \
                  twemproxy-modula:fnv1a_32, twemproxy-modula:fnv1a_64, twemproxy-modula:md5, twemproxy-modula:murmur, \
                  twemproxy-modula:one_at_a_time";
    let a_route = "a route: an object with a \"type\", or a string such as \"PoolRoute|A\"";
    for (route, expected) in [
        ("7", format!("line 2, column 10, at route: expected {a_route}, found the number 7")),
        ("{}", "line 2, column 10, at route: \"type\" is missing: expected the route's type, such as \"PoolRoute\"".into()),
        (
            r#"{"type": "PoolRout", "pool": "A"}"#,
            format!(
                "line 2, column 19, at route.type: no route is named \"PoolRout\"; did you mean \"PoolRoute\"? Known \
                 routes: {routes}"
            ),
        ),
        (
            r#"{"type": "ShardSplitRoute"}"#,
            format!("line 2, column 19, at route.type: mcrouter's ShardSplitRoute is not supported; known routes: {routes}"),
        ),
        (r#""PoolRoute|B""#, "line 2, column 10, at route: no pool is named \"B\"; known pools: A".into()),
        (
            r#"{"type": "PoolRoute", "pool": "AA"}"#,
            "line 2, column 40, at route.pool: no pool is named \"AA\"; known pools: A".into(),
        ),
        (
            r#"{"type": "PoolRoute"}"#,
            "line 2, column 10, at route: \"pool\" is missing: expected the name of a pool".into(),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": "WeightedCh4"}"#,
format!(
                "line 2, column 53, at route.hash: the hash function \"WeightedCh4\" is not supported; did you mean \
                 \"WeightedCh3\"? Known hash functions: {hashes}"
            ),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "WeightedCh3", "weights": [2]}}"#,
            "line 2, column 53, at route.hash: the weight of server 0 is not valid for the hash WeightedCh3: expected a \
             number from 0 to 1"
                .into(),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": "spymemcached-ketama"}"#,
            "line 2, column 53, at route.hash: spymemcached-ketama names servers by their resolved address, and \"a:1\" \
             has none here: expected \"tags\" such as \"cache1/10.0.0.1:11211\""
                .into(),
        ),
        (
            r#"{"type": "HashRoute", "children": ["NullRoute"], "hash_func": "dalli"}"#,
            "line 2, column 10, at route: the hash dalli needs names, and there are 0 for 1 servers: expected one tag for \
             each server"
                .into(),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "bucketize": {}}"#,
            "line 2, column 45, at route.bucketize: mcrouter's \"bucketize\" is not supported".into(),
        ),
        (
            r#""AllSyncRoute""#,
            "line 2, column 10, at route: AllSyncRoute needs its arguments: expected AllSyncRoute|... or an object with \
             \"type\": \"AllSyncRoute\""
            .into(),
        ),
        (
            r#""PrefixSelectorRoute|x""#,
            "line 2, column 10, at route: PrefixSelectorRoute has no short form: expected an object with \"type\": \
             \"PrefixSelectorRoute\""
            .into(),
        ),
        (
            r#""Pool|A""#,
            "line 2, column 10, at route: \"Pool|A\" is a list of servers: expected one route, such as \
             \"PoolRoute|...\" over them"
            .into(),
        ),
        (
            r#""no_handle""#,
            format!("line 2, column 10, at route: no handle is named \"no_handle\"; known names: {routes}"),
        ),
        (
            r#"{"type": "AllSyncRoute", "children": []}"#,
            "line 2, column 47, at route.children: the list is empty: expected at least one route".into(),
        ),
        (
            r#"{"type": "HashRoute", "children": ["NullRoute", null]}"#,
            format!("line 2, column 58, at route.children[1]: expected {a_route}, found null"),
        ),
        (
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_policy": {"type": "LeastFailurePolicy"}}"#,
            "line 2, column 89, at route.failover_policy.type: no failover policy is named \"LeastFailurePolicy\"; did you \
             mean \"LeastFailuresPolicy\"? Known policies: DeterministicOrderPolicy, FailoverInOrderPolicy, \
             LeastFailuresPolicy, RendezvousPolicy"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_policy": {"max_tries": 0}}"#,
            "line 2, column 94, at route.failover_policy.max_tries: expected children from 1 to 1000000, found the number 0"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute", "NullRoute"], "failover_policy": {"type": "RendezvousPolicy"}}"#,
            "line 2, column 95, at route.failover_policy: 0 tags for 2 children: expected \"tags\" with one for each, the \
             first child among them"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute"], "failover_limit": {"burst": 5}}"#,
            "line 2, column 81, at route.failover_limit: \"rate\" is missing: expected requests a second".into(),
        ),
        (
            r#"{"type": "SaltedFailoverRoute", "pool": "A", "failover_policy": {"type": "LeastFailuresPolicy"}}"#,
            "line 2, column 74, at route.failover_policy: within a pool the next server is chosen by key: expected \
             DeterministicOrderPolicy"
                .into(),
        ),
        (
            r#"{"type": "SaltedFailoverRoute", "pool": "A", "failover_policy": {"type": "DeterministicOrderPolicy", "hash": "dalli"}}"#,
            "line 2, column 74, at route.failover_policy: the hash dalli needs names, and there are 0 for 1 servers: \
             expected one tag for each server"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_errors": {"gets": ["timout"]}}"#,
            "line 2, column 90, at route.failover_errors.gets[0]: no error is named \"timout\"; did you mean \
             \"timeout\"? Known errors: busy, connect_error, connect_timeout, deadline_exceeded, local_error, \
             remote_error, shutdown, timeout, tko, try_again"
            .into(),
        ),
        (
            r#"{"type": "FailoverWithExptimeRoute", "failover": "NullRoute"}"#,
            "line 2, column 10, at route: \"normal\" is missing: expected a route".into(),
        ),
        (
            r#"{"type": "FailoverWithExptimeRoute", "normal": "NullRoute", "failover": "NullRoute", "failover_exptime": -1}"#,
            "line 2, column 115, at route.failover_exptime: expected seconds from 0 to 2592000, found the number -1".into(),
        ),
        (
            r#"{"type": "OperationSelectorRoute", "operation_policies": {"deletes": "NullRoute"}}"#,
            "line 2, column 79, at route.operation_policies.deletes: no operation is named \"deletes\"; did you mean \
             \"delete\"? Known operations: add, append, cas, decr, delete, gat, gats, get, gets, incr, lease-get, \
             lease-set, metaget, prepend, replace, set, touch"
            .into(),
        ),
        (
            r#"{"type": "PrefixSelectorRoute", "policies": {}}"#,
            "line 2, column 10, at route: no key would have a route: expected \"policies\" or a \"wildcard\"".into(),
        ),
        (
            r#"{"type": "ModifyExptimeRoute", "target": "NullRoute", "exptime": 5, "action": "max"}"#,
            "line 2, column 88, at route.action: no action is named \"max\": expected \"set\" or \"min\"".into(),
        ),
    ] {
        assert_eq!(refusal(&with_route(route)), expected, "{route}");
    }
}

#[test]
fn a_bad_named_handle_is_refused_even_if_nothing_refers_to_it() {
    for (named, expected) in [
        (
            r#"{ "a": "b", "b": "PoolRoute|x" }"#,
            "line 1, column 35, at named_handles.b: no pool is named \"x\"; known pools: none",
        ),
        (
            r#"{ "a": "b", "b": { "type": "AllSyncRoute", "children": ["c"] }, "c": "b" }"#,
            "line 1, column 87, at named_handles.c: the named handle \"b\" leads back to itself: b -> c -> b",
        ),
        (
            r#"[ { "name": "a", "type": "NullRoute" }, { "name": "a", "type": "NullRoute" } ]"#,
            "line 1, column 68, at named_handles[1].name: two named handles are named \"a\": expected each name once",
        ),
        (
            r#"[ { "type": "NullRoute" } ]"#,
            "line 1, column 20, at named_handles[0]: \"name\" is missing: expected the handle's name",
        ),
    ] {
        assert_eq!(refusal(&format!("{{\"named_handles\":{named}, \"route\": \"NullRoute\"}}")), expected);
    }
}

/// Parsing recurses, so a tree that is too deep must be refused before the stack overflows.
#[test]
fn a_tree_that_is_too_deep_is_refused() {
    let open = "{\"type\":\"AllSyncRoute\",\"children\":[";
    let nested = |depth| format!("{{\"route\":{}\"NullRoute\"{}}}", open.repeat(depth), "]}".repeat(depth));
    assert!(Configuration::parse(&nested(99), &Defaults::default()).is_ok());
    let too_deep = "the tree is more than 100 handles deep here: expected fewer";
    assert!(refusal(&nested(101)).ends_with(too_deep));
    assert_eq!(refusal(&"[".repeat(100_000)), "line 1, column 513: invalid JSON: Maximum nesting depth exceeded");

    // A chain of names has the same depth, whichever end is parsed first.
    let link = |from, to| format!("\"h{from}\": {{ \"type\": \"AllSyncRoute\", \"children\": \"h{to}\" }},\n");
    let down: String = (10_000..11_000).map(|n| link(n, n + 1)).chain(["\"h11000\": \"NullRoute\"".into()]).collect();
    let up: String = (10_000..11_000).map(|n| link(n + 1, n)).chain(["\"h10000\": \"NullRoute\"".into()]).collect();
    for chain in [down, up] {
        let message = refusal(&format!("{{\"named_handles\": {{ {chain} }}, \"route\": \"NullRoute\"}}"));
        assert!(message.ends_with(too_deep), "{message}");
    }
}

#[test]
fn a_bad_handle_around_others_is_refused_at_its_place() {
    let children = "\"children\": [\"NullRoute\"]";
    for (route, at, why) in [
        (r#"{"type": "WarmUpRoute", "cold": "NullRoute", "exptime": 5}"#.to_owned(), "route", "\"warm\" is missing: expected a route"),
        (
            r#"{"type": "WarmUpRoute", "cold": "NullRoute", "warm": "NullRoute", "hold_off_ms": -1}"#.to_owned(),
            "route.hold_off_ms",
            "expected milliseconds from 0 to 60000, found the number -1",
        ),
        (
            r#"{"type": "MigrateRoute", "from": "NullRoute", "to": "NullRoute"}"#.to_owned(),
            "route",
            "\"start_time\" is missing: expected when the migration begins, in seconds since 1970",
        ),
        (
            r#"{"type": "L1L2CacheRoute", "l1": "NullRoute", "l2": "NullRoute"}"#.to_owned(),
            "route",
            "\"upgradingL1Exptime\" is missing: expected the exptime of copies in L1, in seconds",
        ),
        (
            r#"{"type": "KeySplitRoute", "destination": "NullRoute", "replicas": 0}"#.to_owned(),
            "route.replicas",
            "expected copies of a key from 1 to 1000, found the number 0",
        ),
        (
            r#"{"type": "OutstandingLimitRoute", "target": "NullRoute", "max_outstanding": 0}"#.to_owned(),
            "route.max_outstanding",
            "expected requests from 1 to 1000000, found the number 0",
        ),
        (
            r#"{"type": "RateLimitRoute", "target": "NullRoute", "rates": {"sets_burst": 5}}"#.to_owned(),
            "route.rates.sets_burst",
            "\"sets_burst\" needs its rate: expected \"sets_rate\" too",
        ),
        (
            r#"{"type": "LatencyInjectionRoute", "child": "NullRoute", "before_latency_ms": "1"}"#.to_owned(),
            "route.before_latency_ms",
            "expected milliseconds from 0 to 60000, found the string \"1\"",
        ),
        (
            r#"{"type": "ModifyKeyRoute", "target": "NullRoute", "ensure_key_prefix": "a b"}"#.to_owned(),
            "route.ensure_key_prefix",
            "a key has no spaces and no control characters: expected none",
        ),
        (
            r#"{"type": "ModifyKeyRoute", "target": "NullRoute", "replace_key_prefix": "a"}"#.to_owned(),
            "route",
            "\"replace_key_prefix\" needs its successor: expected \"ensure_key_prefix\"",
        ),
        (
            r#"{"type": "ShadowRoute", "target": "NullRoute", "shadows": [{"target": "NullRoute", "key_fraction_range": [0.5, 2]}]}"#
                .to_owned(),
            "route.shadows[0].key_fraction_range[1]",
            "expected a part of all keys from 0 to 1, found the number 2",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "shadows": [{"target": "NullRoute", "index_range": [3, 1]}]}"#.to_owned(),
            "route.shadows[0].index_range",
            "the range is backwards: expected the first and the last index of a server, such as [0, 3]",
        ),
        (
            r#"{"type": "BigValueRoute", "target": "NullRoute"}"#.to_owned(),
            "route",
            "\"split_threshold\" is missing: expected the largest value that is not split, in bytes",
        ),
        (r#"{"type": "StagingRoute", "warm": "NullRoute"}"#.to_owned(), "route", "\"staging\" is missing: expected a route"),
        (
            r#"{"type": "WarmUpRoute", "cold": "NullRoute", "warm": "NullRoute", "end_share": 2}"#.to_owned(),
            "route.end_share",
            "expected a part of all reads from 0 to 1, found the number 2",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "slow_warmup": {}}"#.to_owned(),
            "route.slow_warmup",
            "\"failoverTarget\" is missing: expected a route",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "slow_warmup": {"failoverTarget": "NullRoute", "settings": {"disable_threshold": 0.5}}}"#
                .to_owned(),
            "route.slow_warmup.settings",
            "the thresholds overlap: expected \"disable_threshold\" to be at least \"enable_threshold\"",
        ),
        (
            format!(r#"{{"type": "LatestRoute", {children}, "failover_count": 0}}"#),
            "route.failover_count",
            "expected children from 1 to 8388608, found the number 0",
        ),
        (
            format!(r#"{{"type": "OriginalClientHashRoute", {children}, "offset": -1}}"#),
            "route.offset",
            "expected an offset from 0 to 8388608, found the number -1",
        ),
        (
            format!(r#"{{"type": "HostIdRoute", {children}, "salt": 1}}"#),
            "route.salt",
            "expected the salt, a string, found the number 1",
        ),
        (
            format!(r#"{{"type": "MissFailoverRoute", {children}, "return_best_on_error": 1}}"#),
            "route.return_best_on_error",
            "expected true or false, found the number 1",
        ),
    ] {
        let errors = Configuration::parse(&with_route(&route), &Defaults::default()).expect_err(&route);
        let errors: Vec<_> = errors.iter().map(|error| (error.line, &*error.path, &*error.message)).collect();
        assert_eq!(errors, [(2, at, why)], "{route}");
    }
    for name in ["AllAsyncRoute", "AllFastestRoute", "AllInitialRoute", "AllMajorityRoute", "RandomRoute"] {
        let message = refusal(&with_route(&format!("{{\"type\": {name:?}, \"children\": []}}")));
        assert!(message.contains("at route.children: the list is empty: expected at least one route"), "{message}");
        let message = refusal(&with_route(&format!("{{\"type\": {name:?}, {children}, \"x\": 1}}")));
        assert!(message.contains("at route.x: nothing is named \"x\" here"), "{message}");
    }
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
        (r#""DevNullRoute""#, "", ""),
        // Without a background there are no permits for copies.
        (r#"{"type": "ShadowRoute", "target": "PoolRoute|A", "shadows": [{"target": "PoolRoute|B"}]}"#, "a:1", "a:1"),
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

/// Once each run of `check-config` showed one error.
#[test]
fn all_independent_errors_are_reported_and_no_others() {
    let text = r#"{
        "pool": {},
        "pools": {
            "A": { "servers": ["a:1", "b", "c:0"], "server_timeout": "1s", "tags": 7 },
            "B": { "servers": ["b:1"], "weight": [1], "connect_timeout": 0 },
            "C": { "inherit": "A" },
            "D": { "servers": [] }
        },
        "named_handles": [
            { "name": "one", "type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|none", "absent"] },
            { "name": "two", "type": "HashRoute", "children": ["Pool|B"], "hash_func": "Crc" }
        ],
        "routes": [
            { "aliases": ["/././"], "route": { "type": "OperationSelectorRoute", "default_policy": "two",
                "operation_policies": { "get": "one", "set": { "type": "NulRoute" }, "add": "PoolRoute|D" } } },
            { "aliases": ["/a/b/"], "route": { "type": "AllSyncRoute", "children": [] } }
        ]
    }"#;
    let errors = Configuration::parse(text, &Defaults::default()).expect_err("many");
    let places: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!(
        places,
        [
            "pool",
            "pools.A.servers[1]",
            "pools.A.servers[2]",
            "pools.A.server_timeout",
            "pools.B.weight",
            "pools.B.connect_timeout",
            "pools.D.servers",
            "named_handles[0].children[1]",
            "named_handles[0].children[2]",
            "named_handles[1].hash_func",
            "routes[0].route.operation_policies.set.type",
            "routes[1].route.children",
        ],
        "{errors}"
    );
    assert!(errors.to_string().starts_with("12 errors; (1) line 2, column "), "{errors}");
    assert!(!errors.has_more());
}

#[test]
fn errors_beyond_twenty_are_counted_as_more() {
    let servers = vec!["\"no port\""; 30].join(",");
    let text = format!(r#"{{ "pools": {{ "A": {{ "servers": [{servers}] }} }}, "route": "PoolRoute|A" }}"#);
    let errors = Configuration::parse(&text, &Defaults::default()).expect_err("many");
    assert!(errors.has_more() && errors.iter().count() == 20);
    assert!(errors.to_string().starts_with("more than 20 errors; (1) "), "{errors}");
}
