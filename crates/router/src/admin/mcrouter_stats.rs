//! The statistics that mcrouter's own tools and exporters read, by mcrouter's names.
//!
//! | names | here |
//! |---|---|
//! | `cmd_OP_count` | clients' requests since the start, keys of a get one by one |
//! | `cmd_OP_out`, `cmd_OP_out_all` | rates of the requests to servers, without and with failover and shadows |
//! | `result_R`, `result_R_all`, each with `_count` | replies of servers by kind of error: a rate, and since the start |
//! | `request_sent`, `request_replied`, `request_error`, `request_success`, `final_result_error`, each with `_count` | clients' requests |
//! | `failover_...`, `redirected_lease_set_count` | what routes count ([`lookaside_routing::RouteCounters`]) |
//! | `num_servers`, `num_servers_new` ... | destinations: one for each server, timeout and thread |
//!
//! All is derived from what the connections and the sessions count anyway. A rate is over the time since the reading
//! before ([`crate::stats::rates`]).

use super::destination_sum::DestinationSum;
use super::process_stats;
use super::stats_command::StatsView;
use crate::stats::by_verb::ResultClass;
use crate::stats::command_class::CommandClass;
use crate::stats::counters::write_stat;
use crate::stats::rates::Count;
use lookaside_client::{ConnectionState, RetiredCounts, ServerResult};
use lookaside_routing::{Destination as _, ErrorKind, RouteCounts, RouteStatistics, Verb};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// mcrouter's operations that are verbs here, by mcrouter's names.
fn verb_name(verb: Verb) -> String {
    verb.name().replace('-', "_")
}

/// Operations of mcrouter that are no verbs.
const OTHER_OPERATIONS: [&str; 2] = ["flushall", "flushre"];

/// Kinds of errors by mcrouter's names: as servers' results, and as the routes count them.
const REPORTED_ERRORS: [(&str, ServerResult, ErrorKind); 7] = [
    ("connect_error", ServerResult::ConnectError, ErrorKind::ConnectError),
    ("connect_timeout", ServerResult::ConnectTimeout, ErrorKind::ConnectTimeout),
    ("data_timeout", ServerResult::Timeout, ErrorKind::Timeout),
    ("busy", ServerResult::Busy, ErrorKind::Busy),
    ("tko", ServerResult::Tko, ErrorKind::Tko),
    ("client_error", ServerResult::ClientError, ErrorKind::ClientError),
    ("remote_error", ServerResult::RemoteError, ErrorKind::RemoteError),
];

/// Kinds that no server reports.
const OTHER_ERRORS: [&str; 2] = ["local_error", "deadline_exceeded_error"];

/// All destinations and routes of all threads, summed.
#[derive(Default)]
struct Sums {
    destinations: DestinationSum,
    connects: u64,
    disconnects: u64,
    suspects: BTreeSet<String>,
    soft_tko: BTreeSet<String>,
    hard_tko: BTreeSet<String>,
    routes: Vec<Arc<RouteStatistics>>,
}

impl Sums {
    fn of(view: &StatsView<'_>) -> Sums {
        let mut sums = Sums::default();
        for source in view.shared.sources() {
            let tree = source.tree();
            sums.routes.push(tree.background_tasks().route_statistics().clone());
            for destination in tree.destinations() {
                let report = destination.report();
                sums.destinations.add(&report);
                let statistics = destination.statistics();
                sums.connects += statistics.connects;
                sums.disconnects += statistics.disconnects;
                let address = destination.address().to_string();
                if destination.is_tko() {
                    let tko = if destination.is_hard_tko() { &mut sums.hard_tko } else { &mut sums.soft_tko };
                    tko.insert(address.clone());
                }
                if destination.is_tko() || report.failures_in_a_row > 0 {
                    sums.suspects.insert(address);
                }
            }
        }
        let retired = view.tree.config().and_then(|config| config.destination_options().retired.as_deref());
        if let Some(RetiredCounts { results, connects, disconnects }) = retired {
            sums.destinations.results.add(&results.snapshot());
            sums.connects += connects.value();
            sums.disconnects += disconnects.value();
        }
        sums
    }

