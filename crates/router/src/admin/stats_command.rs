//! `stats`: memcached's names as far as a router can report them, and mcrouter's groups, summed over the threads.
//!
//! | group | contents |
//! |---|---|
//! | none, `all`, `ods` | the router, its clients' commands, its configuration and changes of it, the background, the window, the spool, the spares, and mcrouter's names ([`super::mcrouter_stats`]) |
//! | `detailed` | all, and the three that follow |
//! | `cmd-in` | `cmd_VERB_in`: requests by verb, keys of a get one by one |
//! | `cmd-out` | `cmd_out`: requests sent to servers, `cmd_out_writes` by how many writes |
//! | `cmd-error` | `cmd_VERB_miss`, `cmd_VERB_error` (a server's error), `cmd_VERB_unavailable` (no reply), and `cmd_bad` |
//! | `count` | only counters since the start |
//! | `servers`, `suspect_servers` | a line for each server, or for each that has failed, in mcrouter's format ([`super::server_lines`]) |
//! | `servers_detailed` | a line for each server, with what this router knows beyond that |
//! | `version` | the version |
//! | `external`, and memcached's `items`, `slabs`, `settings` | nothing |
//!
//! ```text
//!   STAT destination:10.0.0.7:11211 state:up sent:1200 failed:3 outstanding:0 ... spooled_deletes:0 flush_pending:0
//! ```

use super::server_lines::{server_lines, suspect_lines};
use super::server_status::collect_servers;
use crate::shared::{ConfigStatus, SharedState};
use crate::stats::by_verb::ResultClass;
use crate::stats::command_class::CommandClass;
use crate::stats::counters::{one_line, write_stat};
use crate::stats::plain_leases;
use crate::tree::Tree;
use lookaside_client::WindowStatistics;
use lookaside_protocol::text::END;
use lookaside_routing::{BackgroundStatistics, Verb};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

pub(crate) struct StatsView<'a> {
    pub(crate) shared: &'a SharedState,
    pub(crate) tree: Arc<Tree>,
    pub(crate) version: &'a str,
    pub(crate) connections_max: usize,
    /// As the process was started.
    pub(crate) command_line: &'a str,
}

