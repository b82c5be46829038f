//! `stats servers` and `stats suspect_servers` in mcrouter's format, summed over the threads.
//!
//! ```text
//!   STAT 10.0.0.7:11211:ascii:plain:notcompressed-1000 avg_latency_us:212.400 pending_reqs:0 inflight_reqs:3 up:2; found:17
//!   STAT 10.0.0.8:11211 status:tko num_failures:5
//! ```
//!
//! A server with two timeouts, in two pools, has two lines in `stats servers`.

use super::destination_sum::DestinationSum;
use crate::shared::SharedState;
use crate::stats::counters::one_line;
use crate::tree::mcrouter_names::access_point;
use lookaside_client::{ConnectionState, ServerResult};
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
            server.threads.add(&destination.report());
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
    threads: DestinationSum,
    is_tko: bool,
    is_hard_tko: bool,
}

impl ServerSum {
    fn to_line(&self) -> String {
        let DestinationSum { results, connections, pending, in_flight, .. } = &self.threads;
        let latency_us = self.threads.latency_us();
        let mut line = format!("avg_latency_us:{latency_us:.3} pending_reqs:{pending} inflight_reqs:{in_flight}");
        if self.is_tko {
            line += if self.is_hard_tko { " hard_tko; " } else { " soft_tko; " };
        }
        for state in ConnectionState::ALL {
            write_if_any(state.name(), connections[state as usize], &mut line);
        }
        if ServerResult::ALL.iter().any(|result| results.of(*result) > 0) {
            line.push(';');
        }
        for result in ServerResult::ALL {
            write_if_any(result.name(), results.of(result), &mut line);
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
    use lookaside_client::{DestinationReport, ResultCounts};

    #[test]
    fn counts_that_are_0_are_left_out() {
        let report = |connection, pending, latency_us| DestinationReport {
            connection,
            failures_in_a_row: 0,
            pending,
            in_flight: 0,
            latency_us,
            results: ResultCounts::default(),
        };
        let mut server = ServerSum::default();
        server.threads.add(&report(ConnectionState::New, 0, 0.0));
        assert_eq!(server.to_line(), "avg_latency_us:0.000 pending_reqs:0 inflight_reqs:0 new:1");
        server.threads.add(&report(ConnectionState::Down, 3, 100.0));
        server.threads.add(&report(ConnectionState::Down, 4, 200.5));
        (server.is_tko, server.is_hard_tko) = (true, true);
        assert_eq!(server.to_line(), "avg_latency_us:150.250 pending_reqs:7 inflight_reqs:0 hard_tko;  new:1 down:2");
    }
}
