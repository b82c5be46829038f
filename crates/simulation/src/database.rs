//! A database with a commit log that runs ahead of visibility.
//!
//! Each key is a row whose value is a version number: the position of the commit that wrote it. A commit is in the log
//! at once; readers see it only later, in log order, as MariaDB and MySQL do it (a reader may see the old
//! row up to a quarter of a second after the log has the new one). The writer's own commit returns when it is visible.

use bytes::Bytes;
use lookaside_invalidator::{
    Commit, CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start, keys::Flush,
};
use lookaside_routing::BoxFuture;
use std::{
    collections::BTreeMap,
    iter,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

/// The database. Clones share its content.
#[derive(Clone)]
pub struct SimulatedDatabase {
    tables: Arc<Mutex<Tables>>,
    /// Notified at every progress. Not a `watch` channel, which wakes its receivers in an unseeded random order.
    progressed: Arc<Notify>,
    /// Whether [`Source::wait_until_visible`] waits, as it must. Without it the checker must find stale reads.
    is_gated: bool,
}

/// How much of the log there is, and how much of it readers see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LogProgress {
    logged: u64,
    visible: u64,
}

/// A commit in the log.
#[derive(Clone, Debug)]
pub struct LoggedCommit {
    /// The key of the row that it wrote.
    pub key: Arc<str>,
    /// What else it names to be deleted.
    pub further_names: Arc<[Bytes]>,
    at: Instant,
}

struct Tables {
    rng: fastrand::Rng,
    progress: LogProgress,
    /// Commit n is at index n - 1.
    log: Vec<LoggedCommit>,
    /// The versions of each row, ascending.
    versions: BTreeMap<Arc<str>, Vec<u64>>,
    visibility_lag_us_max: u64,
    /// When each commit became visible; commit n is at index n - 1.
    visible_at: Vec<Instant>,
}

impl SimulatedDatabase {
    /// An empty database.
    pub fn new(seed: u64, visibility_lag_us_max: u64, is_gated: bool) -> Self {
        let tables = Tables {
            rng: fastrand::Rng::with_seed(seed),
            progress: LogProgress::default(),
            log: Vec::new(),
            versions: BTreeMap::new(),
            visibility_lag_us_max,
            visible_at: Vec::new(),
        };
        SimulatedDatabase { tables: Arc::new(Mutex::new(tables)), progressed: Arc::new(Notify::new()), is_gated }
    }

    /// Writes `key` in its own transaction. Returns its version when every new reader sees it.
    pub async fn write(&self, key: &str) -> u64 {
        self.write_naming(key, Vec::new()).await
    }

    /// As [`SimulatedDatabase::write`], in a transaction that names more keys than that of the row.
    pub async fn write_naming(&self, key: &str, further_names: Vec<Bytes>) -> u64 {
        let (version, visible) = self.append(key.into(), further_names.into());
        let _ = visible.await;
        version
    }

    /// Applies the next commit of the master's log to this replica.
    pub fn apply(&self, commit: &LoggedCommit) {
        self.append(commit.key.clone(), commit.further_names.clone());
    }

    /// Returns the version, and a task that ends when every new reader sees it.
    fn append(&self, key: Arc<str>, further_names: Arc<[Bytes]>) -> (u64, JoinHandle<()>) {
        let (version, lag) = {
            let mut tables = self.tables();
            tables.log.push(LoggedCommit { key: key.clone(), further_names, at: Instant::now() });
            let version = tables.log.len() as u64;
            tables.versions.entry(key).or_default().push(version);
            let longest_us = if tables.rng.u8(0..4) == 0 { tables.visibility_lag_us_max } else { 300 };
            (version, Duration::from_micros(tables.rng.u64(0..=longest_us)))
        };
        self.progress(|progress| progress.logged = version);
        // The database completes a logged commit even if its writer is killed.
        (version, tokio::spawn(self.clone().make_visible(version, lag)))
    }

    /// The commits after `position` that new readers see, of which there is one at least. Waits for it.
    pub async fn visible_after(&self, position: u64) -> Vec<LoggedCommit> {
        self.wait_for(|progress| progress.visible > position).await;
        let tables = self.tables();
        tables.log[position as usize..tables.progress.visible as usize].to_vec()
    }

    /// The whole log.
    pub fn all_commits(&self) -> Vec<LoggedCommit> {
        self.tables().log.clone()
    }

    /// When the commit at `position` was written to the log; `None` if there is none.
    pub fn logged_at(&self, position: u64) -> Option<Instant> {
        self.tables().log.get(position.checked_sub(1)? as usize).map(|commit| commit.at)
    }

    /// Waits until new readers see all commits up to `position`.
    pub async fn wait_until_visible(&self, position: u64) {
        self.wait_for(|progress| progress.visible >= position).await;
    }

    /// The version of `key` that a reader who begins now sees; 0 if there is no such row yet.
    pub fn read(&self, key: &str) -> u64 {
        let tables = self.tables();
        let visible = tables.progress.visible;
        let versions = tables.versions.get(key).map_or(&[][..], Vec::as_slice);
        versions[..versions.partition_point(|&version| version <= visible)].last().copied().unwrap_or(0)
    }

