#![allow(dead_code, reason = "each test program uses a part of it")]
//! A database whose log runs ahead of what readers see, a cluster that does as it is told, and a disk in memory.

use bytes::Bytes;
use lookaside_invalidator::{
    Commit, Commits, Log, Opened, Position, Source, SourceError, Start,
    observe::stats::Statistics,
    pipeline::{
        Options, Pipeline, WallClock,
        delivery::{Delivery, Refusal, Verdict},
        positions::{PositionError, PositionStore, Record},
    },
};
use lookaside_routing::BoxFuture;
use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One committed transaction.
#[derive(Clone, Debug)]
pub struct Written {
    pub keys: Vec<String>,
    pub visible_at: Instant,
}

/// The database: commit `n` (from 1 on) has position `n`.
pub struct Database {
    inside: Mutex<Inside>,
    written: Notify,
}

pub struct Inside {
    pub commits: Vec<Written>,
    /// Commits up to here have been purged from the log.
    pub purged: usize,
    pub identity: String,
    /// How many of the next calls fail.
    pub failures: usize,
    /// In how many of 100 calls the source fails.
    pub failing_percent: u32,
    pub rng: fastrand::Rng,
    /// What was asked: `open 3`, `next 4`, `visible 4`, and `delete ...` from the cluster.
    pub events: Vec<String>,
}

impl Database {
    pub fn new() -> Arc<Database> {
        let inside = Inside {
            commits: Vec::new(),
            purged: 0,
            identity: "database-1".into(),
            failures: 0,
            failing_percent: 0,
            rng: fastrand::Rng::with_seed(1),
            events: Vec::new(),
        };
        Arc::new(Database { inside: Mutex::new(inside), written: Notify::new() })
    }

    pub fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no test panics while it holds this")
    }

    /// Commits a transaction that readers see `visible_after` from now.
    pub fn commit(&self, keys: &[&str], visible_after: Duration) {
        let keys = keys.iter().map(ToString::to_string).collect();
        self.inside().commits.push(Written { keys, visible_at: Instant::now() + visible_after });
        self.written.notify_waiters();
    }

    fn trouble(&self) -> Result<(), SourceError> {
        let mut inside = self.inside();
        let percent = inside.failing_percent;
        let unlucky = percent > 0 && inside.rng.u32(0..100) < percent;
        if unlucky || inside.failures > 0 {
            inside.failures = inside.failures.saturating_sub(1);
            return Err(SourceError::Unreachable { why: "the test says so".into() });
        }
        Ok(())
    }
}

/// The log of a database.
pub struct FakeLog(pub Arc<Database>);

struct FakeSource {
    database: Arc<Database>,
    read: usize,
}

impl Log for FakeLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async { self.0.trouble().map(|()| self.0.inside().identity.clone()) })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<Opened, SourceError>> {
        Box::pin(async move {
            self.0.trouble()?;
            let mut inside = self.0.inside();
            let read = match start {
                Start::Earliest => inside.purged,
                Start::Now => inside.commits.len(),
                Start::At(position) => position.0.parse().expect("a number"),
            };
            if read < inside.purged {
                return Err(SourceError::PositionLost { position: Position(read.to_string()), why: "purged".into() });
            }
            inside.events.push(format!("open {read}"));
            drop(inside);
            let source = Box::new(FakeSource { database: self.0.clone(), read });
            Ok(Opened { source, position: Position(read.to_string()) })
        })
    }
}

impl Source for FakeSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            loop {
                let database = self.database.clone();
                let written = database.written.notified();
                self.database.trouble()?;
                if let Some(commits) = self.take(keys_max) {
                    return Ok(commits);
                }
                written.await;
            }
        })
    }

    fn visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async move {
            self.database.trouble()?;
            let upto: usize = position.0.parse().expect("a number");
            let at = self.database.inside().commits[..upto].iter().map(|commit| commit.visible_at).max();
            if let Some(at) = at {
                sleep_until(at).await;
            }
            self.database.trouble()?;
            self.database.inside().events.push(format!("visible {upto}"));
            Ok(())
        })
    }
}

