//! A direct client whose configuration has routes that store elsewhere what they read: such reads go through a router,
//! which stores it. With a paused clock; the router is a cache of its own.

use crate::fake::cache::SharedCache;
use crate::fake::cluster::{Cluster, config, permit, permit_with_leases};
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::{Client, Codec, DestinationOptions, DirectRoute, Lease, Lookup, Routers, TypedClient};
use lookaside_routing::{Address, RoutingPrefix};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

/// Long enough for a permit to be renewed some times.
const MOMENT: Duration = Duration::from_millis(300);
const CACHES: [&str; 5] = ["a:1", "b:1", "c:1", "gutter:1", "router:1"];

/// Keys that begin with `some:` take `route`, and all others are those of a server.
fn config_of(route: &str) -> String {
    format!(
        r#"{{
            "pools": {{
                "A": {{ "servers": ["a:1"] }}, "B": {{ "servers": ["b:1"] }}, "C": {{ "servers": ["c:1"] }}
            }},
            "route": {{
                "type": "PrefixSelectorRoute", "policies": {{ "some:": {route} }}, "wildcard": "PoolRoute|C"
            }}
        }}"#
    )
}

const NEAR: &str =
    r#"{ "type": "L1L2CacheRoute", "l1": "PoolRoute|A", "l2": "PoolRoute|B", "upgradingL1Exptime": 60 }"#;
const WARMING: &str = r#"{ "type": "WarmUpRoute", "cold": "PoolRoute|A", "warm": "PoolRoute|B", "exptime": 60 }"#;
const STAGING: &str = r#"{ "type": "StagingRoute", "warm": "PoolRoute|A", "staging": "PoolRoute|B" }"#;

async fn open(text: &str) -> (Cluster, Arc<DirectRoute>, Client) {
    let cluster = Cluster::of(&CACHES);
    cluster.permit("router:1", &permit(text));
    let builder = DirectRoute::builder(Source::Text(text.to_owned()), [Address("router:1".into())]);
    let route = builder.network(Arc::new(cluster.clone())).build().await.expect("the configuration is valid");
    sleep(MOMENT).await;
    (cluster, route.clone(), Client::new(route))
}

