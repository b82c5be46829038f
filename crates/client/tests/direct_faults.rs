//! A direct client while servers and routers are silent, with a paused clock: no call lasts longer than its deadline,
//! no value is wrong, and no task is left behind. And the window over all that servers have outstanding.

use crate::fake::Mode;
use crate::fake::cluster::{Cluster, permit};
use lookaside_client::config::Source;
use lookaside_client::{Client, ClientError, DirectRoute, DirectRouteBuilder, Lookup, WindowSettings};
use lookaside_routing::Address;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const SERVERS: [&str; 3] = ["a:1", "b:1", "c:1"];
const ROUTERS: [&str; 2] = ["first:1", "second:1"];
const CONFIG: &str = r#"{
    "pools": {
        "main": { "servers": ["a:1", "b:1", "c:1"], "server_timeout": 200 },
        "gutter": { "servers": ["gutter:1"], "server_timeout": 200 }
    },
    "route": { "type": "FailoverRoute", "children": ["PoolRoute|main", "PoolRoute|gutter"] }
}"#;
const DEADLINE: Duration = Duration::from_millis(50);
/// An answer that never comes.
const NEVER: Duration = Duration::from_secs(1_000_000);
/// In which all that a fault has left behind ends: timeouts, releases of leases, probes.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

fn cluster() -> Cluster {
    let caches = [&SERVERS[..], &["gutter:1"], &ROUTERS[..]].concat();
    let cluster = Cluster::of(&caches);
    for router in ROUTERS {
        cluster.permit(router, &permit(CONFIG));
    }
    cluster
}

fn builder(cluster: &Cluster) -> DirectRouteBuilder {
    let routers = ROUTERS.map(|router| Address(router.into()));
    DirectRoute::builder(Source::Text(CONFIG.to_owned()), routers).network(Arc::new(cluster.clone()))
}

async fn route(cluster: &Cluster) -> Arc<DirectRoute> {
    let route = builder(cluster).build().await.expect("the configuration is valid");
    eventually("a permit", || route.is_permitted()).await;
    route
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let all = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(RECOVERY_MAX, all).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn keys() -> Vec<String> {
    (0..30).map(|number| format!("key:{number}")).collect()
}

/// One more page, by many tasks at a time. Values are those of the place that they were read at.
async fn read_pages(client: &Client) -> usize {
    let (started, mut hits) = (Instant::now(), 0);
    let keys = keys();
    let pages = (0..20).map(|_| client.get_many(&keys));
    for page in futures_util::future::join_all(pages).await {
        match page {
            Ok(lookups) => {
                for lookup in lookups.into_iter().flatten() {
                    let Lookup::Hit { value, .. } = lookup else { panic!("every place has every key: {lookup:?}") };
                    assert!(value.ends_with(b":1"), "{value:?}");
                    hits += 1;
                }
            }
            Err(error) => assert_eq!(error, ClientError::DeadlineExceeded),
        }
    }
    assert!(started.elapsed() <= DEADLINE + Duration::from_millis(1), "{:?}", started.elapsed());
    hits
}

/// Reads pages while these caches do not answer; with [`Mode::Silence`] no connection is made to them either.
async fn be_silent_for_a_while(cluster: &Cluster, client: &Client, silent: &[&str], mode: Mode) {
    for address in silent {
        cluster.cache(address).lock().delay = NEVER;
        cluster.set_mode(address, mode);
    }
    for _ in 0..20 {
        read_pages(client).await;
        sleep(Duration::from_millis(20)).await;
    }
    for address in silent {
        cluster.cache(address).lock().delay = Duration::ZERO;
        cluster.cache(address).lock().end_of_silence.notify_waiters();
        cluster.set_mode(address, Mode::Accept);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_end_by_their_deadline_and_leave_no_task_whatever_is_silent() {
    // Servers and routers that accept and never answer, and those that cannot even be connected to.
    let faults: [&[&str]; 6] = [
        &["a:1"],
        &["a:1", "b:1", "c:1"],
        &["a:1", "gutter:1"],
        &["first:1"],
        &["first:1", "second:1"],
        &["a:1", "b:1", "c:1", "gutter:1", "first:1", "second:1"],
    ];
    let cluster = cluster();
    keys().iter().for_each(|key| cluster.set_everywhere(key));
    let route = route(&cluster).await;
    let client = Client::new(route.clone()).with_deadline(DEADLINE);
    assert_eq!(read_pages(&client).await, 600);
    let mut tasks_after_first_pass = usize::MAX;
    for _ in 0..2 {
        for silent in faults {
            for mode in [Mode::Accept, Mode::Silence] {
                be_silent_for_a_while(&cluster, &client, silent, mode).await;
                eventually("a permit", || route.is_permitted()).await;
                sleep(RECOVERY_MAX).await;
                assert_eq!(read_pages(&client).await, 600, "all are read again after {silent:?} were silent");
            }
        }
        // The first pass has connected to all routers.
        eventually("no task is left", || alive_tasks() <= tasks_after_first_pass).await;
        tasks_after_first_pass = alive_tasks();
    }
    let window = route.window_statistics().expect("it is on by default");
    assert_eq!((window.outstanding, window.waiting), (0, 0));
    drop((client, route));
    // All connections of the cluster have a task at the other end.
    eventually("no task is left at the end", || alive_tasks() <= SERVERS.len() + ROUTERS.len() + 1).await;
}

#[tokio::test(start_paused = true)]
async fn all_servers_share_one_window() {
    let cluster = cluster();
    keys().iter().for_each(|key| cluster.set_everywhere(key));
    for server in SERVERS {
        cluster.cache(server).lock().delay = Duration::from_millis(20);
    }
    for (window, round_trips_min, round_trips_max) in
        [(Some(WindowSettings::fixed(5)), 6, 9), (Some(WindowSettings::by_delay()), 1, 1), (None, 1, 1)]
    {
        let route = builder(&cluster).window(window).build().await.expect("the configuration is valid");
        eventually("a permit", || route.is_permitted()).await;
        let (client, keys) = (Client::new(route.clone()), keys());
        // All servers are connected to.
        client.get_many(&keys).await.expect("valid keys");
        let started = Instant::now();
        let sizes = async {
            loop {
                sleep(Duration::from_millis(1)).await;
                let outstanding = route.window_statistics().map_or(0, |window| window.outstanding);
                assert!(outstanding <= window.map_or(0, |window| window.initial), "{outstanding}");
            }
        };
        let lookups = tokio::select! {
            lookups = client.get_many(&keys) => lookups.expect("valid keys"),
            () = sizes => unreachable!("it never ends"),
        };
        assert!(lookups.iter().all(Result::is_ok));
        let round_trips = started.elapsed().as_millis() / 20;
        assert!((round_trips_min..=round_trips_max).contains(&round_trips), "{round_trips} with {window:?}");
        assert_eq!(route.window_statistics().map(|window| window.outstanding), window.map(|_| 0));
    }
}
