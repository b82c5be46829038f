//! A database whose log runs ahead of what readers see, a scripted cluster, and a disk in memory.

use bytes::Bytes;
use lookaside_invalidator::{
    Commit, CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start, WallClock,
    observe::stats::Statistics,
    pipeline::{
        Options, Pipeline,
        delivery::{DeleteResult, Delivery, Refusal},
        positions::{PositionError, PositionStore, SavedPosition},
    },
    source::Anomalies,
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
pub struct CommittedTransaction {
    pub keys: Vec<String>,
    pub visible_at: Instant,
}

/// The database: commit `n` (from 1 on) has position `n`.
pub struct Database {
    state: Mutex<DatabaseState>,
    committed: Notify,
}

pub struct DatabaseState {
    pub commits: Vec<CommittedTransaction>,
    /// Commits up to here have been purged from the log.
    pub purged: usize,
    /// Whether a position is lost as soon as it is read from.
    pub is_always_lost: bool,
    pub identity: String,
    /// The identity of the log that this one continues; `None` if it continues none.
    pub former: Option<String>,
    /// How many of the next calls fail.
    pub failures: usize,
    /// How many of the next reads fail, while look-ups succeed.
    pub reading_failures: usize,
    /// Every call fails with this; `None` if the database runs.
    pub outage: Option<SourceError>,
    /// In how many of 100 calls the source fails.
    pub failing_percent: u32,
    pub rng: fastrand::Rng,
    /// What a source returns that has read all.
    pub anomalies: Anomalies,
    /// Whether the gate is asked for commits without keys, too.
    pub gates_every_position: bool,
    /// The calls so far: `open 3`, `next 4`, `visible 4`, and `delete ...` from the cluster.
    pub events: Vec<String>,
}

impl Database {
    pub fn new() -> Arc<Database> {
        let state = DatabaseState {
            commits: Vec::new(),
            purged: 0,
            is_always_lost: false,
            identity: "database-1".into(),
            former: None,
            failures: 0,
            reading_failures: 0,
            outage: None,
            failing_percent: 0,
            rng: fastrand::Rng::with_seed(1),
            anomalies: Anomalies::default(),
            gates_every_position: false,
            events: Vec::new(),
        };
        Arc::new(Database { state: Mutex::new(state), committed: Notify::new() })
    }

    pub fn state(&self) -> MutexGuard<'_, DatabaseState> {
        self.state.lock().expect("no test panics while it holds this")
    }

    /// Commits a transaction that readers see `visible_after` from now.
    pub fn commit(&self, keys: &[&str], visible_after: Duration) {
        let keys = keys.iter().map(ToString::to_string).collect();
        self.state().commits.push(CommittedTransaction { keys, visible_at: Instant::now() + visible_after });
        self.committed.notify_waiters();
    }

    /// Has sources look for commits, and fail if that is scripted.
    pub fn wake_sources(&self) {
        self.committed.notify_waiters();
    }

    fn fail_to_read_if_scripted(&self) -> Result<(), SourceError> {
        let mut state = self.state();
        if state.reading_failures > 0 {
            state.reading_failures -= 1;
            return Err(SourceError::Unreachable { why: "scripted failure to read".into() });
        }
        drop(state);
        self.fail_if_scripted()
    }

    fn fail_if_scripted(&self) -> Result<(), SourceError> {
        let mut state = self.state();
        if let Some(outage) = state.outage.clone() {
            state.events.push("outage".into());
            return Err(outage);
        }
        let percent = state.failing_percent;
        let fails = percent > 0 && state.rng.u32(0..100) < percent;
        if fails || state.failures > 0 {
            state.failures = state.failures.saturating_sub(1);
            return Err(SourceError::Unreachable { why: "scripted failure".into() });
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

impl CommitLog for FakeLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async { self.0.fail_if_scripted().map(|()| self.0.state().identity.clone()) })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            self.0.fail_to_read_if_scripted()?;
            let mut state = self.0.state();
            let read = match start {
                Start::Earliest => state.purged,
                Start::Now => state.commits.len(),
                Start::At(position) => position.0.parse().expect("a number"),
            };
            let is_there = (state.purged..=state.commits.len()).contains(&read);
            if !is_there || (state.is_always_lost && matches!(start, Start::At(_))) {
                return Err(SourceError::PositionLost { position: Position(read.to_string()), why: "purged".into() });
            }
            state.events.push(format!("open {read}"));
            drop(state);
            let source = Box::new(FakeSource { database: self.0.clone(), read });
            Ok(OpenedSource { source, position: Position(read.to_string()) })
        })
    }

    fn continues<'a>(&'a self, former: &'a str, _: &'a Position) -> BoxFuture<'a, Result<bool, SourceError>> {
        Box::pin(async move { Ok(self.0.state().former.as_deref() == Some(former)) })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async {
            self.0.fail_if_scripted()?;
            Ok(Position(self.0.state().commits.len().to_string()))
        })
    }

    fn is_beginning(&self, position: &Position) -> bool {
        position.0 == "0"
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        let number = |position: &Position| position.0.parse::<usize>().expect("a number");
        number(position) >= number(other)
    }
}

