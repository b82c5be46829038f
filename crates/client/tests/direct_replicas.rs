//! A direct client whose late lookups are sent to another replica, behind another routing prefix of its configuration.

use crate::fake::cluster::{Cluster, permit, permit_except, permit_with_leases, refusal, with_options};
use bytes::Bytes;
use lookaside_client::config::Source;
use lookaside_client::{
    Client, ClientError, Codec, DirectRoute, HedgeDelay, HedgeSettings, Lookup, PERMIT_DURATION, TypedClient,
};
use lookaside_routing::{Address, Defaults, RoutingPrefix};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const HEDGE_DELAY: Duration = Duration::from_millis(5);
const LATE: Duration = Duration::from_millis(50);
/// Long enough for a permit to be renewed some times.
const MOMENT: Duration = Duration::from_millis(300);

/// Each replica is read by its own prefix.
const CONFIG: &str = r#"{
    "pools": { "first": { "servers": ["a:1"] }, "second": { "servers": ["b:1"] } },
    "routes": [
        { "aliases": ["/west/first/"], "route": "PoolRoute|first" },
        { "aliases": ["/west/second/"], "route": "PoolRoute|second" }
    ]
}"#;

/// Of the router, whose keys without a prefix are those of the first replica.
const OPTIONS: &str = "--route-prefix=/west/first/";

fn prefix(text: &str) -> RoutingPrefix {
    RoutingPrefix::parse(text).expect("it is valid")
}

struct Fixture {
    cluster: Cluster,
    route: Arc<DirectRoute>,
    client: Client,
}

async fn fixture() -> Fixture {
    fixture_with(HedgeSettings::default()).await
}

async fn fixture_with(settings: HedgeSettings) -> Fixture {
    let cluster = Cluster::of(&["a:1", "b:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &with_options(permit(CONFIG), OPTIONS));
    let defaults = Defaults { prefix: prefix("/west/first/"), ..Defaults::default() };
    let builder = DirectRoute::builder(Source::Text(CONFIG.to_owned()), [Address("router:1".into())]);
    let builder = builder.send_updates_directly();
    let route = builder.network(Arc::new(cluster.clone())).defaults(defaults).build().await.expect("it is valid");
    let settings = HedgeSettings { delay: HedgeDelay::Fixed(HEDGE_DELAY), share_max: 1.0, ..settings };
    let client = Client::new(route.clone()).with_hedging(route.replicas(prefix("/west/second/")), settings);
    Fixture { cluster, route, client }
}

async fn value(client: &Client) -> Result<Bytes, ClientError> {
    match client.get("k").await {
        Ok(Lookup::Hit { value, .. }) => Ok(value),
        Ok(other) => panic!("no hit: {other:?}"),
        Err(error) => Err(error),
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_read_is_answered_by_the_other_replica() {
    let Fixture { cluster, client, .. } = fixture().await;
    assert_eq!(value(&client).await, Ok("a:1".into()));
    assert_eq!(cluster.cache("b:1").lock().lines, 0, "it was in time");
    cluster.cache("a:1").lock().delay = LATE;
    let started = Instant::now();
    assert_eq!(value(&client).await, Ok("b:1".into()));
    assert_eq!(started.elapsed(), HEDGE_DELAY);
    assert_eq!((client.statistics().hedges, client.statistics().hedges_won), (1, 1));
}

/// A permit holds for the replica as for any server: one that is fenced there is not read.
#[tokio::test(start_paused = true)]
async fn a_replica_is_read_only_as_far_as_the_permit_goes() {
    let Fixture { cluster, route, client } = fixture().await;
    cluster.cache("a:1").lock().delay = LATE;
    cluster.permit("router:1", &with_options(permit_except(CONFIG, ["b:1"]), OPTIONS));
    sleep(MOMENT).await;
    let lines = cluster.cache("b:1").lock().lines;
    assert_eq!(value(&client).await, Ok("a:1".into()), "late, since the other replica misses deletes");
    cluster.permit("router:1", &refusal("for a test"));
    sleep(PERMIT_DURATION).await;
    assert!(!route.is_permitted());
    cluster.cache("router:1").lock().delay = LATE;
    assert_eq!(value(&client).await, Ok("router:1".into()), "late, and through the router alone");
    assert_eq!(cluster.cache("b:1").lock().lines, lines);
}

/// A lease of a replica would be good for nothing, and keep the replica's own readers waiting.
#[tokio::test(start_paused = true)]
async fn a_replica_is_asked_without_a_lease_where_routers_take_leases() {
    let Fixture { cluster, client, .. } = fixture().await;
    cluster.permit("router:1", &with_options(permit_with_leases(CONFIG), OPTIONS));
    sleep(MOMENT).await;
    cluster.cache("a:1").lock().delay = LATE;
    let missed = client.get("missing").await;
    assert!(matches!(missed, Ok(Lookup::Miss { .. })), "{missed:?}");
    assert_eq!(client.statistics().hedges, 1);
    let replica = cluster.cache("b:1").lock();
    assert_eq!((replica.lines, replica.lease_gets), (1, 0));
}

/// If such a get were dropped, its server's token would be lost, so other clients would wait for it. Once this client
/// kept it, and stored under it what had no miss: the set of a value from before a delete that came ahead of the late
/// get.
#[tokio::test(start_paused = true)]
async fn the_token_of_a_plain_get_that_a_replica_has_answered_is_returned() {
    let Fixture { cluster, client, .. } =
        fixture_with(HedgeSettings { plain_gets: true, ..HedgeSettings::default() }).await;
    for address in ["a:1", "b:1", "router:1"] {
        cluster.cache(address).lock().keeps_flags = true;
    }
    cluster.permit("router:1", &with_options(permit_with_leases(CONFIG), OPTIONS));
    sleep(MOMENT).await;
    let cache = TypedClient::new(client, Codec::default());
    assert_eq!(cache.get::<Bytes>("other").await, Ok(None));
    // Misses from before the routers took leases are not known for ten seconds.
    sleep(Duration::from_secs(12)).await;
    cluster.cache("a:1").lock().delete("k");
    cluster.cache("a:1").lock().delay = LATE;
    assert_eq!(cache.get::<Bytes>("k").await, Ok(Some("b:1".into())));
    sleep(3 * LATE).await;
    let (lease_gets, lease_sets) = {
        let server = cluster.cache("a:1").lock();
        (server.lease_gets, server.lease_sets)
    };
    assert_eq!((lease_gets, lease_sets), (1, 1), "a token that no other client could get, and its return");
    cache.set("k", "not missed", 0).await.expect("the router judges it");
    assert_eq!(cluster.cache("a:1").lock().live("k"), None, "not stored under a token");
    assert_eq!(cluster.cache("router:1").lock().live("k").as_deref(), Some(&b"not missed"[..]));
    cluster.cache("b:1").lock().delete("k");
    assert_eq!(cache.get::<Bytes>("k").await, Ok(None));
    cache.set("k", "loaded", 0).await.expect("stored under the token of this get");
    assert_eq!(cluster.cache("a:1").lock().live("k").as_deref(), Some(&b"loaded"[..]));
}
