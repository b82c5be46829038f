//! Spares under a paused clock: a spare replaces a server that is unreachable for long, and no router ever reads a
//! deleted value, whenever each of them detects an outage.

use crate::fake_network::{FakeNetwork, FakeServer, Health};
use crate::tree_requests::{DELETE, GET, MISS, TKO, request, set, value};
use bytes::Bytes;
use lookaside_client::{DestinationOptions, Network, TkoTrackers};
use lookaside_protocol::{Operation, Reply};
use lookaside_router::{
    Identity, MemoryDisk, Proxy, RouterConfig, Settings, SharedState, Spares, SparesStats, Spool, SpoolSettings, Tree,
};
use lookaside_routing::{Address, Defaults, HealthSettings, Outcome};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Long enough to detect an unreachable server, too short for a spare to replace it.
const SHORT: Duration = Duration::from_secs(2);
/// Long enough for a spare to replace a server, or for a server to return.
const LONG: Duration = Duration::from_secs(20);

const ONE: &str = r#"{
    "pools": { "A": { "servers": ["main:1"], "spares": ["x:1", "y:1"], "spare_after_ms": 10000 } },
    "route": "PoolRoute|A"
}"#;
/// The same with another list of spares.
const OTHER: &str = r#"{
    "pools": { "A": { "servers": ["main:1"], "spares": ["z:1", "x:1"], "spare_after_ms": 10000 } },
    "route": "PoolRoute|A"
}"#;
/// The same without spares.
const NONE: &str = r#"{ "pools": { "A": { "servers": ["main:1"] } }, "route": "PoolRoute|A" }"#;
const THREE: &str = r#"{
    "pools": { "A": { "servers": ["a:1", "b:1", "c:1"], "spares": ["x:1", "y:1"], "spare_after_ms": 10000 } },
    "route": { "type": "PoolRoute", "pool": "A", "hash": "ConstShard" }
}"#;

fn host(index: usize) -> String {
    format!("router-{index}:5000")
}

struct Fixture {
    network: Arc<FakeNetwork>,
    disks: Vec<Arc<MemoryDisk>>,
    routers: Vec<RunningRouter>,
}

struct RunningRouter {
    proxy: Arc<Proxy>,
    spares: Arc<Spares>,
    spool: Arc<Spool>,
    options: DestinationOptions,
    tasks: Vec<JoinHandle<()>>,
}

impl Fixture {
    async fn start(configuration: &str, routers: usize) -> Fixture {
        let disks = (0..routers).map(|_| Arc::default()).collect();
        let mut fixture = Fixture { network: Arc::default(), disks, routers: Vec::new() };
        for server in ["main:1", "a:1", "b:1", "c:1", "x:1", "y:1", "z:1"] {
            fixture.server(server);
        }
        for index in 0..routers {
            let running = fixture.start_router(configuration, index, routers).await;
            fixture.routers.push(running);
        }
        // The routers connect to each other.
        sleep(Duration::from_secs(1)).await;
        fixture
    }

    async fn start_router(&self, configuration: &str, index: usize, routers: usize) -> RunningRouter {
        let view = self.network.view(&host(index));
        let peers = (0..routers).filter(|peer| *peer != index).map(|peer| Address(host(peer).into())).collect();
        let timeout = Duration::from_millis(200);
        let seed = 100 + index as u64;
        let settings = SpoolSettings { peers, timeout, wait_max: timeout, seed, ..SpoolSettings::default() };
        let tko_trackers = TkoTrackers::new();
        let health = HealthSettings { probe_initial_ms: 50, probe_max_ms: 200, ..HealthSettings::default() };
        let options = DestinationOptions {
            tko_trackers: Some(tko_trackers.clone()),
            connect_eagerly: true,
            health,
            ..DestinationOptions::default()
        };
        let spool = Spool::open(self.disks[index].clone(), tko_trackers.clone(), settings).expect("the disk is good");
        let spares = Spares::new(tko_trackers);
        let config = build_config(configuration, &options, &spool, &spares);
        spares.configure(config.pools());
        let tree = Tree::build(&config, view.clone(), index as u64, None);
        let shared = SharedState::new(Identity { pid: 1, started_unix_s: 0 }, "a test");
        let proxy = Proxy::new(Settings::default(), shared, tree);
        let listener = view.listen(&Address(host(index).into())).await.expect("it listens");
        let (serving, replayed, managed) = (proxy.clone(), spool.clone(), spares.clone());
        let serve = tokio::spawn(async move {
            let (_running, shutdown) = watch::channel(false);
            serving.serve(listener, shutdown).await;
        });
        let network = view.clone();
        let replay = tokio::spawn(async move { replayed.replay(network, index as u64).await });
        let replacement = tokio::spawn(async move { managed.run(view).await });
        RunningRouter { proxy, spares, spool, options, tasks: vec![serve, replay, replacement] }
    }

