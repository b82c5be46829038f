//! The guarantees of the spool, over files in memory and a log that cannot be read again.

use super::{SavedStart, SegmentFiles, Spool, SpoolWriter, SpooledLog};
use crate::{
    Commit, CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start,
    observe::spool_stats::SpoolStatistics,
};
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use memory_files::MemoryFiles;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};

mod damage;
mod faults;
mod full_disk;
mod given_up;
mod kept;
mod losses;
pub(super) mod memory_files;
mod restart;
mod takeover;

const CLUSTERS: [&str; 2] = ["one", "two"];

/// A log whose commit `n` names the key `n`, at position `n`.
#[derive(Default)]
struct ScriptedLog {
    state: Mutex<ScriptedState>,
    committed: Notify,
}

#[derive(Default)]
struct ScriptedState {
    commits: u64,
    /// What is before is gone.
    released: u64,
    /// How often something was read.
    reads: u64,
    key_bytes: usize,
    is_down: bool,
    /// Readers do not see the newest commits.
    is_hidden: bool,
    remembers: bool,
    /// Whether to begin reading releases nothing.
    is_shared: bool,
    /// What every cluster has saved, and the newest position of any.
    acknowledged: u64,
    delivered: u64,
}

struct ScriptedSource(Arc<ScriptedLog>, u64);

/// The log as the spool has it; it outlives the spool.
struct LogHandle(Arc<ScriptedLog>);

fn number(position: &Position) -> u64 {
    position.0.parse().expect("a number")
}

impl ScriptedLog {
    fn commit(&self, count: u64) {
        self.state.lock().commits += count;
        self.committed.notify_waiters();
    }

    fn fail_if_down(&self) -> Result<(), SourceError> {
        match self.state.lock().is_down {
            true => Err(SourceError::NotConnected { why: "down".into() }),
            false => Ok(()),
        }
    }
}

impl CommitLog for LogHandle {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async { self.0.fail_if_down().map(|()| "log".into()) })
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            self.0.fail_if_down()?;
            let mut state = self.0.state.lock();
            let from = match start {
                Start::Earliest => state.released,
                Start::Now => state.commits,
                Start::At(position) => number(position),
            };
            if from < state.released {
                return Err(SourceError::PositionLost { position: Position(from.to_string()), why: "gone".into() });
            }
            state.remembers = true;
            if !state.is_shared {
                state.released = state.released.max(from);
            }
            Ok(OpenedSource {
                source: Box::new(ScriptedSource(self.0.clone(), from)),
                position: Position(from.to_string()),
            })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async { Ok(Position(self.0.state.lock().commits.to_string())) })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        let parse = |position: &Position| position.0.parse::<u64>().ok();
        matches!((parse(position), parse(other)), (Some(position), Some(other)) if position >= other)
    }

    fn remembered_position(&self) -> BoxFuture<'_, Result<Option<Position>, SourceError>> {
        Box::pin(async {
            let state = self.0.state.lock();
            Ok(state.remembers.then(|| Position(state.released.to_string())))
        })
    }

    fn release(&self, position: &Position) {
        let mut state = self.0.state.lock();
        state.released = state.released.max(number(position));
    }

    fn note_delivered(&self, position: &Position) {
        let mut state = self.0.state.lock();
        state.delivered = state.delivered.max(number(position));
    }

    fn acknowledge(&self, position: &Position) {
        self.0.state.lock().acknowledged = number(position);
    }
}

impl Source for ScriptedSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            loop {
                let committed = self.0.committed.notified();
                self.0.fail_if_down()?;
                let (newest, key_bytes) = {
                    let mut state = self.0.state.lock();
                    state.reads += 1;
                    (state.commits.min(self.1 + keys_max as u64), state.key_bytes)
                };
                if newest > self.1 {
                    let key = |number: u64| format!("{number:0key_bytes$}").into_bytes();
                    let commit = |number: u64| Commit {
                        position: Position(number.to_string()),
                        keys: vec![key(number)],
                        committed_at: SystemTime::UNIX_EPOCH,
                    };
                    let commits = (self.1 + 1..=newest).map(commit).collect();
                    self.1 = newest;
                    return Ok(Commits { commits, position: Position(newest.to_string()) });
                }
                // A log that is down does not announce it.
                let _ = timeout(Duration::from_millis(100), committed).await;
            }
        })
    }

    fn wait_until_visible<'a>(&'a mut self, _: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async {
            while self.0.state.lock().is_hidden {
                sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        })
    }
}

/// A spool with its writer, over files and a log that outlive it.
struct Fixture {
    log: Arc<ScriptedLog>,
    files: Arc<MemoryFiles>,
    bytes_max: u64,
    saved: Vec<Option<Position>>,
    spool: Arc<Spool>,
    writer: JoinHandle<()>,
}

