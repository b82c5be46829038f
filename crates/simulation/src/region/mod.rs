//! One region: clusters of servers with a gutter, spares and routers each, applications, a database, an invalidator.
//!
//! ```text
//!            .-- router-0-0 --.
//!   app-0 ---+-- router-0-1 --+--- server-0-0, server-0-1, gutter-0-0, spare-0-0, spare-0-1
//!            '-- router-0-2 --'
//!                    |
//!   database --- invalidator
//!                    |
//!            .-- router-1-0 --.
//!   app-1 ---+-- router-1-1 --+--- server-1-0, server-1-1, gutter-1-0, spare-1-0, spare-1-1
//!            '-- router-1-2 --'
//! ```
//!
//! All of it is production code. Only sockets, the clock, the database and disks are simulated. A cluster has one to
//! three routers, each with its own connections and so its own view of which server is down. In half of the runs
//! routers have a spool (§5) for deletes that their servers did not answer, and are each other's peers; in half of
//! those it is so small that servers are flushed. In half of the runs whose routers can agree on it, there are more
//! servers than in the picture, and pools change theirs. In a quarter of the runs the clients of the applications know
//! no leases, and the routers take leases for them. In half of the runs some clients stall for seconds between a miss
//! and its fill.

mod application;
mod configuration;
mod coverage_disk;
mod faults;
mod guarantee;
mod invalidator;
mod lost_coverage;
pub(crate) mod names;
mod outcome;
pub(crate) mod panics;
mod plain_application;
pub(crate) mod plan;
mod programs;
mod reconfigure;
mod resize;
mod router;
mod router_configs;
mod router_program;
mod server;
mod shared_history;
mod stalling_application;
mod usage;

pub use guarantee::DisabledGuarantee;
pub use outcome::{DeleteCurve, RunOutcome};

use crate::{
    checker::{Checker, Tally, Violation},
    database::SimulatedDatabase,
    fault_log::FaultLog,
    item_log::ItemLog,
    network::{LinkModel, SimulatedNetwork},
};
use configuration::ClusterConfiguration;
use coverage_disk::CoverageDisk;
use lookaside_router::MemoryDisk;
use lookaside_routing::Address;
use names::{RouterName, address, application_host, cluster_name, clusters, markers_host};
use plan::RunPlan;
use programs::Programs;
use router::RunningRouter;
use shared_history::SharedHistory;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use usage::Usage;

/// How long all deletes may then take to be acknowledged, in simulated time.
const QUIESCE_TIME_MAX: Duration = Duration::from_secs(120);
/// How long everything still in flight may take after that.
const DRAIN_TIME: Duration = Duration::from_secs(5);

pub(crate) const LINK_MODEL: LinkModel =
    LinkModel { delay_us_min: 50, delay_us_max: 800, late_one_in: 50, late_us_max: 40_000 };
/// The longest time by which the commit log runs ahead of visibility, as measured on MySQL.
pub(crate) const VISIBILITY_LAG_US_MAX: u64 = 250_000;

/// Runs a region from `seed`: the same seed gives the same run, on any machine.
pub fn run(seed: u64, disabled: DisabledGuarantee) -> RunOutcome {
    let (violation, tally) = run_to_end(scenario(seed, disabled));
    RunOutcome { seed, violation, tally, deletes: DeleteCurve::default() }
}

/// Runs `scenario` under a clock that stands still while a task can run.
pub(crate) fn run_to_end<T>(scenario: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets needs nothing from the system");
    tokio::task::LocalSet::new().block_on(&runtime, scenario)
}

async fn scenario(seed: u64, disabled: DisabledGuarantee) -> (Option<Violation>, Tally) {
    let panics = panics::PanicWatcher::install();
    let mut rng = fastrand::Rng::with_seed(seed);
    let database = SimulatedDatabase::new(rng.u64(..), VISIBILITY_LAG_US_MAX, disabled != DisabledGuarantee::Gate);
    let network = SimulatedNetwork::new(rng.u64(..), LINK_MODEL);
    let plan = RunPlan::random(&mut rng, disabled).with_plain_clients(seed, disabled);
    let region = SimulatedRegion::new(0, plan, database, network, disabled);
    region.start_clusters(&mut rng).await;
    region.start_invalidator(rng.u64(..));
    region.start_applications(&mut rng);
    region.inject_faults(&mut rng, Instant::now() + region.plan.load_duration()).await;
    region.stop_applications().await;
    region.quiesce().await;
    if let Some(what) = panics.first() {
        region.checker.record_violation(Violation::Panicked { what });
    }
    region.result()
}