impl StatsView<'_> {
    /// Appends the whole reply to `stats [arguments]`.
    pub(crate) fn write(&self, arguments: &[u8], out: &mut Vec<u8>) {
        match arguments.trim_ascii() {
            b"" | b"all" | b"ods" => self.write_general(out),
            b"detailed" => {
                self.write_general(out);
                self.write_in(out);
                self.write_out(out);
                self.write_errors(out);
            }
            b"cmd-in" => self.write_in(out),
            b"cmd-out" => self.write_out(out),
            b"cmd-error" => self.write_errors(out),
            b"count" => {
                self.write_counts(out);
                self.write_in(out);
                self.write_out(out);
                self.write_errors(out);
            }
            b"servers" => write_lines(server_lines(self.shared), out),
            b"suspect_servers" => write_lines(suspect_lines(self.shared), out),
            b"servers_detailed" => self.write_servers(out),
            b"version" => write_stat("version", self.version, out),
            // memcached replies to `stats items`, `slabs` and `settings`. Monitors send them and fail on an error.
            b"external" | b"items" | b"slabs" | b"settings" => {}
            _ => {
                out.extend_from_slice(b"CLIENT_ERROR bad stats command\r\n");
                return;
            }
        }
        out.extend_from_slice(END);
    }

    fn write_general(&self, out: &mut Vec<u8>) {
        let status = self.shared.config_status();
        self.write_process(out);
        self.write_own_counts(out);
        self.write_config(&status, out);
        self.write_background(out);
        self.write_window(out);
        if let Some(spool) = self.tree.spool() {
            for (name, value) in spool.statistics().entries() {
                write_stat(name, value, out);
            }
        }
        let resize = self.shared.resize();
        write_stat("resize_state", resize.state(), out);
        write_stat("resize_history", resize.history(), out);
        for (name, value) in resize.entries() {
            write_stat(name, value, out);
        }
        let clients = self.shared.lease_clients();
        write_stat("plain_lease_misses", clients.remembered(), out);
        for (name, _, value) in plain_leases::counts(clients) {
            write_stat(name, value, out);
        }
        if let Some(spares) = self.tree.spares() {
            for (name, value) in spares.statistics().entries() {
                write_stat(name, value, out);
            }
        }
        let permits = self.shared.read_permits();
        write_stat("read_permits", permits.given.value(), out);
        write_stat("read_permits_refused", permits.refused.value(), out);
        let gate = self.tree.start_gate();
        write_stat("start_gate_open", u8::from(gate.is_none_or(|gate| gate.is_open())), out);
        write_stat("start_gate_refused", gate.map_or(0, |gate| gate.refused()), out);
        write_stat("pools_failing_open", self.tree.fail_open_pools().len(), out);
        self.write_mcrouter(out);
    }

    fn write_process(&self, out: &mut Vec<u8>) {
        let shared = self.shared;
        write_stat("pid", shared.identity().pid, out);
        write_stat("uptime", shared.uptime_s(), out);
        write_stat("time", shared.unix_s(Instant::now()), out);
        write_stat("version", self.version, out);
        write_stat("threads", shared.sources().len(), out);
        write_stat("max_connections", self.connections_max, out);
        write_stat("curr_connections", shared.connections(), out);
        write_stat("reply_bytes", shared.reply_bytes(), out);
        write_stat("input_bytes", shared.input_bytes(), out);
        write_stat("output_bytes", shared.output_bytes(), out);
        write_stat("delete_bytes", shared.delete_bytes(), out);
        write_stat("pointer_size", usize::BITS, out);
    }

    fn write_config(&self, status: &ConfigStatus, out: &mut Vec<u8>) {
        write_stat("config_age", status.age_s(), out);
        write_stat("config_last_attempt", self.shared.unix_s(status.attempted), out);
        write_stat("config_last_success", self.shared.unix_s(status.loaded), out);
        write_stat("config_failures", status.failures, out);
        if let Some(refusal) = &status.refusal {
            write_stat("config_last_refusal", one_line(refusal), out);
        }
        if let Some(certificates) = self.shared.certificates() {
            write_stat("ssl_new_sessions", certificates.new_sessions.load(Relaxed), out);
            write_stat("ssl_handshake_errors", certificates.handshake_errors.load(Relaxed), out);
            write_stat("time_since_server_cert_refresh", certificates.age_s(), out);
        }
    }

    fn write_background(&self, out: &mut Vec<u8>) {
        let background = sum_background(self.shared);
        write_stat("background_running", background.running, out);
        write_stat("background_fan_outs", background.fan_outs, out);
        write_stat("background_copies", background.copies, out);
        write_stat("background_blocked", background.blocked, out);
        write_stat("background_dropped", background.dropped, out);
    }

    fn write_window(&self, out: &mut Vec<u8>) {
        let windows: Vec<WindowStatistics> =
            self.shared.sources().iter().filter_map(|source| source.tree().window()).collect();
        if !windows.is_empty() {
            write_stat("window_size", windows.iter().map(|window| window.size).sum::<usize>(), out);
            write_stat("window_outstanding", windows.iter().map(|window| window.outstanding).sum::<usize>(), out);
            write_stat("window_waiting", windows.iter().map(|window| window.waiting).sum::<usize>(), out);
        }
    }

    fn write_servers(&self, out: &mut Vec<u8>) {
        let replacements = self.tree.spares().map(|spares| spares.replacements()).unwrap_or_default();
        for (address, server) in collect_servers(self.shared) {
            let mut line = server.to_stats_line();
            for (_, spare) in replacements.iter().filter(|(server, _)| *server.0 == *address) {
                line += &format!(" replaced_by:{spare}");
            }
            for (server, _) in replacements.iter().filter(|(_, spare)| *spare.0 == *address) {
                line += &format!(" stands_in_for:{server}");
            }
            write_stat(&format!("destination:{address}"), line, out);
        }
    }

    fn write_counts(&self, out: &mut Vec<u8>) {
        self.write_own_counts(out);
        self.write_mcrouter_counts(out);
    }

    fn write_own_counts(&self, out: &mut Vec<u8>) {
        for (name, value) in self.shared.sum_counters().named() {
            write_stat(name, value, out);
        }
        write_stat("touch_hits", self.sum_results(CommandClass::Verb(Verb::Touch), ResultClass::Ok), out);
        write_stat("touch_misses", self.sum_results(CommandClass::Verb(Verb::Touch), ResultClass::Miss), out);
    }

    fn write_in(&self, out: &mut Vec<u8>) {
        for class in CommandClass::all() {
            let sum: u64 = ResultClass::ALL.iter().map(|result| self.sum_results(class, *result)).sum();
            write_stat(&format!("cmd_{}_in", class.name()), sum, out);
        }
    }

    fn write_out(&self, out: &mut Vec<u8>) {
        let servers = collect_servers(self.shared);
        write_stat("cmd_out", servers.values().map(|server| server.sum.requests).sum::<u64>(), out);
        write_stat("cmd_out_writes", servers.values().map(|server| server.sum.writes).sum::<u64>(), out);
    }

    fn write_errors(&self, out: &mut Vec<u8>) {
        for class in CommandClass::all() {
            for result in [ResultClass::Miss, ResultClass::Error, ResultClass::Unavailable] {
                let name = format!("cmd_{}_{}", class.name(), result.name());
                write_stat(&name, self.sum_results(class, result), out);
            }
        }
        write_stat("cmd_bad", self.shared.sum_counters().bad_commands, out);
    }

    pub(super) fn sum_results(&self, class: CommandClass, result: ResultClass) -> u64 {
        self.shared.sources().iter().map(|source| source.results().count(class, result)).sum()
    }
}

fn write_lines(lines: BTreeMap<String, String>, out: &mut Vec<u8>) {
    lines.into_iter().for_each(|(name, line)| write_stat(&name, line, out));
}

pub(super) fn sum_background(shared: &SharedState) -> BackgroundStatistics {
    let mut sum = BackgroundStatistics::default();
    for source in shared.sources() {
        let BackgroundStatistics { running, fan_outs, copies, blocked, dropped } =
            source.tree().background_tasks().statistics();
        sum.running += running;
        sum.fan_outs += fan_outs;
        sum.copies += copies;
        sum.blocked += blocked;
        sum.dropped += dropped;
    }
    sum
}