impl Source for FakeSource {
    fn gates_every_position(&self) -> bool {
        self.database.state().gates_every_position
    }

    fn anomalies(&self) -> Anomalies {
        self.database.state().anomalies
    }

    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            loop {
                let database = self.database.clone();
                let committed = database.committed.notified();
                self.database.fail_to_read_if_scripted()?;
                if let Some(commits) = self.read_commits(keys_max) {
                    return Ok(commits);
                }
                committed.await;
            }
        })
    }

    fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async move {
            self.database.fail_if_scripted()?;
            let upto: usize = position.0.parse().expect("a number");
            let at = self.database.state().commits[..upto].iter().map(|commit| commit.visible_at).max();
            if let Some(at) = at {
                sleep_until(at).await;
            }
            self.database.fail_if_scripted()?;
            self.database.state().events.push(format!("visible {upto}"));
            Ok(())
        })
    }
}

impl FakeSource {
    fn read_commits(&mut self, keys_max: usize) -> Option<Commits> {
        let mut state = self.database.state();
        let (mut commits, mut keys) = (Vec::new(), 0);
        while let Some(commit) = state.commits.get(self.read).filter(|_| keys < keys_max) {
            self.read += 1;
            keys += commit.keys.len();
            commits.push(Commit {
                position: Position(self.read.to_string()),
                keys: commit.keys.iter().map(|key| key.clone().into_bytes()).collect(),
                committed_at: SystemTime::UNIX_EPOCH + Duration::from_secs(self.read as u64),
            });
        }
        state.events.push(format!("next {}", self.read));
        (!commits.is_empty()).then(|| Commits { commits, position: Position(self.read.to_string()) })
    }
}

/// How long a router waits for a server that hangs.
pub const HUNG_FOR: Duration = Duration::from_secs(2);

/// A cluster that records its deletes.
pub struct Cluster {
    database: Arc<Database>,
    state: Mutex<ClusterState>,
}

pub struct ClusterState {
    /// The deletes that were applied, and when.
    pub deleted: Vec<(String, Instant)>,
    /// The keys of each batch, in the order of sending.
    pub batches: Vec<Vec<String>>,
    pub in_flight: usize,
    pub in_flight_max: usize,
    pub flushes: usize,
    /// Why flushes are refused; `None` if they are not.
    pub flush_refusal: Option<String>,
    /// Keys whose deletes are refused.
    pub refused: Vec<String>,
    /// Deletes of keys with this prefix are refused, as if their server were dead.
    pub dead_prefix: Option<String>,
    /// A batch that has a key with this prefix gets no reply for [`HUNG_FOR`], and then the key is refused: its server
    /// hangs.
    pub hung_prefix: Option<String>,
    /// Keys that no router has a route for.
    pub unroutable: Vec<String>,
    /// Whether batches get no reply.
    pub hangs: bool,
    pub delay: Duration,
    /// In how many of 100 deletes it fails. Half of these are applied all the same.
    pub failing_percent: u32,
    pub rng: fastrand::Rng,
}

