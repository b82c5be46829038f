//! The commit log of a database, as the daemon reads it.

mod anomalies;
mod database_url;
pub mod mysql;
pub(crate) mod packed_position;
mod password;
pub mod postgres;
mod source_url;
pub mod sqlite;
pub mod tls;
mod unresolved_prepared;

pub use anomalies::Anomalies;
pub use password::Password;
pub use source_url::SourceUrl;
pub use unresolved_prepared::{PreparedState, UnresolvedPrepared};

use lookaside_routing::BoxFuture;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, timeout_at};

/// The delay after the first failure of a source. It doubles with every failure, up to
/// [`SourceError::retry_delay_max`].
pub(crate) const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
/// The longest delay while no connection can be made. An attempt is one packet, and the daemon may notice this late
/// that the database is back.
const CONNECT_DELAY_MAX: Duration = Duration::from_millis(200);
/// The longest delay while the database can be connected to and fails then.
pub(crate) const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// The longest delay while the database needs an operator. Each attempt is a login.
const UNUSABLE_DELAY_MAX: Duration = Duration::from_secs(5);

/// How often positions without keys pass the gate, which is a query for each cluster. They are saved less often.
const KEYLESS_INTERVAL: Duration = Duration::from_millis(10);

/// The table in which invalidators that stand by for each other share positions ([`crate::election`]).
pub(crate) const SHARED_STATE_TABLE: &str = "lookaside_invalidator";

/// Returns the time of day. A simulation passes its own.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// A position in a commit log, in the source's own notation (a GTID set, a journal's sequence number). It is written to
/// disk as it is, and given back to the same kind of source after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position(pub String);

/// One committed transaction that names at least one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Covers this transaction and all before it.
    pub position: Position,
    /// The keys that it makes stale, each once, valid by [`lookaside_protocol::check_key`]; and
    /// what stands for a [`Flush`](crate::keys::Flush), if it demands any.
    pub keys: Vec<Vec<u8>>,
    /// When it was committed, as precisely as the source knows.
    pub committed_at: SystemTime,
}

/// Why a source cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// No connection could be made, or the file could not be opened. Retry from the last position; an attempt costs the
    /// database next to nothing.
    NotConnected {
        /// The cause.
        why: String,
    },
    /// The database does not answer, or the connection broke. Retry from the last position.
    Unreachable {
        /// The cause.
        why: String,
    },
    /// The log no longer reaches back to the position: the commits between are lost, and so are their deletes.
    PositionLost {
        /// The position to resume from.
        position: Position,
        /// The cause.
        why: String,
    },
    /// The database is not set up for this (a privilege, a login, a table). An operator must change it.
    Unusable {
        /// The problem, and what corrects it.
        why: String,
    },
    /// With its settings the database leaves keys out of the log, or may lose a part of it. An operator must change
    /// them.
    UnsafeSettings {
        /// The setting, and the statement that corrects it.
        why: String,
    },
    /// Another process reads the log in our place, and nothing was changed. Retry: it may be about to end.
    InUse {
        /// Which process, and what an operator can do.
        why: String,
    },
    /// What was read cannot be kept on disk, so nothing more is read.
    SpoolFailed {
        /// The cause.
        why: String,
    },
}

impl SourceError {
    /// The cause, without the words that place it.
    pub fn reason(&self) -> &str {
        match self {
            SourceError::NotConnected { why }
            | SourceError::Unreachable { why }
            | SourceError::PositionLost { why, .. }
            | SourceError::Unusable { why }
            | SourceError::UnsafeSettings { why }
            | SourceError::InUse { why }
            | SourceError::SpoolFailed { why } => why,
        }
    }

    /// The longest delay before the next attempt.
    pub fn retry_delay_max(&self) -> Duration {
        match self {
            SourceError::NotConnected { .. } => CONNECT_DELAY_MAX,
            SourceError::Unreachable { .. }
            | SourceError::PositionLost { .. }
            | SourceError::InUse { .. }
            | SourceError::SpoolFailed { .. } => RETRY_DELAY_MAX,
            // An operator may be setting up the database right now.
            SourceError::Unusable { .. } | SourceError::UnsafeSettings { .. } => UNUSABLE_DELAY_MAX,
        }
    }
}

impl std::error::Error for SourceError {}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::NotConnected { why } => write!(f, "the database cannot be reached: {why}"),
            SourceError::Unreachable { why } => write!(f, "the database cannot be read: {why}"),
            SourceError::InUse { why } => f.write_str(why),
            SourceError::PositionLost { position, why } => {
                write!(f, "the commit log no longer reaches back to {}: {why}", position.0)
            }
            SourceError::Unusable { why } | SourceError::UnsafeSettings { why } => {
                write!(f, "the database cannot be used as a source: {why}")
            }
            SourceError::SpoolFailed { why } => write!(f, "nothing is read, because the spool cannot be used: {why}"),
        }
    }
}

