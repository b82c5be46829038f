//! A client that reads servers directly, against a router and servers in memory, with a paused clock.

use crate::fake::Mode;
use crate::fake::cluster::{Cluster, config, permit, permit_except, permit_with_leases, refusal, with_options};
use bytes::Bytes;
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::{
    Client, Codec, DirectError, DirectRoute, Lease, Lookup, PERMIT_DURATION, PERMIT_KEY, PermitReply, TypedClient,
};
use lookaside_routing::{Address, BigValueSettings, Defaults};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a permit to be renewed some times.
const MOMENT: Duration = Duration::from_millis(300);

async fn route(cluster: &Cluster, config: &str, routers: &[&'static str]) -> Arc<DirectRoute> {
    let routers = routers.iter().map(|router| Address((*router).into()));
    let builder = DirectRoute::builder(Source::Text(config.to_owned()), routers).network(Arc::new(cluster.clone()));
    let route = builder.build().await.expect("the configuration is valid");
    sleep(Duration::from_millis(1)).await;
    route
}

async fn value(client: &Client, key: &str) -> Bytes {
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

/// Once they went through the router, which remembered the tokens of their misses with one of its connections: a set over
/// another one was stored under the token of a later miss, although its value was read before a delete.
#[tokio::test(start_paused = true)]
async fn plain_requests_have_leases_of_their_own_where_routers_take_leases() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "first:1", "second:1"]);
    for router in ["first:1", "second:1"] {
        cluster.permit(router, &permit_with_leases(&config("a:1")));
    }
    let routers = ["first:1", "second:1"].map(|router| Address(router.into()));
    let builder = DirectRoute::builder(Source::Text(config("a:1")), routers);
    let builder = builder.network(Arc::new(cluster.clone())).send_updates_directly();
    let route = builder.build().await.expect("the configuration is valid");
    let cache = TypedClient::new(Client::new(route.clone()), Codec::default());
    assert_eq!(cache.get::<String>("k").await, Ok(None), "a plain get");
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 1, "sent as a lease-get, to the server");
    assert_eq!(cache.get::<String>("k").await, Ok(None), "of another thread, which has the same token");
    cluster.cache("a:1").lock().delete("k");
    assert_eq!(cache.get::<String>("k").await, Ok(None), "of a third thread, which has another one");
    for _ in 0..3 {
        assert!(cache.set("k", "read before the delete, perhaps", 0).await.is_err());
    }
    for address in ["a:1", "first:1", "second:1"] {
        assert_eq!(cluster.cache(address).lock().live("k"), None, "{address}");
    }
    assert_eq!(cache.get::<String>("l").await, Ok(None));
    cache.set("l", "a value", 0).await.expect("stored under the token, at the server");
    cache.set("never-missed", "a value", 0).await.expect("the fake stores it");
    let plain_sets = |address| cluster.cache(address).lock().plain_sets;
    assert_eq!((plain_sets("a:1"), plain_sets("first:1")), (0, 1), "a set without a miss is the router's to judge");
    assert_eq!(cache.delete("k").await, Ok(false), "as is a delete");
    assert_eq!(cluster.cache("a:1").lock().lines, 6, "four lookups, a lease that was returned, and a fill");
    let client = Client::new(route.clone());
    let Ok(Lookup::Miss { lease: Lease::Held(token) }) = client.get("own").await else { panic!("a miss with a token") };
    client.fill("own", token, "filled", 0, 0).await.expect("stored");
    assert_eq!(cluster.cache("a:1").lock().live("own").as_deref(), Some(&b"filled"[..]));
}

/// A router's word that it takes no leases holds for ten seconds, and what it does not say is no such word.
#[tokio::test(start_paused = true)]
async fn plain_requests_go_as_they_are_only_while_routers_take_no_leases() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.permit("router:1", &permit(&config("a:1")));
    let route = route(&cluster, &config("a:1"), &["router:1"]).await;
    let cache = TypedClient::new(Client::new(route.clone()), Codec::default());
    let lease_gets = |address| cluster.cache(address).lock().lease_gets;
    let is_leased = async |key: &str| {
        let before = lease_gets("a:1") + lease_gets("router:1");
        cache.get::<String>(key).await.expect("a miss");
        lease_gets("a:1") + lease_gets("router:1") > before
    };
    assert!(!is_leased("k").await);
    cluster.permit("router:1", &refusal("for a test"));
    sleep(MOMENT * 5).await;
    assert!(!route.is_permitted() && !is_leased("k").await);
    let silent_on_leases = PermitReply::Refused { why: "for a test".to_owned(), takes_leases: None };
    cluster.permit("router:1", &silent_on_leases);
    sleep(Duration::from_millis(9_900)).await;
    assert!(!is_leased("k").await);
    sleep(Duration::from_millis(200)).await;
    // The router may have begun to take leases. Misses from before are not known: the client could store an old value under
    // the token of a later one.
    assert!(cache.set("k", "a value", 0).await.is_err());
    sleep(Duration::from_secs(12)).await;
    assert!(is_leased("l").await, "they are forgotten");
    cluster.permit("router:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert!(!is_leased("k").await);
    cache.set("k", "a value", 0).await.expect("stored by the router");
    cluster.permit("router:1", &permit_with_leases(&config("a:1")));
    sleep(MOMENT).await;
    assert!(cache.set("m", "a value", 0).await.is_err(), "misses from before are not known");
    sleep(Duration::from_secs(12)).await;
    assert!(is_leased("m").await);
}

