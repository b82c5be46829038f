//! Keys that a router has no route for, while another router of the cluster may have one: a routing prefix or a pool is
//! being rolled out.

use crate::fakes::{Fixture, UncheckedDisk, ms, until};
use crate::routers::{Behavior::*, FakeRouter, build_delivery, delivery_through};
use bytes::Bytes;
use lookaside_invalidator::pipeline::{
    Pipeline,
    delivery::{DeleteResult, Delivery, HEDGE_DELAY, RouterDelivery},
};
use std::sync::Arc;
use tokio::time::Instant;

const KEY: &str = "/new/user:1";

async fn delete(delivery: &RouterDelivery, keys: &[&str]) -> Vec<DeleteResult> {
    delivery.delete(keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect()).await
}

fn routers() -> [Arc<FakeRouter>; 3] {
    ["first:1", "second:1", "third:1"].map(|name| FakeRouter::new(name, Answers))
}

/// The first router that was asked had no route for the new prefix, and that was final: the value that a client had
/// cached through another router, which had been started again with the new configuration, stayed.
#[tokio::test(start_paused = true)]
async fn a_key_that_any_router_has_a_route_for_is_deleted_there() {
    for routed in 0..3 {
        let routers = routers();
        for (at, router) in routers.iter().enumerate() {
            router.set_unrouted((at != routed).then_some("/new/"));
        }
        let (delivery, statistics) = delivery_through(&[&routers[0], &routers[1], &routers[2]]);
        // Each of them is asked first once.
        for turn in 1..=3 {
            assert_eq!(delete(&delivery, &["other", KEY]).await, [DeleteResult::Applied, DeleteResult::Applied]);
            let received = routers[routed].received();
            assert_eq!(received.iter().filter(|key| *key == KEY).count(), turn, "router {routed}");
        }
        assert_eq!((statistics.rerouted.value(), statistics.router_demotions.value()), (0, 0), "nothing was refused");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_unroutable_when_every_router_reports_it() {
    let routers = routers();
    routers.iter().for_each(|router| router.set_unrouted(Some("/new/")));
    routers.iter().for_each(|router| router.refuse("cut"));
    let (delivery, statistics) = delivery_through(&[&routers[0], &routers[1], &routers[2]]);
    let results = delete(&delivery, &[KEY, "other", "cut"]).await;
    assert!(
        matches!(&results[0], DeleteResult::Unroutable(why) if why.contains("no tree is named /new/")),
        "{results:?}"
    );
    assert_eq!(results[1], DeleteResult::Applied);
    assert!(matches!(&results[2], DeleteResult::Refused(_)), "{results:?}");
    let received = |key: &str| {
        routers.each_ref().map(|router| router.received().iter().filter(|received| *received == key).count())
    };
    assert_eq!(received(KEY), [1, 1, 1]);
    assert_eq!(received("cut").iter().sum::<usize>(), 2, "what is refused is rerouted once");
    assert_eq!(statistics.rerouted.value(), 1);
}

/// A router that is away may have a route, and have let clients cache values by it.
#[tokio::test(start_paused = true)]
async fn a_key_is_not_unroutable_while_a_router_does_not_answer() {
    let routers = routers();
    routers[..2].iter().for_each(|router| router.set_unrouted(Some("/new/")));
    routers[2].set(Hangs);
    let fixture = Fixture::new(1);
    let statistics = fixture.statistics.clusters()[0].clone();
    let delivery = Arc::new(build_delivery(&[&routers[0], &routers[1], &routers[2]], &statistics));
    let pipeline = Pipeline { delivery: delivery.clone(), positions: UncheckedDisk::new(), ..fixture.pipeline(0) };
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    fixture.database.commit(&[KEY], ms(0));
    until("it is retried", || statistics.retried.value() > 2).await;
    assert_eq!(statistics.unroutable.value(), 0);
    let begun = Instant::now();
    let results = delete(&delivery, &[KEY]).await;
    assert!(
        matches!(&results[0], DeleteResult::Refused(why) if why.contains("another router of the cluster may have one")),
        "{results:?}"
    );
    assert!(begun.elapsed() <= HEDGE_DELAY, "a batch does not wait for it: {:?}", begun.elapsed());
    routers[2].set(Answers);
    until("it is deleted", || statistics.invalidations.value() == 1).await;
    assert!(routers[2].received().contains(&KEY.to_owned()));
    assert_eq!(statistics.unroutable.value(), 0);
    routers[2].set_unrouted(Some("/new/"));
    fixture.database.commit(&[KEY], ms(0));
    until("all routers report it", || statistics.unroutable.value() == 1).await;
}
