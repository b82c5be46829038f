//! A client that reads servers directly, and whose configuration names its routers; with a paused clock.

use crate::fake::Mode;
use crate::fake::cluster::{Cluster, config, permit};
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::{Client, DirectError, DirectRoute, DirectRouteBuilder, Lookup};
use lookaside_routing::{Address, Defaults, RoutingPrefix};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a permit to be renewed some times.
const MOMENT: Duration = Duration::from_millis(300);
const CACHES: [&str; 5] = ["a:1", "gutter:1", "first:1", "second:1", "given:1"];

/// The configuration of [`config`] with these routers, which does not change its identity.
fn naming(routers: &str) -> String {
    config("a:1").replacen('{', &format!(r#"{{ "routers": {routers},"#), 1)
}

/// All of `CACHES`. The routers permit the configuration.
fn cluster() -> Cluster {
    let cluster = Cluster::of(&CACHES);
    for router in ["first:1", "second:1", "given:1"] {
        cluster.permit(router, &permit(&config("a:1")));
    }
    cluster.set_everywhere("k");
    cluster
}

fn builder<const N: usize>(
    cluster: &Cluster,
    routers: [&str; N],
) -> (mpsc::UnboundedSender<String>, DirectRouteBuilder) {
    let (texts, received) = mpsc::unbounded_channel();
    let routers = routers.map(|router| Address(router.into()));
    let builder = DirectRoute::builder(Source::Text(String::new()), routers).network(Arc::new(cluster.clone()));
    (texts, builder.watcher(ConfigWatcher::of_texts(received)))
}

/// A client without routers of its own, and where its next configurations are sent to.
async fn open(cluster: &Cluster, text: &str) -> (mpsc::UnboundedSender<String>, Arc<DirectRoute>, Client) {
    let (texts, builder) = builder(cluster, []);
    texts.send(text.to_owned()).expect("it is received");
    let route = builder.build().await.expect("the configuration is valid");
    sleep(Duration::from_millis(1)).await;
    (texts, route.clone(), Client::new(route))
}

async fn read_from(client: &Client) -> String {
    match client.get("k").await {
        Ok(Lookup::Hit { value, .. }) => String::from_utf8_lossy(&value).into_owned(),
        other => panic!("no hit: {other:?}"),
    }
}

/// The router that stores what the client sets now.
async fn stored_by(cluster: &Cluster, client: &Client, value: &'static str) -> Vec<&'static str> {
    client.set("s", value, 0, 0).await.expect("a router stores it");
    let is_there = |cache: &&str| cluster.cache(cache).lock().live("s").as_deref() == Some(value.as_bytes());
    CACHES.into_iter().filter(is_there).collect()
}

#[tokio::test(start_paused = true)]
async fn routers_that_the_configuration_names_are_used_if_none_are_given() {
    let cluster = cluster();
    let (_texts, route, client) = open(&cluster, &naming(r#"["first:1"]"#)).await;
    assert!(route.is_permitted());
    assert_eq!(read_from(&client).await, "a:1");
    assert_eq!(stored_by(&cluster, &client, "1").await, ["first:1"]);
    assert_eq!(route.routers().addresses(), [Address("first:1".into())]);
    assert_eq!(cluster.cache("second:1").lock().connections, 0);
}

#[tokio::test(start_paused = true)]
async fn routers_that_are_given_win() {
    let cluster = cluster();
    let (texts, builder) = builder(&cluster, ["given:1"]);
    texts.send(naming(r#"["first:1"]"#)).expect("it is received");
    let route = builder.build().await.expect("the configuration is valid");
    let client = Client::new(route.clone());
    assert_eq!(stored_by(&cluster, &client, "1").await, ["given:1"]);
    texts.send(naming(r#"["second:1"]"#)).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(route.statistics().configurations, 1);
    assert_eq!(stored_by(&cluster, &client, "2").await, ["given:1"]);
    assert_eq!(read_from(&client).await, "a:1");
    for named in ["first:1", "second:1"] {
        assert_eq!(cluster.cache(named).lock().connections, 0, "{named}");
    }
}

/// Whatever the former routers do: they may be gone, which is why the list has changed.
#[tokio::test(start_paused = true)]
async fn a_new_list_takes_effect_at_once() {
    for mode in [Mode::Accept, Mode::Refuse, Mode::Silence] {
        let cluster = cluster();
        let (texts, route, client) = open(&cluster, &naming(r#"["first:1"]"#)).await;
        assert_eq!(stored_by(&cluster, &client, "1").await, ["first:1"]);
        if mode != Mode::Accept {
            cluster.cache("first:1").lock().delay = Duration::from_secs(3_600);
            cluster.set_mode("first:1", mode);
            sleep(MOMENT).await;
            assert!(!route.is_permitted());
        }
        texts.send(naming(r#"["second:1"]"#)).expect("it is received");
        sleep(MOMENT).await;
        assert!(route.is_permitted(), "{mode:?}");
        assert_eq!(read_from(&client).await, "a:1");
        assert_eq!(stored_by(&cluster, &client, "2").await, ["second:1"]);
        let lines = cluster.cache("first:1").lock().lines;
        sleep(MOMENT * 5).await;
        assert_eq!(cluster.cache("first:1").lock().lines, lines, "no permit is asked for there");
        texts.send(naming(r#"["first:1", "second:1"]"#)).expect("it is received");
        sleep(MOMENT).await;
        assert_eq!(stored_by(&cluster, &client, "3").await, ["second:1"], "the one that is used stays so");
        assert_eq!(route.statistics().configurations, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_outstanding_is_not_lost_with_its_router() {
    let cluster = cluster();
    let (texts, _route, client) = open(&cluster, &naming(r#"["first:1"]"#)).await;
    cluster.cache("first:1").lock().delay = Duration::from_millis(100);
    let set = tokio::spawn({
        let client = client.clone();
        async move { client.set("s", "late", 0, 0).await }
    });
    sleep(Duration::from_millis(10)).await;
    texts.send(naming(r#"["second:1"]"#)).expect("it is received");
    set.await.expect("it does not panic").expect("the former router answers");
    assert_eq!(cluster.cache("first:1").lock().live("s").as_deref(), Some(&b"late"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_bad_changes_nothing_and_one_that_is_missing_only_the_routes() {
    let cluster = cluster();
    cluster.permit("first:1", &permit(&config("gutter:1")));
    let (texts, route, client) = open(&cluster, &naming(r#"["first:1"]"#)).await;
    assert!(!route.is_permitted(), "the router reads another configuration");
    let twice = r#"["second:1", "second:1"]"#;
    for bad in ["[]", r#""second:1""#, r#"["second"]"#, twice, r#"{ "second": ["second:1"] }"#] {
        texts.send(naming(bad)).expect("it is received");
        sleep(MOMENT).await;
        assert_eq!(stored_by(&cluster, &client, bad).await, ["first:1"], "{bad}");
    }
    assert_eq!((route.statistics().configurations, route.statistics().configurations_refused), (0, 5));
    texts.send(config("gutter:1")).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(route.statistics().configurations, 1);
    assert_eq!(read_from(&client).await, "gutter:1", "by the new configuration");
    assert_eq!(stored_by(&cluster, &client, "1").await, ["first:1"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_any_router_is_refused() {
    let cluster = cluster();
    for text in [config("a:1"), naming(r#"{ "/west/other/": ["first:1"] }"#)] {
        let (texts, builder) = builder(&cluster, []);
        texts.send(text).expect("it is received");
        let Err(DirectError::NoRouter) = builder.build().await else { panic!("no router is named") };
    }
    let (texts, builder) = builder(&cluster, []);
    texts.send(naming("[7]")).expect("it is received");
    match builder.build().await {
        Err(DirectError::Configuration { why }) => assert!(why.contains("at routers[0]: expected a router"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn routers_may_be_named_by_routing_prefix() {
    let cluster = cluster();
    let (texts, builder) = builder(&cluster, []);
    texts.send(naming(r#"{ "/west/one/": ["first:1"], "/west/two/": ["second:1"] }"#)).expect("it is received");
    let prefix = RoutingPrefix::parse("/west/two/").expect("a prefix");
    let route = builder.defaults(Defaults { prefix, ..Defaults::default() }).build().await.expect("it is valid");
    assert_eq!(stored_by(&cluster, &Client::new(route), "1").await, ["second:1"]);
    assert_eq!(cluster.cache("first:1").lock().connections, 0);
}

/// Its source is away at first. Requests fail at once, instead of taking the time of their callers.
#[tokio::test(start_paused = true)]
async fn a_client_that_begins_without_a_configuration_has_its_routers_with_it() {
    let cluster = cluster();
    let (texts, builder) = builder(&cluster, []);
    let route = builder.configuration_may_follow().build().await.expect("nothing is waited for");
    let client = Client::new(route.clone());
    let began = Instant::now();
    assert!(client.get("k").await.is_err() && client.set("s", "1", 0, 0).await.is_err());
    assert_eq!(began.elapsed(), Duration::ZERO);
    sleep(MOMENT * 10).await;
    texts.send(config("a:1")).expect("it is received");
    sleep(MOMENT).await;
    assert!(client.get("k").await.is_err(), "it names none");
    texts.send(naming(r#"["second:1"]"#)).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(read_from(&client).await, "a:1");
    assert_eq!(stored_by(&cluster, &client, "2").await, ["second:1"]);
    assert_eq!((route.statistics().configurations, route.statistics().configurations_refused), (1, 1));
}

/// A forked process begins with those of its parent.
#[tokio::test(start_paused = true)]
async fn first_routers_serve_until_the_configuration_names_others() {
    let cluster = cluster();
    let (texts, builder) = builder(&cluster, []);
    let builder = builder.configuration_may_follow().first_routers([Address("first:1".into())]);
    let client = Client::new(builder.build().await.expect("nothing is waited for"));
    assert_eq!(read_from(&client).await, "first:1");
    texts.send(naming(r#"["second:1"]"#)).expect("it is received");
    sleep(MOMENT).await;
    assert_eq!(read_from(&client).await, "a:1");
    assert_eq!(stored_by(&cluster, &client, "1").await, ["second:1"]);
}

#[tokio::test(start_paused = true)]
async fn routers_that_are_gone_leave_no_task() {
    let cluster = cluster();
    let (texts, _route, client) = open(&cluster, &naming(r#"["first:1"]"#)).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut at_first = None;
    for round in 0..20 {
        let router = if round % 2 == 0 { "second:1" } else { "first:1" };
        texts.send(naming(&format!("[{router:?}]"))).expect("it is received");
        sleep(MOMENT).await;
        assert_eq!(stored_by(&cluster, &client, format!("{round}").leak()).await, [router]);
        at_first = at_first.or((round == 1).then(alive));
    }
    let few = || alive() <= at_first.expect("the second round");
    let all_ended = async {
        while !few() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), all_ended).await.expect("connections of former routers have ended");
}
