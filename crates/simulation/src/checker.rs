//! Knows every commit, hears of every acknowledgement and every read, and says what must not be.
//!
//! 1. **No stale read.** Once a cluster has acknowledged a delete, a read of that key in that cluster that begins later
//!    returns no version older than the newest that had passed the gate when the delete was sent. The same holds for all
//!    keys up to a position that the invalidator has saved. (A value marked as stale is not a read of this kind.)
//! 2. **No lost delete.** When everything has come to rest, every cluster has acknowledged the whole log, and no server
//!    holds a version that is not the newest of its key.

use crate::database::Database;
use lookaside_client::Origin;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

/// What went wrong; the first violation counts, the rest follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A read returned a value that a delete, acknowledged before the read began, had made invalid.
    StaleRead {
        /// Where it was read.
        cluster: String,
        /// What was read.
        key: String,
        /// The version that the cache returned.
        read: u64,
        /// The version that it had to be at least.
        acknowledged: u64,
    },
    /// At rest, a server still held an old version.
    LostDelete {
        /// Which server.
        server: String,
        /// Which key.
        key: String,
        /// The version that it holds.
        held: u64,
        /// The newest version.
        newest: u64,
    },
    /// An assertion failed, or something like it: a connection made anew would hide it.
    Panicked {
        /// The message.
        what: String,
    },
    /// At rest, a cluster had not acknowledged the whole log.
    Unacknowledged {
        /// Which cluster.
        cluster: String,
        /// How far it got.
        position: u64,
        /// How far the log goes.
        logged: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::StaleRead { cluster, key, read, acknowledged } => write!(
                f,
                "stale read: cluster {cluster} returned version {read} of {key} after it had acknowledged the \
                 deletes up to version {acknowledged}"
            ),
            Violation::LostDelete { server, key, held, newest } => write!(
                f,
                "lost delete: at rest, {server} holds version {held} of {key}, whose newest version is {newest}"
            ),
            Violation::Panicked { what } => write!(f, "panic: {what}"),
            Violation::Unacknowledged { cluster, position, logged } => write!(
                f,
                "lost delete: at rest, cluster {cluster} has acknowledged up to {position} of {logged} commits"
            ),
        }
    }
}

/// Watches one run. Clones watch the same run.
#[derive(Clone)]
pub struct Checker(Arc<Mutex<Seen>>);

struct Seen {
    database: Database,
    /// The saved position of each cluster.
    acknowledged: BTreeMap<String, u64>,
    /// The position that the last acknowledged delete of each cluster's key covers.
    applied: BTreeMap<(String, String), u64>,
    violation: Option<Violation>,
    tally: Tally,
}

/// How much a run has exercised; all zero would prove nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Reads that were checked.
    pub reads: u64,
    /// Reads answered from the cache.
    pub cached: u64,
    /// Reads answered by a value marked as stale.
    pub stale: u64,
    /// Commits in the log.
    pub commits: u64,
    /// Faults that were injected.
    pub faults: u64,
}

impl Tally {
    /// The sum of two runs.
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            reads: self.reads + other.reads,
            cached: self.cached + other.cached,
            stale: self.stale + other.stale,
            commits: self.commits + other.commits,
            faults: self.faults + other.faults,
        }
    }
}

/// A read that has begun: what it must see at least.
#[derive(Clone, Debug)]
pub struct ReadBegun {
    cluster: String,
    key: String,
    version_min: u64,
}

impl Checker {
    /// Watches a run on `database`.
    pub fn new(database: Database) -> Self {
        Checker(Arc::new(Mutex::new(Seen {
            database,
            acknowledged: BTreeMap::new(),
            applied: BTreeMap::new(),
            violation: None,
            tally: Tally::default(),
        })))
    }

    /// `cluster` has acknowledged every delete up to `position`.
    pub fn acknowledged(&self, cluster: &str, position: u64) {
        self.seen().acknowledged.insert(cluster.to_owned(), position);
    }

    /// `cluster` has acknowledged a delete of `key` that was sent when all up to `position` was visible.
    pub fn applied(&self, cluster: &str, key: &str, position: u64) {
        let mut seen = self.seen();
        let covered = seen.applied.entry((cluster.to_owned(), key.to_owned())).or_default();
        *covered = position.max(*covered);
    }

    /// The program failed.
    pub fn panicked(&self, what: String) {
        self.seen().violation.get_or_insert(Violation::Panicked { what });
    }

    /// The position that `cluster` has acknowledged.
    pub fn position(&self, cluster: &str) -> u64 {
        self.seen().acknowledged.get(cluster).copied().unwrap_or(0)
    }

    /// A read of `key` in `cluster` begins.
    pub fn read_begins(&self, cluster: &str, key: &str) -> ReadBegun {
        let seen = self.seen();
        let saved = seen.acknowledged.get(cluster).copied().unwrap_or(0);
        let applied = seen.applied.get(&(cluster.to_owned(), key.to_owned())).copied().unwrap_or(0);
        let version_min = seen.database.version_at(key, saved.max(applied));
        ReadBegun { cluster: cluster.to_owned(), key: key.to_owned(), version_min }
    }

    /// The read returned `version`.
    pub fn read_ends(&self, begun: ReadBegun, version: u64, origin: Origin) {
        let mut seen = self.seen();
        seen.tally.reads += 1;
        match origin {
            Origin::Cache => seen.tally.cached += 1,
            Origin::Stale => seen.tally.stale += 1,
            Origin::Database => {}
        }
        if origin == Origin::Cache && version < begun.version_min {
            let violation = Violation::StaleRead {
                cluster: begun.cluster,
                key: begun.key,
                read: version,
                acknowledged: begun.version_min,
            };
            seen.violation.get_or_insert(violation);
        }
    }

    /// A fault has been injected.
    pub fn fault(&self) {
        self.seen().tally.faults += 1;
    }

    /// Everything is at rest; `holds(key)` lists each server with the version it still holds of a key.
    pub fn at_rest(&self, clusters: &[String], mut holds: impl FnMut(&str) -> Vec<(String, u64)>) {
        let mut seen = self.seen();
        let logged = seen.database.logged();
        seen.tally.commits = logged;
        for cluster in clusters {
            let position = seen.acknowledged.get(cluster).copied().unwrap_or(0);
            if position < logged {
                let violation = Violation::Unacknowledged { cluster: cluster.clone(), position, logged };
                seen.violation.get_or_insert(violation);
            }
        }
        for key in seen.database.keys() {
            let newest = seen.database.version_at(&key, logged);
            for (server, held) in holds(&key) {
                if held < newest {
                    let violation = Violation::LostDelete { server, key: key.to_string(), held, newest };
                    seen.violation.get_or_insert(violation);
                }
            }
        }
    }

    /// The first violation, if there was one, and what was exercised.
    pub fn verdict(&self) -> (Option<Violation>, Tally) {
        let seen = self.seen();
        (seen.violation.clone(), seen.tally)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().expect("one thread runs a simulation")
    }
}
