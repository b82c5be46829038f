//! Warm-up of a cold cluster, a staging cluster, or a cold server. Which servers are asked, and what is returned.

use crate::environment::FakeEnvironment;
use crate::fakes::{Fake, VERBS, ask, cache::cache, meta, request, server_error};
use lookaside_protocol::{
    Operation, Reply, Request,
    meta::{MetaReply, MetaStatus, MetaVerb},
};
use lookaside_routing::{
    Context, CopyExptime, Failure, Route, SlowWarmUp, SlowWarmUpRoute, StagingRoute, WARM_UP_HOLD_OFF_MS, WarmUpEnd,
    WarmUpProgress, WarmUpRoute,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TIMEOUT: Failure = Failure::TimedOut;

fn warm_up(cold: &Arc<Fake>, warm: &Arc<Fake>) -> WarmUpRoute {
    WarmUpRoute::new(cold.leaf(), warm.leaf(), CopyExptime::Seconds(60), WARM_UP_HOLD_OFF_MS)
}

#[tokio::test]
async fn a_copy_lives_as_long_as_the_value_in_the_warm_cluster() {
    for (left, exptime) in
        [("t90", Some(90)), ("t-1", Some(0)), ("t3000000", Some(2_592_000)), ("t0", None), ("", None)]
    {
        let (cold, warm) = (cache("cold"), warm_with_time_left(left));
        let route = WarmUpRoute::new(cold.leaf(), warm.leaf(), CopyExptime::OfWarm, WARM_UP_HOLD_OFF_MS);
        let outcome = ask(&route, &["get k"]).await;
        assert_eq!(outcome, [if exptime.is_some() { "from warm" } else { "Miss" }], "{left}");
        assert_eq!(warm.asked(), ["get k", "get k"], "the value, and its time to live");
        let asked: Vec<String> = exptime.iter().map(|exptime| format!("add k {exptime}")).collect();
        assert_eq!(cold.asked()[1..], asked, "{left}");
    }
    let (cold, warm) = (cache("cold"), warm_with_time_left("t90"));
    let route = WarmUpRoute::new(cold.leaf(), warm.leaf(), CopyExptime::OfWarm, WARM_UP_HOLD_OFF_MS);
    assert_eq!(ask(&route, &["gat a 7", "gets b", "lease-get c"]).await, ["from warm"; 3]);
    assert_eq!(cold.asked()[3..6], ["add a 7", "add b 90", "add c 90"], "the client knows the exptime of a");
    assert_eq!(warm.asked(), ["get a", "get b", "get c", "get b", "get c"]);
}

#[tokio::test]
async fn metadata_is_read_from_the_warm_cluster_and_not_copied() {
    let (cold, warm, down) = (Fake::miss("cold"), Fake::hit("warm"), Fake::failing("warm", TIMEOUT));
    assert_eq!(ask(&warm_up(&cold, &warm), &["metaget k"]).await, ["Debug"]);
    assert_eq!((cold.asked(), warm.asked()), (vec!["metaget k".to_owned()], vec!["metaget k".to_owned()]));
    assert_eq!(ask(&warm_up(&cold, &down), &["metaget k"]).await, ["Miss"], "an error of warm is a miss");
    assert_eq!(ask(&warm_up(&warm, &cold), &["metaget k"]).await, ["Debug"]);
    assert!(!cold.asked().is_empty() && cold.asked().is_empty());
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

/// An audit of a cold cluster filled it with each key that it compared.
#[tokio::test]
async fn an_observer_does_not_fill_the_cold_cluster() {
    let (cold, warm) = (cache("cold"), Fake::hit("from warm"));
    let route = warm_up(&cold, &warm);
    for (key, flags, asks_warm) in
        [("a", "v Olookaside-observer", false), ("b", "v Olookaside-observe", true), ("c", "v", true)]
    {
        route.route(vec![meta(MetaVerb::Get, key, flags)], &Context::default()).await;
        assert_eq!(!warm.asked().is_empty(), asks_warm, "{flags}");
        assert_eq!(cold.asked().len(), if asks_warm { 3 } else { 1 }, "{flags}");
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
    for verb in VERBS.iter().filter(|verb| !["get", "gets", "gat", "gats", "lease-get", "metaget"].contains(verb)) {
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
        for verb in VERBS.into_iter().filter(|verb| !verb.starts_with("g") && !["lease-get", "metaget"].contains(verb))
        {
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
