//! `stats`: memcached's names as far as a router can give them, and mcrouter's groups, summed over the threads.
//!
//! | group | it has |
//! |---|---|
//! | none, `all` | the router, its clients' commands, its configuration, the background, the window, the spool, the spares |
//! | `detailed` | all, and the three that follow |
//! | `cmd-in` | `cmd_VERB_in`: requests by verb, keys of a get one by one |
//! | `cmd-out` | `cmd_out`: requests sent to servers, `cmd_out_writes` by how many writes |
//! | `cmd-error` | `cmd_VERB_miss`, `cmd_VERB_error` (a server's error), `cmd_VERB_unavailable` (no answer), and `cmd_bad` |
//! | `count` | only what is counted since the start |
//! | `servers`, `suspect_servers` | a line for each server, or for each that is not up |
//!
//! ```text
//!   STAT destination:10.0.0.7:11211 state:up sent:1200 failed:3 outstanding:0 ... spooled_deletes:0 forget:0
//! ```

use crate::Router;
use crate::admin::{Server, age_s, one_line, servers};
use crate::frontend::parse::Tallied;
use crate::stats::by_verb::ResultClass;
use crate::stats::counters::write_stat;
use crate::tree::environment::background;
use lookaside_client::WindowStatistics;
use lookaside_protocol::text::END;
use std::sync::atomic::Ordering::Relaxed;

impl Router {
    /// Appends the whole answer to `stats [arguments]`.
    pub(crate) fn write_stats(&self, arguments: &[u8], out: &mut Vec<u8>) {
        match arguments.trim_ascii() {
            b"" | b"all" => self.write_general(out),
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
            b"servers" => self.write_servers(out, |_| true),
            b"suspect_servers" => self.write_servers(out, |server| server.state() != "up"),
            b"reset" => {
                out.extend_from_slice(b"SERVER_ERROR counters only grow; stats reset is not supported\r\n");
                return;
            }
            // memcached answers `stats items`, `slabs` and `settings`; monitors ask for them and choke on an error.
            _ => {}
        }
        out.extend_from_slice(END);
    }

    fn write_general(&self, out: &mut Vec<u8>) {
        let fleet = self.fleet();
        let status = fleet.configuration();
        write_stat("pid", fleet.identity().pid, out);
        write_stat("uptime", fleet.uptime_s(), out);
        write_stat("time", fleet.unix_s(tokio::time::Instant::now()), out);
        write_stat("version", &self.settings().version, out);
        write_stat("threads", fleet.routers().len(), out);
        write_stat("max_connections", self.settings().connections_max, out);
        write_stat("curr_connections", fleet.connections(), out);
        write_stat("reply_bytes", fleet.reply_bytes(), out);
        write_stat("pointer_size", usize::BITS, out);
        self.write_counts(out);
        write_stat("config_age", age_s(&status), out);
        write_stat("config_last_attempt", fleet.unix_s(status.attempted), out);
        write_stat("config_last_success", fleet.unix_s(status.loaded), out);
        write_stat("config_failures", status.failures, out);
        if let Some(refusal) = &status.refusal {
            write_stat("config_last_refusal", one_line(refusal), out);
        }
        if let Some(certificates) = fleet.certificates() {
            write_stat("ssl_new_sessions", certificates.new_sessions.load(Relaxed), out);
            write_stat("ssl_handshake_errors", certificates.handshake_errors.load(Relaxed), out);
            write_stat("time_since_server_cert_refresh", certificates.age_s(), out);
        }
        let background = background(fleet);
        write_stat("background_running", background.running, out);
        write_stat("background_fan_outs", background.fan_outs, out);
        write_stat("background_copies", background.copies, out);
        write_stat("background_blocked", background.awaited, out);
        write_stat("background_dropped", background.dropped, out);
        let windows: Vec<WindowStatistics> =
            fleet.routers().iter().filter_map(|router| router.tree().window()).collect();
        if !windows.is_empty() {
            write_stat("window_size", windows.iter().map(|window| window.size).sum::<usize>(), out);
            write_stat("window_outstanding", windows.iter().map(|window| window.outstanding).sum::<usize>(), out);
            write_stat("window_waiting", windows.iter().map(|window| window.waiting).sum::<usize>(), out);
        }
        if let Some(spool) = self.tree().spool() {
            for (name, value) in spool.statistics().named() {
                write_stat(name, value, out);
            }
        }
        if let Some(spares) = self.tree().spares() {
            for (name, value) in spares.statistics().named() {
                write_stat(name, value, out);
            }
        }
        write_stat("pools_failing_open", self.tree().fail_open_pools().len(), out);
        let servers = servers(fleet);
        let states = |state: &str| servers.values().filter(|server| server.state() == state).count();
        write_stat("num_servers", servers.len(), out);
        write_stat("num_servers_up", states("up"), out);
        write_stat("num_servers_down", servers.len() - states("up"), out);
    }

    fn write_servers(&self, out: &mut Vec<u8>, wanted: impl Fn(&Server) -> bool) {
        let replaced = self.tree().spares().map(|spares| spares.replaced()).unwrap_or_default();
        for (address, server) in servers(self.fleet()) {
            if wanted(&server) {
                let mut words = server.in_words();
                for (_, spare) in replaced.iter().filter(|(server, _)| *server.0 == *address) {
                    words += &format!(" replaced_by:{spare}");
                }
                for (server, _) in replaced.iter().filter(|(_, spare)| *spare.0 == *address) {
                    words += &format!(" stands_in_for:{server}");
                }
                write_stat(&format!("destination:{address}"), words, out);
            }
        }
    }

    fn write_counts(&self, out: &mut Vec<u8>) {
        for (name, value) in self.fleet().tally().named() {
            write_stat(name, value, out);
        }
        write_stat("touch_hits", self.of(Tallied::Touch, ResultClass::Ok), out);
        write_stat("touch_misses", self.of(Tallied::Touch, ResultClass::Miss), out);
    }

    fn write_in(&self, out: &mut Vec<u8>) {
        for verb in Tallied::ALL {
            let sum: u64 = ResultClass::ALL.iter().map(|fate| self.of(verb, *fate)).sum();
            write_stat(&format!("cmd_{}_in", verb.name()), sum, out);
        }
    }

    fn write_out(&self, out: &mut Vec<u8>) {
        let servers = servers(self.fleet());
        write_stat("cmd_out", servers.values().map(|server| server.sum.requests).sum::<u64>(), out);
        write_stat("cmd_out_writes", servers.values().map(|server| server.sum.writes).sum::<u64>(), out);
    }

    fn write_errors(&self, out: &mut Vec<u8>) {
        for verb in Tallied::ALL {
            for fate in [ResultClass::Miss, ResultClass::Error, ResultClass::Unavailable] {
                write_stat(&format!("cmd_{}_{}", verb.name(), fate.name()), self.of(verb, fate), out);
            }
        }
        write_stat("cmd_bad", self.fleet().tally().bad_commands, out);
    }

    /// How many requests of this verb had this result, over all threads.
    fn of(&self, verb: Tallied, fate: ResultClass) -> u64 {
        self.fleet().routers().iter().map(|router| router.results().of(verb, fate)).sum()
    }
}
