//! Records all commits, acknowledgements and reads, and reports violated guarantees.
//!
//! 1. **No stale read.** Once a cluster has acknowledged a delete, a read of that key in that cluster that begins later
//!    returns no version older than the newest that had passed the gate when the delete was sent. The same holds for
//!    all keys up to a position that the invalidator has saved. (Values marked as stale are exempt.)
//! 2. **No old read.** While at most one router or one server of the cluster has failed, and no server that the key is
//!    read from has, no read returns a value that is older than the newest visible one by more than [`OUTDATED_MAX`],
//!    whether its delete has been acknowledged or not. While the invalidator has failed, there is no such bound; if
//!    nothing else has failed, the same holds again [`OUTDATED_MAX`] after it has been repaired.
//! 3. **Own writes are read.** Once a write of a user in a replica region is complete, no read of its key in their
//!    cluster that begins later returns an older version, from the cache or from a database, where remote markers are
//!    used ([ADR 020]).
//! 4. **No lost delete.** At the end, when nothing is in flight, every cluster has acknowledged the whole log, and no
//!    server holds a version that is not the newest of its key.
//! 5. **The monitor counts what is so** ([ADR 019]): its counts are those of the checker, which knows when each item
//!    was stored.
//!
//! Each region has a checker of its own, whose database is that of the region.
//!
//! [ADR 019]: ../../../docs/adr/019-monitor.md
//! [ADR 020]: ../../../docs/adr/020-remote-markers.md

use crate::{
    database::SimulatedDatabase,
    fault_log::{Exposure, FaultLog},
};
use lookaside_client::Origin;
use lookaside_monitor::sampling::AgeCounts;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

/// How long ago a value that is read outside of the failed part may have been replaced in the database: half of the
/// second that is promised, so that what comes near it is found.
///
/// What a delete waits for is derived in `lookaside_invalidator::pipeline`: 211 ms while a router hangs. The simulated
/// links add up to 41 ms for each of the two hops to the server. The oldest reads of 250 seeds are 237 ms old, and a
/// delay of a retry, which grows to a second, is above.
pub const OUTDATED_MAX: Duration = Duration::from_millis(500);

/// A violated guarantee. Only the first one of a run is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A read returned a value that a delete, acknowledged before the read began, had invalidated.
    StaleRead {
        /// Where it was read.
        cluster: String,
        /// The key that was read.
        key: String,
        /// The version that the cache returned.
        read: u64,
        /// The oldest allowed version.
        acknowledged: u64,
    },
    /// A read returned a version that is older than a complete write of the same cluster.
    OwnWriteNotRead {
        /// Where it was read.
        cluster: String,
        /// The key that was read.
        key: String,
        /// The version that was read.
        read: u64,
        /// The version of the write.
        written: u64,
    },
    /// The counts of the monitor are wrong.
    WrongMonitor {
        /// What it watches.
        watch: String,
        /// The age of the deletes in seconds, and both counts.
        why: String,
    },
    /// At the end, a replica did not have all commits.
    Unreplicated {
        /// The region of the replica.
        region: usize,
        /// The last position that it has.
        position: u64,
        /// The last position of the master.
        logged: u64,
    },
    /// A read returned an old value although at most one process of its cluster had failed, and not the key's server;
    /// or although the invalidator was back.
    OldRead {
        /// Where it was read.
        cluster: String,
        /// The key that was read.
        key: String,
        /// The version that the cache returned.
        read: u64,
        /// For how long new readers of the database had seen a newer one, or the invalidator had been back, in
        /// milliseconds.
        outdated_ms: u64,
    },
    /// At the end, a server still held an old version.
    LostDelete {
        /// The server.
        server: String,
        /// The key.
        key: String,
        /// The version that it holds.
        held: u64,
        /// The newest version.
        newest: u64,
    },
    /// At the end, a change of the configuration did not come to its end.
    UnfinishedChange {
        /// The router.
        router: String,
    },
    /// The production code panicked. A reconnect would hide this.
    Panicked {
        /// The message.
        what: String,
    },
    /// At the end, a cluster had not acknowledged the whole log.
    Unacknowledged {
        /// The cluster.
        cluster: String,
        /// The position that it has acknowledged.
        position: u64,
        /// The last position in the log.
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
            Violation::OwnWriteNotRead { cluster, key, read, written } => write!(
                f,
                "own write not read: a user of cluster {cluster} read version {read} of {key} after that user had written \
                 version {written}"
            ),
            Violation::WrongMonitor { watch, why } => write!(f, "wrong monitor: {watch}: {why}"),
            Violation::Unreplicated { region, position, logged } => write!(
                f,
                "not replicated: at the end, the replica of region {region} has {position} of {logged} commits"
            ),
            Violation::OldRead { cluster, key, read, outdated_ms } => write!(
                f,
                "old read: cluster {cluster} returned version {read} of {key}, which had been outdated for \
                 {outdated_ms} ms, although neither its server nor more than one process had failed, or the \
                 invalidator had been back for as long"
            ),
            Violation::LostDelete { server, key, held, newest } => write!(
                f,
                "lost delete: at the end, {server} holds version {held} of {key}, whose newest version is {newest}"
            ),
            Violation::UnfinishedChange { router } => {
                write!(f, "unfinished change: at the end, {router} still covers more than one configuration")
            }
            Violation::Panicked { what } => write!(f, "panic: {what}"),
            Violation::Unacknowledged { cluster, position, logged } => write!(
                f,
                "lost delete: at the end, cluster {cluster} has acknowledged up to {position} of {logged} commits"
            ),
        }
    }
}

