//! By which configuration, and with which options of its routers, a client reads servers directly, with a paused clock.

use crate::direct::{MOMENT, value};
use crate::fake::cluster::{Cluster, config, permit, with_options};
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::{Client, DirectError, DirectRoute};
use lookaside_routing::{Address, BigValueSettings, Defaults};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

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