    fn of_routes(&self, count: impl Fn(&RouteStatistics) -> u64) -> u64 {
        self.routes.iter().map(|routes| count(routes)).sum()
    }

    /// What the routes of all threads have counted.
    fn route_counts(&self) -> RouteCounts {
        let mut sum = RouteCounts::default();
        self.routes.iter().for_each(|routes| sum.add(&routes.counters.snapshot()));
        sum
    }
}

impl StatsView<'_> {
    /// Appends what mcrouter has and the other lines of `stats` have not.
    pub(super) fn write_mcrouter(&self, out: &mut Vec<u8>) {
        let sums = Sums::of(self);
        self.write_mcrouter_process(out);
        self.write_mcrouter_counts_of(&sums, out);
        self.write_rates(&sums, out);
        write_gauges(&sums, out);
        process_stats::write(out);
    }

    /// Appends mcrouter's counts since the start.
    pub(super) fn write_mcrouter_counts(&self, out: &mut Vec<u8>) {
        self.write_mcrouter_counts_of(&Sums::of(self), out);
    }

    fn write_mcrouter_process(&self, out: &mut Vec<u8>) {
        let shared = self.shared;
        write_stat("commandargs", self.command_line, out);
        write_stat("parent_pid", std::os::unix::process::parent_id(), out);
        write_stat("start_time", shared.identity().started_unix_s, out);
        write_stat("num_proxies", shared.sources().len(), out);
        write_stat("num_clients", shared.connections(), out);
        write_stat("num_client_connections", shared.connections(), out);
        write_stat("fibers_allocated", 0, out);
    }

    fn write_mcrouter_counts_of(&self, sums: &Sums, out: &mut Vec<u8>) {
        let own: BTreeMap<&str, u64> = self.shared.sum_counters().named().collect();
        for (operation, count) in self.operations() {
            let name = format!("cmd_{operation}");
            if !own.contains_key(&*name) {
                write_stat(&name, count, out);
            }
            write_stat(&format!("{name}_count"), count, out);
        }
        for (name, count) in result_counts(sums).into_iter().chain(self.request_counts()) {
            write_stat(&format!("{name}_count"), count, out);
        }
        for (name, count) in sums.route_counts().named() {
            write_stat(name, count, out);
        }
        write_stat("configs_from_disk", self.shared.config_status().from_disk, out);
        write_stat("num_connections_opened", sums.connects, out);
        write_stat("num_connections_closed", sums.disconnects, out);
        write_stat("asynclog_requests", self.spooled(), out);
    }

    fn write_rates(&self, sums: &Sums, out: &mut Vec<u8>) {
        let mut counts: Vec<Count> = Vec::new();
        for verb in Verb::ALL {
            let (name, all) = (verb_name(verb), sums.destinations.results.sent(verb));
            let extra = sums.of_routes(|routes| routes.extra_sent(verb));
            counts.push((format!("cmd_{name}_out"), all.saturating_sub(extra)));
            counts.push((format!("cmd_{name}_out_all"), all));
        }
        for operation in OTHER_OPERATIONS {
            counts.push((format!("cmd_{operation}_out"), 0));
            counts.push((format!("cmd_{operation}_out_all"), 0));
        }
        counts.extend(result_counts(sums));
        counts.extend(self.request_counts());
        counts.push(("asynclog_requests_rate".to_owned(), self.spooled()));
        let rates = self.shared.read_rates(Instant::now(), &counts);
        for ((name, _), rate) in counts.iter().zip(rates) {
            write_stat(name, format_args!("{rate:.3}"), out);
        }
        let failed = self.tree.spool().map_or(0, |spool| spool.statistics().counts.append_failures);
        let share = self.spooled() as f64 / (self.spooled() + failed).max(1) as f64;
        write_stat("asynclog_spool_success_rate", format_args!("{:.3}", if failed == 0 { 1.0 } else { share }), out);
    }

    /// mcrouter's operations with the requests of clients.
    fn operations(&self) -> Vec<(String, u64)> {
        let of_verb = |verb| (verb_name(verb), self.requests_of(CommandClass::Verb(verb)));
        let flushes = self.shared.sum_counters().cmd_flush;
        let others = OTHER_OPERATIONS.into_iter().zip([flushes, 0]).map(|(name, count)| (name.to_owned(), count));
        Verb::ALL.into_iter().map(of_verb).chain(others).collect()
    }

    fn requests_of(&self, class: CommandClass) -> u64 {
        ResultClass::ALL.iter().map(|result| self.sum_results(class, *result)).sum()
    }

    fn request_counts(&self) -> Vec<Count> {
        request_counts(|class, result| self.sum_results(class, result))
    }

    fn spooled(&self) -> u64 {
        self.tree.spool().map_or(0, |spool| spool.statistics().counts.spooled)
    }
}