    /// The duration of a query, drawn from the seed.
    pub fn query_time(&self) -> Duration {
        let mut tables = self.tables();
        let longest_us = if tables.rng.u8(0..10) == 0 { 400_000 } else { 3_000 };
        Duration::from_micros(tables.rng.u64(100..=longest_us))
    }

    /// The newest version of `key` in the log up to `position`; 0 if there is none.
    pub fn version_at(&self, key: &str, position: u64) -> u64 {
        let tables = self.tables();
        let versions = tables.versions.get(key).map_or(&[][..], Vec::as_slice);
        versions[..versions.partition_point(|&version| version <= position)].last().copied().unwrap_or(0)
    }

    /// The position of the last commit.
    pub fn logged(&self) -> u64 {
        self.tables().progress.logged
    }

    /// Every key that was ever written.
    pub fn keys(&self) -> Vec<Arc<str>> {
        self.tables().versions.keys().cloned().collect()
    }

    /// Makes a commit visible after `lag`. Commits become visible in log order: each waits for the one before it.
    async fn make_visible(self, version: u64, lag: Duration) {
        tokio::time::sleep(lag).await;
        self.wait_for(|progress| progress.visible + 1 >= version).await;
        self.tables().visible_at.push(Instant::now());
        self.progress(|progress| progress.visible = progress.visible.max(version));
    }

    /// Since when new readers have seen a newer row than `version` of `key`; `None` if they do not.
    pub fn outdated_since(&self, key: &str, version: u64) -> Option<Instant> {
        let tables = self.tables();
        let versions = tables.versions.get(key)?;
        let newer = versions.get(versions.partition_point(|&other| other <= version))?;
        tables.visible_at.get(*newer as usize - 1).copied()
    }

    fn progress(&self, change: impl FnOnce(&mut LogProgress)) {
        change(&mut self.tables().progress);
        self.progressed.notify_waiters();
    }

    async fn wait_for(&self, holds: impl Fn(LogProgress) -> bool) {
        loop {
            let progressed = self.progressed.notified();
            if holds(self.tables().progress) {
                return;
            }
            progressed.await;
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().expect("one thread runs a simulation")
    }
}

/// The commit log as one cluster's pipeline reads it.
#[derive(Clone)]
pub struct ClusterLog {
    database: SimulatedDatabase,
    /// All commits up to here have passed the gate.
    gated_position: Arc<AtomicU64>,
    /// One commit in this many names its key by a flush; `None` if none does.
    commits_per_flush: Option<u64>,
}

impl ClusterLog {
    /// The log of `database`. One commit in `commits_per_flush` names its key by a flush, if that is given.
    pub fn new(database: SimulatedDatabase, commits_per_flush: Option<u64>) -> Self {
        ClusterLog { database, gated_position: Arc::default(), commits_per_flush }
    }

    /// What the commit at `position` names.
    fn names(&self, commit: &LoggedCommit, position: u64) -> Vec<Vec<u8>> {
        let key = commit.key.as_bytes();
        let name = match self.commits_per_flush {
            Some(commits) if position.is_multiple_of(commits) => Flush::of_prefix(key).to_key(),
            _ => key.to_vec(),
        };
        iter::once(name).chain(commit.further_names.iter().map(|name| name.to_vec())).collect()
    }

    /// The position up to which commits have passed the gate. Deletes that are sent from now on cover all of them.
    pub fn gated_position(&self) -> u64 {
        self.gated_position.load(Ordering::Relaxed)
    }
}

impl CommitLog for ClusterLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async { Ok("simulated".to_owned()) })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let read = match start {
                Start::Earliest => 0,
                Start::Now => self.database.logged(),
                Start::At(position) => parse_position(position)?,
            };
            let source = Box::new(SimulatedSource { log: self.clone(), read });
            Ok(OpenedSource { source, position: Position(read.to_string()) })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async { Ok(Position(self.database.logged().to_string())) })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        matches!((parse_position(position), parse_position(other)), (Ok(position), Ok(other)) if position >= other)
    }
}

fn parse_position(position: &Position) -> Result<u64, SourceError> {
    let why = || SourceError::Unusable { why: format!("{} is not a position of this log", position.0) };
    position.0.parse().map_err(|_| why())
}

struct SimulatedSource {
    log: ClusterLog,
    read: u64,
}

impl Source for SimulatedSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let read = self.read;
            self.log.database.wait_for(|progress| progress.logged > read).await;
            let tables = self.log.database.tables();
            let first = self.read as usize;
            let commits: Vec<Commit> = tables.log[first..]
                .iter()
                .take(keys_max.max(1))
                .zip(self.read + 1..)
                .map(|(commit, position)| Commit {
                    position: Position(position.to_string()),
                    keys: self.log.names(commit, position),
                    committed_at: SystemTime::UNIX_EPOCH,
                })
                .collect();
            self.read += commits.len() as u64;
            Ok(Commits { commits, position: Position(self.read.to_string()) })
        })
    }

    fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async move {
            let position = parse_position(position)?;
            if self.log.database.is_gated {
                self.log.database.wait_for(|progress| progress.visible >= position).await;
            }
            self.log.gated_position.fetch_max(position, Ordering::Relaxed);
            Ok(())
        })
    }
}
