//! Routers of one cluster with different configurations: any of them may acknowledge a delete, so that is reported.

use crate::fakes::until;
use crate::routers::{Behavior::*, FakeRouter, delivery_through};
use lookaside_invalidator::pipeline::delivery::Delivery;
use std::sync::Arc;

const DIGEST_KEY: &str = "__mcrouter__.config_md5_digest";

fn configure(router: &FakeRouter, digest: &str) {
    *router.values.lock().expect("no panic") = vec![(DIGEST_KEY.into(), digest.into())];
}

#[tokio::test(start_paused = true)]
async fn different_configurations_are_counted_until_all_are_equal() {
    let routers = ["a:1", "b:1", "c:1"].map(|name| FakeRouter::new(name, Answers));
    routers[..2].iter().for_each(|router| configure(router, "old"));
    let (delivery, statistics) = delivery_through(&[&routers[0], &routers[1], &routers[2]]);
    assert_eq!(statistics.router_configs(), 0, "none has answered");
    let watching: Arc<_> = delivery.clone();
    let _watch = tokio::spawn(async move { watching.watch_routers().await });
    until("they are equal; one of an earlier version has no digest", || statistics.router_configs() == 1).await;
    configure(&routers[1], "new");
    until("one has loaded another", || statistics.router_configs() == 2).await;
    configure(&routers[2], "third");
    until("all differ", || statistics.router_configs() == 3).await;
    routers.iter().for_each(|router| configure(router, "new"));
    until("all have loaded it", || statistics.router_configs() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_single_router_is_not_asked() {
    let router = FakeRouter::new("a:1", Answers);
    configure(&router, "old");
    let (delivery, statistics) = delivery_through(&[&router]);
    let watching: Arc<_> = delivery.clone();
    let _watch = tokio::spawn(async move { watching.watch_routers().await });
    until("it is probed", || router.gets().len() > 50).await;
    assert!(!router.gets().contains(&DIGEST_KEY.to_owned()));
    assert_eq!(statistics.router_configs(), 0);
}
