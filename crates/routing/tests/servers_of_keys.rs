//! Which servers may hold the keys that begin with a prefix.

use crate::fakes::{self, Fake};
use futures_util::FutureExt as _;
use lookaside_routing::{
    Address, Configuration, Context, Defaults, Destination, DestinationSettings, Destinations, Failure, Route,
};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

/// Collects the servers that are visited, and those that are asked, which all fail.
#[derive(Default)]
struct Servers {
    visited: BTreeSet<String>,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Destinations for Servers {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        self.visited.insert(address.to_string());
        let (asked, name) = (self.asked.clone(), address.to_string());
        Fake::new(&address.0, move |_| {
            asked.lock().unwrap().insert(name.clone());
            Err(Failure::TimedOut)
        })
    }
}

fn parse(text: &str) -> Configuration {
    Configuration::parse(text, &Defaults::default()).unwrap_or_else(|errors| panic!("{errors}: {text}"))
}

fn servers_of(configuration: &Configuration, key_prefix: &str) -> BTreeSet<String> {
    let mut servers = Servers::default();
    configuration.visit_servers_of_keys(key_prefix.as_bytes(), &mut servers);
    servers.visited
}

/// The servers that requests for `key` ask while no server answers.
fn asked_for(configuration: &Configuration, key: &str) -> BTreeSet<String> {
    let mut servers = Servers::default();
    let root = configuration.build(&mut servers);
    for verb in ["get", "set", "delete"] {
        let request = fakes::request(&format!("{verb} {key}"));
        root.route(vec![request], &Context::default()).now_or_never().expect("no server is waited for");
    }
    servers.asked.lock().unwrap().clone()
}

const POOLS: &str = r#""pools": {
    "users": { "servers": ["u1:1", "u2:1"], "spares": ["spare:1"] }, "posts": { "servers": ["p:1"] },
    "main": { "servers": ["m1:1", "m2:1"] }, "gutter": { "servers": ["g:1"] } }"#;

fn set(servers: &[&str]) -> BTreeSet<String> {
    servers.iter().map(ToString::to_string).collect()
}

const USERS: [&str; 3] = ["spare:1", "u1:1", "u2:1"];

#[test]
fn prefixes_choose_pools_under_every_verb_and_failure() {
    let configuration = parse(&format!(
        r#"{{ {POOLS}, "route": {{
            "type": "OperationSelectorRoute",
            "default_policy": {{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|main", "policies": {{
                "user:": {{ "type": "FailoverRoute", "children": ["PoolRoute|users", "PoolRoute|gutter"] }},
                "post:": "PoolRoute|posts"
            }} }},
            "operation_policies": {{ "delete": {{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|main", "policies": {{
                "user:": {{ "type": "AllSyncRoute", "children": ["PoolRoute|users", "PoolRoute|gutter"] }},
                "post:": "PoolRoute|posts"
            }} }} }}
        }} }}"#
    ));
    let users = &[&USERS[..], &["g:1"]].concat();
    for (prefix, expected) in [
        ("user:", &users[..]),
        ("user:42", users),
        ("post:", &["p:1"]),
        ("other:", &["m1:1", "m2:1"]),
        ("user", &[&users[..], &["m1:1", "m2:1"]].concat()),
        ("", &[&users[..], &["p:1", "m1:1", "m2:1"]].concat()),
        ("/east/web/user:", users),
        ("/east/we", &[&users[..], &["p:1", "m1:1", "m2:1"]].concat()),
    ] {
        assert_eq!(servers_of(&configuration, prefix), set(expected), "{prefix}");
    }
}

#[test]
fn the_longest_prefix_hides_shorter_ones_and_the_wildcard() {
    let configuration = parse(&format!(
        r#"{{ {POOLS}, "route": {{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|main", "policies": {{
            "u": "PoolRoute|posts", "user:": "PoolRoute|users", "user|": "PoolRoute|gutter" }} }} }}"#
    ));
    assert_eq!(servers_of(&configuration, "user:1"), set(&USERS));
    assert_eq!(servers_of(&configuration, "use"), set(&[&USERS[..], &["g:1", "p:1"]].concat()));
    assert_eq!(servers_of(&configuration, "v"), set(&["m1:1", "m2:1"]));
    // `user|#|x` is routed by `user`.
    let cut = servers_of(&configuration, "user|");
    assert!(cut.is_superset(&asked_for(&configuration, "user|#|x")) && cut.contains("g:1"), "{cut:?}");
}