    async fn restart(&mut self, configuration: &str, index: usize) {
        for task in self.routers[index].tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
        self.routers[index] = self.start_router(configuration, index, self.routers.len()).await;
        sleep(Duration::from_secs(1)).await;
    }

    fn reload(&self, configuration: &str, index: usize) {
        let RunningRouter { proxy, spares, spool, options, .. } = &self.routers[index];
        let config = build_config(configuration, options, spool, spares);
        spares.configure(config.pools());
        proxy.set_tree(Tree::build(&config, self.network.view(&host(index)), index as u64, Some(&proxy.tree())));
    }

    fn server(&self, address: &str) -> Arc<FakeServer> {
        self.network.server(address)
    }

    /// Cuts a router off from a server, or restores the connection.
    fn cut(&self, router: usize, server: &str, is_cut: bool) {
        self.network.cut(&host(router), server, is_cut);
    }

    async fn request(&self, router: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        request(&self.routers[router].proxy.tree(), key, operation).await
    }

    async fn get(&self, router: usize, key: &str) -> Outcome {
        self.request(router, key, GET).await
    }

    async fn delete(&self, router: usize, key: &str) -> Outcome {
        self.request(router, key, DELETE).await
    }

    async fn fill(&self, router: usize, key: &str, value: &str) {
        assert_eq!(self.request(router, key, set(value)).await, Ok(Reply::Stored));
    }

    fn statistics(&self, router: usize) -> SparesStats {
        self.routers[router].spares.statistics()
    }
}

fn build_config(
    configuration: &str,
    options: &DestinationOptions,
    spool: &Arc<Spool>,
    spares: &Arc<Spares>,
) -> Arc<RouterConfig> {
    let defaults = Defaults { server_timeout_ms: 100, ..Defaults::default() };
    let config = RouterConfig::parse(configuration, &defaults, options).expect("it is good");
    Arc::new(config.with_spool(Some(spool.clone())).with_spares(spares.clone()))
}

