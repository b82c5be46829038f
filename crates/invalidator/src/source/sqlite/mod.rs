//! SQLite as a source: a journal table, written in the same transaction as the rows that a key depends on.
//!
//! ```sql
//! CREATE TABLE lookaside_journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, at_ms INTEGER ...)
//! ```
//!
//! * A rolled-back transaction takes its journal rows with it: nothing is deleted.
//! * SQLite has one writer at a time, so `seq` grows in commit order: no row becomes visible after a larger one.
//! * The gate opens at once: the source reads a commit as any other reader would, so a reader that begins later sees it
//!   too (readers see the newest commit when they begin, with and without WAL mode).
//! * Every row counts as a commit of its own: the table does not show which rows were written together, and nothing
//!   depends on it.
//! * `at_ms` is the time of the row's insertion, so the latency includes the rest of its transaction.
//!
//! `PRAGMA data_version` shows whether another connection has committed. It reads shared memory (WAL) or one page, so
//! it runs every millisecond. SQLite calls block, so they run on tokio's blocking threads, for a bounded time each.

mod journal;
mod prune;

pub use journal::{JOURNAL_SQL, create_journal, triggers_sql};
pub use prune::{PRUNE_EVERY, prune};

use super::{CommitLog, Commits, LogDistance, OpenedSource, Position, Source, SourceError, Start};
use journal::{Journal, ReadResult};
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How often the source checks for commits.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long one task on a blocking thread may poll: a daemon that stops waits for it.
const BLOCKING_SLICE: Duration = Duration::from_millis(50);

/// A database file with a journal table.
#[derive(Clone, Debug)]
pub struct SqliteLog {
    path: PathBuf,
}

impl SqliteLog {
    /// The file at `path`. It is opened later, and need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> SqliteLog {
        SqliteLog { path: path.into() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl CommitLog for SqliteLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        let path = self.path.clone();
        Box::pin(run_blocking(move || match path.canonicalize() {
            Ok(path) => Ok(format!("sqlite:{}", path.display())),
            Err(why) => Err(SourceError::NotConnected { why: format!("{}: {why}", path.display()) }),
        }))
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        let (path, start) = (self.path.clone(), start.clone());
        Box::pin(async move {
            let journal = run_blocking(move || Journal::open(&path, &start)).await?;
            let position = journal.position();
            Ok(OpenedSource { source: Box::new(SqliteSource { journal: Arc::new(Mutex::new(journal)) }), position })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        let path = self.path.clone();
        Box::pin(run_blocking(move || journal::newest_row(&path)))
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        matches!((journal::seq_of(position), journal::seq_of(other)), (Ok(position), Ok(other)) if position >= other)
    }

    fn is_beginning(&self, position: &Position) -> bool {
        journal::seq_of(position) == Ok(0)
    }

    fn distance(&self, from: &Position, to: &Position) -> LogDistance {
        let rows = |from: i64, to: i64| to.saturating_sub(from).max(0).unsigned_abs();
        let ends = journal::seq_of(from).ok().zip(journal::seq_of(to).ok());
        LogDistance { transactions: ends.map(|(from, to)| rows(from, to)), bytes: None }
    }
}

struct SqliteSource {
    journal: Arc<Mutex<Journal>>,
}

impl Source for SqliteSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            loop {
                let journal = self.journal.clone();
                if let Some(commits) = run_blocking(move || poll(&journal, keys_max)).await? {
                    return Ok(commits);
                }
            }
        })
    }

    fn wait_until_visible<'a>(&'a mut self, _: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async { Ok(()) })
    }

    fn keys_rejected(&self) -> u64 {
        self.journal.lock().rejected()
    }
}

/// Polls for new rows for [`BLOCKING_SLICE`].
fn poll(journal: &Mutex<Journal>, keys_max: usize) -> Result<Option<Commits>, SourceError> {
    let mut journal = journal.lock();
    journal.check_file()?;
    for _ in 0..BLOCKING_SLICE.as_millis() / POLL_INTERVAL.as_millis() {
        if let ReadResult::Commits(commits) = journal.read(keys_max)? {
            return Ok(Some(commits));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(None)
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| Err(SourceError::Unreachable { why: why.to_string() }))
}