/// Clients' requests by how they ended. `count` is asked once for each pair, while other threads count on: a difference
/// of two sums over the same counters could be negative.
fn request_counts(count: impl Fn(CommandClass, ResultClass) -> u64) -> Vec<Count> {
    let (mut errors, mut successes) = (0, 0);
    for class in CommandClass::all() {
        for result in ResultClass::ALL {
            let sum = match result {
                ResultClass::Error | ResultClass::Unavailable => &mut errors,
                ResultClass::Ok | ResultClass::Miss => &mut successes,
            };
            *sum += count(class, result);
        }
    }
    [
        ("request_sent", errors + successes),
        ("request_replied", errors + successes),
        ("request_error", errors),
        ("request_success", successes),
        ("final_result_error", errors),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into()
}

/// Servers' results by kind of error, and of all kinds.
fn result_counts(sums: &Sums) -> Vec<Count> {
    let mut counts = Vec::new();
    let (mut errors, mut errors_all) = (0, 0);
    for (name, result, kind) in REPORTED_ERRORS {
        let all = sums.destinations.results.of(result);
        let normal = all.saturating_sub(sums.of_routes(|routes| routes.extra_errors(kind)));
        (errors, errors_all) = (errors + normal, errors_all + all);
        counts.extend([(format!("result_{name}"), normal), (format!("result_{name}_all"), all)]);
    }
    for name in OTHER_ERRORS {
        counts.extend([(format!("result_{name}"), 0), (format!("result_{name}_all"), 0)]);
    }
    counts.extend([("result_error".to_owned(), errors), ("result_error_all".to_owned(), errors_all)]);
    counts
}

fn write_gauges(sums: &Sums, out: &mut Vec<u8>) {
    let destinations = &sums.destinations;
    write_stat("num_servers", destinations.connections.iter().sum::<u64>(), out);
    for state in ConnectionState::ALL {
        write_stat(&format!("num_servers_{}", state.name()), destinations.connections[state as usize], out);
    }
    write_stat("num_suspect_servers", sums.suspects.len(), out);
    write_stat("num_soft_tko_count", sums.soft_tko.len(), out);
    write_stat("num_hard_tko_count", sums.hard_tko.len(), out);
    write_stat("destination_pending_reqs", destinations.pending, out);
    write_stat("destination_inflight_reqs", destinations.in_flight, out);
    write_stat("proxy_reqs_processing", destinations.pending + destinations.in_flight, out);
    write_stat("proxy_reqs_waiting", 0, out);
    write_stat("proxy_request_num_outstanding", destinations.pending + destinations.in_flight, out);
    let latency_us = destinations.latency_us();
    write_stat("duration_us", format_args!("{latency_us:.3}"), out);
    write_stat("processing_time_us", format_args!("{latency_us:.3}"), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// All requests fail, and between any two readings of a counter some more have.
    #[test]
    fn counts_of_requests_add_up_while_other_threads_count() {
        let failed = Cell::new(0);
        let counts: BTreeMap<_, _> = request_counts(|_, result| match result {
            ResultClass::Error => {
                failed.set(failed.get() + 7);
                failed.get()
            }
            _ => 0,
        })
        .into_iter()
        .collect();
        assert!(counts["request_error"] > 0);
        assert_eq!(counts["request_success"], 0);
        assert_eq!(counts["request_replied"], counts["request_error"]);
    }
}