/// Checks one run. Clones check the same run.
#[derive(Clone)]
pub struct Checker(Arc<Mutex<CheckerState>>);

struct CheckerState {
    database: SimulatedDatabase,
    faults: FaultLog,
    /// The saved position of each cluster.
    acknowledged: BTreeMap<String, u64>,
    /// The position that the last acknowledged delete of each cluster's key covers.
    applied: BTreeMap<(String, String), u64>,
    /// The newest complete write of each cluster's key.
    own_writes: BTreeMap<(String, String), u64>,
    violation: Option<Violation>,
    tally: Tally,
}

/// Counts of what a run has exercised: a run without reads and faults would prove nothing.
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
    /// Processes that hung.
    pub hangs: u64,
    /// Routers that were upgraded.
    pub upgrades: u64,
    /// Those of them that were upgraded during a change of their configuration.
    pub upgrades_in_changes: u64,
    /// Servers that were started again with their items.
    pub warm_restarts: u64,
    /// Servers whose process was replaced, and that kept items and connections.
    pub server_upgrades: u64,
    /// Deletes that routers have spooled.
    pub spooled: u64,
    /// Servers that routers have flushed in place of undelivered deletes.
    pub flushes: u64,
    /// How often a spare has replaced a server.
    pub spare_takeovers: u64,
    /// Spares that have left their pool.
    pub spare_departures: u64,
    /// How often a router has begun to read by another configuration.
    pub config_changes: u64,
    /// Routers that have lost the file of the configurations that they cover.
    pub lost_coverages: u64,
    /// Values that routers have copied from the former owners of keys to new ones.
    pub former_owner_fills: u64,
    /// Requests that clients sent to servers directly.
    pub direct_reads: u64,
    /// Sets of clients that know no leases, stored.
    pub plain_sets_stored: u64,
    /// Sets of clients that know no leases, refused.
    pub plain_sets_refused: u64,
    /// Fills of clients that had stalled, stored.
    pub stalled_fills_stored: u64,
    /// Fills of clients that had stalled, refused.
    pub stalled_fills_refused: u64,
    /// Writes from replica regions that were complete.
    pub remote_writes: u64,
    /// Writes from replica regions without a known outcome, since a packet between regions was lost or late.
    pub unknown_writes: u64,
    /// Reads of the master by applications of other regions.
    pub master_reads: u64,
    /// Reads that were older than a complete write of their cluster.
    pub own_writes_not_read: u64,
    /// How often replication to a region stood still.
    pub replication_stops: u64,
    /// Replicas that became the master.
    pub promotions: u64,
    /// What monitors have found.
    pub monitored: AgeCounts,
    /// How old values were that were read.
    pub outdated: OutdatedMax,
}

/// For how long the oldest value that was read had been outdated in the database, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutdatedMax {
    /// While no part of the cluster had failed.
    pub calm_ms: u64,
    /// While one router had failed, and nothing else.
    pub one_router_ms: u64,
    /// While one server had failed that the key is not read from, and nothing else.
    pub one_server_ms: u64,
    /// After the invalidator had failed, and nothing else: since it was repaired.
    pub after_invalidator_ms: u64,
    /// Of all reads.
    pub any_ms: u64,
}

