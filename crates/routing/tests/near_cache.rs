//! A near cache in front of a far one. Which servers are asked, and what is returned.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask, cache::cache};
use lookaside_protocol::{Operation, StoreMode};
use lookaside_routing::{Failure, L1L2CacheRoute, L1L2Settings, NEGATIVE_FLAG};
use std::sync::Arc;

const TIMEOUT: Failure = Failure::TimedOut;

fn near_and_far(
    negative_exptime_s: u32,
    negative_update_period: u32,
) -> (Arc<FakeEnvironment>, Arc<Fake>, Arc<Fake>, L1L2CacheRoute) {
    let (env, l1, l2) = (FakeEnvironment::new(), cache("l1"), cache("l2"));
    let settings = L1L2Settings { l1_exptime_s: 5, negative_exptime_s, negative_update_period };
    let route = L1L2CacheRoute::new(l1.leaf(), l2.leaf(), settings, env.environment(9).background);
    (env, l1, l2, route)
}

#[tokio::test]
async fn the_far_cache_is_asked_once_and_writes_delete_the_near_copy() {
    let (env, l1, l2, route) = near_and_far(0, 0);
    ask(&*l2.leaf(), &["set k"]).await;
    l2.asked();
    assert_eq!(ask(&route, &["get k"]).await, ["v"]);
    env.run_background().await;
    assert_eq!((l1.asked(), l2.asked()), (vec!["get k".to_owned(), "add k 5".to_owned()], vec!["get k".to_owned()]));
    assert_eq!(ask(&route, &["get k", "lease-get k"]).await, ["v", "v"]);
    assert!(l2.asked().is_empty());
    l1.asked();
    for verb in VERBS.iter().filter(|verb| !["get", "lease-get"].contains(verb)) {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(l2.asked().len(), 1, "{verb}");
        let is_read = ["gets", "gat", "gats"].contains(verb);
        assert_eq!(l1.asked(), if is_read { vec![] } else { vec!["delete k"] }, "{verb}");
    }
    assert_eq!(ask(&route, &["lease-get x"]).await, ["Lease 7"], "the far cache's lease");
    l2.asked();
    assert_eq!(ask(&route, &["set k", "get k", "delete k", "get k"]).await, ["Stored", "v", "Deleted", "Miss"]);
}

#[tokio::test]
async fn a_failing_near_cache_fails_deletes_but_not_reads() {
    let (env, down, l2) = (FakeEnvironment::new(), Fake::failing("l1", TIMEOUT), Fake::hit("l2"));
    let settings = L1L2Settings { l1_exptime_s: 5, negative_exptime_s: 0, negative_update_period: 0 };
    let route = L1L2CacheRoute::new(down.leaf(), l2.leaf(), settings, env.environment(9).background);
    assert_eq!(ask(&route, &["get k", "set k", "delete k"]).await, ["l2", "Stored", "server timed out"]);
    let route = L1L2CacheRoute::new(cache("l1").leaf(), down.leaf(), settings, env.environment(9).background);
    assert_eq!(ask(&route, &["get k", "delete k"]).await, ["server timed out", "server timed out"]);
}

#[tokio::test]
async fn misses_of_the_far_cache_are_cached_for_a_while() {
    let (env, l1, l2, route) = near_and_far(3, 3);
    assert_eq!(ask(&route, &["get k"]).await, ["Miss"]);
    env.run_background().await;
    let entry = l1.requests().pop().expect("a negative entry");
    assert!(matches!(entry.operation, Operation::Store { mode: StoreMode::Add, flags: NEGATIVE_FLAG, exptime: 3, .. }));
    l2.asked();
    assert_eq!(ask(&route, &["get k", "get k"]).await, ["Miss", "Miss"]);
    assert!(l2.asked().is_empty(), "answered twice from the negative entry");
    ask(&route, &["get k"]).await;
    assert_eq!(l2.asked(), ["get k"], "the third get asks L2");
    assert_eq!(ask(&route, &["lease-get k"]).await, ["Lease 7"]);
    assert_eq!(ask(&route, &["set k", "get k"]).await, ["Stored", "v"], "a set replaces the negative entry");
}
