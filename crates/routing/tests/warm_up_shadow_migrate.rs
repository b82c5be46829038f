//! Routes around other routes: warm-up, migration, shadows, near caches, key changes, limits. Tests which servers are
//! asked and what is returned, for hits, misses, errors and timeouts.

use crate::environment::{FakeEnvironment, HeldRoute};
use crate::fakes::{Fake, VERBS, ask, request, server_error};
use bytes::Bytes;
use futures_util::{FutureExt, future::join};
use lookaside_protocol::{
    LeaseToken, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{
    Context, Failure, KeyChange, KeyFraction, KeySplitRoute, L1L2CacheRoute, L1L2Settings, Latency,
    LatencyInjectionRoute, LoggingRoute, MigrateRoute, ModifyKeyRoute, NEGATIVE_FLAG, OutstandingLimitRoute, Rate,
    RateLimitRoute, Rates, Route, RoutingPrefix, ShadowRoute, SlowWarmUp, SlowWarmUpRoute, StagingRoute,
    WARM_UP_HOLD_OFF_MS, WarmUpEnd, WarmUpProgress, WarmUpRoute,
};
use std::{collections::BTreeMap, sync::Arc, sync::Mutex, time::Duration};

const TIMEOUT: Failure = Failure::TimedOut;

/// A server that stores values, issues token 7, and refuses adds of keys that start with `held`.
fn cache(name: &str) -> Arc<Fake> {
    let stored: Mutex<BTreeMap<Bytes, (u32, Bytes)>> = Mutex::default();
    Fake::new(name, move |request| {
        let mut stored = stored.lock().unwrap();
        let found = stored.get(&request.key).cloned();
        let value = found.clone().map(|(flags, value)| Reply::Value { flags, cas: None, value });
        Ok(match &request.operation {
            Operation::Get { .. } | Operation::GetAndTouch { .. } => value.unwrap_or(Reply::Miss),
            Operation::LeaseGet => {
                let token = if request.key.starts_with(b"hot") { LeaseToken::HOT_MISS } else { LeaseToken(7) };
                value.unwrap_or(Reply::Lease { token, flags: 0, stale: None })
            }
            Operation::Store { mode: StoreMode::Add, .. } if found.is_some() || request.key.starts_with(b"held") => {
                Reply::NotStored
            }
            Operation::Store { flags, value, .. } => {
                stored.insert(request.key.clone(), (*flags, value.clone()));
                Reply::Stored
            }
            Operation::Delete { .. } if stored.remove(&request.key).is_some() => Reply::Deleted,
            Operation::Meta(meta) if meta.verb == MetaVerb::Get => match found {
                Some((_, value)) => {
                    Reply::Meta(MetaReply { status: MetaStatus::Value, flags: Bytes::new(), value: Some(value) })
                }
                None => Reply::Meta(MetaReply { status: MetaStatus::Miss, flags: Bytes::new(), value: None }),
            },
            _ => Reply::NotFound,
        })
    })
}

fn meta(verb: MetaVerb, key: &'static str, flags: &'static str) -> Request<Bytes> {
    let operation = Operation::Meta(MetaOperation { verb, flags: flags.into(), value: None });
    Request { key: key.into(), operation }
}

fn warm_up(cold: &Arc<Fake>, warm: &Arc<Fake>) -> WarmUpRoute {
    WarmUpRoute::new(cold.leaf(), warm.leaf(), 60, WARM_UP_HOLD_OFF_MS)
}

#[tokio::test]
async fn a_cold_miss_is_filled_from_the_warm_cluster_once() {
    for (verb, cold_asked) in [
        ("get", vec!["get k", "add k 60"]),
        ("lease-get", vec!["lease-get k", "add k 60"]),
        ("gets", vec!["gets k", "add k 60", "gets k"]),
        ("gat", vec!["gat k 0", "add k 0", "gat k 0"]),
    ] {
        let (cold, warm) = (cache("cold"), Fake::hit("from warm"));
        let route = warm_up(&cold, &warm);
        assert_eq!(ask(&route, &[&format!("{verb} k")]).await, ["from warm"], "{verb}");
        assert_eq!(
            (cold.asked(), warm.asked()),
            (cold_asked.iter().map(|s| s.to_string()).collect(), vec!["get k".to_owned()])
        );
        assert_eq!(ask(&route, &[&format!("{verb} k")]).await, ["from warm"]);
        assert!(warm.asked().is_empty(), "{verb}: now cold has it");
    }
}

/// §4.3: the failure of the add indicates that newer data is in the database.
#[tokio::test]
async fn a_refused_add_is_a_miss_and_never_the_warm_value() {
    let (cold, warm) = (cache("cold"), Fake::hit("old"));
    let route = warm_up(&cold, &warm);
    for (verb, expected) in
        [("get", "Miss"), ("gets", "Miss"), ("gat", "Miss"), ("gats", "Miss"), ("lease-get", "Lease 7")]
    {
        assert_eq!(ask(&route, &[&format!("{verb} held")]).await, [expected], "{verb}");
    }
    let answer = route.route(vec![meta(MetaVerb::Get, "held", "v")], &Context::default()).await;
    assert!(matches!(&answer[0], Ok(Reply::Meta(reply)) if reply.status == MetaStatus::Miss), "{answer:?}");
}

/// A hundred clients miss at once: one add wins, and the others return the value that it stored.
#[tokio::test]
async fn after_an_add_lost_to_another_client_its_value_is_read() {
    let gets = Mutex::new(0);
    let cold = Fake::new("cold", move |request| {
        Ok(match request.operation {
            Operation::Get { .. } => {
                *gets.lock().unwrap() += 1;
                match *gets.lock().unwrap() {
                    1 => Reply::Miss,
                    _ => Reply::Value { flags: 0, cas: None, value: "new".into() },
                }
            }
            _ => Reply::NotStored,
        })
    });
    assert_eq!(ask(&warm_up(&cold, &Fake::hit("old")), &["get k"]).await, ["new"]);
}

#[tokio::test]
async fn a_hot_miss_stays_hot_and_does_not_reach_the_warm_cluster() {
    let (cold, warm) = (cache("cold"), Fake::hit("warm"));
    assert_eq!(ask(&warm_up(&cold, &warm), &["lease-get hot"]).await, ["Lease 1"]);
    assert!(warm.asked().is_empty());
    assert_eq!(cold.asked(), ["lease-get hot"]);
}

#[tokio::test]
async fn writes_and_deletes_stay_in_the_cold_cluster_and_deletes_hold_off() {
    let (cold, warm) = (cache("cold"), Fake::hit("warm"));
    let route = warm_up(&cold, &warm);
    for verb in VERBS.iter().filter(|verb| !["get", "gets", "gat", "gats", "lease-get"].contains(verb)) {
        ask(&route, &[&format!("{verb} k")]).await;
        let asked = cold.requests();
        assert_eq!(asked.len(), 1, "{verb}");
        if let Operation::Delete { hold_off_ms } = asked[0].operation {
            assert_eq!(hold_off_ms, 2_000);
        }
    }
    let longer = Request { key: "k".into(), operation: Operation::Delete { hold_off_ms: 9_000 } };
    route.route(vec![longer.clone()], &Context::default()).await;
    assert_eq!(cold.requests(), [longer], "a longer hold-off is kept");
    let answers = route.route(vec![meta(MetaVerb::Delete, "k", "q"), request("get k2")], &Context::default()).await;
    assert_eq!(answers.len(), 2);
    assert_eq!(cold.asked()[..3], ["delete k", "delete k", "get k2"], "a plain delete carries the meta one's hold-off");
    assert_eq!(warm.asked(), ["get k2"]);
}

#[tokio::test]
async fn failures_on_either_side_of_a_warm_up() {
    let (down, warm, cold) = (Fake::failing("down", TIMEOUT), Fake::hit("warm"), cache("cold"));
    assert_eq!(ask(&warm_up(&down, &warm), &["get k"]).await, ["server timed out"]);
    assert!(warm.asked().is_empty(), "an error is not a miss");
    for failing in [Fake::failing("warm", TIMEOUT), Fake::new("warm", |_| server_error("oom")), Fake::miss("warm")] {
        assert_eq!(ask(&warm_up(&cold, &failing), &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
    }
    let no_adds = Fake::new("cold", |request| match request.operation {
        Operation::Get { .. } => Ok(Reply::Miss),
        _ => Err(Failure::TimedOut),
    });
    assert_eq!(ask(&warm_up(&no_adds, &warm), &["get k"]).await, ["Miss"], "the add may have been held off");
}

/// A hundred reads a second; at first the warm cluster fills half of them, then none.
#[tokio::test]
async fn a_warm_up_ends_when_the_warm_cluster_fills_nothing_more() {
    let (env, cold) = (FakeEnvironment::new(), cache("cold"));
    let warm = Fake::new("warm", |request| match request.key.starts_with(b"new") {
        true => Ok(Reply::Value { flags: 0, cas: None, value: "w".into() }),
        false => Ok(Reply::Miss),
    });
    let (progress, end) = (Arc::new(WarmUpProgress::default()), WarmUpEnd { share: 0.01, after_s: 300 });
    let route = warm_up(&cold, &warm).with_end(end, progress.clone(), env.clone(), env.clone());
    let other_thread = warm_up(&cold, &warm).with_end(end, progress.clone(), env.clone(), env.clone());
    let second = async |n: u64, fresh: bool| {
        let key =
            |at: u64| if fresh && at.is_multiple_of(2) { format!("get new:{n}:{at}") } else { format!("get {at}") };
        let gets: Vec<String> = (0..100).map(key).collect();
        ask(&route, &gets.iter().map(String::as_str).collect::<Vec<_>>()).await;
        env.advance(Duration::from_secs(1));
    };
    for n in 0..120 {
        second(n, true).await;
    }
    let mut reads_s = 0;
    while !progress.is_over() {
        second(0, false).await;
        reads_s += 1;
        assert!(reads_s < 1_000);
    }
    assert!((300..=361).contains(&reads_s), "{reads_s} s");
    assert_eq!(env.lines().len(), 1);
    cold.asked();
    warm.asked();
    ask(&route, &["get new:x", "lease-get new:y", "gets new:z", "set a", "delete a"]).await;
    ask(&other_thread, &["get new:x"]).await;
    assert_eq!(warm.asked(), [""; 0], "the warm cluster is not asked any more");
    let requests = cold.requests();
    let Operation::Delete { hold_off_ms } = requests[4].operation else { panic!("{requests:?}") };
    assert_eq!((requests.len(), hold_off_ms), (6, WARM_UP_HOLD_OFF_MS), "other routers may still be filling");
}

/// A writer's deletes make cold refuse every second value of the warm cluster. If refused values counted as filled, the
/// warm-up would never end.
#[tokio::test]
async fn a_warm_up_ends_although_values_are_refused() {
    let (env, cold, warm) = (FakeEnvironment::new(), cache("cold"), Fake::hit("old"));
    let (progress, end) = (Arc::new(WarmUpProgress::default()), WarmUpEnd { share: 0.01, after_s: 60 });
    let route = warm_up(&cold, &warm).with_end(end, progress.clone(), env.clone(), env.clone());
    let gets: Vec<String> =
        (0..100).map(|at| if at % 2 == 0 { format!("get held:{at}") } else { "get known".to_owned() }).collect();
    let gets: Vec<&str> = gets.iter().map(String::as_str).collect();
    for _ in 0..180 {
        ask(&route, &gets).await;
        env.advance(Duration::from_secs(1));
    }
    assert!(progress.is_over(), "all values of the warm cluster were refused");
}

/// Has every key, with the time to live in `left`; `mg` of keys that start with `odd` is an error.
fn warm_with_time_left(left: &'static str) -> Arc<Fake> {
    Fake::new("warm", move |request| match &request.operation {
        Operation::Meta(meta) if meta.verb == MetaVerb::Get && !request.key.starts_with(b"odd") => {
            Ok(Reply::Meta(MetaReply { status: MetaStatus::Done, flags: left.into(), value: None }))
        }
        Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => {
            Ok(Reply::Value { flags: 3, cas: None, value: "from warm".into() })
        }
        Operation::Store { .. } | Operation::LeaseSet { .. } => Ok(Reply::Stored),
        Operation::Delete { .. } => Ok(Reply::NotFound),
        _ => Ok(Reply::Error(lookaside_protocol::ErrorReply::Unknown)),
    })
}

#[tokio::test]
async fn staging_is_filled_with_values_of_warm_and_their_time_to_live() {
    for (left, exptime) in
        [("t33", Some(33)), ("t-1", Some(0)), ("t99999999", Some(2_592_000)), ("t0", None), ("s5", None)]
    {
        for verb in ["get", "gets", "gat", "gats", "lease-get"] {
            let (env, warm, staging) = (FakeEnvironment::new(), warm_with_time_left(left), cache("staging"));
            let route = StagingRoute::new(warm.leaf(), staging.leaf(), 2_000, env.environment(5).background);
            assert_eq!(ask(&route, &[&format!("{verb} k 7")]).await, ["from warm"]);
            assert_eq!(staging.asked(), [""; 0], "{verb}: the client does not wait");
            assert_eq!(env.run_background().await, 1);
            let adds: Vec<String> = exptime.iter().map(|exptime| format!("add k {exptime}")).collect();
            assert_eq!(staging.asked(), adds, "{verb} {left}");
        }
    }
}

#[tokio::test]
async fn staging_never_replies_and_keeps_no_value_that_was_changed() {
    for failure in [None, Some(TIMEOUT)] {
        let (env, warm) = (FakeEnvironment::new(), warm_with_time_left("t5"));
        let staging = match &failure {
            None => Fake::hit("staging"),
            Some(failure) => Fake::failing("staging", failure.clone()),
        };
        let route = StagingRoute::new(warm.leaf(), staging.leaf(), 2_000, env.environment(5).background);
        for verb in VERBS.into_iter().filter(|verb| !verb.starts_with("g") && *verb != "lease-get") {
            let alone = ask(&*warm.leaf(), &[&format!("{verb} k")]).await;
            let outcome = ask(&route, &[&format!("{verb} k")]).await;
            let requests = staging.requests();
            let [Request { operation: Operation::Delete { hold_off_ms: 2_000 }, .. }] = &requests[..] else {
                panic!("{verb}: {requests:?}");
            };
            match (verb, &failure) {
                ("delete", None) => {
                    assert_eq!(outcome, ["Deleted"], "the worse one; DELETED reports that there was a value")
                }
                ("delete", Some(_)) => assert_eq!(outcome, ["server timed out"]),
                _ => assert_eq!(outcome, alone, "{verb} {failure:?}"),
            }
        }
    }
    let (env, staging) = (FakeEnvironment::new(), Fake::hit("staging"));
    let down = Fake::failing("warm", TIMEOUT);
    let route = StagingRoute::new(down.leaf(), staging.leaf(), 2_000, env.environment(5).background);
    assert_eq!(ask(&route, &["get k", "lease-get k"]).await, ["server timed out"; 2]);
    let empty = StagingRoute::new(Fake::miss("warm").leaf(), staging.leaf(), 2_000, env.environment(5).background);
    assert_eq!(ask(&empty, &["get k", "lease-get k"]).await, ["Miss", "Lease 7"]);
    let odd = StagingRoute::new(warm_with_time_left("t5").leaf(), staging.leaf(), 2_000, env.environment(5).background);
    ask(&odd, &["get odd"]).await;
    env.run_background().await;
    assert_eq!(staging.asked(), [""; 0], "no value, or no time to live: nothing is filled");
}

/// Ten rounds of a hundred gets. Returns how many of each reached the server.
async fn rounds(route: &SlowWarmUpRoute, server: &Arc<Fake>) -> Vec<usize> {
    let mut asked = Vec::new();
    for _ in 0..10 {
        assert_eq!(ask(route, &["get k"; 100]).await.len(), 100);
        asked.push(server.asked().len());
    }
    asked
}

#[tokio::test]
async fn a_cold_server_gets_a_small_share_until_it_is_warm() {
    let hits = Arc::new(Mutex::new(0_u32)); // Hits of ten gets at the server.
    let (hits_of_server, count) = (hits.clone(), Mutex::new(0));
    let server = Fake::new("cold", move |request| match request.operation {
        Operation::Get { .. } => {
            let mut count = count.lock().unwrap();
            *count += 1;
            match *count % 10 < *hits_of_server.lock().unwrap() {
                true => Ok(Reply::Value { flags: 0, cas: None, value: "own".into() }),
                false => Ok(Reply::Miss),
            }
        }
        _ => Ok(Reply::NotFound),
    });
    let failover = Fake::hit("other");
    let route = SlowWarmUpRoute::new(server.leaf(), failover.leaf(), SlowWarmUp::default(), 7);
    let cold = rounds(&route, &server).await;
    assert_eq!(cold[0], 100, "the first hundred gets are not judged");
    assert!(cold[1..].iter().all(|asked| (1..=22).contains(asked)), "a tenth: {cold:?}");
    assert_eq!(failover.asked().len(), 1_000 - cold.iter().sum::<usize>());
    for verb in ["set", "add", "cas", "delete", "incr", "touch", "gat"] {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!((server.asked().len(), failover.asked().len()), (1, 0), "{verb}");
    }
    *hits.lock().unwrap() = 5;
    for _ in 0..3 {
        rounds(&route, &server).await;
    }
    let half = rounds(&route, &server).await;
    assert!(half.iter().all(|asked| (42..=78).contains(asked)), "a tenth and the hit rate: {half:?}");
    *hits.lock().unwrap() = 10;
    rounds(&route, &server).await;
    failover.asked();
    assert_eq!(rounds(&route, &server).await, [100; 10], "warm");
    *hits.lock().unwrap() = 8;
    assert_eq!(rounds(&route, &server).await, [100; 10], "between the thresholds it stays warm");
    assert_eq!(failover.asked(), [""; 0]);
}

#[tokio::test]
async fn failures_of_a_cold_server_are_not_misses_and_it_grants_leases() {
    let (down, failover) = (Fake::failing("down", TIMEOUT), Fake::hit("other"));
    let route = SlowWarmUpRoute::new(down.leaf(), failover.leaf(), SlowWarmUp::default(), 7);
    assert_eq!(rounds(&route, &down).await, [100; 10]);

    // Of ten gets eight fail and two miss: failures are not hits either.
    let count = Mutex::new(0);
    let weak = Fake::new("weak", move |_| {
        *count.lock().unwrap() += 1;
        if *count.lock().unwrap() % 10 < 8 { Err(TIMEOUT) } else { Ok(Reply::Miss) }
    });
    let route = SlowWarmUpRoute::new(weak.leaf(), failover.leaf(), SlowWarmUp::default(), 7);
    let asked = rounds(&route, &weak).await;
    assert!(asked[5..].iter().all(|asked| *asked <= 22), "cold, and a tenth: {asked:?}");

    let settings = SlowWarmUp { start: 0.0, min_requests: 1, ..SlowWarmUp::default() };
    let (cold, failover) = (Fake::miss("cold"), Fake::hit("other"));
    let route = SlowWarmUpRoute::new(cold.leaf(), failover.leaf(), settings, 7);
    ask(&route, &["get k"]).await;
    cold.asked();
    assert_eq!(ask(&route, &["lease-get k", "gets k", "set k"]).await, ["other", "other", "NotStored"]);
    assert_eq!(cold.asked(), ["set k 0"]);
    assert_eq!(failover.asked(), ["get k", "gets k"]);
    let empty = Fake::miss("other");
    let route = SlowWarmUpRoute::new(cold.leaf(), empty.leaf(), settings, 7);
    ask(&route, &["get k"]).await;
    cold.asked();
    assert_eq!(ask(&route, &["get a", "lease-get k", "get b"]).await, ["Miss", "Lease 7", "Miss"]);
    assert_eq!(cold.asked(), ["lease-get k"], "after two misses the fill is under the server's lease");
}

#[tokio::test]
async fn a_migration_deletes_on_both_sides_around_the_switch() {
    for (at, of_get, of_delete) in [
        (0, "from", "from"),
        (99, "from", "from"),
        (100, "from", "both"),
        (109, "from", "both"),
        (110, "to", "both"),
        (119, "to", "both"),
        (120, "to", "to"),
        (9_999, "to", "to"),
    ] {
        let (env, from, to) = (FakeEnvironment::new(), Fake::hit("from"), Fake::failing("to", TIMEOUT));
        let route = MigrateRoute::new(from.leaf(), to.leaf(), 100, 10, env.clone());
        env.advance(Duration::from_secs(at));
        for verb in VERBS {
            let outcomes = ask(&route, &[&format!("{verb} k")]).await;
            let asked = match (from.asked().len(), to.asked().len()) {
                (1, 0) => "from",
                (0, 1) => "to",
                (1, 1) => "both",
                other => panic!("{other:?}"),
            };
            assert_eq!(asked, if verb == "delete" { of_delete } else { of_get }, "{verb} at {at}");
            assert_eq!(outcomes[0] == "server timed out", asked != "from", "{verb} at {at}: {outcomes:?}");
        }
        let batch = ["get a", "delete a", "get a", "set b", "delete b"];
        assert_eq!(ask(&route, &batch).await.len(), 5);
        if of_get == "from" {
            assert_eq!(from.asked(), ["get a", "delete a", "get a", "set b 0", "delete b"], "in order");
        }
    }
}

#[tokio::test]
async fn shadows_get_copies_and_change_nothing() {
    for shadow in [Fake::hit("shadow"), Fake::miss("shadow"), Fake::failing("shadow", TIMEOUT)] {
        let (env, normal) = (FakeEnvironment::new(), Fake::hit("normal"));
        let shadows = vec![(shadow.leaf(), KeyFraction::ALL)];
        let route = ShadowRoute::new(normal.leaf(), shadows, env.environment(9).background);
        for verb in VERBS {
            let alone = ask(&*normal.leaf(), &[&format!("{verb} k")]).await;
            assert_eq!(ask(&route, &[&format!("{verb} k")]).await, alone);
            assert!(shadow.asked().is_empty(), "{verb}: only after the reply");
            env.run_background().await;
            let copy = match verb {
                "lease-get" => "get k".to_owned(),
                "lease-set" | "cas" => "set k 0".to_owned(),
                verb => format!("{verb} k"),
            };
            assert!(shadow.asked().concat().starts_with(&copy), "{verb}");
        }
    }
}

#[tokio::test]
async fn a_refused_fill_has_no_shadow_nor_has_a_request_without_a_permit() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::miss("normal"), Fake::hit("shadow"));
    let background = env.environment(1).background;
    let route = ShadowRoute::new(normal.leaf(), vec![(shadow.leaf(), KeyFraction::ALL)], background.clone());
    assert_eq!(ask(&route, &["lease-set k", "cas k"]).await, ["NotStored", "NotStored"]);
    assert_eq!(env.run_background().await, 0);
    ask(&route, &["get a"]).await;
    ask(&route, &["get b"]).await;
    assert_eq!(background.dropped(), 1);
    env.run_background().await;
    assert_eq!(shadow.asked(), ["get a"]);
    // The copy of a dropped caller is still sent.
    let route = ShadowRoute::new(HeldRoute::new(normal.leaf()), vec![(shadow.leaf(), KeyFraction::ALL)], background);
    assert!(ask(&route, &["delete k"]).now_or_never().is_none());
    env.run_background().await;
    assert_eq!(shadow.asked(), ["delete k"]);
}

#[tokio::test]
async fn always_the_same_fraction_of_keys_is_shadowed() {
    let (env, normal, shadow) = (FakeEnvironment::new(), Fake::hit("normal"), Fake::hit("shadow"));
    let quarter = KeyFraction { start: 250_000, end: 500_000 };
    let route = ShadowRoute::new(normal.leaf(), vec![(shadow.leaf(), quarter)], env.environment(9).background);
    let requests: Vec<String> = (0..2_000).map(|n| format!("get key:{n}")).collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let mut copies = Vec::new();
    for _ in 0..2 {
        ask(&route, &requests).await;
        env.run_background().await;
        copies.push(shadow.asked());
    }
    assert!((400..600).contains(&copies[0].len()), "{} of 2000", copies[0].len());
    assert_eq!(copies[0], copies[1]);
}

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

#[tokio::test]
async fn keys_change_for_every_verb() {
    let server = Fake::hit("s");
    let with_prefix = Arc::new(lookaside_routing::DestinationRoute::new(server.clone(), true)) as Arc<dyn Route>;
    let change = KeyChange {
        routing_prefix: Some(Some(RoutingPrefix::parse("/r/c/").unwrap())),
        ensure_prefix: "new:".into(),
        replace_prefix: Some("old:".into()),
        suffix: "!".into(),
    };
    let route = ModifyKeyRoute::new(with_prefix.clone(), change);
    ask(&route, &["get old:1", "get /a/b/new:2", "get x"]).await;
    assert_eq!(server.asked(), ["get /r/c/new:1!", "get /r/c/new:2!", "get /r/c/new:x!"]);
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert!(server.asked()[0].starts_with(&format!("{verb} /r/c/new:k!")), "{verb}");
    }
    let off = ModifyKeyRoute::new(with_prefix, KeyChange { routing_prefix: Some(None), ..KeyChange::default() });
    ask(&off, &["get /a/b/k", "get k"]).await;
    assert_eq!(server.asked(), ["get k", "get k"]);
    let too_long = "k".repeat(245);
    let outcomes = ask(&route, &[&format!("get {too_long}"), "get k"]).await;
    assert!(outcomes[0].contains("too long") && outcomes[1] == "s", "{outcomes:?}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_reply_for_a_changed_key_has_the_clients_key() {
    let tag = Fake::new("s", |request| {
        let flags = [b"k", &request.key[..], b" O7"].concat().into();
        Ok(Reply::Meta(MetaReply { status: MetaStatus::Done, flags, value: None }))
    });
    let change = KeyChange { ensure_prefix: "p:".into(), ..KeyChange::default() };
    let route = ModifyKeyRoute::new(tag.leaf(), change);
    let answer = route.route(vec![meta(MetaVerb::Get, "key", "k O7")], &Context::default()).await;
    assert!(matches!(&answer[0], Ok(Reply::Meta(reply)) if reply.flags == "kkey O7"), "{answer:?}");
    assert_eq!(tag.requests()[0].key, "p:key");
}

#[tokio::test]
async fn hot_keys_have_copies_and_a_delete_removes_all() {
    let server = Fake::hit("s");
    let own_copy = KeySplitRoute::new(server.leaf(), 3, 4, false, false);
    let synced = KeySplitRoute::new(server.leaf(), 3, 4, true, false);
    for verb in VERBS {
        for (route, all_sync) in [(&own_copy, false), (&synced, true)] {
            ask(route, &[&format!("{verb} k|#|x")]).await;
            let keys: Vec<Bytes> = server.requests().into_iter().map(|request| request.key).collect();
            let is_read = ["get", "gets", "gat", "gats", "lease-get", "cas", "lease-set"].contains(&verb);
            let all = verb == "delete" || all_sync && !is_read;
            let expected = if all { vec!["k|#|x", "k::1|#|x", "k::2|#|x"] } else { vec!["k::1|#|x"] };
            assert_eq!(keys, expected, "{verb}");
        }
    }
    let one_fails = Fake::new("s", |request| match request.key.ends_with(b"::2") {
        true => Err(Failure::TimedOut),
        false => Ok(Reply::Deleted),
    });
    assert_eq!(
        ask(&KeySplitRoute::new(one_fails.leaf(), 3, 0, false, false), &["delete k"]).await,
        ["server timed out"]
    );
}

#[tokio::test]
async fn after_a_miss_of_the_own_copy_the_first_hit_of_the_others_is_returned() {
    let server = Fake::new("s", |request| match &request.key[..] {
        b"k" => Err(Failure::TimedOut),
        b"k::2" => Ok(Reply::Value { flags: 0, cas: None, value: "found".into() }),
        _ => Ok(Reply::Miss),
    });
    let route = KeySplitRoute::new(server.leaf(), 4, 0, false, true);
    assert_eq!(ask(&route, &["get k"]).await, ["found"]);
    assert_eq!(server.asked_batches(), [vec!["get k"], vec!["get k::1", "get k::2", "get k::3"]]);
    assert_eq!(ask(&KeySplitRoute::new(server.leaf(), 4, 0, false, false), &["get k"]).await, ["server timed out"]);
}

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
            "get k: miss",
            "set k: stored",
            "get k: value of 1 bytes",
            "lease-get x: miss with a lease",
            "lease-get hot: hot miss",
            "delete k: deleted"
        ]
    );
    assert_eq!(server.asked().len(), 6);
    let route = LoggingRoute::new(Some(Fake::failing("s", TIMEOUT).leaf()), env.clone());
    for verb in VERBS {
        ask(&route, &[&format!("{verb} k")]).await;
        assert_eq!(env.lines(), [format!("{verb} k: failure: server timed out")]);
    }
    assert_eq!(ask(&LoggingRoute::new(None, env.clone()), &["get k"]).await, ["Miss"]);
}
