//! What mcrouter reports of destinations, summed: over the threads for one server, or over all servers.

use lookaside_client::{ConnectionState, DestinationReport, ResultCounts};

/// The sum of destinations' reports.
#[derive(Default)]
pub(super) struct DestinationSum {
    pub(super) results: ResultCounts,
    /// The number of destinations by the state of their connection.
    pub(super) connections: [u64; ConnectionState::ALL.len()],
    /// Requests that wait to be written.
    pub(super) pending: u64,
    /// Requests written and not answered.
    pub(super) in_flight: u64,
    /// The sum of the destinations' averages, and their number.
    latencies: (f64, u32),
}

impl DestinationSum {
    pub(super) fn add(&mut self, report: &DestinationReport) {
        self.results.add(&report.results);
        self.connections[report.connection as usize] += 1;
        self.pending += report.pending;
        self.in_flight += report.in_flight;
        if report.latency_us > 0.0 {
            self.latencies = (self.latencies.0 + report.latency_us, self.latencies.1 + 1);
        }
    }

    /// The average of the destinations' averages, in microseconds; 0 if none has one.
    pub(super) fn latency_us(&self) -> f64 {
        self.latencies.0 / f64::from(self.latencies.1.max(1))
    }
}
