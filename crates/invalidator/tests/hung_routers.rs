//! Routers that hang or are down: deletes reach the others at once, and all of them as soon as one answers again.

use crate::fakes::{self, Fixture, ms, until};
use crate::routers::{Behavior::*, FakeRouter, ROUTER_TIMEOUT, START_GATE, build_delivery, delivery_through};
use bytes::Bytes;
use lookaside_invalidator::pipeline::{
    Options,
    delivery::{DeleteResult, Delivery, HEDGE_DELAY, RouterDelivery},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

async fn delete(delivery: &RouterDelivery, keys: &[&str]) -> Vec<bool> {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    delivery.delete(keys).await.iter().map(|result| *result == DeleteResult::Applied).collect()
}

fn watch(delivery: &Arc<RouterDelivery>) -> JoinHandle<()> {
    let delivery = delivery.clone();
    tokio::spawn(async move { delivery.watch_routers().await })
}

/// Routers were tried in sequence, each for the whole timeout: one that hung made its cluster five seconds stale,
/// although the other was healthy.
#[tokio::test(start_paused = true)]
async fn hung_router_delays_a_batch_by_the_hedge_delay_and_later_ones_not_at_all() {
    let (hung, healthy) = (FakeRouter::new("hung:1", Hangs), FakeRouter::new("healthy:1", Answers));
    let (delivery, statistics) = delivery_through(&[&hung, &healthy]);
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["a", "b"]).await, [true, true]);
    assert!(start.elapsed() <= HEDGE_DELAY + ms(10), "{:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["c"]).await, [true]);
    assert_eq!(start.elapsed(), Duration::ZERO, "the healthy one is preferred");
    assert_eq!((healthy.received().len(), statistics.hedged_batches.value()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn hung_router_is_used_again_when_a_probe_is_answered() {
    let (first, second) = (FakeRouter::new("first:1", Answers), FakeRouter::new("second:1", Answers));
    let (delivery, statistics) = delivery_through(&[&first, &second]);
    let _watch = watch(&delivery);
    first.set(Hangs);
    // A probe finds it before a delete has to wait for it.
    until("it is TKO", || statistics.routers_tko() == 1).await;
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["a"]).await, [true]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    first.set(Answers);
    second.set(Hangs);
    until("the first answers a probe, the second does not", || statistics.router_failures.value() == 2).await;
    until("one is TKO", || statistics.routers_tko() == 1).await;
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["b"]).await, [true]);
    assert_eq!((start.elapsed(), first.received()), (Duration::ZERO, vec!["b".to_string()]));
}