/// Reads committed transactions in order, each at least once, from a position on.
pub trait Source: Send {
    /// Waits for commits and returns those that have arrived, at least one, with about `keys_max` keys at most. Returns
    /// an empty list and a newer position if the log moved on without naming a key.
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>>;

    /// The gate: waits until every reader that begins now sees all up to `position`. The log runs ahead of visibility,
    /// and a delete that is sent too early is undone by a reader that still saw the old row.
    fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>>;

    /// Whether positions after commits without keys pass the gate too. A replica that is promoted may lack what readers
    /// did not see on its primary, so a position that is ahead of them may be lost. [`Source::next`] of such a source
    /// may be dropped while it waits: the next call returns what it would have. False by default.
    fn gates_every_position(&self) -> bool {
        false
    }

    /// What was known of prepared transactions at the position where this was opened; `None` if the log has none.
    /// `None` by default.
    fn prepared_state(&self) -> Option<PreparedState> {
        None
    }

    /// When the oldest part of the log began that this has read; `None` if the log does not show that.
    fn log_begins_at(&self) -> Option<SystemTime> {
        None
    }

    /// How many keys of commits were ignored so far because no server accepts them.
    fn keys_rejected(&self) -> u64 {
        0
    }

    /// The irregularities of the log so far.
    fn anomalies(&self) -> Anomalies {
        Anomalies::default()
    }

    /// How many messages were ignored so far because they are not part of a transaction.
    fn messages_untransactional(&self) -> u64 {
        0
    }

    /// How many messages and rows were ignored so far because they are too long to be read.
    fn messages_oversized(&self) -> u64 {
        0
    }
}

/// The next commits, once every reader that begins now sees them. Keys pass the gate at once, and positions without
/// keys at most once in [`KEYLESS_INTERVAL`].
pub(crate) async fn next_visible(source: &mut dyn Source, keys_max: usize) -> Result<Commits, SourceError> {
    let mut commits = source.next(keys_max).await?;
    if source.gates_every_position() {
        let gate_at = Instant::now() + KEYLESS_INTERVAL;
        while !commits.has_keys() {
            let Ok(more) = timeout_at(gate_at, source.next(keys_max)).await else { break };
            let more = more?;
            commits = Commits { position: more.position, commits: [commits.commits, more.commits].concat() };
        }
    } else if !commits.has_keys() {
        return Ok(commits);
    }
    source.wait_until_visible(&commits.position).await?;
    Ok(commits)
}

/// The result of [`Source::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commits {
    /// In log order.
    pub commits: Vec<Commit>,
    /// Everything up to here has been read, whether it named keys or not.
    pub position: Position,
}

impl Commits {
    fn has_keys(&self) -> bool {
        self.commits.iter().any(|commit| !commit.keys.is_empty())
    }
}

/// A database whose commit log can be read: opens sources. A pipeline opens a new source after every failure, so a
/// source need not reconnect: it may return its error and be dropped.
pub trait CommitLog: Send + Sync {
    /// Identifies the log, however it is reached: positions of one log mean nothing in another. It is a server's unique
    /// name or a file's path, and stays the same over restarts of the database.
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>>;

    /// Opens a source whose first commit is the first one after `start`.
    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>>;

    /// The position of the newest commit in the log.
    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>>;

    /// The newest position, and what else shows how far another one is behind it. By default nothing else does.
    fn look_up(&self) -> BoxFuture<'_, Result<LogLookup, SourceError>> {
        Box::pin(async { Ok(LogLookup { newest: self.newest_position().await?, ..LogLookup::default() }) })
    }

    /// The bytes of the log from `position` to the end that `lookup` has found; `None` if they are not known.
    fn bytes_behind(&self, position: &Position, lookup: &LogLookup) -> Option<u64> {
        self.distance(position, &lookup.newest).bytes
    }

    /// Whether all commits up to `other` are among those up to `position`. False if either is not a position of such a
    /// log.
    fn covers(&self, position: &Position, other: &Position) -> bool;

    /// Whether nothing was ever committed before `position`, so that nothing before it was removed. False by default.
    fn is_beginning(&self, position: &Position) -> bool {
        let _ = position;
        false
    }

    /// Whether this log continues the log `former`, from which `position` was read, so that positions of that one have
    /// their meaning in this one: after a failover of replicated servers. False by default.
    fn continues<'a>(&'a self, former: &'a str, position: &'a Position) -> BoxFuture<'a, Result<bool, SourceError>> {
        let _ = (former, position);
        Box::pin(async { Ok(false) })
    }

    /// How much of the log lies between `from` and the later position `to`. Unknown by default.
    fn distance(&self, from: &Position, to: &Position) -> LogDistance {
        let _ = (from, to);
        LogDistance::default()
    }

    /// Where an earlier reader of this log left off, if the log remembers that. `None` by default.
    fn remembered_position(&self) -> BoxFuture<'_, Result<Option<Position>, SourceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Called when reading counts from `position` on: with what was saved beside it, or with what a source says that
    /// was opened there ([`Source::prepared_state`]), once all that came before is deleted or known to be lost. Does
    /// nothing by default.
    fn begin_at(&self, position: &Position, prepared: PreparedState) {
        let _ = (position, prepared);
    }

    /// What must be saved beside `position`, for the next process to notice that such a transaction is committed;
    /// `None` if nothing is known of any. `None` by default.
    fn prepared_state_at(&self, position: &Position) -> Option<PreparedState> {
        let _ = position;
        None
    }

    /// Whether `error`, which this returned, is logged already. False by default.
    fn is_logged(&self, error: &SourceError) -> bool {
        let _ = error;
        false
    }

    /// Called when `position` has been saved: reading will never begin before it, so a log that is kept for this reader
    /// may end there. Does nothing by default.
    fn release(&self, position: &Position) {
        let _ = position;
    }

    /// Called when a cluster may have got all up to `position`, and before a source is opened also for what clusters
    /// have saved in an earlier run. A cluster skips what comes before its position. So what a source adds to the
    /// commits of the log must come after it, and a log that does not have it cannot be read on from an older position.
    /// Does nothing by default.
    fn note_delivered(&self, position: &Position) {
        let _ = position;
    }

    /// Called when every cluster has saved `position` or a later one: whatever came before it was acknowledged by all.
    /// Does nothing by default.
    fn acknowledge(&self, position: &Position) {
        let _ = position;
    }
}

