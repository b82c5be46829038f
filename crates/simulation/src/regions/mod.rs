//! Several regions: one has the master of the database, the others have replicas that lag behind it (§5 of the paper).
//!
//! ```text
//!                     region 0                                          region 1
//!   app-0, app-1 --- clusters 0 and 1 --- markers-0     app-2, app-3 --- clusters 2 and 3 --- markers-1
//!        |                  ^                                |                  ^
//!        |             invalidator-0                         |             invalidator-1
//!        |                  ^                                |                  ^
//!        +----------> the master ---- packets: late, ---> replica <-------------+
//!        |                            lost, doubled                             |
//!        +<----------------- writes, and reads of marked keys ------------------+
//! ```
//!
//! Each region is a `SimulatedRegion` with two small clusters, faults of its own, a checker that compares with the
//! region's own database, and a monitor. A quarter of the runs has three regions, and in half of them a replica becomes
//! the master.

mod application;
mod database;
mod density;
mod faults;
mod monitor;
mod monitor_check;
mod promotion;
mod replication;
mod wide_area;

use crate::{
    checker::{Tally, Violation},
    database::SimulatedDatabase,
    item_log::ItemLog,
    network::SimulatedNetwork,
    region::{
        DeleteCurve, DisabledGuarantee, LINK_MODEL, RunOutcome, SimulatedRegion, VISIBILITY_LAG_US_MAX,
        names::CLUSTERS, panics::PanicWatcher, plan::RunPlan, run_to_end,
    },
};
use database::RegionDatabase;
use density::Density;
use monitor::RegionMonitor;
use replication::ReplicationLink;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// One run in this many has three regions, the others two.
const THREE_REGIONS_ONE_IN: u8 = 4;
/// How long replicas may take to have all commits once replication goes on.
const CATCH_UP_TIME_MAX: Duration = Duration::from_secs(27);

/// Runs several regions from `seed`: the same seed gives the same run, on any machine.
pub fn run(seed: u64, disabled: DisabledGuarantee) -> RunOutcome {
    run_to_end(scenario(seed, disabled, Density::Dense))
}

/// Runs several regions for as long as `load`, with few reads, writes and faults, and then for as long as deletes take
/// to become an hour old. Monitors ask about each delete.
pub fn run_long(seed: u64, disabled: DisabledGuarantee, load: Duration) -> RunOutcome {
    run_to_end(scenario(seed, disabled, Density::Thin(load)))
}

async fn scenario(seed: u64, disabled: DisabledGuarantee, density: Density) -> RunOutcome {
    let panics = PanicWatcher::install();
    let mut rng = fastrand::Rng::with_seed(seed);
    let regions = Regions::new(&mut rng, disabled, density);
    for region in regions.all.iter() {
        region.start_clusters(&mut rng).await;
        region.start_invalidator(rng.u64(..));
    }
    regions.start_replication();
    let monitors: Vec<RegionMonitor> = regions.all.iter().map(|region| RegionMonitor::start(region, density)).collect();
    for monitor in &monitors {
        monitor.wait_until_watching().await;
    }
    regions.start_applications(&mut rng);
    regions.inject_faults(&mut rng, Instant::now() + density.load_duration()).await;
    regions.quiesce().await;
    let mut deletes = DeleteCurve::default();
    for (monitor, region) in monitors.into_iter().zip(regions.all.iter()) {
        deletes.add(&monitor.check(region).await);
    }
    if let Some(what) = panics.first() {
        regions.all[0].checker.record_violation(Violation::Panicked { what });
    }
    let mut outcome = RunOutcome { seed, violation: None, tally: Tally::default(), deletes };
    for (violation, tally) in regions.all.iter().map(SimulatedRegion::result) {
        outcome.violation = outcome.violation.or(violation);
        outcome.tally = outcome.tally.plus(tally);
    }
    outcome
}