impl Fixture {
    fn new(bytes_max: u64) -> Fixture {
        let (log, files) = (Arc::new(ScriptedLog::default()), Arc::new(MemoryFiles::default()));
        let saved = vec![None; CLUSTERS.len()];
        let (spool, writer) = start(&log, &files, bytes_max, &saved);
        Fixture { log, files, bytes_max, saved, spool, writer }
    }

    /// The end of the process. The next one begins with what is on disk.
    fn restart(&mut self) {
        self.writer.abort();
        (self.spool, self.writer) = start(&self.log, &self.files, self.bytes_max, &self.saved);
    }

    fn cluster(&self, index: usize) -> SpooledLog {
        SpooledLog::new(self.spool.clone(), CLUSTERS[index])
    }

    async fn open(&self, index: usize) -> OpenedSource {
        let start = self.saved[index].clone().map_or(Start::Now, Start::At);
        let log = self.cluster(index);
        until_ok("the cluster begins", async || log.open(&start).await).await
    }

    async fn open_error(&self, index: usize, start: Start) -> SourceError {
        timeout(DEADLINE, self.cluster(index).open(&start)).await.expect("in time").err().expect("an error")
    }
}

fn start(
    log: &Arc<ScriptedLog>,
    files: &Arc<MemoryFiles>,
    bytes_max: u64,
    saved: &[Option<Position>],
) -> (Arc<Spool>, JoinHandle<()>) {
    let handle = Arc::new(LogHandle(log.clone()));
    let files: Arc<dyn SegmentFiles> = Arc::new(files.next_process());
    let statistics = Arc::new(SpoolStatistics::default());
    let spool = Spool::recover(files, handle, bytes_max, CLUSTERS, statistics).expect("it is read");
    let saved = saved.iter().flatten().cloned();
    let saved: Vec<_> = saved.map(|position| SavedStart { log_identity: "log".into(), position }).collect();
    spool.discard_if_passed(&saved).expect("files are removed");
    let writer =
        SpoolWriter { spool: spool.clone(), start: Start::Now, saved, stops_at_loss: false, read_keys_max: 10 };
    (spool, tokio::spawn(async move { match writer.run().await {} }))
}

const DEADLINE: Duration = Duration::from_secs(60);

async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let waiting = async {
        while !check() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what} does not happen"));
}

async fn until_ok<T>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, SourceError>) -> T {
    let mut last = None;
    let waiting = async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) => last = Some(error),
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("{what} does not happen: {last:?}"))
}

/// Reads until commit `last`, and returns the numbers that were read.
async fn read_to(source: &mut dyn Source, last: u64) -> Vec<u64> {
    let mut read = Vec::new();
    let reading = async {
        while read.last() != Some(&last) {
            let commits = source.next(7).await.expect("the spool is read");
            read.extend(
                commits
                    .commits
                    .iter()
                    .flat_map(|commit| &commit.keys)
                    .map(|key| std::str::from_utf8(key).expect("text").parse::<u64>().expect("a number")),
            );
        }
    };
    assert!(timeout(DEADLINE, reading).await.is_ok(), "{last} does not arrive");
    read
}

/// Reads until the position is lost, and returns it.
async fn read_loss(source: &mut dyn Source) -> String {
    read_loss_and_reason(source).await.0
}

/// The same, with the reason.
async fn read_loss_and_reason(source: &mut dyn Source) -> (String, String) {
    let reading = async {
        loop {
            match source.next(10).await {
                Err(SourceError::PositionLost { position, why }) => return (position.0, why),
                // While the writer looks for a new position.
                Err(_) => {}
                Ok(commits) => assert!(commits.commits.is_empty(), "{commits:?}"),
            }
        }
    };
    timeout(DEADLINE, reading).await.expect("the loss is reported")
}

#[tokio::test(start_paused = true)]
async fn every_cluster_reads_every_commit_and_the_log_is_released_once_it_is_on_disk() {
    let fixture = Fixture::new(1 << 30);
    let (mut one, mut two) = (fixture.open(0).await, fixture.open(1).await);
    fixture.log.commit(25);
    let all: Vec<u64> = (1..=25).collect();
    assert_eq!(read_to(&mut *one.source, 25).await, all);
    assert_eq!(read_to(&mut *two.source, 25).await, all);
    until("the log is released", || fixture.log.state.lock().released == 25).await;
    assert!(fixture.files.0.lock().files.values().all(|(bytes, synced)| bytes.len() == *synced));
}

#[tokio::test(start_paused = true)]
async fn what_readers_do_not_see_is_not_written() {
    let fixture = Fixture::new(1 << 30);
    let mut one = fixture.open(0).await;
    fixture.log.state.lock().is_hidden = true;
    fixture.log.commit(1);
    assert!(timeout(Duration::from_secs(30), one.source.next(10)).await.is_err());
    fixture.log.state.lock().is_hidden = false;
    assert_eq!(read_to(&mut *one.source, 1).await, [1]);
}

