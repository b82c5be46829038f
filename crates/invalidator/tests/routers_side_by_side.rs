//! The routers of a cluster are used side by side: batches are spread over those that answer.

use crate::fakes::{Fixture, UncheckedDisk, ms, until};
use crate::routers::{Behavior::*, FakeRouter, build_delivery, delivery_through};
use bytes::Bytes;
use futures_util::future::join_all;
use lookaside_invalidator::pipeline::{
    Pipeline,
    delivery::{DeleteResult, Delivery, HEDGE_DELAY, RouterDelivery},
    positions::PositionStore,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Deletes the key, and returns how long that took.
async fn delete(delivery: &RouterDelivery, key: impl Into<Bytes>) -> Duration {
    let start = Instant::now();
    assert_eq!(delivery.delete(vec![key.into()]).await, [DeleteResult::Applied]);
    start.elapsed()
}

/// One router had all batches, and another one none until it hung.
#[tokio::test(start_paused = true)]
async fn batches_are_spread_over_the_routers_that_answer() {
    let routers = ["first:1", "second:1", "third:1"].map(|name| FakeRouter::new(name, Answers));
    let (delivery, statistics) = delivery_through(&[&routers[0], &routers[1], &routers[2]]);
    for number in 0..30 {
        delete(&delivery, format!("k{number}")).await;
    }
    assert_eq!(routers.each_ref().map(|router| router.received().len()), [10, 10, 10]);
    assert_eq!((statistics.hedged_batches.value(), statistics.rerouted.value()), (0, 0));
    // Those that do not answer get nothing, and the others all of it.
    routers[1].set(IsDown);
    delete(&delivery, "found").await;
    delete(&delivery, "out").await;
    delete(&delivery, "by then").await;
    let before = routers.each_ref().map(|router| router.received().len());
    for number in 0..30 {
        delete(&delivery, format!("l{number}")).await;
    }
    let received = routers.each_ref().map(|router| router.received().len());
    let more = [0, 1, 2].map(|at| received[at] - before[at]);
    assert!(more[0] >= 10 && more[1] == 0 && more[2] >= 10, "{more:?}");
}

/// Until a router is known to hang, it has at most one batch that another one could have answered.
#[tokio::test(start_paused = true)]
async fn a_router_that_hangs_has_one_batch_more_than_the_others() {
    let (hung, healthy) = (FakeRouter::new("hung:1", HangsWithDeletes), FakeRouter::new("healthy:1", Answers));
    let (delivery, statistics) = delivery_through(&[&hung, &healthy]);
    let delete_later = async |number: u32| {
        sleep(ms(5) * number).await;
        delete(&delivery, format!("k{number}")).await
    };
    let taken = join_all((0..30).map(delete_later)).await;
    assert_eq!(taken.iter().filter(|taken| **taken > Duration::ZERO).count(), 1, "{taken:?}");
    assert_eq!((statistics.hedged_batches.value(), healthy.received().len()), (1, 30));
}

/// It answered the next probe, and got batches again that it did not answer.
#[tokio::test(start_paused = true)]
async fn a_router_that_answers_probes_and_no_deletes_is_tried_at_growing_intervals() {
    for behavior in [HangsWithDeletes, LosesDeletes] {
        let (bad, healthy) = (FakeRouter::new("bad:1", behavior), FakeRouter::new("healthy:1", Answers));
        let (delivery, statistics) = delivery_through(&[&bad, &healthy]);
        let watched = delivery.clone();
        let watch = tokio::spawn(async move { watched.watch_routers().await });
        let mut late = 0;
        for number in 0..6_000 {
            late += u32::from(delete(&delivery, format!("k{number}")).await > HEDGE_DELAY / 2);
            sleep(ms(100)).await;
        }
        assert_eq!(healthy.received().len(), 6_000);
        let demotions = statistics.router_demotions.value();
        assert!((10..20).contains(&demotions), "{demotions} in ten minutes");
        assert!(u64::from(late) <= demotions, "{late} late deletes");
        // Once it applies deletes, it is used again.
        bad.set(Answers);
        let (before, back) = (bad.received().len(), Instant::now());
        while bad.received().len() == before {
            delete(&delivery, "again").await;
            sleep(ms(100)).await;
        }
        assert!(back.elapsed() <= Duration::from_secs(61), "{:?}", back.elapsed());
        watch.abort();
    }
}

/// No router reaches the server in time: none is worse than another.
#[tokio::test(start_paused = true)]
async fn routers_are_not_demoted_for_a_server_that_hangs() {
    let (first, second) = (FakeRouter::new("first:1", HangsWithDeletes), FakeRouter::new("second:1", HangsWithDeletes));
    let (delivery, statistics) = delivery_through(&[&first, &second]);
    let deleting = tokio::spawn({
        let delivery = delivery.clone();
        async move { delete(&delivery, "hung").await }
    });
    sleep(HEDGE_DELAY * 3).await;
    first.set(Answers);
    deleting.await.expect("no panic");
    assert_eq!((statistics.hedged_batches.value(), statistics.router_demotions.value()), (1, 0));
}

/// Two commits name a key, and their deletes go through two routers, of which the first does not answer. The second
/// delete is that of the second commit, and acknowledges no earlier one.
#[tokio::test(start_paused = true)]
async fn a_delete_through_one_router_does_not_acknowledge_an_earlier_one_through_another() {
    let (hung, healthy) = (FakeRouter::new("hung:1", HangsWithDeletes), FakeRouter::new("healthy:1", Answers));
    let fixture = Fixture::new(1);
    let delivery = Arc::new(build_delivery(&[&hung, &healthy], &fixture.statistics.clusters()[0]));
    let positions = UncheckedDisk::new();
    let pipeline = Pipeline { delivery, positions: positions.clone(), ..fixture.pipeline(0) };
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    fixture.database.commit(&["key"], ms(0));
    sleep(ms(20)).await;
    fixture.database.commit(&["key"], ms(0));
    until("the second is deleted", || healthy.received() == ["key"]).await;
    sleep(HEDGE_DELAY / 2).await;
    let saved = async || positions.load().await.expect("no failure").expect("a position").position.0;
    assert_eq!(saved().await, "0", "the first delete is not acknowledged");
    until("it is sent to the other router", || healthy.received() == ["key", "key"]).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(saved().await, "2");
}