impl OutdatedMax {
    fn record(&mut self, exposure: Exposure, outdated: Duration) {
        let ms = outdated.as_millis() as u64;
        let of_exposure = match exposure {
            Exposure::Calm => &mut self.calm_ms,
            Exposure::OneRouter => &mut self.one_router_ms,
            Exposure::OneServer => &mut self.one_server_ms,
            Exposure::InvalidatorUntil(_) => &mut self.after_invalidator_ms,
            Exposure::Failed => &mut self.any_ms,
        };
        *of_exposure = ms.max(*of_exposure);
    }

    fn max(self, other: OutdatedMax) -> OutdatedMax {
        OutdatedMax {
            calm_ms: self.calm_ms.max(other.calm_ms),
            one_router_ms: self.one_router_ms.max(other.one_router_ms),
            one_server_ms: self.one_server_ms.max(other.one_server_ms),
            after_invalidator_ms: self.after_invalidator_ms.max(other.after_invalidator_ms),
            any_ms: self.any_ms.max(other.any_ms),
        }
    }
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
            hangs: self.hangs + other.hangs,
            upgrades: self.upgrades + other.upgrades,
            upgrades_in_changes: self.upgrades_in_changes + other.upgrades_in_changes,
            warm_restarts: self.warm_restarts + other.warm_restarts,
            server_upgrades: self.server_upgrades + other.server_upgrades,
            spooled: self.spooled + other.spooled,
            flushes: self.flushes + other.flushes,
            spare_takeovers: self.spare_takeovers + other.spare_takeovers,
            spare_departures: self.spare_departures + other.spare_departures,
            config_changes: self.config_changes + other.config_changes,
            lost_coverages: self.lost_coverages + other.lost_coverages,
            former_owner_fills: self.former_owner_fills + other.former_owner_fills,
            direct_reads: self.direct_reads + other.direct_reads,
            plain_sets_stored: self.plain_sets_stored + other.plain_sets_stored,
            plain_sets_refused: self.plain_sets_refused + other.plain_sets_refused,
            stalled_fills_stored: self.stalled_fills_stored + other.stalled_fills_stored,
            stalled_fills_refused: self.stalled_fills_refused + other.stalled_fills_refused,
            remote_writes: self.remote_writes + other.remote_writes,
            unknown_writes: self.unknown_writes + other.unknown_writes,
            master_reads: self.master_reads + other.master_reads,
            own_writes_not_read: self.own_writes_not_read + other.own_writes_not_read,
            replication_stops: self.replication_stops + other.replication_stops,
            promotions: self.promotions + other.promotions,
            monitored: self.monitored.plus(&other.monitored),
            outdated: self.outdated.max(other.outdated),
        }
    }
}

/// A read in progress, with the oldest version that it may return.
pub struct ReadInProgress {
    cluster: String,
    key: String,
    /// The servers that the key is read from; `None` if that is not known.
    owners: Box<dyn Fn() -> Option<Vec<String>>>,
    began: Instant,
    version_min: u64,
    /// The version that users of the cluster have written.
    own_version: u64,
}

impl CheckerState {
    /// Checks how old the value was when the read began.
    fn check_age(&mut self, read: &ReadInProgress, version: u64) {
        let since = self.database.outdated_since(&read.key, version).filter(|since| *since < read.began);
        let Some(since) = since else { return };
        let exposure = self.faults.exposure(&read.cluster, (read.owners)().as_deref(), since, read.began);
        self.tally.outdated.record(Exposure::Failed, read.began - since);
        let since = match exposure {
            Exposure::InvalidatorUntil(repaired) => since.max(repaired.min(read.began)),
            _ => since,
        };
        let outdated = read.began - since;
        self.tally.outdated.record(exposure, outdated);
        if exposure != Exposure::Failed && outdated > OUTDATED_MAX {
            let violation = Violation::OldRead {
                cluster: read.cluster.clone(),
                key: read.key.clone(),
                read: version,
                outdated_ms: outdated.as_millis() as u64,
            };
            self.violation.get_or_insert(violation);
        }
    }
}

impl Checker {
    /// Checks a run on `database` with `faults`.
    pub fn new(database: SimulatedDatabase, faults: FaultLog) -> Self {
        Checker(Arc::new(Mutex::new(CheckerState {
            database,
            faults,
            acknowledged: BTreeMap::new(),
            applied: BTreeMap::new(),
            own_writes: BTreeMap::new(),
            violation: None,
            tally: Tally::default(),
        })))
    }

