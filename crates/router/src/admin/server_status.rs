//! The status of each server, summed over the threads: for `stats servers` and metrics.

use crate::shared::SharedState;
use crate::spool::Backlog;
use crate::stats::counters::one_line;
use lookaside_client::{DestinationStatistics, TcpDestination};
use lookaside_routing::Destination as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Every server that any thread's tree names, by address.
pub(crate) fn collect_servers(shared: &SharedState) -> BTreeMap<String, ServerStatus> {
    let mut servers: BTreeMap<String, ServerStatus> = BTreeMap::new();
    for source in shared.sources() {
        let tree = source.tree();
        for destination in tree.destinations() {
            let server = servers.entry(one_line(&destination.address().to_string())).or_default();
            server.add(destination);
            server.backlog = tree.spool().map(|spool| spool.backlog(destination.address())).unwrap_or_default();
        }
    }
    servers
}

/// One server, as all threads see it together.
#[derive(Default)]
pub(crate) struct ServerStatus {
    destinations: u64,
    /// Threads for which the server is TKO.
    tko_threads: u64,
    /// Threads for which it is TKO because they cannot connect.
    hard_tko_threads: u64,
    /// Whether it is not read because it has undelivered deletes.
    pub(crate) is_fenced: bool,
    pub(crate) fenced_for: Duration,
    pub(crate) backlog: Backlog,
    pub(crate) sum: DestinationStatistics,
}

impl ServerStatus {
    /// Every state that a server may be in.
    pub(crate) const STATES: [&'static str; 4] = ["up", "soft_tko", "hard_tko", "fenced"];

    pub(crate) fn state(&self) -> &'static str {
        match self.tko_threads {
            0 if self.is_fenced => "fenced",
            0 => "up",
            _ if self.hard_tko_threads > 0 => "hard_tko",
            _ => "soft_tko",
        }
    }

    pub(crate) fn to_stats_line(&self) -> String {
        let sum = &self.sum;
        let failed_batches = sum.timed_out_batches + sum.connect_failures + sum.connections_lost + sum.malformed;
        format!(
            "state:{} sent:{} failed:{failed_batches} outstanding:{} refused_tko:{} refused_busy:{} writes:{} \
             timeouts:{} late:{} connects:{} connect_failures:{} connections_lost:{} probes:{} tko:{} moves:{} threads:{} \
             spooled_deletes:{} flush_pending:{}",
            self.state(),
            sum.requests,
            sum.outstanding,
            sum.refused_tko,
            sum.busy,
            sum.writes,
            sum.timed_out_batches,
            sum.late_batches,
            sum.connects,
            sum.connect_failures,
            sum.connections_lost,
            sum.probes,
            sum.tko_marks,
            sum.relocations,
            self.destinations,
            self.backlog.deletes,
            u8::from(self.backlog.flush_pending),
        )
    }

    fn add(&mut self, destination: &Arc<TcpDestination>) {
        self.destinations += 1;
        self.tko_threads += u64::from(destination.is_tko());
        self.hard_tko_threads += u64::from(destination.is_hard_tko());
        self.is_fenced |= destination.is_fenced();
        self.fenced_for = self.fenced_for.max(destination.fenced_for());
        self.sum.add(&destination.statistics());
    }
}