/// The log is released up to where it is opened: after a failure of the database, that was not yet on disk.
#[tokio::test(start_paused = true)]
async fn what_was_written_is_synced_before_the_log_is_opened_again() {
    let fixture = Fixture::new(1 << 30);
    fixture.open(0).await;
    fixture.writer.abort();
    fixture.spool.prepare().expect("it is written");
    let position = Position("3".into());
    fixture.spool.append(&Commits { commits: Vec::new(), position }).expect("it is written");
    let unsynced = || fixture.files.0.lock().files.values().filter(|(bytes, synced)| bytes.len() > *synced).count();
    assert_eq!(unsynced(), 1);
    fixture.spool.prepare().expect("it is synced");
    assert_eq!(unsynced(), 0);
}

#[tokio::test(start_paused = true)]
#[allow(clippy::await_holding_lock, reason = "a blocking thread waits for it, and no task")]
async fn clusters_read_what_is_not_synced_and_the_log_keeps_it() {
    let mut fixture = Fixture::new(1 << 30);
    let spool = fixture.spool.clone();
    fixture.saved[0] = Some(fixture.open(0).await.position);
    until("the log is read", || fixture.spool.log_identity().is_some()).await;
    fixture.log.commit(3);
    let mut one = fixture.open(0).await;
    read_to(&mut *one.source, 3).await;
    until("the log is released", || fixture.log.state.lock().released == 3).await;
    // No sync ends before this is dropped. Once one has failed, what it would have made durable is not read any more.
    let syncing = spool.syncing.lock();
    fixture.log.commit(3);
    read_to(&mut *one.source, 6).await;
    fixture.files.0.lock().fails_to_sync = true;
    drop(syncing);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fixture.log.state.lock().released, 3, "what is not on disk stays in the log");
    fixture.saved[0] = Some(Position("6".into()));
    fixture.files.crash(|_| 0);
    fixture.files.0.lock().fails_to_sync = false;
    fixture.restart();
    fixture.log.commit(1);
    let mut one = fixture.open(0).await;
    let read = read_to(&mut *one.source, 7).await;
    assert_eq!(read, [6, 7], "the cluster was ahead of the spool; what is at its position comes again");
}

#[tokio::test(start_paused = true)]
async fn segments_that_every_cluster_has_are_removed() {
    let fixture = Fixture::new(super::SPOOL_BYTES_MIN);
    fixture.log.state.lock().key_bytes = 200;
    let (mut one, mut two) = (fixture.open(0).await, fixture.open(1).await);
    for round in 1..=20 {
        fixture.log.commit(500);
        for (index, source) in [&mut one.source, &mut two.source].into_iter().enumerate() {
            read_to(&mut **source, round * 500).await;
            fixture.cluster(index).release(&Position((round * 500).to_string()));
        }
        until("all is on disk", || fixture.log.state.lock().released == round * 500).await;
    }
    assert!(fixture.files.0.lock().files.len() <= 3);
    assert_eq!(fixture.spool.statistics.discarded_segments.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_cluster_has_read_stays_until_its_position_is_saved() {
    let mut fixture = Fixture::new(8 << 20);
    fixture.log.state.lock().key_bytes = 200;
    let start = fixture.open(0).await.position;
    let mut two = fixture.open(1).await;
    fixture.log.commit(10_000);
    read_to(&mut *two.source, 10_000).await;
    fixture.cluster(1).release(&Position("10000".into()));
    // The first cluster was sent all of it, and reads on after a failure. Some of its deletes are retried.
    let mut one = fixture.cluster(0).open(&Start::At(Position("10000".into()))).await.expect("it reads on");
    fixture.log.commit(10_000);
    read_to(&mut *one.source, 20_000).await;
    until("all is on disk", || fixture.log.state.lock().released == 20_000).await;
    fixture.saved[0] = Some(start);
    fixture.restart();
    assert_eq!(read_to(&mut *fixture.open(0).await.source, 20_000).await.len(), 20_000);
}

#[tokio::test(start_paused = true)]
async fn clusters_get_what_is_in_the_spool_while_the_database_is_down() {
    let mut fixture = Fixture::new(1 << 30);
    fixture.saved[0] = Some(fixture.open(0).await.position);
    fixture.log.commit(4);
    until("all is on disk", || fixture.log.state.lock().released == 4).await;
    fixture.log.state.lock().is_down = true;
    fixture.restart();
    let mut one = fixture.open(0).await;
    assert_eq!(read_to(&mut *one.source, 4).await, [1, 2, 3, 4]);
    let error = timeout(DEADLINE, one.source.next(10)).await.expect("in time").expect_err("the database is down");
    assert!(matches!(error, SourceError::NotConnected { .. }));
}