impl FakeSource {
    fn take(&mut self, keys_max: usize) -> Option<Commits> {
        let mut inside = self.database.inside();
        let (mut commits, mut keys) = (Vec::new(), 0);
        while let Some(written) = inside.commits.get(self.read).filter(|_| keys < keys_max) {
            self.read += 1;
            keys += written.keys.len();
            commits.push(Commit {
                position: Position(self.read.to_string()),
                keys: written.keys.iter().map(|key| key.clone().into_bytes()).collect(),
                committed_at: SystemTime::UNIX_EPOCH,
            });
        }
        inside.events.push(format!("next {}", self.read));
        (!commits.is_empty()).then(|| Commits { commits, position: Position(self.read.to_string()) })
    }
}

/// A cluster that notes what was deleted when.
pub struct Cluster {
    database: Arc<Database>,
    inside: Mutex<ClusterInside>,
}

pub struct ClusterInside {
    /// Deletes that were carried out.
    pub deleted: Vec<(String, Instant)>,
    /// The keys of each batch, as it was sent.
    pub batches: Vec<Vec<String>>,
    pub under_way: usize,
    pub under_way_max: usize,
    pub flushes: usize,
    /// Keys whose deletes are refused.
    pub refused: Vec<String>,
    /// Deletes of keys that begin so are refused: those of a server that is dead.
    pub dead_prefix: Option<String>,
    /// Keys that no router has a route for.
    pub unroutable: Vec<String>,
    /// Whether no batch is ever answered.
    pub hangs: bool,
    pub takes: Duration,
    /// In how many of 100 deletes it fails; in half of these the delete is carried out all the same.
    pub failing_percent: u32,
    pub rng: fastrand::Rng,
}

impl Cluster {
    pub fn new(database: &Arc<Database>) -> Arc<Cluster> {
        let inside = ClusterInside {
            deleted: Vec::new(),
            batches: Vec::new(),
            under_way: 0,
            under_way_max: 0,
            flushes: 0,
            refused: Vec::new(),
            dead_prefix: None,
            unroutable: Vec::new(),
            hangs: false,
            takes: ms(1),
            failing_percent: 0,
            rng: fastrand::Rng::with_seed(2),
        };
        Arc::new(Cluster { database: database.clone(), inside: Mutex::new(inside) })
    }

    pub fn inside(&self) -> MutexGuard<'_, ClusterInside> {
        self.inside.lock().expect("no test panics while it holds this")
    }

    pub fn deletes_of(&self, key: &str) -> usize {
        self.inside().deleted.iter().filter(|(deleted, _)| deleted == key).count()
    }
}

impl Delivery for Cluster {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(async move {
            let keys: Vec<String> = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            self.database.inside().events.push(format!("delete {}", keys.join(" ")));
            let (hangs, takes) = {
                let mut inside = self.inside();
                inside.batches.push(keys.clone());
                inside.under_way += keys.len();
                inside.under_way_max = inside.under_way_max.max(inside.under_way);
                let takes = inside.takes;
                let jitter = inside.rng.f64();
                (inside.hangs, if inside.failing_percent > 0 { takes.mul_f64(jitter * 4.0) } else { takes })
            };
            if hangs {
                std::future::pending::<()>().await;
            }
            sleep(takes).await;
            let mut inside = self.inside();
            inside.under_way -= keys.len();
            keys.into_iter().map(|key| inside.carry_out(key)).collect()
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            self.inside().flushes += 1;
            self.database.inside().events.push("flush".into());
            Ok(())
        })
    }
}