fn config_that_leases(prefix: &str) -> String {
    format!(
        r#"{{
            "pools": {{ "main": {{ "servers": ["a:1"] }} }},
            "route": {{
                "type": "PrefixSelectorRoute",
                "policies": {{ "{prefix}": "LeaseRoute|PoolRoute|main" }},
                "wildcard": "PoolRoute|main"
            }}
        }}"#
    )
}

/// With a `LeaseRoute` the configuration says which keys are leased. Misses of others are not remembered, and the next
/// configuration may lease those.
#[tokio::test(start_paused = true)]
async fn the_configuration_s_own_lease_routes_decide_which_keys_are_leased() {
    let (users, posts) = (config_that_leases("user:"), config_that_leases("post:"));
    let cluster = Cluster::of(&["a:1", "router:1"]);
    cluster.permit("router:1", &permit_with_leases(&users));
    let (texts, received) = mpsc::unbounded_channel();
    texts.send(users).expect("it is received");
    let builder = DirectRoute::builder(Source::Text(String::new()), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).watcher(ConfigWatcher::of_texts(received));
    let route = builder.build().await.expect("the configuration is valid");
    let cache = TypedClient::new(Client::new(route.clone()), Codec::default());
    assert_eq!(cache.get::<String>("user:1").await, Ok(None));
    assert_eq!(cache.get::<String>("post:1").await, Ok(None));
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 1, "for the user alone");
    cache.set("post:2", "a value", 0).await.expect("the router stores it");
    texts.send(posts.clone()).expect("it is received");
    cluster.permit("router:1", &permit_with_leases(&posts));
    sleep(MOMENT).await;
    assert_eq!(cache.get::<String>("post:1").await, Ok(None), "of another thread");
    assert!(cache.set("post:1", "read before a delete, perhaps", 0).await.is_err());
    sleep(Duration::from_secs(12)).await;
    assert_eq!(cache.get::<String>("post:1").await, Ok(None));
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 2);
}

/// Once the miss was remembered under the key of the server, and the set did not find it: a router, which had seen no miss,
/// stored a value that was read before a delete.
#[tokio::test(start_paused = true)]
async fn a_set_finds_its_miss_where_the_configuration_changes_keys() {
    let config = r#"{
        "pools": { "main": { "servers": ["a:1"] } },
        "route": { "type": "ModifyKeyRoute", "ensure_key_prefix": "app:", "target": "LeaseRoute|PoolRoute|main" }
    }"#;
    let cluster = Cluster::of(&["a:1", "router:1"]);
    cluster.permit("router:1", &permit_with_leases(config));
    let route = route(&cluster, config, &["router:1"]).await;
    let cache = TypedClient::new(Client::new(route.clone()), Codec::default());
    assert!(route.is_permitted());
    assert_eq!(cache.get::<String>("k").await, Ok(None));
    assert_eq!(cluster.cache("a:1").lock().lease_gets, 1);
    cluster.cache("a:1").lock().delete("app:k");
    assert_eq!(cache.get::<String>("k").await, Ok(None), "of another thread, which has another token");
    assert!(cache.set("k", "read before the delete, perhaps", 0).await.is_err());
    assert_eq!(cluster.cache("router:1").lock().plain_sets, 0);
    assert_eq!(cluster.cache("router:1").lock().live("k"), None);
    assert_eq!(route.statistics().lease_sets_refused, 1);
}

/// An application gives up a get, and sets nothing. Once its miss made the key void for as long as the key was read.
#[tokio::test(start_paused = true)]
async fn a_get_that_was_given_up_does_not_keep_its_key_from_being_stored_for_ever() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.permit("router:1", &permit_with_leases(&config("a:1")));
    let builder = DirectRoute::builder(Source::Text(config("a:1")), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).send_updates_directly();
    let cache = TypedClient::new(Client::new(builder.build().await.expect("it is valid")), Codec::default());
    cluster.cache("a:1").lock().delay = Duration::from_millis(50);
    assert!(timeout(Duration::from_millis(10), cache.get::<String>("k")).await.is_err());
    sleep(MOMENT).await;
    cluster.cache("a:1").lock().delay = Duration::ZERO;
    cluster.cache("a:1").lock().delete("k");
    let mut stored_s = None;
    for second in 1..=60 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.get::<String>("k").await, Ok(None));
        if cache.set("k", "a value", 0).await.is_ok() {
            stored_s = Some(second);
            break;
        }
    }
    assert!(stored_s > Some(10), "stored after {stored_s:?} s: the set of the get that was given up may come");
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

