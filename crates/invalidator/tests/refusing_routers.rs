//! Routers that refuse deletes, because they reach neither the server nor their peers, while another router of the
//! cluster reaches them.

use crate::fakes::{Fixture, UncheckedDisk, ms, until};
use crate::routers::{Behavior::*, FakeRouter, build_delivery, delivery_through};
use bytes::Bytes;
use lookaside_invalidator::pipeline::{
    Pipeline,
    delivery::{DeleteResult, Delivery, HEDGE_DELAY, RouterDelivery},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

fn delete(delivery: &Arc<RouterDelivery>, keys: &[&str]) -> JoinHandle<Vec<bool>> {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    let delivery = delivery.clone();
    tokio::spawn(async move {
        let results = delivery.delete(keys).await;
        results.iter().map(|result| *result == DeleteResult::Applied).collect()
    })
}

/// The invalidator asked the router that refused a delete again and again: the key was stale for as long as that router
/// did not reach the server, although another one did.
#[tokio::test(start_paused = true)]
async fn delete_that_one_router_refuses_goes_to_another_at_once() {
    let routers = [FakeRouter::new("first:1", Answers), FakeRouter::new("second:1", Answers)];
    routers[0].refuse("cut");
    let fixture = Fixture::new(1);
    let statistics = fixture.statistics.clusters()[0].clone();
    let delivery = Arc::new(build_delivery(&[&routers[0], &routers[1]], &statistics));
    let pipeline = Pipeline { delivery, positions: UncheckedDisk::new(), ..fixture.pipeline(0) };
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    let committed = Instant::now();
    fixture.database.commit(&["cut", "other"], ms(0));
    until("all are deleted", || fixture.stat("cluster:a:invalidations") == "2").await;
    assert!(committed.elapsed() <= ms(5), "{:?}", committed.elapsed());
    assert_eq!(
        (fixture.stat("cluster:a:rerouted"), fixture.stat("cluster:a:router_refusals")),
        ("1".into(), "1".into())
    );
    assert_eq!(fixture.stat("cluster:a:retried"), "0");
    assert_eq!(routers[1].received(), ["cut"], "the other key is not sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_router_that_refuses_a_few_deletes_gets_others() {
    let (first, second) = (FakeRouter::new("first:1", Answers), FakeRouter::new("second:1", Answers));
    first.refuse("cut");
    let (delivery, statistics) = delivery_through(&[&first, &second]);
    for number in 0..20 {
        for key in ["cut", "other", "another"] {
            assert_eq!(delete(&delivery, &[&format!("{key}{number}")]).await.expect("no panic"), [true]);
        }
        sleep(ms(500)).await;
    }
    let others = |router: &FakeRouter| router.received().iter().filter(|key| key.contains("other")).count();
    assert_eq!((others(&first), others(&second)), (20, 20));
    assert_eq!((statistics.router_refusals.value(), statistics.router_demotions.value()), (10, 0));
    assert_eq!(statistics.router_failures.value(), 0, "it answers");
}

#[tokio::test(start_paused = true)]
async fn router_that_refuses_much_is_asked_after_the_others_for_a_while() {
    let (first, second) = (FakeRouter::new("first:1", Answers), FakeRouter::new("second:1", Answers));
    first.refuse("cut");
    let (delivery, statistics) = delivery_through(&[&first, &second]);
    for number in 0..100 {
        assert_eq!(delete(&delivery, &[&format!("cut{number}")]).await.expect("no panic"), [true]);
        sleep(ms(10)).await;
    }
    assert_eq!(first.received().len(), 10);
    assert_eq!((statistics.rerouted.value(), statistics.router_refusals.value()), (10, 10));
    // Now the second one refuses what the first one applies: it is asked after that.
    second.refuse("cut");
    first.refuse("none");
    for number in 0..100 {
        assert_eq!(delete(&delivery, &[&format!("cut{number}")]).await.expect("no panic"), [true]);
    }
    assert_eq!((first.received().len(), second.received().len()), (110, 110));
    assert_eq!(statistics.router_demotions.value(), 2);
    second.refuse("none");
    sleep(Duration::from_secs(3)).await;
    for number in 0..100 {
        assert_eq!(delete(&delivery, &[&format!("cut{number}")]).await.expect("no panic"), [true]);
    }
    assert_eq!((first.received().len(), second.received().len()), (160, 160), "side by side again");
}

/// Its server is down, and the cluster has no spool.
#[tokio::test(start_paused = true)]
async fn delete_that_all_routers_refuse_goes_to_two_of_them_at_a_time_in_turn() {
    let routers = ["first:1", "second:1", "third:1"].map(|name| FakeRouter::new(name, Answers));
    routers.iter().for_each(|router| router.refuse("cut"));
    let (delivery, statistics) = delivery_through(&[&routers[0], &routers[1], &routers[2]]);
    for _ in 0..10 {
        assert_eq!(delete(&delivery, &["cut", "other"]).await.expect("no panic"), [false, true]);
    }
    let received = |router: &Arc<FakeRouter>| router.received().iter().filter(|key| *key == "cut").count();
    let received = routers.each_ref().map(received);
    assert!(
        received.iter().sum::<usize>() == 20 && received.iter().all(|count| (5..=8).contains(count)),
        "{received:?}"
    );
    assert_eq!((statistics.rerouted.value(), statistics.router_refusals.value()), (10, 0));
}

/// A refusal ended the batch although a second router, which was asked because the first was slow, was about to apply
/// it. And the router that had refused was preferred from then on.
#[tokio::test(start_paused = true)]
async fn refusal_of_a_slow_router_does_not_end_a_hedged_batch() {
    let (first, second) = (FakeRouter::new("first:1", Hangs), FakeRouter::new("second:1", Hangs));
    first.refuse("cut");
    let (delivery, _) = delivery_through(&[&first, &second]);
    let deleting = delete(&delivery, &["cut"]);
    sleep(HEDGE_DELAY + ms(50)).await;
    first.set(Answers);
    sleep(ms(50)).await;
    second.set(Answers);
    assert_eq!(deleting.await.expect("no panic"), [true]);
    assert_eq!(delete(&delivery, &["cut2"]).await.expect("no panic"), [true]);
    assert_eq!((first.received(), second.received()), (vec!["cut".into()], vec!["cut".into(), "cut2".to_string()]));
}

#[tokio::test(start_paused = true)]
async fn refused_delete_does_not_wait_for_a_router_that_hangs() {
    let (first, hung) = (FakeRouter::new("first:1", Answers), FakeRouter::new("hung:1", Hangs));
    first.refuse("cut");
    let (delivery, _) = delivery_through(&[&first, &hung]);
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["cut", "other"]).await.expect("no panic"), [false, true]);
    assert_eq!(start.elapsed(), HEDGE_DELAY, "then it is retried");
    let start = Instant::now();
    assert_eq!(delete(&delivery, &["cut", "other"]).await.expect("no panic"), [false, true]);
    assert_eq!(start.elapsed(), Duration::ZERO, "the hung one is TKO");
}
