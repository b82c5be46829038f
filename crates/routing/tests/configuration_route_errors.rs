//! The full error messages for bad routes and named handles.

use crate::parsing::*;
use lookaside_routing::{Configuration, Defaults};

#[test]
fn a_bad_route_is_refused() {
    let routes = "AllAsyncRoute, AllFastestRoute, AllInitialRoute, AllMajorityRoute, AllSyncRoute, BigValueRoute, DevNullRoute, \
                  ErrorRoute, FailoverRoute, FailoverWithExptimeRoute, HashRoute, HostIdRoute, KeySplitRoute, \
                  L1L2CacheRoute, L1L2SizeSplitRoute, LatencyInjectionRoute, LatestRoute, LeaseRoute, LoadBalancerRoute, LoggingRoute, MigrateRoute, \
                  MissFailoverRoute, \
                  ModifyExptimeRoute, ModifyKeyRoute, NullRoute, OperationSelectorRoute, OriginalClientHashRoute, \
                  OutstandingLimitRoute, PoolRoute, PrefixSelectorRoute, RandomRoute, RateLimitRoute, \
                  RoutingGroupRoute, SaltedFailoverRoute, ShadowRoute, ShardSplitRoute, StagingRoute, \
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
                 routes: {routes} (Unknown RouteHandle: PoolRout line: 2)"
            ),
        ),
        (
            r#"{"type": "BlackholeRoute"}"#,
            format!("line 2, column 19, at route.type: mcrouter's BlackholeRoute is not supported; known routes: {routes} \
                     (Unknown RouteHandle: BlackholeRoute line: 2)"),
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
            r#"{"type": "PoolRoute", "pool": "A", "bucketize": true}"#,
            "line 2, column 58, at route.bucketize: mcrouter's \"bucketize\" is not supported".into(),
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
            r#"["PoolRoute|A", "Pool|A"]"#,
            "line 2, column 10, at route: a list of 2 routes or servers: expected one route, such as \"PoolRoute|...\" \
             over servers"
            .into(),
        ),
        (
            "[]",
            "line 2, column 10, at route: a list of 0 routes or servers: expected one route, such as \"PoolRoute|...\" \
             over servers"
            .into(),
        ),
        (
            r#""no_handle""#,
            format!("line 2, column 10, at route: no handle is named \"no_handle\"; known names: {routes}"),
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
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_policy": {"type": "LeastFailuresPolicy", "max_tries": 0}}"#,
            "line 2, column 125, at route.failover_policy.max_tries: expected children from 1 to 1000000, found the number 0"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_policy": {"type": "DeterministicOrderPolicy", "max_error_tries": 1}}"#,
            "line 2, column 80, at route.failover_policy: \"max_tries\" is missing: expected the maximum number of children \
             to ask"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": "NullRoute", "failover_policy": {"type": "DeterministicOrderPolicy", "max_tries": 1}}"#,
            "line 2, column 80, at route.failover_policy: \"max_error_tries\" is missing: expected the maximum number of \
             failures"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute", "NullRoute"], "failover_policy": {"type": "RendezvousPolicy"}}"#,
            "line 2, column 95, at route.failover_policy: 0 tags for 1 children behind the first: expected \"tags\" with one \
             for each child but the first"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute"], "failover_limit": {"burst": 5}}"#,
            "line 2, column 81, at route.failover_limit: \"rate\" is missing: expected a share of requests \
             from 0 to 1"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute"], "failover_limit": {"rate": 5}}"#,
            "line 2, column 90, at route.failover_limit.rate: expected the share of requests that may fail over, a number \
             from 0 to 1, found the number 5"
                .into(),
        ),
        (
            r#"{"type": "FailoverRoute", "children": ["NullRoute"], "failover_limit": {"rate": 1, "burst": 0}}"#,
            "line 2, column 102, at route.failover_limit.burst: expected failovers from 1 to 1000000000, found the number 0"
                .into(),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": "Rendezvous"}"#,
            "line 2, column 53, at route.hash: the hash Rendezvous needs names, and there are 0 for 1 servers: expected \
             one tag for each server"
                .into(),
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "hash": {"hash_func": "Latest", "failover_count": 0}}"#,
            "line 2, column 95, at route.hash.failover_count: expected children from 1 to 8388608, found the number 0"
                .into(),
        ),
        (
            r#"{"type": "LatestRoute", "children": ["NullRoute"], "failover_policy": {"type": "DeterministicOrderPolicy", "max_tries": 1, "max_error_tries": 1, "enable_failure_domains": true}}"#,
            "line 2, column 10, at route: the children that are asked depend on the host, and so do their failure domains: \
             expected no \"enable_failure_domains\""
                .into(),
        ),
        (
            r#"{"type": "HashRoute", "children": "NullRoute", "hash_func": "LoadBalancer", "algorithm": "random"}"#,
            "line 2, column 99, at route.algorithm: expected \"weighted-hashing\" or \"two-random-choices\"".into(),
        ),
        (
            r#"{"type": "ErrorRoute", "result": "mc_res_timeouts"}"#,
            "line 2, column 43, at route.result: \"mc_res_timeouts\" is no error; did you mean \"mc_res_timeout\"? Known \
             results: mc_res_aborted, mc_res_bad_cas_id, mc_res_bad_command, mc_res_bad_exptime, mc_res_bad_flags, \
             mc_res_bad_key, mc_res_bad_lease_id, mc_res_bad_value, mc_res_busy, mc_res_client_error, \
             mc_res_connect_error, mc_res_connect_timeout, mc_res_deadline_exceeded, mc_res_local_error, mc_res_ooo, \
             mc_res_remote_error, mc_res_shutdown, mc_res_timeout, mc_res_tko, mc_res_try_again, mc_res_unknown"
                .into(),
        ),
        (
            r#"{"type": "SaltedFailoverRoute", "pool": "A", "failover_policy": {"type": "LeastFailuresPolicy"}}"#,
            "line 2, column 74, at route.failover_policy: within a pool the next server is chosen by key: expected \
             DeterministicOrderPolicy or RendezvousPolicy"
                .into(),
        ),
        (
            r#"{"type": "SaltedFailoverRoute", "pool": "A", "failover_policy": {"type": "DeterministicOrderPolicy", "hash": "dalli"}}"#,
            "line 2, column 74, at route.failover_policy: the hash dalli needs names, and there are 0 for 2 servers: \
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
/// What the first handle was replaced with was that handle itself, and a failover that looked through names for its
/// children never ended.
#[test]
fn a_failover_to_a_bad_first_named_handle_is_refused() {
    let refusal = refusal(
        r#"{ "named_handles": { "a": "PoolRoute|x" }, "route": { "type": "FailoverRoute", "children": ["a", "NullRoute"] } }"#,
    );
    assert_eq!(refusal, "line 1, column 27, at named_handles.a: no pool is named \"x\"; known pools: none");
}

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
            r#"{"type": "LeaseRoute", "target": "NullRoute", "set_without_miss": "store"}"#.to_owned(),
            "route.set_without_miss",
            "expected \"pass\", \"refuse\" or \"only-if-absent\", found \"store\"",
        ),
        (
            r#"{"type": "LeaseRoute", "target": "NullRoute", "hold_off_ms": 5}"#.to_owned(),
            "route.hold_off_ms",
            "\"hold_off_ms\" needs \"set_without_miss\": \"only-if-absent\"",
        ),
        (
            r#"{"type": "LeaseRoute", "target": "NullRoute", "miss_age_s": 0}"#.to_owned(),
            "route.miss_age_s",
            "expected seconds from 1 to 3600, found the number 0",
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
            r#"{"type": "BigValueRoute", "target": "NullRoute"}"#.to_owned(),
            "route",
            "\"split_threshold\" is missing: expected the largest value that is not split, in bytes",
        ),
        (
            r#"{"type": "ModifyKeyRoute", "target": "NullRoute", "ensure_key_prefix": "b", "replace_key_prefix": "a", "modify_inplace": true}"#
                .to_owned(),
            "route.replace_key_prefix",
            "\"modify_inplace\" overwrites any prefix: expected one of both",
        ),
        (
            r#"{"type": "RoutingGroupRoute"}"#.to_owned(),
            "route",
            "no group would have a route: expected \"default_policy\" or \"routing_group_policies\"",
        ),
        (
            r#"{"type": "RoutingGroupRoute", "routing_group_policies": {"get_likes": "NullRoute"}}"#.to_owned(),
            "route.routing_group_policies.get_likes",
            "no group is named \"get_likes\"; did you mean \"get_like\"? Known groups: arithmetic_like, delete_like, \
             get_like, update_like",
        ),
        (
            r#"{"type": "L1L2SizeSplitRoute", "l1": "NullRoute", "l2": "NullRoute"}"#.to_owned(),
            "route",
            "\"threshold\" is missing: expected the size from which on a value is stored in L2, in bytes",
        ),
        (
            r#"{"type": "L1L2SizeSplitRoute", "l1": "NullRoute", "l2": "NullRoute", "threshold": 5, "retries": 0}"#.to_owned(),
            "route.retries",
            "expected retries from 1 to 10, found the number 0",
        ),
        (
            r#"{"type": "L1L2SizeSplitRoute", "l1": "NullRoute", "l2": "NullRoute", "threshold": 5, "retries": 11}"#.to_owned(),
            "route.retries",
            "expected retries from 1 to 10, found the number 11",
        ),
        (
            r#"{"type": "L1L2SizeSplitRoute", "l1": "NullRoute", "l2": "NullRoute", "threshold": 5, "failure_ttl": 0}"#.to_owned(),
            "route.failure_ttl",
            "expected seconds from 1 to 2592000, found the number 0",
        ),
        (
            r#"{"type": "L1L2SizeSplitRoute", "l1": "NullRoute", "threshold": 5}"#.to_owned(),
            "route",
            "\"l2\" is missing: expected a route; is it \"l1\"?",
        ),
        (
            r#"{"type": "ShardSplitRoute", "destination": "NullRoute"}"#.to_owned(),
            "route",
            "\"shard_splits\" is missing: expected an object with the splits of each shard",
        ),
        (
            r#"{"type": "ShardSplitRoute", "destination": "NullRoute", "shard_splits": {"1": 678}}"#.to_owned(),
            "route.shard_splits.1",
            "expected splits of a shard from 1 to 677, found the number 678",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "shard_splits": {"1": 0}}"#.to_owned(),
            "route.shard_splits.1",
            "expected splits of a shard from 1 to 677, found the number 0",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "shard_splits": {"1": {"new_split_size": "2"}}}"#.to_owned(),
            "route.shard_splits.1.new_split_size",
            "expected splits of a shard from 1 to 677, found the string \"2\"",
        ),
        (
            r#"{"type": "PoolRoute", "pool": "A", "shard_splits": {"1": 2}, "split_shard_fanout": 1}"#.to_owned(),
            "route.split_shard_fanout",
            "expected true or false, found the number 1",
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
}
