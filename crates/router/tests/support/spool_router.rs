//! A router with a spool under a paused clock: trees of routes over servers that fail, and storage in memory.

use super::fake_network::{FakeNetwork, FakeServer, Health};
use super::tree_requests::{DELETE, GET, NOT_FOUND, request, set};
use bytes::Bytes;
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_protocol::Operation;
use lookaside_router::{Backlog, Disk as _, MemoryDisk, RouterConfig, Spool, SpoolSettings, SpoolStats, Tree};
use lookaside_routing::{Address, Defaults, HealthSettings, Outcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

pub const MAIN: &str = "main:1";
pub const GUTTER: &str = "gutter:2";
/// Longer than any outage here takes to be detected and repaired.
pub const REPAIR: Duration = Duration::from_secs(10);

pub const ONE: &str = r#"{ "pools": { "A": { "servers": ["main:1"] } }, "route": "PoolRoute|A" }"#;
pub const FAILOVER: &str = r#"{
    "pools": { "A": { "servers": ["main:1"] }, "B": { "servers": ["gutter:2"] } },
    "route": { "type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }
}"#;
pub const OTHER: &str = r#"{ "pools": { "A": { "servers": ["gutter:2"] } }, "route": "PoolRoute|A" }"#;

/// The state that outlives a router.
#[derive(Default)]
pub struct Fixture {
    pub network: Arc<FakeNetwork>,
    pub disk: Arc<MemoryDisk>,
    pub settings: SpoolSettings,
}

/// A started router, with a tree for each thread.
pub struct RunningRouter {
    pub config: Arc<RouterConfig>,
    pub spool: Arc<Spool>,
    pub trees: Vec<Tree>,
    pub replay: JoinHandle<()>,
}

impl Fixture {
    pub fn with(settings: SpoolSettings) -> Fixture {
        Fixture { settings, ..Fixture::default() }
    }

    /// Starts a router of `ONE` with one thread. The server has a value of `k`, is gone or frozen, and its backlog is
    /// the delete of `k`.
    pub async fn start_with_backlog(&self, health: Health) -> RunningRouter {
        let (router, main) = (self.start(ONE, 1), self.main());
        main.put("k", "old");
        main.be(health);
        assert_eq!(router.delete(0, "k").await, NOT_FOUND, "spooled");
        router
    }

    pub fn start(&self, configuration: &str, threads: usize) -> RunningRouter {
        self.try_start(configuration, threads).expect("the disk is good")
    }

    pub fn try_start(&self, configuration: &str, threads: usize) -> Result<RunningRouter, String> {
        let tko_trackers = TkoTrackers::new();
        let health = HealthSettings { probe_initial_ms: 50, probe_max_ms: 200, ..HealthSettings::default() };
        let options =
            DestinationOptions { tko_trackers: Some(tko_trackers.clone()), health, ..DestinationOptions::default() };
        let defaults = Defaults { server_timeout_ms: 100, ..Defaults::default() };
        let spool = Spool::open(self.disk.clone(), tko_trackers, self.settings.clone())?;
        let config = RouterConfig::parse(configuration, &defaults, &options)
            .expect("it is good")
            .with_spool(Some(spool.clone()));
        spool.mark_unconfigured_for_flush(&config.servers());
        let config = Arc::new(config);
        let tree = |thread| Tree::build(&config, self.network.clone(), thread as u64, None);
        let trees = (0..threads).map(tree).collect();
        let (replayed, network) = (spool.clone(), self.network.clone());
        let replay = tokio::spawn(async move { replayed.replay(network, 7).await });
        Ok(RunningRouter { config, spool, trees, replay })
    }

    pub fn main(&self) -> Arc<FakeServer> {
        self.network.server(MAIN)
    }

    /// Syncs all files, as the writer does at each interval.
    pub fn sync_all(&self) {
        for folder in self.disk.folders().unwrap() {
            self.disk.files(&folder).unwrap().iter().for_each(|file| self.disk.sync(&folder, file).unwrap());
        }
    }

    /// Lets the server return, and gives routers the time to replay its backlog.
    pub async fn repair(&self) {
        self.main().be(Health::Well);
        sleep(REPAIR).await;
    }
}

impl RunningRouter {
    pub async fn request(&self, thread: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        request(&self.trees[thread], key, operation).await
    }

    pub async fn get(&self, thread: usize, key: &str) -> Outcome {
        self.request(thread, key, GET).await
    }

    pub async fn delete(&self, thread: usize, key: &str) -> Outcome {
        self.request(thread, key, DELETE).await
    }

    pub async fn set(&self, thread: usize, key: &str, value: &str) -> Outcome {
        self.request(thread, key, set(value)).await
    }

    /// Reloads the configuration, as a running router does.
    pub fn reload(&mut self, fixture: &Fixture, configuration: &str) {
        let options = self.config.destination_options();
        let defaults = Defaults { server_timeout_ms: 100, ..Defaults::default() };
        let config = RouterConfig::parse(configuration, &defaults, options).expect("it is good");
        self.config = Arc::new(config.with_spool(Some(self.spool.clone())));
        let tree = |old: &Tree| Tree::build(&self.config, fixture.network.clone(), 1, Some(old));
        self.trees = self.trees.iter().map(tree).collect();
    }

    pub fn backlog(&self) -> Backlog {
        self.spool.backlog(&Address(MAIN.into()))
    }

    pub fn statistics(&self) -> SpoolStats {
        self.spool.statistics()
    }

    /// Ends the router without closing the spool, as `kill -9` does.
    pub async fn kill(self) {
        self.replay.abort();
        let _ = self.replay.await;
    }
}
