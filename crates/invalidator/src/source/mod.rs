//! A commit log as the daemon sees it.

pub mod mysql;
pub mod sqlite;

use lookaside_routing::BoxFuture;
use std::{fmt, time::SystemTime};

/// A place in a commit log, in the source's own notation (a GTID set, a journal's sequence number). Written to disk
/// as it is, and handed back to the same kind of source after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Position(pub String);

/// One committed transaction that names at least one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// All before and including this transaction.
    pub position: Position,
    /// The keys that it made stale, each once, valid as [`lookaside_protocol::check_key`] has it.
    pub keys: Vec<Vec<u8>>,
    /// When it was committed, as well as the source can tell.
    pub committed_at: SystemTime,
}

/// Why a source cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The database does not answer, or the connection ended. Worth trying again from the last position.
    Unreachable {
        /// What the driver said.
        why: String,
    },
    /// The log no longer reaches back to the position: commits between are lost to us, and with them deletes.
    PositionLost {
        /// Where we wanted to go on.
        position: Position,
        /// What the database said.
        why: String,
    },
    /// The database is not set up for this (a format, a privilege, a table). Trying again does not help.
    Unusable {
        /// What is wrong, and what to set.
        why: String,
    },
}

impl std::error::Error for SourceError {}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Unreachable { why } => write!(f, "the database cannot be reached: {why}"),
            SourceError::PositionLost { position, why } => {
                write!(f, "the commit log no longer reaches back to {}: {why}", position.0)
            }
            SourceError::Unusable { why } => write!(f, "the database cannot be used as a source: {why}"),
        }
    }
}

/// Committed transactions in order, at least once, from a position on.
pub trait Source: Send {
    /// Waits for commits and returns those that are there, at least one, at most about `keys_max` keys. Also returns
    /// with an empty list and a newer position when the log moved on without naming a key.
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>>;

    /// Waits until every reader that begins now sees all up to `position`: the log runs ahead of visibility, and a
    /// delete sent too early is undone by a reader that still saw the old row.
    fn visible<'a>(&'a mut self, position: &'a Position) -> BoxFuture<'a, Result<(), SourceError>>;
}

/// What [`Source::next`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commits {
    /// In log order.
    pub commits: Vec<Commit>,
    /// All up to here has been read, whether it named keys or not.
    pub position: Position,
}

/// A database whose commit log can be read: opens sources. A pipeline asks for a new source after every failure, so
/// a source itself need not know how to connect again: it may fail with what it saw and be dropped.
pub trait Log: Send + Sync {
    /// Which log this is, however it is reached: positions in one log mean nothing in another. A server's unique name
    /// or a file's path; text that stays the same over restarts of the database.
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>>;

    /// A source whose first commit is the first one behind `start`.
    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<Opened, SourceError>>;
}

/// Where to begin to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest commit that the log still has.
    Earliest,
    /// Behind the newest commit: only what is committed from now on.
    Now,
    /// Behind this position.
    At(Position),
}

/// What [`Log::open`] returns.
pub struct Opened {
    /// Begins behind `position`.
    pub source: Box<dyn Source>,
    /// Where it begins; the same as asked for with [`Start::At`].
    pub position: Position,
}