/// A client of plain gets and sets whose routers take leases. Some keys are leased by the configuration; `route` is
/// that of all others.
async fn open_leased(route: &str) -> (Cluster, Arc<DirectRoute>, TypedClient) {
    let leased = config_of(r#"{ "type": "LeaseRoute", "target": "PoolRoute|A" }"#);
    let text = leased.replacen(r#""wildcard": "PoolRoute|C""#, &format!(r#""wildcard": {route}"#), 1);
    let cluster = Cluster::of(&CACHES);
    cluster.permit("router:1", &permit_with_leases(&text));
    let builder = DirectRoute::builder(Source::Text(text), [Address("router:1".into())]);
    let route = builder.network(Arc::new(cluster.clone())).build().await.expect("the configuration is valid");
    sleep(MOMENT).await;
    (cluster, route.clone(), TypedClient::new(Client::new(route), Codec::default()))
}

/// Makes the client's misses of a key void, which `server` leases.
async fn void(cache: &TypedClient, server: &SharedCache, key: &str) {
    assert_eq!(cache.get::<String>(key).await, Ok(None));
    server.lock().delete(key);
    assert_eq!(cache.get::<String>(key).await, Ok(None), "of another thread, which has another token");
    assert!(cache.set(key, "read before the delete, perhaps", 0).await.is_err());
}

async fn value(client: &Client, key: &str) -> String {
    match client.get(key).await {
        Ok(Lookup::Hit { value, .. }) => String::from_utf8_lossy(&value).into_owned(),
        other => panic!("no hit: {other:?}"),
    }
}

/// Once the client asked L2 itself, and L1 never had a copy.
#[tokio::test(start_paused = true)]
async fn what_a_near_cache_does_not_have_is_the_routers_to_read() {
    let (cluster, route, client) = open(&config_of(NEAR)).await;
    assert!(route.is_permitted());
    cluster.set_everywhere("some:k");
    assert_eq!(value(&client, "some:k").await, "a:1", "L1 is read directly");
    cluster.cache("a:1").lock().delete("some:k");
    assert_eq!(value(&client, "some:k").await, "router:1");
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("some:absent").await else { panic!("a miss") };
    client.fill("some:absent", token, "filled", 0, 0).await.expect("the router has given the lease");
    assert_eq!(cluster.cache("router:1").lock().live("some:absent").as_deref(), Some(&b"filled"[..]));
    assert_eq!(cluster.cache("a:1").lock().lines, 3);
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 0);
    assert_eq!(cluster.cache("b:1").lock().lines, 0, "the router asks L2, and fills L1");
    cluster.set_everywhere("other");
    assert_eq!(value(&client, "other").await, "c:1", "other keys are read directly");
    let statistics = route.statistics();
    assert_eq!((statistics.reads_filled_by_routers, statistics.unpermitted_reads), (2, 0));
}

/// A warm-up ends by the share of all reads that the warm cluster fills, so routers must see all; and each hit fills a
/// staging cluster. Once all reads of such a configuration went through the routers, or none of a staging cluster's.
#[tokio::test(start_paused = true)]
async fn clusters_that_are_filled_are_read_through_routers_and_others_directly() {
    for filling in [WARMING, STAGING] {
        let (cluster, route, client) = open(&config_of(filling)).await;
        assert!(route.is_permitted());
        cluster.set_everywhere("some:k");
        cluster.set_everywhere("other");
        assert_eq!(value(&client, "some:k").await, "router:1");
        assert_eq!(value(&client, "other").await, "c:1");
        let found = client.get_many(&["other", "some:k", "some:absent"]).await.expect("valid keys");
        assert!(matches!(&found[0], Ok(Lookup::Hit { value, .. }) if value == "c:1"));
        assert!(matches!(&found[1], Ok(Lookup::Hit { value, .. }) if value == "router:1"));
        assert!(matches!(&found[2], Ok(Lookup::Miss { .. })));
        assert_eq!(cluster.cache("a:1").lock().lines + cluster.cache("b:1").lock().lines, 0);
        assert_eq!(route.statistics().reads_filled_by_routers, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_warm_up_that_is_removed_from_the_configuration_has_ended() {
    let cluster = Cluster::of(&CACHES);
    let warming = format!(
        r#"{{ "pools": {{ "A": {{ "servers": ["a:1"] }}, "B": {{ "servers": ["b:1"] }} }}, "route": {WARMING} }}"#
    );
    cluster.permit("router:1", &permit(&warming));
    cluster.set_everywhere("k");
    let (texts, received) = mpsc::unbounded_channel();
    texts.send(warming).expect("it is received");
    let builder = DirectRoute::builder(Source::Text(String::new()), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).watcher(ConfigWatcher::of_texts(received));
    let client = Client::new(builder.build().await.expect("the configuration is valid"));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "router:1");
    texts.send(config("a:1")).expect("it is received");
    cluster.permit("router:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
}

/// Once the routers could take a server timeout each: a read could cost that of a server, and one of each router.
#[tokio::test(start_paused = true)]
async fn a_router_that_is_read_after_a_timeout_has_the_time_of_a_failover() {
    let failing_over = format!(r#"{{ "type": "FailoverRoute", "children": ["PoolRoute|C", {WARMING}] }}"#);
    let (cluster, route, client) = open(&config_of(&failing_over)).await;
    assert!(route.is_permitted());
    cluster.set_everywhere("some:k");
    cluster.set_everywhere("other");
    for silent in ["c:1", "router:1"] {
        cluster.cache(silent).lock().delay = Duration::from_secs(60);
    }
    let time_of_read = async |key: &'static str| {
        let start = Instant::now();
        client.get(key).await.expect_err("nothing answers");
        start.elapsed()
    };
    let (with_router, alone) = tokio::join!(time_of_read("some:k"), time_of_read("other"));
    assert_eq!(route.statistics().reads_filled_by_routers, 1);
    assert!(with_router > alone && with_router < alone + Duration::from_millis(300), "{with_router:?}, {alone:?}");
}

/// A server would give no other client these keys until the lease has expired.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_router_gives_after_the_time_of_a_failover_is_returned() {
    let failing_over = format!(r#"{{ "type": "FailoverRoute", "children": ["PoolRoute|C", {WARMING}] }}"#);
    let (cluster, _route, cache) = open_leased(&failing_over).await;
    void(&cache, cluster.cache("c:1"), "voided").await;
    let returned = || cluster.cache("router:1").lock().lease_sets;
    let before = returned();
    assert_eq!(cluster.cache("router:1").lock().lease_gets, 0);
    cluster.cache("c:1").lock().delay = Duration::from_secs(60);
    cluster.cache("router:1").lock().delay = Duration::from_millis(400);
    cache.get::<String>("voided").await.expect_err("nothing answers in time");
    assert_eq!(cluster.cache("router:1").lock().lease_gets, 1);
    assert_eq!(returned(), before);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(returned(), before + 1);
}

/// The router would change the key a second time, or take a second lease for a miss.
#[tokio::test(start_paused = true)]
async fn all_reads_go_through_routers_where_a_route_above_does_more_than_pass_them_on() {
    for above in [
        format!(r#"{{ "type": "ModifyKeyRoute", "set_key_suffix": "x", "target": {NEAR} }}"#),
        format!(r#"{{ "type": "MissFailoverRoute", "children": [{WARMING}, "PoolRoute|C"] }}"#),
        format!(r#"{{ "type": "BigValueRoute", "split_threshold": 5, "target": {STAGING} }}"#),
    ] {
        let (cluster, route, client) = open(&config_of(&above)).await;
        assert!(!route.is_permitted(), "{above}");
        assert!(route.statistics().permits_of_filling_routes > 0);
        cluster.set_everywhere("other");
        assert_eq!(value(&client, "other").await, "router:1");
    }
}

/// Its own `LeaseRoute`s lease some keys only, and the one below a route that is read through a router would not be
/// reached: the router would see the miss of a plain get, and remember it with a connection of all threads.
#[tokio::test(start_paused = true)]
async fn routers_see_no_plain_miss_where_they_take_leases() {
    let (cluster, route, cache) = open_leased(WARMING).await;
    assert_eq!(cache.get::<String>("other").await, Ok(None));
    assert_eq!(cluster.cache("router:1").lock().lease_gets, 1);
    cache.set("other", "a value", 0).await.expect("it is stored under the lease of its miss");
    assert_eq!(cluster.cache("router:1").lock().lease_sets, 1);
    assert_eq!(cluster.cache("router:1").lock().plain_sets, 0);
    void(&cache, cluster.cache("router:1"), "voided").await;
    let before = cluster.cache("router:1").lock().lease_gets;
    assert_eq!(cache.get::<String>("voided").await, Ok(None), "no token may be used, so it is only asked for a value");
    assert!(cluster.cache("router:1").lock().lease_gets > before, "by a lease, which is returned");
    let other = Client::new(Arc::new(Routers::new(
        [Address("router:1".into())],
        Arc::new(cluster.clone()),
        &DestinationOptions::default(),
    )));
    let Ok(Lookup::Miss { lease: Lease::Held(_) }) = other.get("voided").await else {
        panic!("another client fills it")
    };
    assert_eq!(cluster.cache("router:1").lock().plain_sets, 0);
    let replicas = route.replicas(RoutingPrefix::parse("/./.").expect("a prefix"));
    let late = TypedClient::new(Client::new(replicas), Codec::default());
    assert!(late.get::<String>("other").await.is_err(), "no replica is read through a router");
}