    /// Records that `cluster` has acknowledged every delete up to `position`.
    pub fn record_acknowledged(&self, cluster: &str, position: u64) {
        self.state().acknowledged.insert(cluster.to_owned(), position);
    }

    /// Records that `cluster` has acknowledged a delete of `key` that was sent when all up to `position` was visible.
    pub fn record_applied(&self, cluster: &str, key: &str, position: u64) {
        let mut state = self.state();
        let covered = state.applied.entry((cluster.to_owned(), key.to_owned())).or_default();
        *covered = position.max(*covered);
    }

    /// Records that a write of `key` by a user of `cluster` is complete.
    pub fn record_own_write(&self, cluster: &str, key: &str, version: u64) {
        let mut state = self.state();
        let own = state.own_writes.entry((cluster.to_owned(), key.to_owned())).or_default();
        *own = version.max(*own);
    }

    /// Records a violation that only the caller can see.
    pub fn record_violation(&self, violation: Violation) {
        self.state().violation.get_or_insert(violation);
    }

    /// The position that `cluster` has acknowledged.
    pub fn position(&self, cluster: &str) -> u64 {
        self.state().acknowledged.get(cluster).copied().unwrap_or(0)
    }

    /// Records that a read of `key` begins in `cluster`. `owners` returns the servers that it is read from; `None` if
    /// that is not known.
    pub fn begin_read(
        &self,
        cluster: &str,
        key: &str,
        owners: impl Fn() -> Option<Vec<String>> + 'static,
    ) -> ReadInProgress {
        let state = self.state();
        let saved = state.acknowledged.get(cluster).copied().unwrap_or(0);
        let applied = state.applied.get(&(cluster.to_owned(), key.to_owned())).copied().unwrap_or(0);
        let version_min = state.database.version_at(key, saved.max(applied));
        let (cluster, key) = (cluster.to_owned(), key.to_owned());
        let own_version = state.own_writes.get(&(cluster.clone(), key.clone())).copied().unwrap_or(0);
        ReadInProgress { cluster, key, owners: Box::new(owners), began: Instant::now(), version_min, own_version }
    }

    /// Records that the read returned `version`.
    pub fn end_read(&self, read: ReadInProgress, version: u64, origin: Origin) {
        let mut state = self.state();
        state.tally.reads += 1;
        match origin {
            Origin::Cache => state.tally.cached += 1,
            Origin::Stale => state.tally.stale += 1,
            Origin::Database => {}
        }
        if origin != Origin::Stale && version < read.own_version {
            state.tally.own_writes_not_read += 1;
            let violation = Violation::OwnWriteNotRead {
                cluster: read.cluster.clone(),
                key: read.key.clone(),
                read: version,
                written: read.own_version,
            };
            state.violation.get_or_insert(violation);
        }
        if origin != Origin::Cache {
            return;
        }
        state.check_age(&read, version);
        if version < read.version_min {
            let violation = Violation::StaleRead {
                cluster: read.cluster,
                key: read.key,
                read: version,
                acknowledged: read.version_min,
            };
            state.violation.get_or_insert(violation);
        }
    }

    /// Counts something that was exercised.
    pub fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.state().tally);
    }

    /// Checks the state at the end, when nothing is in flight. `holds(key)` lists each server that holds the key, with
    /// its version.
    pub fn check_final_state(&self, clusters: &[String], mut holds: impl FnMut(&str) -> Vec<(String, u64)>) {
        let mut state = self.state();
        let logged = state.database.logged();
        state.tally.commits = logged;
        for cluster in clusters {
            let position = state.acknowledged.get(cluster).copied().unwrap_or(0);
            if position < logged {
                let violation = Violation::Unacknowledged { cluster: cluster.clone(), position, logged };
                state.violation.get_or_insert(violation);
            }
        }
        for key in state.database.keys() {
            let newest = state.database.version_at(&key, logged);
            for (server, held) in holds(&key) {
                if held < newest {
                    let violation = Violation::LostDelete { server, key: key.to_string(), held, newest };
                    state.violation.get_or_insert(violation);
                }
            }
        }
    }

    /// The first violation, if there was one, and what was exercised.
    pub fn result(&self) -> (Option<Violation>, Tally) {
        let state = self.state();
        (state.violation.clone(), state.tally)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, CheckerState> {
        self.0.lock().expect("one thread runs a simulation")
    }
}
