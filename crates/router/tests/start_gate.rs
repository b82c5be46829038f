//! The start gate under a paused clock: what a router that waits for the invalidator serves, and what opens it.

use crate::fake_network::FakeNetwork;
use crate::support::{self, FakeRoute, SessionHarness, expect};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_router::{RouterConfig, Settings, StartGate, Tree};
use lookaside_routing::Defaults;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::time::Instant;

const BOUND: Duration = Duration::from_secs(30);
const TOKEN: u64 = 0x5f1c;
const STATE: &str = "get __mcrouter__.start_gate\r\n";
const REFUSAL: &str = "SERVER_ERROR router waits for the invalidator to catch up (--wait-for-invalidator)\r\n";

/// A router in front of one server, which holds an old value of `k`.
struct Fixture {
    network: Arc<FakeNetwork>,
    gate: Arc<StartGate>,
    harness: SessionHarness,
}

impl Fixture {
    fn new(settings: Settings) -> Fixture {
        Fixture::with_gate(settings, StartGate::new(BOUND, TOKEN, 1))
    }

    fn with_gate(settings: Settings, gate: Arc<StartGate>) -> Fixture {
        let network = Arc::<FakeNetwork>::default();
        network.server("main:1").put("k", "old");
        let options = DestinationOptions { tko_trackers: Some(TkoTrackers::new()), ..DestinationOptions::default() };
        let configuration = r#"{ "pools": { "A": { "servers": ["main:1"] } }, "route": "PoolRoute|A" }"#;
        let config = RouterConfig::parse(configuration, &Defaults::default(), &options).expect("it is good");
        let config = Arc::new(config.with_start_gate(Some(gate.clone())));
        // A reload keeps the gate.
        let first = Tree::build(&config, network.clone(), 1, None);
        let tree = Tree::build(&config, network.clone(), 1, Some(&first));
        let harness = SessionHarness::start_with(settings, tree, FakeRoute::new());
        Fixture { network, gate, harness }
    }
}

async fn ask(client: &mut DuplexStream, command: &str, reply: &str) {
    client.write_all(command.as_bytes()).await.expect("a pipe does not break");
    let replied = tokio::time::timeout(BOUND, expect(client, reply)).await;
    assert!(replied.is_ok(), "{command} has a shorter reply than {reply}");
}

fn value(key: &str, value: &str) -> String {
    format!("VALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len())
}

#[tokio::test(start_paused = true)]
async fn closed_gate_serves_deletes_only() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.harness.connect();
    for command in
        ["get k\r\n", "lease-get k\r\n", "set k 0 0 3\r\nold\r\n", "touch k 9\r\n", "gat 9 k\r\n", "mg k v\r\n"]
    {
        ask(&mut client, command, REFUSAL).await;
    }
    assert!(fixture.network.server("main:1").asked("").is_empty(), "nothing reached the server");
    // In a batch with other requests, too.
    let batch = "get k\r\ndelete k\r\nset k 0 0 3\r\nold\r\ndelete k\r\nget k\r\n";
    ask(&mut client, batch, &format!("{REFUSAL}DELETED\r\n{REFUSAL}NOT_FOUND\r\n{REFUSAL}")).await;
    assert_eq!(fixture.network.server("main:1").asked(""), ["delete k", "delete k"]);
    client.write_all(b"stats\r\nquit\r\n").await.expect("a pipe does not break");
    let stats = support::rest(&mut client).await;
    assert!(stats.contains("STAT start_gate_open 0\r\n") && stats.contains("STAT start_gate_refused 9\r\n"), "{stats}");
}

/// The invalidator notifies the router once it has caught up, flushes included: a gate that refused one would stay
/// closed until its bound.
#[tokio::test(start_paused = true)]
async fn closed_gate_serves_flushes() {
    let fixture = Fixture::new(Settings { flush_enabled: true, ..Settings::default() });
    let mut client = fixture.harness.connect();
    ask(&mut client, "get k\r\n", REFUSAL).await;
    ask(&mut client, "flush_all\r\n", "OK\r\n").await;
    let key = "__mcrouter__.flush_prefix(k)";
    ask(&mut client, &format!("get {key}\r\n"), &value(key, "flushed 1")).await;
    assert_eq!(fixture.network.server("main:1").asked("flush_all").len(), 2);
    ask(&mut client, "get k\r\n", REFUSAL).await;
}

