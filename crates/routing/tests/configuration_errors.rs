//! The full error messages for bad configurations: text, top, pools, servers, and several errors at once.

use crate::parsing::*;
use lookaside_routing::{Configuration, Defaults};

#[test]
fn invalid_json_is_refused_at_the_first_error() {
    for (text, expected) in [
        ("", "line 1, column 1: the configuration is empty"),
        ("// nothing\n", "line 1, column 1: the configuration is empty"),
        ("{\n  \"route\": }", "line 2, column 12: invalid JSON: Unexpected close brace"),
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
            "line 1, column 1: \"route\" is missing: expected \"route\" or \"routes\"; is it \"rout\"?",
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
    for (pool, expected) in [
        ("[]", "line 2, column 6, at pools.A: expected a pool: an object with \"servers\", found a list".to_owned()),
        ("{}", "line 2, column 6, at pools.A: \"servers\" is missing: expected a list of \"host:port\"".to_owned()),
        (
            "{\"servers\": [\"a:1\", 7]}",
            "line 2, column 26, at pools.A.servers[1]: expected a server as \"host:port\", or a route, found the number 7"
                .to_owned(),
        ),
        (
            "{\"server\": [\"a:1\"]}",
            "line 2, column 6, at pools.A: \"servers\" is missing: expected a list of \"host:port\"; is it \"server\"?"
                .to_owned(),
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
            "{\"servers\": [\"a:1\"], \"security_mech\": \"sslv3\"}",
            "line 2, column 44, at pools.A.security_mech: \"sslv3\" is not supported: expected \"plain\" or \"ssl\" \
             or \"tls\" or \"fizz\" or \"ktls12\" or \"tls_to_plain\""
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
            "line 2, column 34, at pools.A.tags: 2 elements for 1 entries of \"servers\": expected one for each".to_owned(),
        ),
        (
            "{\"servers\": [\"a:1\"], \"failure_domains\": [-1]}",
            "line 2, column 47, at pools.A.failure_domains[0]: expected a failure domain's name or number from 0 to 4294967295, \
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
        ("a:", "the port is not a number from 0 to 65535"),
        ("a:65536", "the port is not a number from 0 to 65535"),
        ("a:+1", "the port is not a number from 0 to 65535"),
        ("a:http", "the port is not a number from 0 to 65535"),
        ("unix:run/a", "the path of the socket does not begin with a slash"),
        ("[::1]", "the port is missing"),
        ("[::1", "the closing bracket is missing"),
        ("[::1]1:1", "there is no port after the bracket"),
        ("::1:11211", "the host is missing"),
        ("a:1:caret", "\"caret\" is not supported"),
        ("a:1:ascii:sslv3", "\"sslv3\" is not supported"),
        ("a:1:ascii:plain:zipped", "\"zipped\" is not supported"),
    ] {
        let expected = format!(
            "line 2, column 19, at pools.A.servers[0]: {server:?} is not a server: {why}; expected \"host:port\", \
             \"[v6]:port\" or \"unix:path\""
        );
        assert_eq!(refusal(&with_pool(&format!("{{\"servers\": [{server:?}]}}"))), expected);
    }
}

/// Once each run of `check-config` showed one error.
#[test]
fn all_independent_errors_are_reported_and_no_others() {
    let text = r#"{
        "pools": {
            "A": { "servers": ["a:1", "b", "c:x"], "server_timeout": "1s", "tags": 7 },
            "B": { "servers": ["b:1"], "tko_tracker": 7, "connect_timeout": 0 },
            "C": { "inherit": "A" },
            "D": { "servers": 7 }
        },
        "named_handles": [
            { "name": "one", "type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|none", "absent"] },
            { "name": "two", "type": "HashRoute", "children": ["Pool|B"], "hash_func": "Crc" }
        ],
        "routes": [
            { "aliases": ["/././"], "route": { "type": "OperationSelectorRoute", "default_policy": "two",
                "operation_policies": { "get": "one", "set": { "type": "NulRoute" }, "add": "PoolRoute|D" } } },
            { "aliases": ["/a/b/"], "route": { "type": "AllSyncRoute", "children": [7] } }
        ]
    }"#;
    let errors = Configuration::parse(text, &Defaults::default()).expect_err("many");
    let places: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!(
        places,
        [
            "pools.A.servers[1]",
            "pools.A.servers[2]",
            "pools.A.server_timeout",
            "pools.B.tko_tracker",
            "pools.B.connect_timeout",
            "pools.D.servers",
            "named_handles[0].children[1]",
            "named_handles[0].children[2]",
            "named_handles[1].hash_func",
            "routes[0].route.operation_policies.set.type",
            "routes[1].route.children[0]",
        ],
        "{errors}"
    );
    assert!(errors.to_string().starts_with("11 errors; (1) line 3, column "), "{errors}");
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
