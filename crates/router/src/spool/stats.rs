//! What a spool counts, and what `stats` shows of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Since the start of the router.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) spooled: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) overflows: AtomicU64,
    pub(super) forgotten: AtomicU64,
    pub(super) append_failures: AtomicU64,
    pub(super) unassured: AtomicU64,
    pub(super) passed_on: AtomicU64,
    pub(super) replay_failures: AtomicU64,
}

/// How a spool fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStatistics {
    /// Deletes that were kept.
    pub spooled: u64,
    /// Kept deletes that their server has carried out since.
    pub replayed: u64,
    /// Kept deletes that their server will never take: the key is none it could hold.
    pub refused: u64,
    /// How often a server owed so much that it is to forget everything instead.
    pub overflows: u64,
    /// How often a server was made to forget everything.
    pub forgotten: u64,
    /// Deletes that could not be kept and failed.
    pub append_failures: u64,
    /// Deletes that were kept and failed all the same, as a peer could not be told.
    pub unassured: u64,
    /// Kept deletes that a peer has passed on to the server.
    pub passed_on: u64,
    /// Attempts to work something off that failed.
    pub replay_failures: u64,
    /// Deletes that are owed now, over all servers,
    pub pending: u64,
    /// and their bytes on disk.
    pub pending_bytes: u64,
    /// Servers that owe something now and are not read.
    pub servers_behind: u64,
    /// Servers that other routers owe something and that are not read.
    pub servers_held: u64,
}

impl SpoolStatistics {
    pub(super) fn read(counters: &Counters) -> SpoolStatistics {
        SpoolStatistics {
            spooled: counters.spooled.load(Relaxed),
            replayed: counters.replayed.load(Relaxed),
            refused: counters.refused.load(Relaxed),
            overflows: counters.overflows.load(Relaxed),
            forgotten: counters.forgotten.load(Relaxed),
            append_failures: counters.append_failures.load(Relaxed),
            unassured: counters.unassured.load(Relaxed),
            passed_on: counters.passed_on.load(Relaxed),
            replay_failures: counters.replay_failures.load(Relaxed),
            ..SpoolStatistics::default()
        }
    }

    /// Every figure with the name that `stats` gives it.
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("spool_deletes", self.spooled),
            ("spool_replayed", self.replayed),
            ("spool_refused", self.refused),
            ("spool_overflows", self.overflows),
            ("spool_flushes", self.forgotten),
            ("spool_append_failures", self.append_failures),
            ("spool_refused_no_peer", self.unassured),
            ("spool_forwarded", self.passed_on),
            ("spool_replay_failures", self.replay_failures),
            ("spool_pending", self.pending),
            ("spool_pending_bytes", self.pending_bytes),
            ("spool_servers_fenced", self.servers_behind),
            ("spool_servers_fenced_by_peers", self.servers_held),
        ]
    }
}
