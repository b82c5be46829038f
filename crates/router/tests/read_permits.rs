//! Permits of clients that read servers directly, under a paused clock: what they say, and what waits for their end.

use crate::fake_network::FakeNetwork;
use crate::support::{FakeRoute, SessionHarness, expect};
use lookaside_client::config::ConfigId;
use lookaside_client::{DestinationOptions, PERMIT_ENDS_AFTER, TkoTrackers};
use lookaside_router::{
    ActiveConfigs, ConfigUpdates, Identity, Proxy, RouterConfig, Settings, SharedState, StartGate, Tree,
};
use lookaside_routing::{Address, BigValueSettings, Defaults, RoutingPrefix};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

const TOKEN: u64 = 0x5f1c;

fn text(server: &str) -> String {
    format!(r#"{{ "pools": {{ "A": {{ "servers": ["{server}"] }} }}, "route": "PoolRoute|A" }}"#)
}

fn config(server: &str, tko_trackers: &Arc<TkoTrackers>) -> RouterConfig {
    let options = DestinationOptions { tko_trackers: Some(tko_trackers.clone()), ..DestinationOptions::default() };
    RouterConfig::parse(&text(server), &Defaults::default(), &options).expect("it is good")
}

async fn ask(client: &mut DuplexStream, value: &str) {
    get(client, "__mcrouter__.read_permit", value).await;
}

async fn get(client: &mut DuplexStream, key: &str, value: &str) {
    client.write_all(format!("get {key}\r\n").as_bytes()).await.expect("a pipe does not break");
    expect(client, &format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len())).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_has_the_configuration_and_the_fenced_servers() {
    let (trackers, gate) = (TkoTrackers::new(), StartGate::new(Duration::from_secs(30), TOKEN, 1));
    let config = Arc::new(config("main:1", &trackers).with_start_gate(Some(gate.clone())));
    let tree = Tree::build(&config, Arc::<FakeNetwork>::default(), 1, None);
    let harness = SessionHarness::start_with(Settings::default(), tree, FakeRoute::new());
    let mut client = harness.connect();
    ask(&mut client, "refused the router waits for the invalidator\r\nleases no\r\n").await;
    get(&mut client, &format!("__mcrouter__.caught_up({TOKEN:016x})"), "open").await;
    let id = ConfigId::of(&text("main:1")).expect("it is good");
    let permit = format!("permit 200\r\nconfiguration {id}\r\n");
    ask(&mut client, &permit).await;
    let fences = ["main:1", "/a b"].map(|server| trackers.fence(&Address(server.into())));
    fences.iter().for_each(|fence| fence.raise());
    ask(&mut client, &format!("{permit}fenced /a%20b\r\nfenced main:1\r\n")).await;
    fences.iter().for_each(|fence| fence.lower());
    ask(&mut client, &permit).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_has_the_options_that_a_client_must_have_too() {
    let defaults = Defaults {
        prefix: RoutingPrefix::parse("/a/b/").expect("a prefix"),
        sends_unknown_prefix_to_default: true,
        big_values: Some(BigValueSettings { hides_flag: true, ..BigValueSettings::above(500) }),
        splits_shards: false,
        server_timeout_ms: 7,
        ..Defaults::default()
    };
    let config = RouterConfig::parse(&text("main:1"), &defaults, &DestinationOptions::default()).expect("it is good");
    let tree = Tree::build(&Arc::new(config), Arc::<FakeNetwork>::default(), 1, None);
    let mut client = SessionHarness::start_with(Settings::default(), tree, FakeRoute::new()).connect();
    let id = ConfigId::of(&text("main:1")).expect("it is good");
    let options = "--route-prefix=/a/b/%20--send-invalid-route-to-default%20--disable-shard-split-route\
                   %20--big-value-split-threshold=500%20--big-value-hide-reply-flag";
    // A client that does not know of options takes it for no permit.
    ask(&mut client, &format!("restricted-permit 200\r\nconfiguration {id}\r\noptions {options}\r\n")).await;
}

/// Until then a client may read by the configuration before, as a thread may whose batches have not ended.
#[tokio::test(start_paused = true)]
async fn a_configuration_is_applied_when_the_permits_from_before_have_ended() {
    let trackers = TkoTrackers::new();
    let active = |server| Arc::new(ActiveConfigs::single(Arc::new(config(server, &trackers))));
    let (publish, configs) = watch::channel(active("main:1"));
    let (applied, mut received) = mpsc::unbounded_channel();
    let mut updates = ConfigUpdates::new(0, configs, applied, Arc::<FakeNetwork>::default(), 1);
    let shared = SharedState::new(Identity::default(), "a test");
    let proxy = Proxy::new(Settings::default(), shared.clone(), updates.build_tree(None));
    let mut change_to = async |server| {
        publish.send_replace(active(server));
        let started = Instant::now();
        updates.apply(&proxy).await;
        received.recv().await.expect("it is reported");
        started.elapsed()
    };
    assert!(change_to("other:1").await < Duration::from_millis(1), "no permit was given");
    shared.read_permits().record();
    let waited = change_to("main:1").await;
    assert!(waited >= PERMIT_ENDS_AFTER && waited < PERMIT_ENDS_AFTER * 2, "{waited:?}");
}

/// The process before it may have given permits for another configuration.
#[tokio::test(start_paused = true)]
async fn a_thread_that_starts_reports_when_the_permits_of_its_predecessor_have_ended() {
    let trackers = TkoTrackers::new();
    let (_publish, configs) = watch::channel(Arc::new(ActiveConfigs::single(Arc::new(config("main:1", &trackers)))));
    let (applied, mut received) = mpsc::unbounded_channel();
    let mut updates = ConfigUpdates::new(0, configs, applied, Arc::<FakeNetwork>::default(), 1);
    let shared = SharedState::new(Identity::default(), "a test");
    shared.read_permits().record();
    let proxy = Proxy::new(Settings::default(), shared, updates.build_tree(None));
    let started = Instant::now();
    updates.report_first(&proxy);
    received.recv().await.expect("it is reported");
    let waited = started.elapsed();
    assert!(waited >= PERMIT_ENDS_AFTER && waited < PERMIT_ENDS_AFTER * 2, "{waited:?}");
}
