//! The spool's counters and what `stats` shows of them.

use lookaside_telemetry::{SharedCounter, counters};

counters! {
    /// Since the start of the router.
    pub(super) struct SpoolCounters(SharedCounter);

    /// A snapshot of a spool's counters.
    pub struct SpoolCounts;

    /// Deletes that were spooled.
    spooled => "spool_deletes",
    /// Deletes that were in the backlog already and were not stored again.
    repeated => "spool_repeated",
    /// Spooled deletes of an earlier run, found on disk at the start.
    recovered => "spool_recovered",
    /// Spooled and recovered deletes that their server has applied since.
    replayed => "spool_replayed",
    /// Spooled deletes that their server rejects permanently, because it cannot hold such a key.
    refused => "spool_refused",
    /// How often a backlog grew so large that a flush replaced it.
    overflows => "spool_overflows",
    /// How often a server was flushed.
    flushes => "spool_flushes",
    /// Deletes that failed because they could not be written.
    append_failures => "spool_append_failures",
    /// Deletes that were written and failed all the same, because a peer could not be reached.
    refused_no_peer => "spool_refused_no_peer",
    /// Spooled deletes that a peer has forwarded to the server.
    forwarded => "spool_forwarded",
    /// Failed attempts to replay.
    replay_failures => "spool_replay_failures",
}

/// The counters and gauges of a spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStats {
    /// The counters.
    pub counts: SpoolCounts,
    /// Deletes in all backlogs now.
    pub pending: u64,
    /// Bytes of all backlogs on disk now.
    pub pending_bytes: u64,
    /// Servers with a backlog, which are not read.
    pub servers_fenced: u64,
    /// Servers that peers have fenced, which are not read.
    pub servers_fenced_by_peers: u64,
    /// Peers that do not answer.
    pub peers_unreachable: u64,
}

impl SpoolStats {
    /// Every figure with its name in `stats`.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.counts.named().chain([
            ("spool_pending", self.pending),
            ("spool_pending_bytes", self.pending_bytes),
            ("spool_servers_fenced", self.servers_fenced),
            ("spool_servers_fenced_by_peers", self.servers_fenced_by_peers),
            ("spool_peers_unreachable", self.peers_unreachable),
        ])
    }
}
