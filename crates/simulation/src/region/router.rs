//! Starts a router: the production code with its configuration language, on a simulated network. Its disk survives it.

use super::SimulatedRegion;
use super::coverage_disk::CoverageDisk;
use super::guarantee::DisabledGuarantee;
use super::names::{RouterName, address};
use super::plan::SpoolMode;
use super::router_configs::RouterHost;
use super::router_program::{RouterCommand, RouterProgram};
use super::shared_history::SharedHistory;
use crate::process::Process;
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_router::{
    ActiveConfigs, HistoryStore, Identity, MemoryDisk, ReadPermits, SharedState, Spares, Spool, SpoolSettings,
};
use lookaside_routing::{Address, HealthSettings};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// How long a server, or a peer, may take to answer the spool.
const SPOOL_TIMEOUT: Duration = Duration::from_millis(200);
/// The fence of a router that is silent for this long expires.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// With `copy-leases` broken.
const UNLEASED_COPIES_AFTER: Duration = Duration::from_millis(100);
/// The size of a small spool, in bytes: a few deletes per server.
const SPOOL_BYTES_SMALL: u64 = 200;

/// A router that runs.
pub(super) struct RunningRouter {
    pub(super) commands: mpsc::UnboundedSender<RouterCommand>,
    /// Its configurations. Nothing waits for it: a channel wakes its receivers in an unseeded random order.
    pub(super) active: watch::Receiver<Arc<ActiveConfigs>>,
    pub(super) spares: Arc<Spares>,
}

impl SimulatedRegion {
    /// Starts a router with the configuration in its file.
    pub(crate) fn start_router(&self, router: RouterName, seed: u64) {
        self.start_process(router, seed, false);
    }

    /// The same, by a process that takes over from one that has just handed over. The covered configurations that this
    /// one has left are up to date: no peer and no history is asked.
    pub(super) fn take_over_router(&self, router: RouterName, seed: u64) {
        self.start_process(router, seed, true);
    }

    fn start_process(&self, router: RouterName, seed: u64, is_takeover: bool) {
        let text = self.configuration_file(router);
        let process = Process::default();
        let network = self.network.host(&router.host());
        let tko_trackers = TkoTrackers::new();
        let spares = Spares::new(tko_trackers.clone());
        let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
        let options = DestinationOptions {
            health,
            tko_trackers: Some(tko_trackers.clone()),
            connect_eagerly: true,
            ..DestinationOptions::default()
        };
        let (commands, received) = mpsc::unbounded_channel();
        let shared = SharedState::new(Identity { pid: 1, started_unix_s: 0 }, "simulation");
        // The run before may have given permits.
        shared.read_permits().record();
        let spool = self.open_spool(router, is_takeover, &tko_trackers, shared.read_permits(), seed);
        self.usage.borrow_mut().add(&spool, &spares, &shared);
        let unleased_copies_after = (self.disabled == DisabledGuarantee::CopyLeases).then_some(UNLEASED_COPIES_AFTER);
        let host = RouterHost { options, spool, spares, shared, unleased_copies_after, checker: self.checker.clone() };
        let publish = watch::Sender::new(Arc::new(ActiveConfigs::single(Arc::new(host.config(&text)))));
        let running = RunningRouter { commands, active: publish.subscribe(), spares: host.spares.clone() };
        self.routers.borrow_mut().insert(router, running);
        let coverage = self.coverage_disk(router, is_takeover);
        let program = RouterProgram {
            process: process.clone(),
            network,
            peers: if host.spool.is_some() { self.peers(router) } else { Vec::new() },
            host,
            publish,
            history: self.history(router),
            handed_over: is_takeover.then(|| coverage.digest()),
            coverage,
            covers: !matches!(self.disabled, DisabledGuarantee::Resize | DisabledGuarantee::Gutter),
            seed,
        };
        self.programs.start(&router.host(), process, program.run(address(&router.host()), text, received));
    }

    /// The file of the covered configurations, for the next process of a router.
    fn coverage_disk(&self, router: RouterName, is_takeover: bool) -> CoverageDisk {
        let coverage = self.coverages.borrow_mut().entry(router).or_default().clone();
        match is_takeover && self.disabled == DisabledGuarantee::Takeover {
            true => coverage.begin_outdated_process(),
            false => coverage.begin_process(),
        }
        coverage
    }

    /// The disk of the spool, for the next process of a router.
    fn spool_disk(&self, router: RouterName, is_takeover: bool) -> Arc<MemoryDisk> {
        let mut disks = self.spools.borrow_mut();
        let disk = disks.entry(router).or_default();
        let is_lost = match self.disabled {
            DisabledGuarantee::Spool => true,
            DisabledGuarantee::TakeoverSpool => is_takeover,
            _ => false,
        };
        if is_lost {
            *disk = Arc::new(MemoryDisk::new());
        }
        disk.clone()
    }

    /// `None` if the routers share none.
    fn history(&self, router: RouterName) -> Option<Arc<dyn HistoryStore>> {
        if !self.plan.has_history || self.disabled == DisabledGuarantee::History {
            return None;
        }
        let mut histories = self.histories.borrow_mut();
        let history = histories.entry(router.cluster).or_insert_with(|| SharedHistory::new(router.cluster as u64));
        Some(Arc::new(history.clone()))
    }

    /// The other routers of the cluster, if routers have spools.
    fn peers(&self, router: RouterName) -> Vec<Address> {
        match self.disabled {
            DisabledGuarantee::Peers => Vec::new(),
            _ => {
                let peers = self.plan.routers(router.cluster).filter(|peer| *peer != router);
                peers.map(|peer| address(&peer.host())).collect()
            }
        }
    }

    /// `None` in runs without a spool.
    fn open_spool(
        &self,
        router: RouterName,
        is_takeover: bool,
        tko_trackers: &Arc<TkoTrackers>,
        read_permits: &Arc<ReadPermits>,
        seed: u64,
    ) -> Option<Arc<Spool>> {
        let bytes_max = match self.plan.spool_mode {
            SpoolMode::Off => return None,
            SpoolMode::Large => SpoolSettings::default().bytes_max,
            SpoolMode::Small => SPOOL_BYTES_SMALL,
        };
        let settings = SpoolSettings {
            bytes_max,
            timeout: SPOOL_TIMEOUT,
            peers: self.peers(router),
            peer_timeout: PEER_TIMEOUT,
            read_permits: match self.disabled {
                // It sees none of those that the router gives.
                DisabledGuarantee::Permits => ReadPermits::new(),
                _ => read_permits.clone(),
            },
            seed,
            ..SpoolSettings::default()
        };
        // A fence in a tracker that the destinations do not share has no effect.
        let tko_trackers =
            if self.disabled == DisabledGuarantee::Fence { TkoTrackers::new() } else { tko_trackers.clone() };
        Some(
            Spool::open(self.spool_disk(router, is_takeover), tko_trackers, settings)
                .expect("its own files can be read"),
        )
    }
}