#[test]
fn below_a_route_that_changes_keys_every_child_counts() {
    let configuration = parse(&format!(
        r#"{{ {POOLS}, "route": {{ "type": "ModifyKeyRoute", "ensure_key_prefix": "post:", "target":
            {{ "type": "PrefixSelectorRoute", "wildcard": "PoolRoute|main", "policies": {{
                "user:": "PoolRoute|users", "post:": "PoolRoute|posts" }} }} }} }}"#
    ));
    assert_eq!(servers_of(&configuration, "user:"), set(&[&USERS[..], &["m1:1", "m2:1", "p:1"]].concat()));
}

#[test]
fn named_handles_count_where_they_are_used() {
    let configuration = parse(&format!(
        r#"{{ {POOLS},
            "named_handles": [
                {{ "type": "PoolRoute", "name": "unused", "pool": "posts" }},
                {{ "type": "PoolRoute", "name": "rest", "pool": "main" }},
                {{ "type": "PrefixSelectorRoute", "name": "by_prefix", "policies": {{ "user:": "PoolRoute|users" }}, "wildcard": "rest" }}
            ],
            "route": "by_prefix" }}"#
    ));
    assert_eq!(servers_of(&configuration, "user:"), set(&USERS));
    assert_eq!(servers_of(&configuration, "x"), set(&["m1:1", "m2:1"]));
}

#[test]
fn other_trees_count_for_keys_with_routing_prefixes() {
    let configuration = parse(&format!(
        r#"{{ {POOLS}, "routes": [ {{ "aliases": ["/././"], "route": "PoolRoute|main" }},
            {{ "aliases": ["/east/web/"], "route": "PoolRoute|posts" }} ] }}"#
    ));
    assert_eq!(servers_of(&configuration, "user:"), set(&["m1:1", "m2:1"]));
    assert_eq!(servers_of(&configuration, "/east/web/user:"), set(&["m1:1", "m2:1", "p:1"]));
}

/// A configuration's route over pools `p0` to `p7`, by depth.
fn route(depth: u32) -> BoxedStrategy<String> {
    let pool = (0..8_u32).prop_map(|pool| format!("\"PoolRoute|p{pool}\""));
    if depth == 0 {
        return pool.boxed();
    }
    let children = || prop::collection::vec(route(depth - 1), 1..3);
    let list = |kind: &'static str| {
        children().prop_map(move |children| format!(r#"{{ "type": "{kind}", "children": [{}] }}"#, children.join(",")))
    };
    let prefixes = prop::sample::subsequence(vec!["a", "ab", "abc", "b", "a|", ""], 1..5);
    let selector = (prefixes, prop::collection::vec(route(depth - 1), 6), any::<bool>()).prop_map(
        |(prefixes, routes, has_wildcard)| {
            let policies: Vec<_> =
                prefixes.iter().zip(&routes).map(|(prefix, route)| format!("\"{prefix}\": {route}")).collect();
            let wildcard = if has_wildcard { format!(r#", "wildcard": {}"#, routes[5]) } else { String::new() };
            format!(r#"{{ "type": "PrefixSelectorRoute", "policies": {{ {} }}{wildcard} }}"#, policies.join(","))
        },
    );
    let operation = (route(depth - 1), route(depth - 1)).prop_map(|(default, delete)| {
        format!(r#"{{ "type": "OperationSelectorRoute", "default_policy": {default}, "operation_policies": {{ "delete": {delete} }} }}"#)
    });
    let modify = route(depth - 1)
        .prop_map(|target| format!(r#"{{ "type": "ModifyKeyRoute", "ensure_key_prefix": "b", "target": {target} }}"#));
    prop_oneof![pool, list("FailoverRoute"), list("AllSyncRoute"), selector.clone(), selector, operation, modify]
        .boxed()
}

proptest! {
    /// Whatever a request asks while nothing answers is among the servers of each prefix of its key.
    #[test]
    fn no_server_that_may_hold_a_key_is_left_out(route in route(3), key in "(a|ab|abc|b|a\\|#\\||x){1,3}[a-z]?") {
        let pools: Vec<_> = (0..8).map(|pool| format!(r#""p{pool}": {{ "servers": ["s{pool}:1"] }}"#)).collect();
        let configuration = parse(&format!(r#"{{ "pools": {{ {} }}, "route": {route} }}"#, pools.join(",")));
        let asked = asked_for(&configuration, &key);
        for end in 0..=key.len() {
            let found = servers_of(&configuration, &key[..end]);
            prop_assert!(found.is_superset(&asked), "{key} asks {asked:?}, and {:?} has {found:?}", &key[..end]);
        }
    }
}