#[tokio::test(start_paused = true)]
async fn first_answer_counts_whichever_router_it_comes_from() {
    let (first, second) = (FakeRouter::new("first:1", Hangs), FakeRouter::new("second:1", Hangs));
    let (delivery, statistics) = delivery_through(&[&first, &second]);
    let deleting = tokio::spawn({
        let delivery = delivery.clone();
        async move { delete(&delivery, &["a"]).await }
    });
    sleep(HEDGE_DELAY * 2).await;
    first.set(Answers);
    assert_eq!(deleting.await.expect("no panic"), [true]);
    assert_eq!((statistics.hedged_batches.value(), second.received().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn two_hung_routers_cost_one_timeout_and_a_hedge_delay() {
    let (first, second) = (FakeRouter::new("first:1", Hangs), FakeRouter::new("second:1", Hangs));
    let (delivery, _) = delivery_through(&[&first, &second]);
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["a"]).await, [false]);
    assert_eq!(start.elapsed(), HEDGE_DELAY + ROUTER_TIMEOUT);
}

/// A pipeline that delivers through these routers.
fn fixture_through(routers: &[&Arc<FakeRouter>]) -> (Fixture, tokio::task::JoinHandle<()>) {
    fixture_with(routers, |_| {})
}

/// The same with other options.
fn fixture_with(
    routers: &[&Arc<FakeRouter>],
    set_options: impl FnOnce(&mut Options),
) -> (Fixture, tokio::task::JoinHandle<()>) {
    fixture_with_delivery(routers, set_options, |delivery| delivery)
}

/// The same with other options of the delivery, too.
fn fixture_with_delivery(
    routers: &[&Arc<FakeRouter>],
    set_options: impl FnOnce(&mut Options),
    set_delivery: impl FnOnce(RouterDelivery) -> RouterDelivery,
) -> (Fixture, tokio::task::JoinHandle<()>) {
    let mut fixture = Fixture::new(1);
    set_options(&mut fixture.options);
    let delivery = set_delivery(build_delivery(routers, &fixture.statistics.clusters()[0]));
    let pipeline = lookaside_invalidator::pipeline::Pipeline {
        delivery: Arc::new(delivery),
        positions: fakes::UncheckedDisk::new(),
        ..fixture.pipeline(0)
    };
    let run = pipeline.run(fixture.shutdown.subscribe());
    (fixture, tokio::spawn(async move { run.await.expect("it does not fail") }))
}

/// Failing keys waited out their retry, of up to a second, although the router was known to be back.
#[tokio::test(start_paused = true)]
async fn pending_deletes_go_at_once_when_a_router_answers_again() {
    let routers = [FakeRouter::new("first:1", Answers), FakeRouter::new("second:1", Answers)];
    let (fixture, _run) = fixture_through(&[&routers[0], &routers[1]]);
    fixture.database.commit(&["before"], ms(0));
    until("it is deleted", || routers[0].received().contains(&"before".into())).await;
    routers.iter().for_each(|router| router.set(IsDown));
    for number in 0..3_000 {
        fixture.database.commit(&[&format!("k{number}")], ms(0));
    }
    until("all fail", || fixture.stat("cluster:a:retry_queue_keys") == "3000").await;
    // With the longest delay most of them have just failed again, and the next try would be a second later.
    sleep(Duration::from_secs(20)).await;
    let back = Instant::now();
    routers[1].set(Answers);
    until("all are deleted", || fixture.stat("cluster:a:pending_keys") == "0").await;
    assert!(back.elapsed() <= ms(100), "{:?}", back.elapsed());
    assert_eq!(fixture.stat("cluster:a:recoveries"), "1");
}

/// While all routers of a cluster were down its keys filled the retry queue, some 500 MB of memory for a million keys,
/// although nothing could be delivered.
#[tokio::test(start_paused = true)]
async fn reading_waits_while_no_router_answers() {
    let router = FakeRouter::new("router:1", IsDown);
    let (fixture, _run) = fixture_with(&[&router], |options| {
        (options.limits.keys_max, options.read_keys_max) = (50, 10);
    });
    for number in 0..1_000 {
        fixture.database.commit(&[&format!("k{number}")], ms(0));
    }
    until("reading waits", || fixture.stat("cluster:a:state") == "blocked").await;
    sleep(Duration::from_secs(60)).await;
    let queued: usize = fixture.stat("cluster:a:retry_queue_keys").parse().expect("a number");
    assert!(queued <= 100, "{queued} keys are held");
    let back = Instant::now();
    router.set(Answers);
    until("all are deleted", || router.received().contains(&"k999".into())).await;
    assert!(back.elapsed() <= Duration::from_secs(1), "{:?}", back.elapsed());
    until("reading goes on", || fixture.stat("cluster:a:state") == "running").await;
}

/// A router that waits for the invalidators of two databases was notified at each probe, which looked up the newest
/// position again.
#[tokio::test(start_paused = true)]
async fn router_that_waits_for_another_source_is_notified_once() {
    let router = FakeRouter::new("router:1", Answers);
    let report = "__mcrouter__.caught_up(run1,9a)".to_owned();
    *router.values.lock().expect("no panic") =
        vec![(START_GATE.into(), "waiting run1".into()), (report.clone(), "counted".into())];
    let (fixture, _run) = fixture_with_delivery(&[&router], |_| {}, |delivery| delivery.with_source_id(0x9a));
    until("it is notified", || router.gets().contains(&report)).await;
    until("that is counted", || fixture.stat("cluster:a:start_gates_opened") == "1").await;
    let probes = |router: &FakeRouter| router.gets().iter().filter(|key| **key == START_GATE).count();
    let before = probes(&router);
    until("it is probed again", || probes(&router) > before + 3).await;
    assert_eq!(router.gets().iter().filter(|key| **key == report).count(), 1);
}

/// When all routers of a cluster had been down, they served what could not be deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn waiting_router_is_notified_once_everything_committed_before_is_deleted() {
    let (router, other) = (FakeRouter::new("router:1", IsDown), FakeRouter::new("other:1", IsDown));
    let (fixture, _run) = fixture_through(&[&router, &other]);
    for number in 0..10 {
        fixture.database.commit(&[&format!("k{number}")], ms(0));
    }
    until("all fail", || fixture.stat("cluster:a:retry_queue_keys") == "10").await;
    router.close_gate("run1");
    // Commits that readers see only later were in the log before the router was back.
    fixture.database.commit(&["late"], Duration::from_secs(3));
    router.set(Answers);
    until("the old ones are deleted", || router.received().contains(&"k9".into())).await;
    sleep(Duration::from_secs(2)).await;
    assert!(!router.is_notified("run1"), "one delete is not sent yet");
    until("it is notified", || router.is_notified("run1")).await;
    assert!(router.received().contains(&"late".into()));
    until("that is counted", || fixture.stat("cluster:a:start_gates_opened") == "1").await;

    // Another run of the router waits again, and while the database is away.
    fixture.database.state().failures = 5;
    router.close_gate("run2");
    until("the next run is notified", || router.is_notified("run2")).await;
    assert!(!other.gets().iter().any(|key| key.contains("caught_up")), "a router that does not wait is not notified");
}