/// What a look-up of the end of a log shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLookup {
    /// The position of the newest commit.
    pub newest: Position,
    /// The files of the log, the oldest first; empty if positions show bytes, or if they are not known.
    pub files: Vec<LogFile>,
    /// The id that the next transaction gets; `None` if ids do not grow with time.
    pub next_transaction_id: Option<u64>,
    /// Why a part of this is missing; `None` if nothing failed.
    pub incomplete: Option<String>,
}

/// One file of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its name, without a directory.
    pub name: String,
    /// Its size; of the newest one, how far it is written.
    pub bytes: u64,
}

/// How much of a log lies between two positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogDistance {
    /// Transactions; `None` if positions do not show that.
    pub transactions: Option<u64>,
    /// Bytes; `None` if positions do not show that.
    pub bytes: Option<u64>,
}

/// Where to start reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest commit that the log still has.
    Earliest,
    /// After the newest commit.
    Now,
    /// After this position.
    At(Position),
}

/// The result of [`CommitLog::open`].
pub struct OpenedSource {
    /// Reads from `position` on.
    pub source: Box<dyn Source>,
    /// Where it starts; with [`Start::At`] that position itself.
    pub position: Position,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    /// A busy log, most commits of which name no key: one a millisecond.
    struct BusySource {
        commits: u64,
        /// Every such commit names a key; none does if it is 0.
        keyed: u64,
        gates: Vec<(u64, Instant)>,
    }

    impl Source for BusySource {
        fn next(&mut self, _: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
            Box::pin(async move {
                sleep(Duration::from_millis(1)).await;
                self.commits += 1;
                let position = Position(self.commits.to_string());
                let has_key = self.keyed > 0 && self.commits.is_multiple_of(self.keyed);
                let commit = Commit {
                    position: position.clone(),
                    keys: vec![b"k".to_vec()],
                    committed_at: SystemTime::UNIX_EPOCH,
                };
                Ok(Commits { commits: has_key.then_some(commit).into_iter().collect(), position })
            })
        }

        fn wait_until_visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
            self.gates.push((position.0.parse().expect("a number"), Instant::now()));
            Box::pin(std::future::ready(Ok(())))
        }

        fn gates_every_position(&self) -> bool {
            true
        }
    }

    /// Each read of a busy log had a query of the gate, although nothing was to be deleted.
    #[tokio::test(start_paused = true)]
    async fn positions_without_keys_pass_the_gate_together_and_keys_at_once() {
        let begun = Instant::now();
        let mut source = BusySource { commits: 0, keyed: 0, gates: Vec::new() };
        while source.commits < 1_000 {
            let commits = next_visible(&mut source, 100).await.expect("commits");
            assert_eq!(source.gates.last().map(|(gated, _)| gated.to_string()), Some(commits.position.0));
        }
        assert!((80..=101).contains(&source.gates.len()), "{} queries", source.gates.len());
        assert!(begun.elapsed() < Duration::from_millis(1_100), "{:?}", begun.elapsed());
        let mut source = BusySource { commits: 0, keyed: 25, gates: Vec::new() };
        let mut keys = 0;
        while source.commits < 1_000 {
            let commits = next_visible(&mut source, 100).await.expect("commits");
            keys += commits.commits.len();
        }
        assert_eq!(keys, 40);
        let of_keys = |at: u64| source.gates.iter().any(|(position, _)| *position == at * 25);
        assert!((1..=40).all(of_keys), "a commit with keys waits for no other: {:?}", source.gates);
    }
}
