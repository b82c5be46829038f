//! A database whose log runs ahead of what readers see.

use lookaside_invalidator::{
    Commit, CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start, source::Anomalies,
};
use lookaside_routing::BoxFuture;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

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