/// Once the options of routers were not compared: a client without the option that splits large values returned what a
/// router stores in place of such a value.
#[tokio::test(start_paused = true)]
async fn a_client_reads_through_routers_whose_options_it_does_not_have() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "first:1", "second:1"]);
    cluster.set_everywhere("k");
    let splitting = Defaults { big_values: Some(BigValueSettings::above(1_000)), ..Defaults::default() };
    let reads_directly = async |of_router: &Defaults, of_client: &Defaults| {
        for router in ["first:1", "second:1"] {
            cluster.permit(router, &with_options(permit(&config("a:1")), &of_router.data_options()));
        }
        let routers = ["first:1", "second:1"].map(|router| Address(router.into()));
        let builder = DirectRoute::builder(Source::Text(config("a:1")), routers).defaults(of_client.clone());
        let route = builder.network(Arc::new(cluster.clone())).build().await.expect("the configuration is valid");
        sleep(MOMENT).await;
        let is_direct = value(&Client::new(route.clone()), "k").await == "a:1";
        assert_eq!(route.is_permitted(), is_direct);
        assert_eq!(route.statistics().permits_of_other_options > 0, !is_direct);
        is_direct
    };
    assert!(reads_directly(&splitting, &splitting).await);
    assert!(!reads_directly(&splitting, &Defaults::default()).await);
    assert!(!reads_directly(&Defaults::default(), &splitting).await);
    let patient = Defaults { server_timeout_ms: 5_000, ..splitting.clone() };
    assert!(reads_directly(&patient, &splitting).await, "timeouts change no value");
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
async fn a_client_reads_by_the_configuration_that_its_router_reads() {
    let cluster = Cluster::of(&["a:1", "b:1", "gutter:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &permit(&config("b:1")));
    let (texts, received) = mpsc::unbounded_channel();
    texts.send(config("a:1")).expect("it is received");
    let builder = DirectRoute::builder(Source::Text(String::new()), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).watcher(ConfigWatcher::of_texts(received));
    let route = builder.build().await.expect("the configuration is valid");
    let client = Client::new(route.clone());
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "router:1", "the router reads b, of which the client does not know");
    cluster.permit("router:1", &permit(&config("a:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
    texts.send("{ this is no configuration".to_owned()).expect("it is received");
    texts.send(config("b:1")).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1", "the router still reads a");
    cluster.permit("router:1", &permit(&config("b:1")));
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "b:1");
    let statistics = route.statistics();
    assert_eq!((statistics.configurations, statistics.configurations_refused), (1, 1));
    assert!(statistics.permits_of_other_configurations > 0);
}

/// Its source is away at first, has nothing valid then, and is read at last.
#[tokio::test(start_paused = true)]
async fn a_client_may_begin_without_a_configuration() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    cluster.set_everywhere("k");
    cluster.permit("router:1", &permit(&config("a:1")));
    let (texts, received) = mpsc::unbounded_channel();
    let builder = DirectRoute::builder(Source::Text(String::new()), [Address("router:1".into())]);
    let builder = builder.network(Arc::new(cluster.clone())).watcher(ConfigWatcher::of_texts(received));
    let began = Instant::now();
    let route = builder.configuration_may_follow().build().await.expect("nothing is waited for");
    assert_eq!(began.elapsed(), Duration::ZERO);
    let client = Client::new(route.clone());
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "router:1");
    texts.send("{ this is no configuration".to_owned()).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "router:1");
    texts.send(config("a:1")).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(value(&client, "k").await, "a:1");
    let statistics = route.statistics();
    assert_eq!((statistics.configurations, statistics.configurations_refused), (1, 1));
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

#[tokio::test(start_paused = true)]
async fn a_configuration_that_cannot_be_used_is_refused() {
    let cluster = Cluster::of(&["a:1", "gutter:1", "router:1"]);
    let build = async |text: &str, routers: Vec<Address>| {
        let builder = DirectRoute::builder(Source::Text(text.to_owned()), routers);
        builder.network(Arc::new(cluster.clone())).build().await.err()
    };
    assert_eq!(build(&config("a:1"), Vec::new()).await, Some(DirectError::NoRouter));
    let router = || vec![Address("router:1".into())];
    let tls = r#"{ "pools": { "A": { "servers": ["a:1"], "security_mech": "tls" } }, "route": "PoolRoute|A" }"#;
    for (text, expected) in [("{", "line 1"), (r#"{ "route": "PoolRoute|none" }"#, "none"), (tls, "TLS")] {
        match build(text, router()).await {
            Some(DirectError::Configuration { why }) => assert!(why.contains(expected), "{text}: {why}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}
