//! Routes that store elsewhere what they read, in the tree of a client that sends servers nothing but reads: a router
//! is sent the reads after which something is to be stored.

use crate::fakes::{Fake, VERBS, ask, cache::cache, request};
use crate::parsing::read;
use bytes::Bytes;
use lookaside_protocol::{Operation, Request, StoreMode};
use lookaside_routing::{
    Address, Context, DatagramLoss, Destination, DestinationSettings, Destinations, Environment, Failure,
    NEGATIVE_FLAG, NEGATIVE_VALUE, Route,
};
use std::{collections::BTreeMap, sync::Arc};

/// The leaves of a client's tree: servers, and a router.
struct Leaves {
    servers: BTreeMap<String, Arc<Fake>>,
    router: Arc<Fake>,
    /// For each place of a route that fills, whether all above pass reads on.
    places: Vec<bool>,
}

impl Leaves {
    fn new() -> Leaves {
        Leaves { servers: BTreeMap::new(), router: Fake::hit("router"), places: Vec::new() }
    }

    fn asked(&self, server: &str) -> Vec<String> {
        self.servers[server].asked()
    }
}

impl Destinations for Leaves {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        self.servers.entry(address.to_string()).or_insert_with(|| cache(&address.0)).clone()
    }

    fn environment(&mut self) -> Environment {
        Environment { filling_router: Some(self.router.leaf()), ..Environment::none() }
    }

    fn fill_on_reads(&mut self, is_passed_to: bool) {
        self.places.push(is_passed_to);
    }
}

