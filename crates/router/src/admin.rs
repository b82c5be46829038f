//! What a router says about itself: `stats`, the keys that begin with `__mcrouter__.`, and `flush_all`.
//!
//! `stats` speaks memcached's names as far as a router can give them, summed over the threads; `stats servers` has a
//! line for each server:
//!
//! ```text
//!   STAT destination:10.0.0.7:11211 state:up sent:1200 failed:3 outstanding:0 ... kept_deletes:0 forget:0
//! ```

use crate::fleet::ConfigurationStatus;
use crate::intake::ADMIN_KEY_PREFIX;
use crate::statistics::write_stat;
use crate::surroundings::background;
use crate::{Fleet, Owed, Router, Trace};
use lookaside_client::{DestinationStatistics, TcpDestination, WindowStatistics};
use lookaside_protocol::{Reply, meta::MetaStatus, text::END};
use lookaside_routing::{Address, Context, Destination as _, Outcome};
use std::collections::BTreeMap;
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl Router {
    /// Appends the whole answer to `stats [arguments]`.
    pub(crate) fn write_stats(&self, arguments: &[u8], out: &mut Vec<u8>) {
        match arguments.trim_ascii() {
            b"" | b"all" | b"detailed" => self.write_general(out),
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

    /// The value of a key that begins with `__mcrouter__.`; `None` where there is none.
    pub(crate) async fn admin_value(&self, key: &[u8], context: &Context) -> Option<Vec<u8>> {
        let status = self.fleet().configuration();
        let name = key.strip_prefix(ADMIN_KEY_PREFIX)?;
        if let Some(question) = name.strip_prefix(b"spool_") {
            return self.answer_peer(question).await;
        }
        if let Some(address) = arguments_of("spool", name) {
            return self.spooled(address);
        }
        if let Some(arguments) = arguments_of("route", name) {
            return self.trace(arguments, context, |trace| trace.servers().join("\r\n")).await;
        }
        if let Some(arguments) = arguments_of("route_handles", name) {
            return self.trace(arguments, context, |trace| trace.to_string().trim_end().replace('\n', "\r\n")).await;
        }
        let text = match name {
            b"version" => self.settings().version.clone(),
            b"config_age" => age_s(&status).to_string(),
            b"config_file" | b"config_sources_info" => status.source,
            b"spool" => self.tree().spool()?.report(),
            b"hostid" => self.fleet().identity().pid.to_string(),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    /// The answer to another router of the cluster.
    async fn answer_peer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let tree = self.tree();
        let spool = tree.spool()?;
        let Some((address, request)) = spool.passed_on(question) else { return spool.answer_peer(question).await };
        let destination = tree.destinations().find(|destination| *destination.address() == address)?;
        let outcome = destination.send(vec![request]).await.pop()?;
        Some(if is_deleted(&outcome) { b"ok".to_vec() } else { b"no".to_vec() })
    }

    /// How many deletes are kept for a server, or that it is to forget everything. Who asks wants the server back: it is
    /// tried again at once.
    fn spooled(&self, address: &[u8]) -> Option<Vec<u8>> {
        let address = Address(str::from_utf8(address).ok()?.into());
        let tree = self.tree();
        let spool = tree.spool()?;
        spool.hurry(&address);
        let owed = spool.owed(&address);
        let text = if owed.forget { "forget".to_owned() } else { owed.records.to_string() };
        Some(text.into_bytes())
    }

    /// `verb,key` to the way that the request would take, shown by `show`.
    async fn trace(&self, arguments: &[u8], context: &Context, show: impl FnOnce(&Trace) -> String) -> Option<Vec<u8>> {
        let arguments = String::from_utf8_lossy(arguments);
        let (verb, key) = arguments.split_once(',')?;
        let text = match self.tree().trace(verb, key, context).await? {
            Ok(trace) => show(&trace),
            Err(why) => format!("error: {why}"),
        };
        Some(text.into_bytes())
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
        for (name, value) in fleet.tally().named() {
            write_stat(name, value, out);
        }
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
        write_stat("background_awaited", background.awaited, out);
        write_stat("background_left_out", background.left_out, out);
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
        let servers = servers(fleet);
        let states = |state: &str| servers.values().filter(|server| server.state() == state).count();
        write_stat("num_servers", servers.len(), out);
        write_stat("num_servers_up", states("up"), out);
        write_stat("num_servers_down", servers.len() - states("up"), out);
    }

    fn write_servers(&self, out: &mut Vec<u8>, wanted: impl Fn(&Server) -> bool) {
        for (address, server) in servers(self.fleet()) {
            if wanted(&server) {
                write_stat(&format!("destination:{address}"), server.in_words(), out);
            }
        }
    }
}

/// Every server that any thread's tree names.
pub(crate) fn servers(fleet: &Fleet) -> BTreeMap<String, Server> {
    let mut servers: BTreeMap<String, Server> = BTreeMap::new();
    for router in fleet.routers() {
        for destination in router.tree().destinations() {
            let server = servers.entry(one_line(&destination.address().to_string())).or_default();
            server.add(destination);
            server.owed = router.tree().spool().map(|spool| spool.owed(destination.address())).unwrap_or_default();
        }
    }
    servers
}

/// One server, as all threads together see it.
#[derive(Default)]
pub(crate) struct Server {
    destinations: u64,
    /// How many threads have taken it out, and how many of them because they cannot connect.
    taken_out_of: u64,
    taken_out_hard_of: u64,
    /// Whether it is not read because it owes deletes.
    pub(crate) is_fenced: bool,
    pub(crate) owed: Owed,
    pub(crate) sum: DestinationStatistics,
}

impl Server {
    fn add(&mut self, destination: &Arc<TcpDestination>) {
        let DestinationStatistics {
            requests,
            busy,
            refused_taken_out,
            outstanding,
            writes,
            answered_batches,
            timed_out_batches,
            late_answers,
            connects,
            connect_failures,
            connections_lost,
            malformed,
            probes,
            taken_out,
            moves,
        } = destination.statistics();
        self.destinations += 1;
        self.taken_out_of += u64::from(destination.is_taken_out());
        self.taken_out_hard_of += u64::from(destination.is_taken_out_hard());
        self.is_fenced |= destination.is_fenced();
        self.sum.requests += requests;
        self.sum.busy += busy;
        self.sum.refused_taken_out += refused_taken_out;
        self.sum.outstanding += outstanding;
        self.sum.writes += writes;
        self.sum.answered_batches += answered_batches;
        self.sum.timed_out_batches += timed_out_batches;
        self.sum.late_answers += late_answers;
        self.sum.connects += connects;
        self.sum.connect_failures += connect_failures;
        self.sum.connections_lost += connections_lost;
        self.sum.malformed += malformed;
        self.sum.probes += probes;
        self.sum.taken_out += taken_out;
        self.sum.moves += moves;
    }

    /// Every state that a server may be in.
    pub(crate) const STATES: [&'static str; 4] = ["up", "soft_tko", "hard_tko", "behind"];

    pub(crate) fn state(&self) -> &'static str {
        match self.taken_out_of {
            0 if self.is_fenced => "behind",
            0 => "up",
            _ if self.taken_out_hard_of > 0 => "hard_tko",
            _ => "soft_tko",
        }
    }

    fn in_words(&self) -> String {
        let sum = &self.sum;
        let failed_batches = sum.timed_out_batches + sum.connect_failures + sum.connections_lost + sum.malformed;
        format!(
            "state:{} sent:{} failed:{failed_batches} outstanding:{} refused_tko:{} refused_busy:{} writes:{} \
             timeouts:{} late:{} connects:{} connect_failures:{} connections_lost:{} probes:{} tko:{} moves:{} threads:{} \
             kept_deletes:{} forget:{}",
            self.state(),
            sum.requests,
            sum.outstanding,
            sum.refused_taken_out,
            sum.busy,
            sum.writes,
            sum.timed_out_batches,
            sum.late_answers,
            sum.connects,
            sum.connect_failures,
            sum.connections_lost,
            sum.probes,
            sum.taken_out,
            sum.moves,
            self.destinations,
            self.owed.records,
            u8::from(self.owed.forget),
        )
    }
}

/// The arguments in `question(arguments)`.
fn arguments_of<'a>(question: &str, name: &'a [u8]) -> Option<&'a [u8]> {
    name.strip_prefix(question.as_bytes())?.strip_prefix(b"(")?.strip_suffix(b")")
}

/// Whether a delete left nothing behind.
fn is_deleted(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => true,
        Ok(Reply::Meta(meta)) => matches!(meta.status, MetaStatus::Done | MetaStatus::NotFound),
        _ => false,
    }
}

fn age_s(status: &ConfigurationStatus) -> u64 {
    status.loaded.elapsed().as_secs()
}

/// Text from outside, fit for one line of an answer.
fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