/// Asserts that the delete was acknowledged.
fn assert_acknowledged(outcome: &Outcome) {
    assert!(matches!(outcome, Ok(Reply::NotFound | Reply::Deleted)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_spare_serves_until_the_server_is_back_and_has_applied_its_backlog() {
    let fixture = Fixture::start(ONE, 1).await;
    let (main, x) = (fixture.server("main:1"), fixture.server("x:1"));
    main.put("deleted", "old");
    main.put("kept", "old");
    main.be(Health::Gone);
    sleep(SHORT).await;
    assert_eq!(fixture.get(0, "deleted").await, TKO, "the spare does not serve yet");
    sleep(LONG).await;
    assert_eq!(fixture.get(0, "deleted").await, MISS);
    fixture.fill(0, "deleted", "newer").await;
    assert_eq!(fixture.get(0, "deleted").await, value("newer"));
    assert_acknowledged(&fixture.delete(0, "deleted").await);
    assert_eq!(fixture.get(0, "deleted").await, MISS);
    assert_eq!(fixture.statistics(0), SparesStats { in_use: 1, takeovers: 1, returns: 0, refusals: 0 });

    main.refuse("delete", "SERVER_ERROR not now");
    main.be(Health::Well);
    sleep(LONG).await;
    fixture.fill(0, "kept", "of the spare").await;
    assert!(x.has("kept"), "a server with a backlog does not serve");
    main.refusals.lock().unwrap().clear();
    sleep(LONG).await;
    assert_eq!(fixture.get(0, "deleted").await, MISS);
    assert_eq!(fixture.get(0, "kept").await, value("old"), "the server serves its keys again");
    assert_eq!(fixture.statistics(0), SparesStats { in_use: 0, takeovers: 1, returns: 1, refusals: 0 });
}

/// The spare has old values because it was a server of another pool before.
#[tokio::test(start_paused = true)]
async fn values_from_an_earlier_role_of_a_spare_are_never_read() {
    let mut fixture = Fixture::start(ONE, 2).await;
    let (main, x) = (fixture.server("main:1"), fixture.server("x:1"));
    x.put("k", "ancient");
    main.be(Health::Gone);
    sleep(LONG).await;
    for router in 0..2 {
        assert_eq!(fixture.get(router, "k").await, MISS);
    }
    fixture.fill(0, "k", "new").await;
    assert_eq!(fixture.get(1, "k").await, value("new"), "both chose the same");
    fixture.restart(ONE, 1).await;
    sleep(LONG).await;
    assert_eq!(
        fixture.get(1, "k").await,
        value("new"),
        "a router that starts later does not flush the spare that another reads"
    );
    assert_eq!(x.asked("flush_all").len(), 1);
}

/// While a configuration without the spare is in force the spare misses deletes, so its mark must not be trusted.
#[tokio::test(start_paused = true)]
async fn a_spare_that_was_removed_from_its_pool_is_flushed_although_it_has_the_mark() {
    for (is_restarted, keeps_mark) in [(false, false), (true, false), (false, true)] {
        let mut fixture = Fixture::start(ONE, 1).await;
        let x = fixture.server("x:1");
        fixture.server("main:1").be(Health::Gone);
        sleep(LONG).await;
        fixture.fill(0, "k", "old").await;
        if keeps_mark {
            x.refuse("delete", "SERVER_ERROR not now");
        }
        fixture.reload(NONE, 0);
        assert_acknowledged(&fixture.delete(0, "k").await);
        sleep(SHORT).await;
        x.refusals.lock().unwrap().clear();
        match is_restarted {
            true => fixture.restart(ONE, 0).await,
            false => fixture.reload(ONE, 0),
        }
        sleep(LONG).await;
        assert_eq!(fixture.get(0, "k").await, MISS, "restarted: {is_restarted}, keeps its mark: {keeps_mark}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_spare_that_cannot_be_flushed_is_skipped() {
    let fixture = Fixture::start(ONE, 1).await;
    let (main, x, y) = (fixture.server("main:1"), fixture.server("x:1"), fixture.server("y:1"));
    x.refuse("flush_all", "CLIENT_ERROR flush_all not allowed");
    x.put("k", "ancient");
    main.be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "v").await;
    assert!(y.has("k"));
    assert_eq!((fixture.get(0, "k").await, fixture.statistics(0).takeovers), (value("v"), 1));
}

#[tokio::test(start_paused = true)]
async fn each_unreachable_server_has_a_spare_of_its_own_while_there_are_any() {
    let fixture = Fixture::start(THREE, 1).await;
    for server in ["c:1", "a:1", "b:1"] {
        fixture.server(server).be(Health::Gone);
        sleep(LONG).await;
    }
    fixture.fill(0, "k:0:a", "v").await;
    fixture.fill(0, "k:2:c", "v").await;
    assert_eq!(fixture.get(0, "k:1:b").await, TKO, "no spare is left for the last");
    let (x, y) = (fixture.server("x:1"), fixture.server("y:1"));
    assert!(x.has("k:2:c") && y.has("k:0:a"), "the third server prefers the first spare");
    fixture.server("a:1").be(Health::Well);
    sleep(LONG).await;
    assert_eq!(fixture.get(0, "k:1:b").await, MISS, "a spare that is free again is used");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_spare_is_replaced_too() {
    let fixture = Fixture::start(ONE, 1).await;
    fixture.server("main:1").be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "v").await;
    fixture.server("x:1").be(Health::Gone);
    sleep(SHORT).await;
    assert_eq!(fixture.get(0, "k").await, TKO);
    sleep(LONG).await;
    assert_eq!(fixture.get(0, "k").await, MISS);
    fixture.fill(0, "k", "v").await;
    assert!(fixture.server("y:1").has("k"));
}

/// One router alone is cut off from the server. It reads a spare, the other reads the server, and each deletes at both.
#[tokio::test(start_paused = true)]
async fn routers_that_disagree_on_reachability_never_read_a_value_that_either_has_deleted() {
    let fixture = Fixture::start(ONE, 2).await;
    fixture.cut(0, "main:1", true);
    // A request must fail for the outage to be detected.
    for _ in 0..3 {
        fixture.get(0, "k").await.expect_err("there is no reply");
    }
    sleep(LONG).await;
    assert_eq!((fixture.statistics(0).in_use, fixture.statistics(1).in_use), (1, 0));
    for deleting in [0, 1] {
        for router in [0, 1] {
            fixture.fill(router, "k", "old").await;
        }
        assert!(fixture.server("main:1").has("k") && fixture.server("x:1").has("k"), "each reads a different server");
        assert_acknowledged(&fixture.delete(deleting, "k").await);
        for router in [0, 1] {
            let read = fixture.get(router, "k").await;
            assert!(read == MISS || read == TKO, "deleted by {deleting}, read by {router}: {read:?}");
        }
        sleep(LONG).await;
    }
    fixture.cut(0, "main:1", false);
    sleep(LONG).await;
    for router in [0, 1] {
        assert_eq!((fixture.get(router, "k").await, fixture.statistics(router).in_use), (MISS, 0));
    }
}

/// The spare has the pool's mark, so only the fence prevents reads of values whose deletes it missed.
#[tokio::test(start_paused = true)]
async fn a_spare_with_a_backlog_does_not_serve() {
    let fixture = Fixture::start(ONE, 1).await;
    let (main, x) = (fixture.server("main:1"), fixture.server("x:1"));
    main.be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "old").await;
    main.be(Health::Well);
    sleep(LONG).await;
    x.be(Health::Gone);
    sleep(SHORT).await;
    assert_acknowledged(&fixture.delete(0, "k").await);
    x.refuse("delete", "SERVER_ERROR not now");
    x.be(Health::Well);
    main.be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "new").await;
    assert_eq!(
        (fixture.get(0, "k").await, fixture.server("y:1").has("k")),
        (value("new"), true),
        "the other one serves"
    );
    assert!(x.has("k"), "it still has the deleted value");
}

#[tokio::test(start_paused = true)]
async fn a_serving_spare_keeps_serving_over_a_change_of_the_pool() {
    let fixture = Fixture::start(ONE, 1).await;
    fixture.server("main:1").be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "v").await;
    fixture.reload(OTHER, 0);
    assert_eq!(fixture.get(0, "k").await, value("v"), "although it is the second in the list now");
    assert_eq!(fixture.statistics(0).in_use, 1);
    fixture.server("main:1").be(Health::Well);
    sleep(LONG).await;
    assert_eq!((fixture.get(0, "k").await, fixture.statistics(0).returns), (MISS, 1));
}

/// Threads replace their trees one by one. Once a thread with the old tree read the spare, where another with the new
/// tree, which lacks the spare, had not deleted.
#[tokio::test(start_paused = true)]
async fn a_spare_that_leaves_its_pool_is_not_read_by_the_old_tree_of_a_thread() {
    let fixture = Fixture::start(ONE, 1).await;
    fixture.server("main:1").be(Health::Gone);
    sleep(LONG).await;
    fixture.fill(0, "k", "old").await;
    let old = fixture.routers[0].proxy.tree();
    fixture.reload(NONE, 0);
    assert_acknowledged(&fixture.delete(0, "k").await);
    assert_eq!(request(&old, "k", GET).await, TKO, "as without a spare");
    assert!(fixture.server("x:1").has("k"), "the delete has not reached it");
}

/// The spares were prepared one after the other: one that accepted a connection and did not reply delayed the next
/// server's by a second, and then took its spare.
#[tokio::test(start_paused = true)]
async fn a_hung_spare_does_not_delay_the_spare_of_another_server() {
    let fixture = Fixture::start(THREE, 1).await;
    sleep(LONG).await;
    fixture.server("x:1").be(Health::Frozen);
    for (server, key) in [("a:1", "k:0:a"), ("b:1", "k:1:b")] {
        fixture.server(server).be(Health::Gone);
        for _ in 0..3 {
            fixture.get(0, key).await.expect_err("there is no reply");
        }
    }
    let unreadable_since = Instant::now();
    while fixture.statistics(0).in_use == 0 {
        assert!(unreadable_since.elapsed() < Duration::from_millis(10_500), "the spare is not prepared");
        sleep(Duration::from_millis(50)).await;
    }
    fixture.fill(0, "k:1:b", "v").await;
    assert!(fixture.server("y:1").has("k:1:b"), "each server prefers another spare");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_spare_does_not_count_as_in_use() {
    let fixture = Fixture::start(ONE, 1).await;
    fixture.server("main:1").be(Health::Gone);
    sleep(LONG).await;
    assert_eq!(fixture.statistics(0).in_use, 1);
    for spare in ["x:1", "y:1"] {
        fixture.server(spare).be(Health::Gone);
    }
    sleep(LONG).await;
    assert_eq!(fixture.get(0, "k").await, TKO);
    assert_eq!(fixture.statistics(0).in_use, 0);
    fixture.server("x:1").be(Health::Well);
    sleep(LONG).await;
    assert_eq!((fixture.get(0, "k").await, fixture.statistics(0).in_use), (MISS, 1));
}

/// The routers detect outages in different orders.
#[tokio::test(start_paused = true)]
async fn a_deleted_value_is_never_read_again_in_any_order_of_outages() {
    for seed in 0..8 {
        let fixture = Fixture::start(ONE, 2).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut version = 0_u32;
        let mut deleted: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..150 {
            let (router, key) = (random.usize(0..2), format!("k{}", random.u8(0..3)));
            let server = ["main:1", "x:1", "y:1"][random.usize(0..3)];
            match random.u8(0..10) {
                0 => fixture.cut(router, server, random.bool()),
                1 => fixture.server(server).be([Health::Well, Health::Gone, Health::Well][random.usize(0..3)]),
                2..=4 => {
                    version += 1;
                    let _ = fixture.request(router, &key, set(&version.to_string())).await;
                }
                5 | 6 => {
                    let before = version;
                    if let Ok(Reply::Deleted | Reply::NotFound) = fixture.delete(router, &key).await {
                        deleted.insert(key, before);
                    }
                }
                7 => sleep(Duration::from_millis(random.u64(0..30_000))).await,
                _ => {
                    if let Ok(Reply::Value { value, .. }) = fixture.get(router, &key).await {
                        let read: u32 = std::str::from_utf8(&value).unwrap().parse().unwrap();
                        let deleted = deleted.get(&key).copied().unwrap_or(0);
                        assert!(read > deleted, "seed {seed}: read {read} of {key}, deleted up to {deleted}");
                    }
                }
            }
        }
        for running in &fixture.routers {
            running.tasks.iter().for_each(JoinHandle::abort);
        }
    }
}