fn with_pools(rest: &str) -> String {
    format!(r#"{{ "pools": {{ "A": {{ "servers": ["a:1"] }}, "B": {{ "servers": ["b:1"] }} }}, {rest} }}"#)
}

fn build(route: &str) -> (impl Route, Leaves) {
    let mut leaves = Leaves::new();
    let route = read(&with_pools(&format!(r#""route": {route}"#))).build(&mut leaves);
    (route, leaves)
}

const NEAR: &str = r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 60,
                       "ncacheExptime": 5, "ncacheUpdatePeriod": 3}"#;
const NEAR_ALONE: &str = r#"{"type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B",
                             "upgradingL1Exptime": 60, "l1_only_writes": true}"#;
const WARMING: &str = r#"{"type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B", "exptime": 60}"#;
const STAGING: &str = r#"{"type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|B"}"#;

#[tokio::test]
async fn a_near_cache_is_asked_and_then_the_router() {
    for near in [NEAR, NEAR_ALONE] {
        let (route, leaves) = build(near);
        ask(&*leaves.servers["a:1"].leaf(), &["set k"]).await;
        leaves.asked("a:1");
        assert_eq!(
            ask(&route, &["get k", "lease-get k", "get x", "gets k", "lease-get x"]).await,
            ["v", "v", "router", "router", "router"]
        );
        assert_eq!(leaves.asked("a:1"), ["get k", "get k", "get x", "get x"], "it takes no lease of its own");
        assert_eq!(leaves.router.asked(), ["get x", "gets k", "lease-get x"]);
        assert!(leaves.asked("b:1").is_empty());
    }
}

#[tokio::test]
async fn a_negative_entry_is_the_routers_to_count() {
    let (route, leaves) = build(NEAR);
    let value = Bytes::from_static(NEGATIVE_VALUE);
    let operation = Operation::Store { mode: StoreMode::Set, flags: NEGATIVE_FLAG, exptime: 0, value, cas: false };
    let entry = Request { key: "k".into(), operation };
    leaves.servers["a:1"].leaf().route(vec![entry], &Context::default()).await;
    leaves.asked("a:1");
    assert_eq!(ask(&route, &["get k"]).await, ["router"]);
    assert_eq!((leaves.asked("a:1"), leaves.router.asked()), (vec!["get k".to_owned()], vec!["get k".to_owned()]));
}

/// Once the read was sent to a router at once, by TCP, while datagrams were lost because replies came too fast.
#[tokio::test]
async fn a_lost_datagram_of_a_near_cache_is_a_miss_and_a_failed_near_cache_is_not() {
    let lost = Failure::DatagramLost { server: Address("a:1".into()), loss: DatagramLoss::LostOrLate };
    for (failure, asked) in [(lost, 0), (Failure::TimedOut, 2), (Failure::ConnectionLost, 2)] {
        let mut leaves = Leaves::new();
        leaves.servers.insert("a:1".to_owned(), Fake::failing("a:1", failure.clone()));
        let route = read(&with_pools(&format!(r#""route": {NEAR}"#))).build(&mut leaves);
        let outcomes = route.route(vec![request("get k"), request("lease-get k")], &Context::default()).await;
        assert_eq!(leaves.asked("a:1"), ["get k", "get k"]);
        assert_eq!(leaves.router.asked().len(), asked, "{failure:?}");
        assert!(asked > 0 || outcomes.iter().all(|outcome| *outcome == Err(failure.clone())), "{outcomes:?}");
    }
}

#[tokio::test]
async fn reads_of_a_cluster_that_is_filled_are_the_routers() {
    for route in [WARMING, STAGING] {
        let (route, leaves) = build(route);
        assert_eq!(ask(&route, &["get k", "gets k", "lease-get k"]).await, ["router"; 3]);
        assert_eq!(leaves.router.asked(), ["get k", "gets k", "lease-get k"]);
        assert!(leaves.asked("a:1").is_empty() && leaves.asked("b:1").is_empty());
    }
}

/// A client may send updates to servers, too, by choice.
#[tokio::test]
async fn all_other_requests_take_the_route_itself() {
    for filling in [NEAR, NEAR_ALONE, WARMING, STAGING] {
        for verb in VERBS.into_iter().filter(|verb| !["get", "gets", "lease-get"].contains(verb)) {
            let (route, leaves) = build(filling);
            ask(&route, &[&format!("{verb} k")]).await;
            assert!(leaves.router.asked().is_empty(), "{verb}");
            assert!(leaves.asked("a:1").len() + leaves.asked("b:1").len() > 0, "{verb}");
        }
        let (route, leaves) = build(filling);
        assert_eq!(ask(&route, &["set k", "get k"]).await, ["Stored", "v"], "in their order");
        assert!(leaves.router.asked().is_empty());
    }
}

#[tokio::test]
async fn a_routers_routes_fill_themselves() {
    for filling in [NEAR, WARMING, STAGING] {
        let (route, fakes) = crate::parsing::build(&with_pools(&format!(r#""route": {filling}"#)));
        assert_eq!(ask(&route, &["get k"]).await, ["a:1"]);
        assert_eq!(fakes.asked("a:1")[0], "get k");
    }
}

/// Whether each place of `WARMING` is below routes that pass reads on, in the order of the tree.
fn places(rest: &str) -> Vec<bool> {
    let mut leaves = Leaves::new();
    let _ = read(&with_pools(rest)).build(&mut leaves);
    leaves.places
}

#[test]
fn routes_above_that_do_more_than_to_pass_reads_on_are_found() {
    let above = |route: &str| places(&format!(r#""route": {}"#, route.replace("FILLING", WARMING)));
    for passing in [
        "FILLING",
        r#"{"type": "FailoverRoute", "children": [FILLING, "PoolRoute|B"]}"#,
        r#"{"type": "FailoverWithExptimeRoute", "normal": FILLING, "failover": "PoolRoute|B"}"#,
        r#"{"type": "PrefixSelectorRoute", "policies": {"a:": FILLING}, "wildcard": "PoolRoute|B"}"#,
        r#"{"type": "OperationSelectorRoute", "default_policy": FILLING, "operation_policies": {"set": "NullRoute"}}"#,
        r#"{"type": "HashRoute", "children": [FILLING, "PoolRoute|B"]}"#,
        r#"{"type": "PoolRoute", "pool": {"servers": ["c:1", FILLING]}}"#,
        r#"{"type": "LeaseRoute", "target": {"type": "LoggingRoute", "target": FILLING}}"#,
    ] {
        assert_eq!(above(passing), [true], "{passing}");
    }
    for other in [
        r#"{"type": "FailoverRoute", "children": ["PoolRoute|B", FILLING], "failover_tag": true}"#,
        r#"{"type": "MissFailoverRoute", "children": [FILLING, "PoolRoute|B"]}"#,
        r#"{"type": "AllFastestRoute", "children": [FILLING, "PoolRoute|B"]}"#,
        r#"{"type": "ModifyKeyRoute", "set_key_suffix": "x", "target": {"type": "LoggingRoute", "target": FILLING}}"#,
        r#"{"type": "KeySplitRoute", "replicas": 2, "all_sync": true, "first_hit": true, "destination": FILLING}"#,
        r#"{"type": "BigValueRoute", "split_threshold": 100, "target": FILLING}"#,
        r#"{"type": "PoolRoute", "pool": {"servers": ["c:1", FILLING]}, "max_outstanding": 9}"#,
        r#"{"type": "PoolRoute", "pool": "A", "shadows": [{"target": FILLING, "index_range": [0, 1],
            "key_fraction_range": [0, 1]}]}"#,
    ] {
        assert_eq!(above(other), [false], "{other}");
    }
    assert_eq!(
        above(r#"{"type": "WarmUpRoute", "cold": FILLING, "warm": "PoolRoute|B", "exptime": 1}"#),
        [true, false]
    );
    assert!(above(r#""PoolRoute|A""#).is_empty());
}

/// A named handle is built once, wherever it is used, and also if it is not. Once that sent all reads of a client
/// through the routers because of a handle of which no read was sent to any server.
#[test]
fn each_use_of_a_named_handle_is_a_place() {
    let changing = r#"{"type": "ModifyKeyRoute", "set_key_suffix": "x", "target": "one"}"#;
    let handles = r#"{"one": WARMING, "two": {"type": "LoggingRoute", "target": "one"}, "changing": CHANGING}"#;
    let handles = handles.replace("WARMING", WARMING).replace("CHANGING", changing);
    let delete = r#"{"type": "AllSyncRoute", "children": ["two", "PoolRoute|B"]}"#;
    let with = |route: &str| places(&format!(r#""named_handles": {handles}, "route": {route}"#));
    assert_eq!(with(r#""one""#), [true]);
    assert_eq!(with(r#""two""#), [true]);
    assert_eq!(with(r#""changing""#), [false]);
    assert_eq!(with(r#"{"type": "FailoverRoute", "children": ["changing", "two"]}"#), [false, true]);
    let with_delete = with(&format!(
        r#"{{"type": "OperationSelectorRoute", "default_policy": "two", "operation_policies": {{"delete": {delete}}}}}"#
    ));
    assert!(with_delete.len() == 2 && with_delete.contains(&true) && with_delete.contains(&false), "{with_delete:?}");
    assert!(with(r#""PoolRoute|A""#).is_empty(), "none is used: no read reaches them");
}
