//! A client that reads servers directly, against a router and servers in memory, with a paused clock: what it sends
//! where, and by whose permit.

use crate::fake::Mode;
use crate::fake::cluster::{Cluster, config, permit, permit_except, permit_with_leases, refusal};
use bytes::Bytes;
use lookaside_client::config::Source;
use lookaside_client::{Client, DirectRoute, Lease, Lookup, PERMIT_DURATION, PERMIT_KEY};
use lookaside_routing::Address;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Long enough for a permit to be renewed some times.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);

pub(crate) async fn route(cluster: &Cluster, config: &str, routers: &[&'static str]) -> Arc<DirectRoute> {
    let routers = routers.iter().map(|router| Address((*router).into()));
    let builder = DirectRoute::builder(Source::Text(config.to_owned()), routers).network(Arc::new(cluster.clone()));
    let route = builder.build().await.expect("the configuration is valid");
    sleep(Duration::from_millis(1)).await;
    route
}

pub(crate) async fn value(client: &Client, key: &str) -> Bytes {
    match client.get(key).await {
        Ok(Lookup::Hit { value, .. }) => value,
        other => panic!("no hit: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn permitted_reads_go_to_servers_and_all_else_through_the_router() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.permit("router:1", &permit(&config("a:1")));
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    let client = Client::new(route.clone());
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("k").await else { panic!("a miss with a token") };
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 1);
    cluster.set_everywhere("k");
    assert_eq!(value(&client, "k").await, "a:1");
    client.set("k", "new", 0, 0).await.expect("the router stores it");
    assert_eq!(cluster.cache("router:1").lock().live("k").as_deref(), Some(&b"new"[..]));
    assert_eq!(client.delete("k").await, Ok(true));
    assert_eq!(cluster.cache("router:1").lock().live("k"), None);
    client.fill("k", token, "filled", 0, 0).await.expect("the router answers");
    assert_eq!((cluster.cache("router:1").lock().lease_sets, cluster.cache("a:1").lock().lease_sets), (1, 0));
    let statistics = route.statistics();
    assert_eq!((statistics.direct_reads, statistics.router_requests, statistics.unpermitted_reads), (2, 3, 0));
}

#[tokio::test(start_paused = true)]
async fn updates_go_to_servers_by_choice_and_only_with_a_permit() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &permit(&config("a:1")));
    let builder = DirectRoute::builder(Source::Text(config("a:1")), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).send_updates_directly();
    let route = builder.build().await.expect("the configuration is valid");
    let client = Client::new(route.clone());
    sleep(MOMENT).await;
    assert_eq!(client.delete("k").await, Ok(true));
    let is_there = |address| cluster.cache(address).lock().live("k").is_some();
    assert!(!is_there("a:1") && is_there("router:1"));
    cluster.permit("router:1", &refusal("for a test"));
    sleep(PERMIT_DURATION).await;
    assert_eq!(client.delete("k").await, Ok(true));
    assert!(!is_there("router:1"));
    assert_eq!((route.statistics().direct_updates, route.statistics().router_requests), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_is_not_understood_is_none() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    let later = format!("{}a restriction of a later version\r\n", permit_with_leases(&config("a:1")));
    cluster.cache("router:1").lock().set(PERMIT_KEY, later);
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    sleep(MOMENT).await;
    assert!(!route.is_permitted());
    assert!(route.statistics().permits_refused > 0);
}

/// Such a moment is beyond any clock's range: the task that asked for permits ended.
#[tokio::test(start_paused = true)]
async fn a_permit_for_longer_than_any_router_counts_on_ends_in_time() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    let eternal = permit(&config("a:1")).to_string().replacen("200", &u64::MAX.to_string(), 1);
    cluster.cache("router:1").lock().set(PERMIT_KEY, eternal);
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    sleep(MOMENT).await;
    assert!(route.is_permitted());
    cluster.permit("router:1", &refusal("for a test"));
    sleep(PERMIT_DURATION).await;
    assert!(!route.is_permitted());
}

#[tokio::test(start_paused = true)]
async fn a_permission_ends_when_its_router_is_silent() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &permit(&config("a:1")));
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    let client = Client::new(route.clone());
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1", "it is renewed");
    cluster.permit("router:1", &refusal("for a test"));
    sleep(PERMIT_DURATION).await;
    assert!(!route.is_permitted());
    assert_eq!(value(&client, "k").await, "router:1");
    cluster.permit("router:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
}

