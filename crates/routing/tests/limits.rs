//! Limits, latencies and logs around a route. Which servers are asked, and what is returned.

use crate::environment::{FakeEnvironment, HeldRoute};
use crate::fakes::{Fake, VERBS, ask, cache::cache};
use futures_util::{FutureExt, future::join};
use lookaside_routing::{
    Failure, Latency, LatencyInjectionRoute, LoggingRoute, OutstandingLimitRoute, Rate, RateLimitRoute, Rates,
};
use std::time::Duration;

const TIMEOUT: Failure = Failure::TimedOut;

#[tokio::test]
async fn a_full_window_makes_requests_wait_and_the_queue_is_bounded() {
    let server = Fake::failing("s", TIMEOUT);
    let held = HeldRoute::new(server.leaf());
    let route = OutstandingLimitRoute::new(held.clone(), 2, 3);
    let (mut first, mut second) =
        (Box::pin(ask(&route, &["get a", "get b"])), Box::pin(ask(&route, &["get c", "set d", "delete e"])));
    assert!(join(first.as_mut(), second.as_mut()).now_or_never().is_none());
    assert_eq!(ask(&route, &["get f", "get g"]).await, ["too many requests outstanding"; 2], "the queue is full");
    held.release_one();
    assert_eq!(first.await, ["server timed out"; 2]);
    assert_eq!(server.asked_batches(), [["get a", "get b"]]);
    held.release_one();
    held.release_one();
    assert_eq!(second.await, ["server timed out"; 3], "in parts that fit");
    assert_eq!(server.asked_batches(), [vec!["get c", "set d 0"], vec!["delete e"]]);
    assert!(ask(&route, &["get x", "get y"]).now_or_never().is_none(), "a dropped caller");
    held.release_one();
    assert_eq!(ask(&route, &["get z", "get w"]).await, ["server timed out"; 2], "returns its permit");
}

#[tokio::test]
async fn rates_are_limited_by_kind() {
    let (env, server, fallback) = (FakeEnvironment::new(), Fake::hit("s"), Fake::hit("fallback"));
    let rate = |per_s, burst| Some(Rate { per_s, burst });
    let rates = Rates { gets: rate(2, 3), sets: rate(1, 1), deletes: rate(1, 1) };
    let route = RateLimitRoute::new(server.leaf(), None, rates, env.clone());
    assert_eq!(ask(&route, &["get a", "get b", "get c", "get d"]).await, ["s", "s", "s", "Miss"]);
    assert_eq!(ask(&route, &["set a", "set b", "touch c"]).await, ["Stored", "NotStored", "NotFound"]);
    let busy = "too many requests outstanding";
    assert_eq!(ask(&route, &["delete a", "delete b"]).await, ["Deleted", busy], "no client takes it for done");
    assert_eq!(server.asked().len(), 5);
    env.advance(Duration::from_millis(500));
    assert_eq!(ask(&route, &["get a", "get b", "delete a"]).await, ["s", "Miss", busy]);
    env.advance(Duration::from_secs(60));
    assert_eq!(
        ask(&route, &["gets a", "gat b", "lease-get c", "get d"]).await,
        ["s", "s", "s", "Miss"],
        "no more than the burst"
    );
    for verb in VERBS {
        let never = RateLimitRoute::new(server.leaf(), Some(fallback.leaf()), rates, env.clone());
        ask(&never, &[&format!("{verb} a"), &format!("{verb} b"), &format!("{verb} c"), &format!("{verb} d")]).await;
        assert!(!fallback.asked().is_empty(), "{verb}");
    }
    let unlimited = RateLimitRoute::new(server.leaf(), None, Rates::default(), env.clone());
    assert_eq!(ask(&unlimited, &["set k"; 50]).await, ["Stored"; 50]);
}

#[tokio::test]
async fn latency_is_added_before_after_and_in_total() {
    for server in [Fake::hit("s"), Fake::miss("s"), Fake::failing("s", TIMEOUT)] {
        let env = FakeEnvironment::new();
        let ms = Duration::from_millis;
        let latency = Latency { before: ms(10), after: ms(20), total: ms(50) };
        let route = LatencyInjectionRoute::new(server.leaf(), latency, env.clone());
        for verb in VERBS {
            let alone = ask(&*server.leaf(), &[&format!("{verb} k")]).await;
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, alone, "{verb}");
            assert_eq!(env.slept(), [ms(10), ms(20), ms(20)], "{verb}");
            server.asked();
        }
    }
}

#[tokio::test]
async fn every_request_is_logged_with_its_outcome() {
    let (env, server) = (FakeEnvironment::new(), cache("s"));
    let route = LoggingRoute::new(Some(server.leaf()), env.clone());
    ask(&route, &["get k", "set k", "get k", "lease-get x", "lease-get hot", "delete k"]).await;
    assert_eq!(
        env.lines(),
        [
            "get k: miss, 0 bytes",
            "set k: stored, 0 bytes",
            "get k: value, 1 bytes",
            "lease-get x: miss with a lease, 0 bytes",
            "lease-get hot: hot miss, 0 bytes",
            "delete k: deleted, 0 bytes"
        ]
    );
    assert_eq!(server.asked().len(), 6);
    let route = LoggingRoute::new(Some(Fake::failing("s", TIMEOUT).leaf()), env.clone());
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(env.lines(), [format!("{verb} k: failure: server timed out, 0 bytes")]);
    }
    assert_eq!(ask(&LoggingRoute::new(None, env.clone()), &["get k"]).await, ["Miss"]);
}
