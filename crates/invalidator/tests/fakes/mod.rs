//! A database whose log runs ahead of what readers see, a scripted cluster, and a disk in memory.

mod cluster;
mod database;
mod disk;

pub use cluster::Cluster;
pub use database::{Database, FakeLog};
pub use disk::{Disk, UncheckedDisk};

use lookaside_invalidator::{
    Start, WallClock,
    observe::stats::Statistics,
    pipeline::{Options, Pipeline},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A time of day that follows tokio's clock.
pub fn wall_clock() -> WallClock {
    let start = Instant::now();
    Arc::new(move || SystemTime::UNIX_EPOCH + start.elapsed())
}

/// A database, its clusters, and the shared state of their pipelines.
pub struct Fixture {
    pub database: Arc<Database>,
    pub clusters: Vec<(Arc<Cluster>, Arc<Disk>)>,
    pub statistics: Arc<Statistics>,
    pub options: Options,
    pub shutdown: watch::Sender<bool>,
}

impl Fixture {
    pub fn new(clusters: usize) -> Fixture {
        let database = Database::new();
        let names = ["a", "b", "c"];
        let clusters = (0..clusters)
            .map(|_| {
                let cluster = Cluster::new(&database);
                let disk = Disk::new(&database, &cluster, 0);
                (cluster, disk)
            })
            .collect::<Vec<_>>();
        let statistics = Statistics::new(names.into_iter().take(clusters.len()));
        let options = Options { start: Start::Earliest, ..Options::default() };
        Fixture { database, clusters, statistics, options, shutdown: watch::Sender::new(false) }
    }

    pub fn pipeline(&self, cluster: usize) -> Pipeline {
        Pipeline {
            log: Arc::new(FakeLog(self.database.clone())),
            delivery: self.clusters[cluster].0.clone(),
            positions: self.clusters[cluster].1.clone(),
            statistics: self.statistics.clone(),
            cluster,
            wall_clock: wall_clock(),
            options: self.options.clone(),
        }
    }

    pub fn stat(&self, name: &str) -> String {
        self.statistics
            .report(SystemTime::now())
            .into_iter()
            .find(|(n, _)| n == name)
            .unwrap_or_else(|| panic!("no statistic {name}"))
            .1
    }
}

/// Waits, in paused time, until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        sleep(ms(1)).await;
    }
}