/// The state of one region. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedRegion {
    /// Its number among several.
    pub(crate) index: usize,
    pub(crate) network: SimulatedNetwork,
    pub(crate) database: SimulatedDatabase,
    /// The database whose log the invalidator reads: [`SimulatedRegion::database`].
    pub(crate) invalidated: SimulatedDatabase,
    pub(crate) checker: Checker,
    pub(crate) faults: FaultLog,
    pub(crate) disabled: DisabledGuarantee,
    pub(crate) plan: RunPlan,
    pub(crate) programs: Rc<Programs>,
    /// `None` if no monitor needs it.
    pub(crate) items: Option<ItemLog>,
    stores: Rc<RefCell<BTreeMap<String, server::ServerMemory>>>,
    /// The invalidator's disk: the position of each cluster.
    positions: Rc<RefCell<BTreeMap<usize, invalidator::Disk>>>,
    /// The disk of each router, for its spool.
    spools: Rc<RefCell<BTreeMap<RouterName, Arc<MemoryDisk>>>>,
    /// The configurations that each router covers, on its disk.
    coverages: Rc<RefCell<BTreeMap<RouterName, CoverageDisk>>>,
    /// What the routers of each cluster share.
    histories: Rc<RefCell<BTreeMap<usize, SharedHistory>>>,
    /// The running routers.
    routers: Rc<RefCell<BTreeMap<RouterName, RunningRouter>>>,
    /// The configuration file of each router that has another one than its cluster had at first.
    configurations: Rc<RefCell<BTreeMap<RouterName, ClusterConfiguration>>>,
    /// All configurations that any file had, by its text.
    configurations_by_text: Rc<RefCell<BTreeMap<String, ClusterConfiguration>>>,
    /// Spares that have left their pool at some time.
    departed_spares: Rc<RefCell<BTreeSet<String>>>,
    usage: Rc<RefCell<Usage>>,
    started: Instant,
}

impl SimulatedRegion {
    pub(crate) fn new(
        index: usize,
        plan: RunPlan,
        database: SimulatedDatabase,
        network: SimulatedNetwork,
        disabled: DisabledGuarantee,
    ) -> SimulatedRegion {
        let faults = FaultLog::default();
        SimulatedRegion {
            index,
            checker: Checker::new(database.clone(), faults.clone()),
            faults,
            invalidated: database.clone(),
            database,
            disabled,
            plan,
            programs: Rc::new(Programs::new(network.clone())),
            network,
            items: None,
            stores: Rc::default(),
            positions: Rc::default(),
            spools: Rc::default(),
            coverages: Rc::default(),
            histories: Rc::default(),
            routers: Rc::default(),
            configurations: Rc::default(),
            configurations_by_text: Rc::default(),
            departed_spares: Rc::default(),
            usage: Rc::default(),
            started: Instant::now(),
        }
    }

    pub(crate) fn clusters(&self) -> Range<usize> {
        clusters(self.index)
    }

    /// Starts all servers and routers. Returns when the routers serve.
    pub(crate) async fn start_clusters(&self, rng: &mut fastrand::Rng) {
        if self.plan.has_marker_pool {
            self.start_server(&markers_host(self.index), rng.u64(..));
        }
        for cluster in self.clusters() {
            for address in self.plan.all_servers(cluster) {
                self.start_server(&address, rng.u64(..));
            }
            for router in self.plan.routers(cluster) {
                self.start_router(router, rng.u64(..));
            }
        }
        self.wait_for_routers().await;
    }

    pub(crate) async fn stop_applications(&self) {
        for cluster in self.clusters() {
            self.programs.kill(&application_host(cluster)).await;
        }
    }

    /// The first violation, and what was exercised.
    pub(crate) fn result(&self) -> (Option<Violation>, Tally) {
        self.usage.borrow().count(&self.checker);
        self.checker.result()
    }

    /// Waits until all routers serve, which takes a router with peers a moment. A program that connects before waits
    /// for its next attempt.
    async fn wait_for_routers(&self) {
        for router in self.clusters().flat_map(|cluster| self.plan.routers(cluster)) {
            self.wait_for_router(router).await;
        }
    }

    async fn wait_for_router(&self, router: RouterName) {
        while !self.network.is_listening(&address(&router.host())) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until all deletes are acknowledged, and checks the final state. Applications are stopped.
    pub(crate) async fn quiesce(&self) {
        let deadline = Instant::now() + QUIESCE_TIME_MAX;
        let names: Vec<String> = self.clusters().map(cluster_name).collect();
        let logged = self.database.logged();
        while names.iter().any(|name| self.checker.position(name) < logged) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(DRAIN_TIME).await;
        self.check_final_state(&names);
        if self.plan.has_resizes {
            for cluster in self.clusters() {
                self.return_all_servers(cluster).await;
            }
            self.check_final_state(&names);
        }
    }

    fn check_final_state(&self, clusters: &[String]) {
        let now = self.now();
        let stores = self.stores.borrow();
        let routers = self.routers.borrow();
        // Others hold what they held when they left. So may a spare that has returned, until it is flushed to serve.
        let mut read: BTreeSet<Address> =
            routers.values().flat_map(|router| router.active.borrow().reads().servers()).collect();
        let serving: BTreeSet<Address> =
            routers.values().flat_map(|router| router.spares.replacements()).map(|(_, spare)| spare).collect();
        let departed: BTreeSet<Address> = self.departed_spares.borrow().iter().map(|host| address(host)).collect();
        read.retain(|server| serving.contains(server) || !departed.contains(server));
        self.checker.check_final_state(clusters, |key| {
            let held =
                |(name, memory): (&String, &server::ServerMemory)| Some((name.clone(), memory.version(key, now)?));
            stores.iter().filter(|(name, _)| read.contains(&address(name))).filter_map(held).collect()
        });
    }

    /// The time of day, as the servers' clocks show it.
    fn now(&self) -> lookaside_store::Now {
        let unix_ms = server::BOOT_UNIX_MS + self.started.elapsed().as_millis() as u64;
        lookaside_store::Now { unix_ms }
    }
}
