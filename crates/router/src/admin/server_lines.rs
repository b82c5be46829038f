//! `stats servers` and `stats suspect_servers` in mcrouter's format, summed over the threads.
//!
//! ```text
//!   STAT 10.0.0.7:11211:ascii:plain:notcompressed-1000 avg_latency_us:212.400 pending_reqs:0 inflight_reqs:3 up:2; found:17
//!   STAT 10.0.0.8:11211 status:tko num_failures:5
//! ```
//!
//! A server with two timeouts, in two pools, has two lines in `stats servers`.

use crate::shared::SharedState;
use crate::stats::counters::one_line;
use crate::tree::mcrouter_names::access_point;
use lookaside_client::{ConnectionState, DestinationReport, ResultCounts, ServerResult};
use lookaside_routing::Destination as _;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The servers by the first part of their lines.
pub(crate) fn server_lines(shared: &SharedState) -> BTreeMap<String, String> {
    let mut servers: BTreeMap<String, ServerSum> = BTreeMap::new();
    for source in shared.sources() {
        for (address, settings, destination) in source.tree().destinations_with_settings() {
            let name = format!("{}-{}", access_point(address, settings), settings.server_timeout_ms);
            let server = servers.entry(name).or_default();
            server.add(&destination.report());
            server.is_tko |= destination.is_tko();
            server.is_hard_tko |= destination.is_hard_tko();
        }
    }
    servers.into_iter().map(|(name, server)| (name, server.to_line())).collect()
}

/// The servers that have failed since their last reply, by address.
pub(crate) fn suspect_lines(shared: &SharedState) -> BTreeMap<String, String> {
    let mut suspects: BTreeMap<String, (bool, u64)> = BTreeMap::new();
    for source in shared.sources() {
        for destination in source.tree().destinations() {
            let (failures, is_tko) = (destination.report().failures_in_a_row, destination.is_tko());
            if is_tko || failures > 0 {
                let suspect = suspects.entry(one_line(&destination.address().to_string())).or_default();
                *suspect = (suspect.0 || is_tko, suspect.1 + u64::from(failures));
            }
        }
    }
    let line = |(is_tko, failures)| {
        let status = if is_tko { "tko" } else { "down" };
        format!("status:{status} num_failures:{failures}")
    };
    suspects.into_iter().map(|(address, suspect)| (address, line(suspect))).collect()
}

/// A server with one timeout, over all threads.
#[derive(Default)]
struct ServerSum {
    /// The sum of the threads' averages, and their number.
    latencies: (f64, u32),
    pending: u64,
    in_flight: u64,
    is_tko: bool,
    is_hard_tko: bool,
    connections: [u64; ConnectionState::ALL.len()],
    results: ResultCounts,
}

impl ServerSum {
    fn add(&mut self, report: &DestinationReport) {
        if report.latency_us > 0.0 {
            self.latencies = (self.latencies.0 + report.latency_us, self.latencies.1 + 1);
        }
        self.pending += report.pending;
        self.in_flight += report.in_flight;
        self.connections[report.connection as usize] += 1;
        self.results.add(&report.results);
    }

    fn to_line(&self) -> String {
        let latency_us = self.latencies.0 / f64::from(self.latencies.1.max(1));
        let mut line =
            format!("avg_latency_us:{latency_us:.3} pending_reqs:{} inflight_reqs:{}", self.pending, self.in_flight);
        if self.is_tko {
            line += if self.is_hard_tko { " hard_tko; " } else { " soft_tko; " };
        }
        for state in ConnectionState::ALL {
            write_if_any(state.name(), self.connections[state as usize], &mut line);
        }
        if ServerResult::ALL.iter().any(|result| self.results.of(*result) > 0) {
            line.push(';');
        }
        for result in ServerResult::ALL {
            write_if_any(result.name(), self.results.of(result), &mut line);
        }
        line
    }
}

fn write_if_any(name: &str, count: u64, line: &mut String) {
    if count > 0 {
        write!(line, " {name}:{count}").expect("a write to a String succeeds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_are_0_are_left_out() {
        let mut server = ServerSum { connections: [1, 0, 0, 2], ..ServerSum::default() };
        assert_eq!(server.to_line(), "avg_latency_us:0.000 pending_reqs:0 inflight_reqs:0 new:1 down:2");
        (server.latencies, server.pending) = ((300.5, 2), 7);
        (server.is_tko, server.is_hard_tko) = (true, true);
        assert_eq!(server.to_line(), "avg_latency_us:150.250 pending_reqs:7 inflight_reqs:0 hard_tko;  new:1 down:2");
    }
}
