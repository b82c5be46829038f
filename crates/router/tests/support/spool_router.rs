//! A router with a spool under a paused clock: trees of routes over servers that fail, and storage in memory.

use crate::fake_network::{FakeNetwork, FakeServer};
use bytes::Bytes;
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_router::{Backlog, MemoryDisk, RouterConfig, Spool, SpoolSettings, SpoolStats, Tree};
use lookaside_routing::{Address, Context, Defaults, Failure, HealthSettings, Outcome, TkoReason};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

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
}

impl RunningRouter {
    pub async fn request(&self, thread: usize, key: &str, operation: Operation<Bytes>) -> Outcome {
        let request = Request { key: Bytes::copy_from_slice(key.as_bytes()), operation };
        without_reason(self.trees[thread].root().route(vec![request], &Context::default()).await.remove(0))
    }

    pub async fn get(&self, thread: usize, key: &str) -> Outcome {
        self.request(thread, key, Operation::Get { cas: false }).await
    }

    pub async fn delete(&self, thread: usize, key: &str) -> Outcome {
        self.request(thread, key, Operation::Delete { hold_off_ms: 0 }).await
    }

    pub async fn set(&self, thread: usize, key: &str, value: &str) -> Outcome {
        let value = Bytes::copy_from_slice(value.as_bytes());
        self.request(thread, key, Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value, cas: false })
            .await
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

pub const NOT_FOUND: Outcome = Ok(Reply::NotFound);
/// The outcome with the same reason for every server that is TKO or fenced.
pub fn without_reason(outcome: Outcome) -> Outcome {
    outcome.map_err(|failure| match failure {
        Failure::Tko(_) => Failure::Tko(TkoReason::Fenced),
        failure => failure,
    })
}

pub const TKO: Outcome = Err(Failure::Tko(TkoReason::Fenced));

pub fn value(text: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(text.as_bytes()) })
}