impl Cluster {
    pub fn new(database: &Arc<Database>) -> Arc<Cluster> {
        let state = ClusterState {
            deleted: Vec::new(),
            batches: Vec::new(),
            in_flight: 0,
            in_flight_max: 0,
            flushes: 0,
            flush_refusal: None,
            refused: Vec::new(),
            dead_prefix: None,
            hung_prefix: None,
            unroutable: Vec::new(),
            hangs: false,
            delay: ms(1),
            failing_percent: 0,
            rng: fastrand::Rng::with_seed(2),
        };
        Arc::new(Cluster { database: database.clone(), state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().expect("no test panics while it holds this")
    }

    pub fn deletes_of(&self, key: &str) -> usize {
        self.state().deleted.iter().filter(|(deleted, _)| deleted == key).count()
    }
}

impl Delivery for Cluster {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(async move {
            let keys: Vec<String> = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            self.database.state().events.push(format!("delete {}", keys.join(" ")));
            let (hangs, delay) = {
                let mut state = self.state();
                let is_hung = keys.iter().any(|key| has_prefix(key, &state.hung_prefix));
                state.batches.push(keys.clone());
                state.in_flight += keys.len();
                state.in_flight_max = state.in_flight_max.max(state.in_flight);
                let delay = if is_hung { HUNG_FOR } else { state.delay };
                let jitter = state.rng.f64();
                (state.hangs, if state.failing_percent > 0 { delay.mul_f64(jitter * 4.0) } else { delay })
            };
            if hangs {
                std::future::pending::<()>().await;
            }
            sleep(delay).await;
            let mut state = self.state();
            state.in_flight -= keys.len();
            keys.into_iter().map(|key| state.apply(key)).collect()
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            sleep(ms(1)).await;
            if let Some(refusal) = self.state().flush_refusal.clone() {
                return Err(refusal);
            }
            self.state().flushes += 1;
            self.database.state().events.push("flush".into());
            Ok(())
        })
    }
}

fn has_prefix(key: &str, prefix: &Option<String>) -> bool {
    prefix.as_ref().is_some_and(|prefix| key.starts_with(prefix))
}

impl ClusterState {
    fn apply(&mut self, key: String) -> DeleteResult {
        let fails = self.failing_percent > 0 && self.rng.u32(0..100) < self.failing_percent;
        if self.unroutable.contains(&key) {
            return DeleteResult::Unroutable("no route: scripted failure".into());
        }
        let dead = has_prefix(&key, &self.dead_prefix) || has_prefix(&key, &self.hung_prefix);
        if dead || self.refused.contains(&key) || (fails && self.rng.bool()) {
            return DeleteResult::Refused("SERVER_ERROR scripted failure".into());
        }
        self.deleted.push((key, Instant::now()));
        if fails { DeleteResult::Refused("the reply was lost".into()) } else { DeleteResult::Applied }
    }
}

/// A disk that checks, at every save, that no commit up to the saved position has a pending delete.
pub struct Disk {
    pub saved: Mutex<Option<SavedPosition>>,
    /// Whether saves hang.
    pub hangs: AtomicBool,
    /// The commits up to here are not checked.
    pub first_position: usize,
    pub database: Arc<Database>,
    pub cluster: Arc<Cluster>,
}

impl Disk {
    pub fn new(database: &Arc<Database>, cluster: &Arc<Cluster>, first_position: usize) -> Arc<Disk> {
        let (saved, hangs) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Disk { saved, hangs, first_position, database: database.clone(), cluster: cluster.clone() })
    }

    pub fn position(&self) -> Option<usize> {
        let saved = self.saved.lock().expect("no panic while it is held");
        saved.as_ref().map(|saved| saved.position.0.parse().expect("a number"))
    }

    pub fn put(&self, log: &str, position: usize) {
        let position = Position(position.to_string());
        let saved = SavedPosition { log_identity: log.into(), position, unresolved: None };
        *self.saved.lock().expect("no panic while it is held") = Some(saved);
    }

    fn check(&self, upto: usize) {
        let database = self.database.state();
        let cluster = self.cluster.state();
        if cluster.flushes > 0 {
            return;
        }
        for (number, commit) in database.commits[..upto].iter().enumerate().skip(self.first_position) {
            for key in &commit.keys {
                let is_deleted = cluster.deleted.iter().any(|(deleted, at)| deleted == key && *at >= commit.visible_at);
                assert!(
                    is_deleted,
                    "position {upto} passed commit {}: {key} was never deleted once it was visible",
                    number + 1
                );
            }
        }
    }
}

impl PositionStore for Disk {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        Box::pin(async { Ok(self.saved.lock().expect("no panic while it is held").clone()) })
    }

    fn save(&self, saved: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        Box::pin(async move {
            sleep(ms(2)).await;
            while self.hangs.load(Ordering::Relaxed) {
                sleep(ms(1)).await;
            }
            self.check(saved.position.0.parse().expect("a number"));
            *self.saved.lock().expect("no panic while it is held") = Some(saved);
            Ok(())
        })
    }
}

/// A disk for clusters that do not record their deletes in a [`Cluster`].
#[derive(Default)]
pub struct UncheckedDisk(Mutex<Option<SavedPosition>>);

impl UncheckedDisk {
    pub fn new() -> Arc<UncheckedDisk> {
        Arc::default()
    }
}

impl PositionStore for UncheckedDisk {
    fn load(&self) -> BoxFuture<'_, Result<Option<SavedPosition>, PositionError>> {
        Box::pin(async { Ok(self.0.lock().expect("no panic while it is held").clone()) })
    }

    fn save(&self, saved: SavedPosition) -> BoxFuture<'_, Result<(), PositionError>> {
        *self.0.lock().expect("no panic while it is held") = Some(saved);
        Box::pin(async { Ok(()) })
    }
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