impl ClusterInside {
    fn carry_out(&mut self, key: String) -> Verdict {
        let fails = self.failing_percent > 0 && self.rng.u32(0..100) < self.failing_percent;
        if self.unroutable.contains(&key) {
            return Verdict::Unroutable("no route: the test says so".into());
        }
        let dead = self.dead_prefix.as_ref().is_some_and(|prefix| key.starts_with(prefix));
        if dead || self.refused.contains(&key) || (fails && self.rng.bool()) {
            return Verdict::Refused("SERVER_ERROR the test says so".into());
        }
        self.deleted.push((key, Instant::now()));
        if fails { Verdict::Refused("the answer was lost".into()) } else { Verdict::Applied }
    }
}

/// A disk that checks, at every save, that no commit up to the saved position is owed a delete.
pub struct Disk {
    pub record: Mutex<Option<Record>>,
    /// Whether saving takes for ever, for now.
    pub hangs: AtomicBool,
    /// Commits up to here are none of the pipeline's business.
    pub begun: usize,
    pub database: Arc<Database>,
    pub cluster: Arc<Cluster>,
}

impl Disk {
    pub fn new(database: &Arc<Database>, cluster: &Arc<Cluster>, begun: usize) -> Arc<Disk> {
        let (record, hangs) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Disk { record, hangs, begun, database: database.clone(), cluster: cluster.clone() })
    }

    pub fn position(&self) -> Option<usize> {
        let record = self.record.lock().expect("no panic while it is held");
        record.as_ref().map(|record| record.position.0.parse().expect("a number"))
    }

    pub fn put(&self, log: &str, position: usize) {
        let record = Record { log: log.into(), position: Position(position.to_string()) };
        *self.record.lock().expect("no panic while it is held") = Some(record);
    }

    fn check(&self, upto: usize) {
        let database = self.database.inside();
        let cluster = self.cluster.inside();
        if cluster.flushes > 0 {
            return;
        }
        for (number, commit) in database.commits[..upto].iter().enumerate().skip(self.begun) {
            for key in &commit.keys {
                let paid = cluster.deleted.iter().any(|(deleted, at)| deleted == key && *at >= commit.visible_at);
                assert!(
                    paid,
                    "position {upto} passed commit {}: {key} was never deleted once it was visible",
                    number + 1
                );
            }
        }
    }
}

impl PositionStore for Disk {
    fn load(&self) -> BoxFuture<'_, Result<Option<Record>, PositionError>> {
        Box::pin(async { Ok(self.record.lock().expect("no panic while it is held").clone()) })
    }

    fn save(&self, record: Record) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            sleep(ms(2)).await;
            while self.hangs.load(Ordering::Relaxed) {
                sleep(ms(1)).await;
            }
            self.check(record.position.0.parse().expect("a number"));
            *self.record.lock().expect("no panic while it is held") = Some(record);
            Ok(())
        })
    }
}

/// A time of day that follows tokio's clock.
pub fn wall() -> WallClock {
    let begun = Instant::now();
    Arc::new(move || SystemTime::UNIX_EPOCH + begun.elapsed())
}

/// A database, its clusters and what their pipelines share.
pub struct Region {
    pub database: Arc<Database>,
    pub clusters: Vec<(Arc<Cluster>, Arc<Disk>)>,
    pub statistics: Arc<Statistics>,
    pub options: Options,
    pub shutdown: watch::Sender<bool>,
}

impl Region {
    pub fn new(clusters: usize) -> Region {
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
        Region { database, clusters, statistics, options, shutdown: watch::Sender::new(false) }
    }

    pub fn pipeline(&self, cluster: usize) -> Pipeline {
        Pipeline {
            log: Arc::new(FakeLog(self.database.clone())),
            delivery: self.clusters[cluster].0.clone(),
            positions: self.clusters[cluster].1.clone(),
            statistics: self.statistics.clone(),
            cluster,
            wall: wall(),
            options: self.options.clone(),
        }
    }

    pub fn figure(&self, name: &str) -> String {
        self.statistics.report().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no figure {name}")).1
    }
}

/// Waits, in paused time, until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "never came to be: {what}");
        sleep(ms(1)).await;
    }
}