/// The state of a run. Clones share it.
#[derive(Clone)]
struct Regions {
    all: Rc<[SimulatedRegion]>,
    /// By region.
    databases: Arc<[RegionDatabase]>,
    /// The region of the master.
    master: Rc<Cell<usize>>,
    /// The region whose database the applications of each cluster use as the master.
    used_masters: Rc<[Arc<AtomicUsize>]>,
    /// By region; that of the master's region is unused.
    links: Rc<[ReplicationLink]>,
    /// Replication to all replicas.
    replication: Rc<RefCell<JoinSet<()>>>,
    has_promotion: bool,
    density: Density,
    disabled: DisabledGuarantee,
}

impl Regions {
    /// All regions, of which the first has the master.
    fn new(rng: &mut fastrand::Rng, disabled: DisabledGuarantee, density: Density) -> Regions {
        let count = if rng.u8(0..THREE_REGIONS_ONE_IN) == 0 { 3 } else { 2 };
        let network = SimulatedNetwork::new(rng.u64(..), LINK_MODEL);
        let is_gated = disabled != DisabledGuarantee::Gate;
        let databases: Vec<SimulatedDatabase> =
            (0..count).map(|_| SimulatedDatabase::new(rng.u64(..), VISIBILITY_LAG_US_MAX, is_gated)).collect();
        let region = |index: usize, plan: RunPlan| {
            let mut region = SimulatedRegion::new(index, plan, databases[index].clone(), network.clone(), disabled);
            region.items = Some(ItemLog::default());
            if disabled == DisabledGuarantee::ReplicaLog {
                region.invalidated = databases[0].clone();
            }
            region
        };
        let has_rare_faults = density != Density::Dense;
        let all: Rc<[SimulatedRegion]> =
            (0..count).map(|index| region(index, RunPlan::of_several(rng, has_rare_faults))).collect();
        let database = |(index, content): (usize, &SimulatedDatabase)| RegionDatabase::new(content.clone(), index > 0);
        let has_promotion = match disabled {
            DisabledGuarantee::Promotion => true,
            DisabledGuarantee::ReplicaLog => false,
            _ => rng.bool(),
        };
        Regions {
            all,
            databases: databases.iter().enumerate().map(database).collect(),
            master: Rc::default(),
            used_masters: (0..count * CLUSTERS).map(|_| Arc::default()).collect(),
            links: (0..count).map(|_| ReplicationLink::new(rng.fork())).collect(),
            replication: Rc::default(),
            has_promotion,
            density,
            disabled,
        }
    }

    /// Starts replication from the master to all others.
    fn start_replication(&self) {
        let master = self.master.get();
        for replica in (0..self.all.len()).filter(|region| *region != master) {
            let (databases, links) = (self.databases.clone(), self.links.clone());
            self.replication.borrow_mut().spawn_local(async move {
                links[replica].replicate(&databases[master].content, &databases[replica].content).await;
            });
        }
    }

    /// Packets on their way are lost.
    fn stop_replication(&self) {
        *self.replication.borrow_mut() = JoinSet::new();
    }

    /// Stops the applications, waits until all deletes of all regions are acknowledged, and checks the final state.
    async fn quiesce(&self) {
        for region in self.all.iter() {
            region.stop_applications().await;
        }
        sleep(wide_area::LATE_MAX).await;
        let logged = self.databases[self.master.get()].content.logged();
        let catch_up_time_max = Duration::from_millis(self.density.replication_stop_ms_max()) + CATCH_UP_TIME_MAX;
        for region in self.all.iter() {
            if timeout(catch_up_time_max, region.database.wait_until_visible(logged)).await.is_err() {
                let (region_index, position) = (region.index, region.database.logged());
                let violation = Violation::Unreplicated { region: region_index, position, logged };
                region.checker.record_violation(violation);
            }
        }
        let mut quiescing = JoinSet::new();
        for region in self.all.iter() {
            let region = region.clone();
            quiescing.spawn_local(async move { region.quiesce().await });
        }
        quiescing.join_all().await;
    }
}
