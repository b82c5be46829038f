//! The leases that a client that reads servers directly takes for its plain gets and sets, with a paused clock.

use crate::direct::{MOMENT, route};
use crate::fake::cluster::{Cluster, config, permit, permit_with_leases, refusal};
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::{Client, Codec, DirectRoute, Lease, Lookup, PermitReply, TypedClient};
use lookaside_routing::Address;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Once they went through the router, which remembered the tokens of their misses with one of its connections: a set
/// over another one was stored under the token of a later miss, although its value was read before a delete.
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

/// A router's reply that it takes no leases is valid for ten seconds, and one that says nothing of leases is no such
/// reply.
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
    // The router may have begun to take leases. Misses from before are not known: the client could store an old value
    // under the token of a later one.
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

/// It also has a named handle that changes keys, to which no route refers.
fn config_that_leases(prefix: &str) -> String {
    format!(
        r#"{{
            "pools": {{ "main": {{ "servers": ["a:1"] }} }},
            "named_handles": {{
                "unused": {{ "type": "ModifyKeyRoute", "set_key_suffix": ":x", "target": "PoolRoute|main" }}
            }},
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

/// Once the miss was remembered under the key of the server, and the set did not find it: a router, which had seen no
/// miss, stored a value that was read before a delete.
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
