//! The routers that a configuration names for clients: they change nothing of its routes, and a bad list is refused.

use crate::fakes::ask;
use crate::parsing::*;
use lookaside_routing::{Configuration, Defaults, RoutingPrefix};

fn with_routers(routers: &str) -> String {
    format!("{{\"pools\": {{\"A\": {{\"servers\": [\"a:1\"]}}}}, \"route\": \"PoolRoute|A\",\n\"routers\": {routers}}}")
}

fn routers_of(text: &str, prefix: &str) -> Vec<String> {
    let prefix = RoutingPrefix::parse(prefix).expect("a prefix");
    let configuration = Configuration::parse(text, &Defaults { prefix, ..Defaults::default() }).expect("it is valid");
    assert!(configuration.warnings.is_empty(), "{:?}", configuration.warnings);
    configuration.routers.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn routers_are_named_for_one_cluster_or_by_routing_prefix() {
    let list = with_routers(r#"["10.0.0.1:5000", "[::1]:5000", "unix:/run/router", "r.example:1"]"#);
    assert_eq!(routers_of(&list, "/./."), ["10.0.0.1:5000", "[::1]:5000", "/run/router", "r.example:1"]);
    assert_eq!(routers_of(&list, "/west/one/"), routers_of(&list, "/./."), "a list is for every client");
    let by_cluster = with_routers(r#"{"/west/one/": ["r:1", "r:2"], "/west/two": ["r:3"]}"#);
    assert_eq!(routers_of(&by_cluster, "/west/one/"), ["r:1", "r:2"]);
    assert_eq!(routers_of(&by_cluster, "/west/two/"), ["r:3"]);
    assert!(routers_of(&by_cluster, "/./.").is_empty(), "those of other clusters are no substitute");
    assert!(routers_of(&with_route("\"PoolRoute|A\""), "/./.").is_empty());
    let (route, fakes) = build(&list);
    assert_eq!(ask(&route, &["get k"]).await, ["a:1"]);
    assert_eq!(fakes.made.len(), 1, "no router is a server");
}

#[test]
fn macros_may_make_the_list() {
    let text = r#"{
        "macros": { "routers_of": { "type": "macroDef", "params": ["host"], "result": ["%host%:1", "%host%:2"] } },
        "route": "NullRoute", "routers": "@routers_of(r)"
    }"#;
    assert_eq!(routers_of(text, "/./."), ["r:1", "r:2"]);
}

#[test]
fn a_bad_list_is_refused() {
    let a_list = "a list of routers, such as [\"host:port\"], or an object with a list for each routing prefix";
    let forms = "expected \"host:port\", \"[v6]:port\" or \"unix:path\"";
    for (routers, expected) in [
        ("\"r:1\"", format!("column 12, at routers: expected {a_list}, found the string \"r:1\"")),
        ("[]", "column 12, at routers: the list of routers is empty: expected one, or no \"routers\"".to_owned()),
        (
            "[7]",
            "column 13, at routers[0]: expected a router as \"host:port\", found the number 7".to_owned(),
        ),
        (
            "[\"r:1\", \"r\"]",
            format!("column 20, at routers[1]: \"r\" is not a router: the port is missing; {forms}"),
        ),
        (
            "[\"r:x\"]",
            format!("column 13, at routers[0]: \"r:x\" is not a router: the port is not a number from 0 to 65535; {forms}"),
        ),
        (
            "[\"r:1:ascii\"]",
            format!(
                "column 13, at routers[0]: \"r:1:ascii\" is not a router: protocol and security are the client's to \
                 choose; {forms}"
            ),
        ),
        ("[\"r:1\", \"r:1\"]", "column 20, at routers[1]: r:1 is given twice: expected each router once".to_owned()),
        (
            "{\"west\": [\"r:1\"]}",
            "column 21, at routers.west: \"west\" is not a routing prefix: expected \"/region/cluster/\", without \"*\""
                .to_owned(),
        ),
        (
            "{\"/a/b\": [\"r:1\"], \"/a/b/\": [\"r:2\"]}",
            "column 39, at routers./a/b/: /a/b/ is given twice: expected each routing prefix once".to_owned(),
        ),
        (
            "{\"/a/b/\": []}",
            "column 22, at routers./a/b/: the list of routers is empty: expected one, or no \"routers\"".to_owned(),
        ),
    ] {
        assert_eq!(refusal(&with_routers(routers)), format!("line 2, {expected}"), "{routers}");
    }
    let many: Vec<String> = (0..1_001).map(|port| format!("\"r:{port}\"")).collect();
    let refused = refusal(&with_routers(&format!("[{}]", many.join(","))));
    assert!(refused.ends_with("at routers: 1001 routers: expected at most 1000"), "{refused}");
}

#[test]
fn its_errors_are_reported_with_the_others() {
    let text = r#"{ "pools": { "A": { "servers": ["a"] } }, "routers": ["r", "s"], "route": "PoolRoute|B" }"#;
    let errors = Configuration::parse(text, &Defaults::default()).expect_err("four");
    let places: Vec<_> = errors.iter().map(|error| &*error.path).collect();
    assert_eq!(places, ["pools.A.servers[0]", "routers[0]", "routers[1]", "route"]);
}
