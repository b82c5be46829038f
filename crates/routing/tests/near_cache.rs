//! A near cache in front of a far one. Which servers are asked, and what is returned.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask, cache::cache, meta};
use bytes::Bytes;
use lookaside_protocol::{
    Operation, Reply, Request, StoreMode,
    meta::{MetaStatus, MetaVerb},
};
use lookaside_routing::{Context, Failure, L1L2CacheRoute, L1L2Settings, NEGATIVE_FLAG, Route};
use std::sync::Arc;

const TIMEOUT: Failure = Failure::TimedOut;

fn near_and_far(
    negative_exptime_s: u32,
    negative_update_period: u32,
) -> (Arc<FakeEnvironment>, Arc<Fake>, Arc<Fake>, L1L2CacheRoute) {
    let (env, l1, l2) = (FakeEnvironment::new(), cache("l1"), cache("l2"));
    let settings = L1L2Settings { l1_exptime_s: 5, negative_exptime_s, negative_update_period, writes_l1_only: false };
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
        let is_read = ["gets", "gat", "gats", "metaget"].contains(verb);
        assert_eq!(l1.asked(), if is_read { vec![] } else { vec!["delete k"] }, "{verb}");
    }
    assert_eq!(ask(&route, &["lease-get x"]).await, ["Lease 7"], "the far cache's lease");
    l2.asked();
    assert_eq!(ask(&route, &["set k", "get k", "delete k", "get k"]).await, ["Stored", "v", "Deleted", "Miss"]);
}

#[tokio::test]
async fn a_failing_near_cache_fails_deletes_but_not_reads() {
    let (env, down, l2) = (FakeEnvironment::new(), Fake::failing("l1", TIMEOUT), Fake::hit("l2"));
    let settings = L1L2Settings { l1_exptime_s: 5, ..L1L2Settings::default() };
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
    let Operation::Store { mode: StoreMode::Add, flags: 0x1_0000, exptime: 3, value, .. } = entry.operation else {
        panic!("{entry:?}");
    };
    assert_eq!((value, NEGATIVE_FLAG), (Bytes::from_static(b"ncache"), 0x1_0000), "as mcrouter's");
    l2.asked();
    assert_eq!(ask(&route, &["get k", "get k"]).await, ["Miss", "Miss"]);
    assert!(l2.asked().is_empty() && env.run_background().await == 0, "answered twice from the negative entry");
    assert_eq!(ask(&route, &["get k"]).await, ["Miss"]);
    assert!(l2.asked().is_empty(), "no client waits for L2");
    l1.asked();
    env.run_background().await;
    assert_eq!(
        (l2.asked(), l1.asked()),
        (vec!["get k".to_owned()], vec!["set k 3".to_owned()]),
        "the entry is renewed"
    );
    assert_eq!(ask(&route, &["lease-get k"]).await, ["Lease 7"]);
    assert_eq!(env.run_background().await, 0, "a lease leaves no entry");
    assert_eq!(ask(&route, &["set k", "get k"]).await, ["Stored", "v"], "a set replaces the negative entry");
}

/// A writer that does not pass this router stores a value in L2.
#[tokio::test]
async fn every_nth_hit_of_a_negative_entry_looks_for_a_value() {
    let (env, l1, l2, route) = near_and_far(3, 2);
    ask(&route, &["get k"]).await;
    env.run_background().await;
    ask(&*l2.leaf(), &["set k"]).await;
    assert_eq!(ask(&route, &["get k", "get k"]).await, ["Miss", "Miss"]);
    l1.asked();
    env.run_background().await;
    assert_eq!(l1.asked(), ["set k 5"], "the value replaces the entry, for the exptime of copies");
    assert_eq!(ask(&route, &["get k"]).await, ["v"]);
}

#[tokio::test]
async fn only_entries_of_the_negative_cache_are_misses() {
    let (env, l1, _, route) = near_and_far(3, 0);
    assert_eq!(ask(&route, &["get k"]).await, ["Miss"]);
    assert_eq!((env.run_background().await, l1.asked().len()), (0, 1), "no period, no negative cache");
    let store = |key: &'static str, flags, value: &'static str| Request {
        key: key.into(),
        operation: Operation::Store { mode: StoreMode::Set, flags, exptime: 0, value: value.into(), cas: false },
    };
    let stored = vec![store("other", 0x1_0000, "x"), store("word", 0, "ncache"), store("entry", 0x1_0001, "ncache")];
    l1.leaf().route(stored, &Context::default()).await;
    assert_eq!(ask(&route, &["get other", "get word", "get entry"]).await, ["x", "ncache", "Miss"]);
}

/// Operators who feed L2 otherwise, and mcrouter.
#[tokio::test]
async fn with_l1_only_writes_the_far_cache_is_only_read() {
    let (env, l1, l2) = (FakeEnvironment::new(), cache("l1"), cache("l2"));
    let settings =
        L1L2Settings { l1_exptime_s: 5, negative_exptime_s: 3, negative_update_period: 9, writes_l1_only: true };
    let route = L1L2CacheRoute::new(l1.leaf(), l2.leaf(), settings, env.environment(9).background);
    for verb in VERBS.iter().filter(|verb| !["get", "gets", "gat", "gats", "lease-get", "metaget"].contains(verb)) {
        ask(&route, &[&format!("{verb} w")]).await;
        assert_eq!((l1.asked().len(), l2.asked().len()), (1, 0), "{verb}");
    }
    ask(&*l2.leaf(), &["set a", "set b", "set c"]).await;
    l2.asked();
    assert_eq!(
        ask(&route, &["gets a", "gat b 7", "lease-get c", "lease-get hot", "get x"]).await[..4],
        ["v", "v", "v", "Lease 1"]
    );
    assert_eq!(l2.asked(), ["gets a", "gat b 7", "get c", "get hot", "get x"], "the lease is L1's");
    assert_eq!(l1.asked(), ["gets a", "gat b 7", "lease-get c", "lease-get hot", "get x"]);
    env.run_background().await;
    assert_eq!(l1.asked(), ["add a 5", "add b 5", "add c 5", "add x 3"], "no negative entry where a lease is held");
    assert_eq!(
        ask(&route, &["get a", "gets b", "lease-get c", "get x", "gats x", "lease-get x"]).await,
        ["v", "v", "v", "Miss", "Miss", "Miss"]
    );
    assert!(l2.asked().is_empty());
    let read = route.route(vec![meta(MetaVerb::Get, "x", "v")], &Context::default()).await;
    assert!(matches!(&read[0], Ok(Reply::Meta(reply)) if reply.status == MetaStatus::Miss), "{read:?}");
}