/// While the log was not read a failover could be under way: the newest position was that of a server that had less,
/// and a router served what a flush was about to remove.
#[tokio::test(start_paused = true)]
async fn waiting_router_is_not_notified_while_the_log_is_not_read() {
    let router = FakeRouter::new("router:1", Answers);
    let (fixture, _run) = fixture_through(&[&router]);
    fixture.database.commit(&["a"], ms(0));
    until("it is deleted", || fixture.stat("cluster:a:commits") == "1").await;
    // Look-ups succeed meanwhile, and all is deleted.
    fixture.database.state().reading_failures = 20;
    fixture.database.wake_sources();
    until("reading stops", || fixture.stat("cluster:a:state") == "source_failing").await;
    router.close_gate("run1");
    until("the log is read again", || {
        let is_failing = fixture.stat("cluster:a:state") == "source_failing";
        assert!(!is_failing || !router.is_notified("run1"), "the log is not read");
        !is_failing
    })
    .await;
    until("it is notified", || router.is_notified("run1")).await;
}

/// A router answers a connection in order, so one server that hung held up all batches behind its own: four of them
/// were in flight, and then none was sent for up to two seconds.
#[tokio::test(start_paused = true)]
async fn deletes_are_sent_while_earlier_ones_are_unanswered() {
    let mut fixture = Fixture::new(1);
    fixture.options.start = lookaside_invalidator::Start::Earliest;
    let cluster = &fixture.clusters[0].0;
    cluster.state().hangs = true;
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    let mut latest = Duration::ZERO;
    for number in 0..400 {
        let (key, committed) = (format!("k{number}"), Instant::now());
        fixture.database.commit(&[&key], ms(0));
        sleep(ms(5)).await;
        let is_sent = || cluster.state().batches.iter().any(|batch| batch.contains(&key));
        until("it is sent", is_sent).await;
        latest = latest.max(committed.elapsed());
    }
    assert!(latest <= ms(15), "{latest:?}");
    assert_eq!(fixture.clusters[0].1.position(), Some(0), "nothing is acknowledged");
}

/// Retries at a server that hung took all places of retries for as long as its router waited for it. A key of a healthy
/// server that had been refused once waited behind them.
#[tokio::test(start_paused = true)]
async fn retries_at_a_hung_server_delay_no_retry_of_another() {
    let mut fixture = Fixture::new(1);
    fixture.options.limits.batch_keys_max = 1;
    let cluster = &fixture.clusters[0].0;
    cluster.state().hung_prefix = Some("hung".into());
    let _run = tokio::spawn(fixture.pipeline(0).run(fixture.shutdown.subscribe()));
    for number in 0..10 {
        fixture.database.commit(&[&format!("hung{number}")], ms(0));
    }
    until("all are retried", || cluster.state().batches.len() > 13).await;
    cluster.state().refused.push("healthy".into());
    fixture.database.commit(&["healthy"], ms(0));
    until("it is refused", || fixture.stat("cluster:a:retry_queue_keys") == "11").await;
    cluster.state().refused.clear();
    let start = Instant::now();
    until("it is deleted", || cluster.deletes_of("healthy") == 1).await;
    assert!(start.elapsed() <= ms(100), "{:?}", start.elapsed());
}

/// While probes were answered and deletes failed, every probe sent the whole retry queue again, whatever its delays.
#[tokio::test(start_paused = true)]
async fn answered_probes_do_not_send_deletes_that_fail_again_and_again() {
    let router = FakeRouter::new("router:1", LosesDeletes);
    let (fixture, _run) = fixture_through(&[&router]);
    fixture.database.commit(&["key"], ms(0));
    sleep(Duration::from_secs(60)).await;
    let (sent, recoveries) = (router.received().len(), fixture.stat("cluster:a:recoveries"));
    assert!((60..600).contains(&sent), "{sent} deletes in a minute");
    assert!(recoveries.parse::<u32>().expect("a number") <= 61, "{recoveries} recoveries in a minute");
    let back = Instant::now();
    router.set(Answers);
    until("it is deleted", || fixture.stat("cluster:a:pending_keys") == "0").await;
    assert!(back.elapsed() <= Duration::from_secs(1), "{:?}", back.elapsed());
}
