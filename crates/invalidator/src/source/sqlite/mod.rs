//! SQLite as a source: a journal table, written in the same transaction as the rows that a key stands for.
//!
//! ```sql
//! CREATE TABLE lookaside_journal (seq INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, at_ms INTEGER ...)
//! ```
//!
//! * A rolled-back transaction takes its journal rows with it: nothing is deleted.
//! * SQLite has one writer at a time, so `seq` grows in commit order: no row becomes visible behind a larger one.
//! * The gate is open at once: we learn of a commit by reading it as any other reader would, so a reader that begins
//!   afterwards sees it too (readers take the newest commit when they begin, in WAL mode as well as without).
//! * Every row is a commit of its own here: the table does not say which rows were written together, and nothing
//!   depends on it.
//! * `at_ms` is the time of the row's insertion: a long transaction counts into the latency.
//!
//! `PRAGMA data_version` tells whether anybody else has committed; it reads shared memory (WAL) or one page, so it is
//! asked every millisecond. SQLite blocks, so this happens on tokio's blocking threads, a bounded time at once.

mod journal;
mod prune;

pub use journal::{JOURNAL_SQL, create_journal, triggers_sql};
pub use prune::{PRUNE_EVERY, prune};

use super::{Commits, Log, Opened, Position, Source, SourceError, Start};
use journal::{Journal, Read};
use lookaside_routing::BoxFuture;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How often we look whether somebody committed.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// How long a blocking thread is kept at once: a daemon that stops waits for it.
const STRETCH: Duration = Duration::from_millis(50);

/// A database file with a journal table.
#[derive(Clone, Debug)]
pub struct SqliteLog {
    path: PathBuf,
}

impl SqliteLog {
    /// The file at `path`; it is opened later, and may not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> SqliteLog {
        SqliteLog { path: path.into() }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Log for SqliteLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        let path = self.path.clone();
        Box::pin(blocking(move || match path.canonicalize() {
            Ok(path) => Ok(format!("sqlite:{}", path.display())),
            Err(why) => Err(SourceError::Unreachable { why: format!("{}: {why}", path.display()) }),
        }))
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<Opened, SourceError>> {
        let (path, start) = (self.path.clone(), start.clone());
        Box::pin(async move {
            let journal = blocking(move || Journal::open(&path, &start)).await?;
            let position = journal.position();
            Ok(Opened { source: Box::new(SqliteSource { journal: Arc::new(Mutex::new(journal)) }), position })
        })
    }
}

/// Reads the journal from a position on.
struct SqliteSource {
    journal: Arc<Mutex<Journal>>,
}

impl Source for SqliteSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            loop {
                let journal = self.journal.clone();
                if let Some(commits) = blocking(move || poll(&journal, keys_max)).await? {
                    return Ok(commits);
                }
            }
        })
    }

    fn visible<'a>(&'a mut self, _: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Looks for new rows for a while.
fn poll(journal: &Mutex<Journal>, keys_max: usize) -> Result<Option<Commits>, SourceError> {
    let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
    journal.check_file()?;
    for _ in 0..STRETCH.as_millis() / POLL_EVERY.as_millis() {
        if let Read::Commits(commits) = journal.read(keys_max)? {
            return Ok(Some(commits));
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(None)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|why| Err(SourceError::Unreachable { why: why.to_string() }))
}