#[tokio::test(start_paused = true)]
async fn refused_get_is_a_miss_with_that_option() {
    let fixture = Fixture::new(Settings { miss_on_get_errors: true, ..Settings::default() });
    ask(&mut fixture.harness.connect(), "get k\r\n", "END\r\n").await;
}

#[tokio::test(start_paused = true)]
async fn gate_opens_when_the_invalidator_names_this_run() {
    let fixture = Fixture::new(Settings::default());
    let mut client = fixture.harness.connect();
    let waiting = format!("waiting {TOKEN:016x}");
    ask(&mut client, STATE, &value("__mcrouter__.start_gate", &waiting)).await;
    for other in ["", "0", "0000000000005f1d"] {
        let key = format!("__mcrouter__.caught_up({other})");
        ask(&mut client, &format!("get {key}\r\n"), &value(&key, &waiting)).await;
    }
    ask(&mut client, "get k\r\n", REFUSAL).await;
    let key = format!("__mcrouter__.caught_up({TOKEN:016x})");
    ask(&mut client, &format!("get {key}\r\n"), &value(&key, "open")).await;
    ask(&mut client, STATE, &value("__mcrouter__.start_gate", "open")).await;
    ask(&mut client, "get k\r\n", &value("k", "old")).await;
    let start = Instant::now();
    fixture.gate.wait_until_open().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn gate_opens_after_its_bound() {
    let fixture = Fixture::new(Settings::default());
    let (start, mut client) = (Instant::now(), fixture.harness.connect());
    fixture.gate.wait_until_open().await;
    assert_eq!(start.elapsed(), BOUND);
    ask(&mut client, "get k\r\n", &value("k", "old")).await;
    // A router without the option.
    let harness = SessionHarness::start(Settings::default());
    ask(&mut harness.connect(), STATE, &value("__mcrouter__.start_gate", "open")).await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_is_handed_over_keeps_its_state() {
    let gate = StartGate::new(BOUND, TOKEN, 1);
    tokio::time::advance(BOUND / 3).await;
    let saved = gate.to_saved();
    let (start, successor) = (Instant::now(), StartGate::from_saved(&saved).expect("a gate"));
    assert_eq!(successor.to_saved(), saved, "still closed, for the same run");
    successor.wait_until_open().await;
    assert_eq!(start.elapsed(), BOUND * 2 / 3, "what is left of the bound");

    let successor = StartGate::from_saved(&successor.to_saved()).expect("a gate");
    let start = Instant::now();
    successor.wait_until_open().await;
    assert_eq!(start.elapsed(), Duration::ZERO, "an open gate stays open");
    assert!([&[0; 1][..], &[0; 8], &[0; 15], &[0; 17]].iter().all(|bytes| StartGate::from_saved(bytes).is_none()));
    let of_an_earlier_version = StartGate::from_saved(&saved[..16]).expect("a gate");
    assert_eq!(of_an_earlier_version.to_saved(), saved);
}

/// Keys of two databases: the gate opened when the invalidator of one had caught up, and showed old values of the
/// other.
#[tokio::test(start_paused = true)]
async fn gate_waits_for_every_source() {
    let gate = StartGate::new(BOUND, TOKEN, 2);
    let report = |source: &str| format!("__mcrouter__.caught_up({TOKEN:016x}{source})");
    let fixture = Fixture::with_gate(Settings::default(), gate.clone());
    let mut client = fixture.harness.connect();
    for source in [",9a", ",9a", ",9A"] {
        let key = report(source);
        ask(&mut client, &format!("get {key}\r\n"), &value(&key, "counted")).await;
    }
    for malformed in [",", ",no", ",1,2", ",12345678901234567"] {
        let key = report(malformed);
        ask(&mut client, &format!("get {key}\r\n"), &value(&key, &format!("waiting {TOKEN:016x}"))).await;
    }
    ask(&mut client, "get k\r\n", REFUSAL).await;
    // The next process of an upgrade knows which have reported.
    let successor = StartGate::from_saved(&gate.to_saved()).expect("a gate");
    for gate in [gate, successor] {
        let fixture = Fixture::with_gate(Settings::default(), gate);
        let mut client = fixture.harness.connect();
        let key = report(",9a");
        ask(&mut client, &format!("get {key}\r\n"), &value(&key, "counted")).await;
        ask(&mut client, "get k\r\n", REFUSAL).await;
        // One of an earlier version names none.
        let key = report("");
        ask(&mut client, &format!("get {key}\r\n"), &value(&key, "open")).await;
        ask(&mut client, "get k\r\n", &value("k", "old")).await;
    }
}