/// Its time counts from the request: the router that gave it assumes that it has ended.
#[tokio::test(start_paused = true)]
async fn a_permit_that_arrives_late_is_no_permission() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.permit("router:1", &permit(&config("a:1")));
    cluster.cache("router:1").lock().delay = PERMIT_DURATION - Duration::from_millis(5);
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    let mut permitted = 0;
    for _ in 0..1_000 {
        sleep(Duration::from_millis(1)).await;
        permitted += u32::from(route.is_permitted());
    }
    assert!((1..=40).contains(&permitted), "{permitted} ms of 1,000");
    cluster.cache("router:1").lock().delay = PERMIT_DURATION + Duration::from_millis(5);
    sleep(PERMIT_DURATION * 2).await;
    for _ in 0..1_000 {
        sleep(Duration::from_millis(1)).await;
        assert!(!route.is_permitted());
    }
}

#[tokio::test(start_paused = true)]
async fn a_fenced_server_is_not_read_until_a_permit_no_longer_names_it() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &permit_except(&config("a:1"), ["a:1", "elsewhere:1"]));
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    let client = Client::new(route.clone());
    assert!(route.is_permitted());
    assert_eq!(value(&client, "k").await, "gutter:1");
    cluster.permit("router:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
    cluster.permit("router:1", &permit_except(&config("a:1"), ["a:1"]));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "gutter:1");
}

#[tokio::test(start_paused = true)]
async fn the_next_router_permits_and_serves_if_one_does_not_answer() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "dead:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.set_mode("dead:1", Mode::Refuse);
    cluster.permit("router:1", &permit(&config("a:1")));
    let route = route(&cluster, &config("a:1"), &["dead:1", "router:1"]).await;
    let client = Client::new(route.clone());
    assert_eq!(value(&client, "k").await, "a:1");
    assert_eq!(client.delete("k").await, Ok(true));
    assert_eq!(cluster.cache("router:1").lock().live("k"), None);
    cluster.set_mode("router:1", Mode::Silence);
    cluster.cache("router:1").lock().delay = Duration::from_secs(3_600);
    sleep(PERMIT_DURATION).await;
    assert!(!route.is_permitted());
    let read = timeout(Duration::from_secs(5), client.get("k")).await.expect("a bounded time");
    assert!(read.is_err(), "{read:?}");
}

/// Once a client stayed with a router that answered a refusal, as one does that waits for the invalidator, and sent it
/// everything, although another router gave permits.
#[tokio::test(start_paused = true)]
async fn the_next_router_permits_and_serves_if_one_refuses_or_reads_another_configuration() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "first:1", "second:1"]);
    cluster.set_everywhere("k");
    let refusal = refusal("the start gate is closed");
    cluster.permit("first:1", &refusal);
    cluster.permit("second:1", &permit(&config("a:1")));
    let route = route(&cluster, &config("a:1"), &["first:1", "second:1"]).await;
    let client = Client::new(route.clone());
    let is_stored =
        |router: &str, value: &'static str| cluster.cache(router).lock().live("s").as_deref() == Some(value.as_bytes());
    assert_eq!(value(&client, "k").await, "a:1");
    client.set("s", "1", 0, 0).await.expect("a router stores it");
    assert!(is_stored("second:1", "1") && !is_stored("first:1", "1"));
    cluster.permit("first:1", &permit(&config("a:1")));
    cluster.permit("second:1", &permit(&config("elsewhere:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
    client.set("s", "2", 0, 0).await.expect("a router stores it");
    assert!(is_stored("first:1", "2") && !is_stored("second:1", "2"));
    cluster.permit("first:1", &refusal);
    sleep(PERMIT_DURATION).await;
    assert!(!route.is_permitted(), "no router permits it");
    let connections = |router| cluster.cache(router).lock().connections;
    assert_eq!((connections("first:1"), connections("second:1")), (2, 2), "one for permits, one for all else");
    cluster.permit("second:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
}

#[tokio::test(start_paused = true)]
async fn dropping_it_ends_its_tasks() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.permit("router:1", &permit(&config("a:1")));
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    sleep(MOMENT).await;
    assert!(alive() > before);
    drop(Client::new(route));
    let all_ended = async {
        while alive() > before {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), all_ended).await.expect("no task is left");
}
