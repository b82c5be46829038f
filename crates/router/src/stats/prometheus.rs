//! The router's metrics as text. Names and units as Prometheus wants them; every family is there from the start.
//!
//! Series are bounded: verbs, results and failures are few and known; of pools [`POOLS_MAX`] and of servers [`SERVERS_MAX`]
//! are told, in the order of their names, and how many are left out. Keys and clients are in no label.

use super::by_verb::ResultClass;
use super::per_target::{FAILURES, MeasureSum};
use crate::admin::{Server, servers};
use crate::frontend::parse::Tallied;
use crate::stats::counters::Tally;
use crate::tree::environment::background;
use crate::{Fleet, Router};
use lookaside_routing::Address;
use lookaside_telemetry::Kind::{Counter, Gauge, Histogram, Summary};
use lookaside_telemetry::{Exposition, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Of how many pools is told.
const POOLS_MAX: usize = 200;
/// Of how many servers is told: some 40 lines each.
const SERVERS_MAX: usize = 1_000;
/// Of how many servers a pool is told to have; all pools together have this many at most, too.
const POOL_SERVERS_MAX: usize = 4_000;

/// All metrics of the process.
pub(crate) fn render(fleet: &Fleet, version: &str) -> String {
    let mut out = Exposition::new("lookaside_router_");
    out.family("info", Gauge, "The version that runs.");
    out.sample(&[("version", version)], 1);
    let routers = fleet.routers();
    process(fleet, &routers, &mut out);
    requests(&routers, &fleet.tally(), &mut out);
    configuration(fleet, &mut out);
    pools(&routers, &mut out);
    spool(&routers, &mut out);
    spares(&routers, &mut out);
    tls(fleet, &mut out);
    of_servers(fleet, &routers, &mut out);
    out.finish()
}

fn process(fleet: &Fleet, routers: &[Arc<Router>], out: &mut Exposition) {
    let identity = fleet.identity();
    out.single("start_time_seconds", Gauge, "When the router started, since 1970.", identity.started_unix_s);
    out.single("threads", Gauge, "Threads, each with connections of its own to the servers.", routers.len());
    out.single("connections", Gauge, "Clients that are connected.", fleet.connections());
    let max = routers.first().map_or(0, |router| router.settings().connections_max);
    out.single("connections_max", Gauge, "Clients that may be connected at once.", max);
    out.single(
        "held_value_bytes",
        Gauge,
        "Bytes of values on their way to clients, large ones alone.",
        fleet.reply_bytes(),
    );
    let background = background(fleet);
    out.single(
        "background_batches",
        Gauge,
        "Batches that go on when nobody waits for them any more.",
        background.running,
    );
    let help = "Batches of several children of which some went on when their caller had its answer.";
    out.single("background_fan_outs_total", Counter, help, background.fan_outs);
    let help = "Copies that nobody waits for: shadows, fills of an L1.";
    out.single("background_copies_total", Counter, help, background.copies);
    let help = "Batches whose caller had to wait, as too many were in the background.";
    out.single("background_awaited_total", Counter, help, background.awaited);
    let help = "Copies that were left out, as too many were in the background.";
    out.single("background_left_out_total", Counter, help, background.dropped);
    let windows: Vec<_> = routers.iter().filter_map(|router| router.tree().window()).collect();
    let sum = |part: fn(&lookaside_client::WindowStatistics) -> usize| windows.iter().map(part).sum::<usize>();
    out.single(
        "window_requests",
        Gauge,
        "Requests that may be outstanding (--window), over all threads; 0 without.",
        sum(|w| w.size),
    );
    out.single("window_waiting_requests", Gauge, "Requests that wait for room in the window.", sum(|w| w.waiting));
}

/// A counter of `stats`: its name here, its value, and what it means.
type OfTally = (&'static str, fn(&Tally) -> u64, &'static str);

/// The counters of `stats` that are not told elsewhere.
#[rustfmt::skip]
const OF_TALLY: &[OfTally] = &[
    ("connections_accepted_total", |tally| tally.total_connections, "Client connections accepted."),
    ("connections_rejected_total", |tally| tally.rejected_connections, "Client connections closed at once because of --max-conns."),
    ("connections_stalled_total", |tally| tally.stalled_connections, "Client connections ended because the client took no replies."),
    ("accept_errors_total", |tally| tally.accept_errors, "Failures to accept a client's connection."),
    ("bad_commands_total", |tally| tally.bad_commands, "Commands that were not understood or not allowed."),
    ("flush_all_total", |tally| tally.cmd_flush, "Commands flush_all, refused ones too."),
    ("lease_tokens_total", |tally| tally.lease_tokens, "Lease tokens passed on to clients."),
    ("lease_hot_misses_total", |tally| tally.lease_hot_misses, "Lease-gets answered with: another client holds the lease."),
    ("lease_sets_void_total", |tally| tally.lease_sets_void, "Lease-sets that stored no live value, as a delete came between."),
    ("batches_total", |tally| tally.batches, "Batches that clients' requests travelled in."),
    ("batched_requests_total", |tally| tally.batched_requests, "Requests in those batches."),
    ("received_bytes_total", |tally| tally.bytes_read, "Bytes that came from clients."),
    ("sent_bytes_total", |tally| tally.bytes_written, "Bytes that went to clients."),
];

fn requests(routers: &[Arc<Router>], tally: &Tally, out: &mut Exposition) {
    out.family(
        "requests_total",
        Counter,
        "Clients' requests, keys of a get one by one, by verb and by what came of them.",
    );
    for verb in Tallied::ALL {
        for result in ResultClass::ALL {
            let count: u64 = routers.iter().map(|router| router.results().of(verb, result)).sum();
            out.sample(&[("verb", verb.name()), ("result", result.name())], count);
        }
    }
    for (name, value, help) in OF_TALLY {
        out.single(name, Counter, help, value(tally));
    }
}

fn configuration(fleet: &Fleet, out: &mut Exposition) {
    let status = fleet.configuration();
    let is_good = u8::from(status.refusal.is_none());
    out.single(
        "config_last_reload_successful",
        Gauge,
        "Whether the last attempt to take a configuration succeeded.",
        is_good,
    );
    let help = "When the configuration in force was taken, since 1970.";
    out.single("config_last_reload_success_timestamp_seconds", Gauge, help, fleet.unix_s(status.loaded));
    out.single(
        "config_reload_failures_total",
        Counter,
        "Configurations that were refused or could not be read.",
        status.failures,
    );
}

fn pools(routers: &[Arc<Router>], out: &mut Exposition) {
    let mut pools: BTreeMap<String, (MeasureSum, BTreeSet<Address>)> = BTreeMap::new();
    for router in routers {
        for (name, pool) in router.tree().measures().into_iter().flat_map(|measures| &measures.pools) {
            let (sum, servers) = pools.entry(name.clone()).or_default();
            sum.add(&pool.measure);
            servers.extend(pool.servers.iter().cloned());
        }
    }
    out.single(
        "pools_left_out",
        Gauge,
        "Pools that are not told of, as there are too many.",
        pools.len().saturating_sub(POOLS_MAX),
    );
    let told: Vec<_> = pools.into_iter().take(POOLS_MAX).collect();
    out.family("pool_server", Gauge, "Which servers a pool has: 1 for each.");
    let pairs = told.iter().flat_map(|(pool, (_, servers))| servers.iter().map(move |server| (pool, server)));
    for (pool, server) in pairs.take(POOL_SERVERS_MAX) {
        out.sample(&[("pool", pool), ("server", &server.0)], 1);
    }
    let measured: Vec<_> = told.iter().map(|(pool, (sum, _))| (&**pool, sum)).collect();
    fares("pool", "at the pool", &measured, out);
    let help = "From the handing over of a batch to a pool to the last outcome, failing over within the pool included.";
    out.family("pool_batch_seconds", Histogram, help);
    for (pool, sum) in measured {
        out.histogram(&[("pool", pool)], &sum.latency);
    }
}

/// How requests fare at each of some.
fn fares(label: &str, place: &str, measured: &[(&str, &MeasureSum)], out: &mut Exposition) {
    out.family(&format!("{label}_requests_total"), Counter, &format!("Requests {place}."));
    for (name, sum) in measured {
        out.sample(&[(label, name)], sum.requests);
    }
    let help = format!("Requests {place} that brought no answer or an error, by reason.");
    out.family(&format!("{label}_failures_total"), Counter, &help);
    for (name, sum) in measured {
        for (reason, count) in FAILURES.iter().zip(sum.failures) {
            out.sample(&[(label, name), ("reason", reason)], count);
        }
    }
}

/// What each server's connections count.
type OfServer = (&'static str, Kind, fn(&Server) -> u64, &'static str);

#[rustfmt::skip]
const OF_SERVER: &[OfServer] = &[
    ("server_outstanding_requests", Gauge, |server| server.sum.outstanding, "Requests that are queued or sent and not answered."),
    ("server_writes_total", Counter, |server| server.sum.writes, "Writes to the server: requests by writes is how many go together."),
    ("server_late_answers_total", Counter, |server| server.sum.late_answers, "Answers that came when their time was over."),
    ("server_connects_total", Counter, |server| server.sum.connects, "Connections made."),
    ("server_connect_failures_total", Counter, |server| server.sum.connect_failures, "Connections that could not be made."),
    ("server_connections_lost_total", Counter, |server| server.sum.connections_lost, "Connections that ended with requests outstanding."),
    ("server_malformed_total", Counter, |server| server.sum.malformed, "Connections ended because of an answer that made no sense."),
    ("server_probes_total", Counter, |server| server.sum.probes, "Probes sent while the server was taken out."),
    ("server_moves_total", Counter, |server| server.sum.relocations, "How often the server's name led to another address."),
    ("server_taken_out_total", Counter, |server| server.sum.taken_out, "How often the server was taken out."),
    ("server_spooled_deletes", Gauge, |server| server.owed.records, "Deletes that are kept for the server (--spool)."),
    ("server_spooled_bytes", Gauge, |server| server.owed.bytes, "Their bytes on disk."),
    ("server_flush_pending", Gauge, |server| u64::from(server.owed.forget), "Whether the server is to forget everything before it is read."),
    ("server_fenced", Gauge, |server| u64::from(server.is_fenced), "Whether the server is not read because it owes deletes, here or to another router."),
];

fn of_servers(fleet: &Fleet, routers: &[Arc<Router>], out: &mut Exposition) {
    let servers = servers(fleet);
    out.single("servers", Gauge, "Servers that the configuration names.", servers.len());
    let left_out = servers.len().saturating_sub(SERVERS_MAX);
    out.single("servers_left_out", Gauge, "Servers that are not told of, as there are too many.", left_out);
    let told: Vec<_> = servers.iter().take(SERVERS_MAX).map(|(name, server)| (&**name, server)).collect();
    out.family(
        "server_state",
        Gauge,
        "1 for the state the server is in: up, soft_tko, hard_tko, or behind with deletes.",
    );
    for (name, server) in &told {
        for state in Server::STATES {
            out.sample(&[("server", name), ("state", state)], u8::from(server.state() == state));
        }
    }
    out.family(
        "server_fenced_seconds",
        Gauge,
        "For how long the server has not been read because it owes deletes; 0 if it is read.",
    );
    for (name, server) in &told {
        out.sample(&[("server", name)], server.fenced_for.as_secs_f64());
    }
    for (family, kind, value, help) in OF_SERVER {
        out.family(family, *kind, help);
        for (name, server) in &told {
            out.sample(&[("server", name)], value(server));
        }
    }
    let mut measures: BTreeMap<String, MeasureSum> = BTreeMap::new();
    for router in routers {
        for ((address, _), measure) in router.tree().measures().into_iter().flat_map(|measures| &measures.servers) {
            measures.entry(address.to_string()).or_default().add(measure);
        }
    }
    let measured: Vec<_> = told.iter().filter_map(|(name, _)| Some((*name, measures.get(*name)?))).collect();
    fares("server", "at the server", &measured, out);
    out.family("server_batch_seconds", Summary, "From the handing over of a batch for the server to its last outcome.");
    for (name, sum) in measured {
        out.summary(&[("server", name)], &sum.latency);
    }
}

fn spares(routers: &[Arc<Router>], out: &mut Exposition) {
    let tree = routers.first().map(|router| router.tree());
    let statistics = tree.as_ref().and_then(|tree| tree.spares()).map(|spares| spares.statistics()).unwrap_or_default();
    let open = tree.map_or(0, |tree| tree.fail_open_pools().len());
    out.single("pools_failing_open", Gauge, "Pools that ask servers that should be out, as too many are.", open);
    out.single("spares_serving", Gauge, "Spares that serve in the place of a server.", statistics.in_use);
    out.single("spare_takeovers_total", Counter, "How often a spare began to serve.", statistics.takeovers);
    out.single("spare_returns_total", Counter, "How often a server got its place back.", statistics.returns);
    let help = "How often a spare could not be emptied, and so was not used.";
    out.single("spare_refusals_total", Counter, help, statistics.refusals);
}

fn tls(fleet: &Fleet, out: &mut Exposition) {
    let certificates = fleet.certificates();
    let sessions = certificates.map_or(0, |certificates| certificates.new_sessions.load(Relaxed));
    out.single("tls_new_sessions_total", Counter, "Clients' TLS handshakes that went well.", sessions);
    let errors = certificates.map_or(0, |certificates| certificates.handshake_errors.load(Relaxed));
    let help = "Clients' TLS handshakes that did not, those that took too long included.";
    out.single("tls_handshake_errors_total", Counter, help, errors);
    let age_s = certificates.map_or(0, |certificates| certificates.age_s());
    let help = "Since when the certificates were read that are in force; 0 without any.";
    out.single("tls_certificates_age_seconds", Gauge, help, age_s);
}

fn spool(routers: &[Arc<Router>], out: &mut Exposition) {
    let tree = routers.first().map(|router| router.tree());
    let statistics = tree.as_ref().and_then(|tree| tree.spool()).map(|spool| spool.statistics()).unwrap_or_default();
    for (name, kind, value, help) in [
        ("spool_deletes_total", Counter, statistics.spooled, "Deletes that were kept for their servers."),
        ("spool_replayed_total", Counter, statistics.replayed, "Kept deletes that their server has carried out since."),
        ("spool_refused_total", Counter, statistics.refused, "Kept deletes that their server will never take."),
        (
            "spool_overflows_total",
            Counter,
            statistics.overflows,
            "How often a server owed too much and is to forget everything.",
        ),
        ("spool_forgotten_total", Counter, statistics.forgotten, "How often a server was made to forget everything."),
        (
            "spool_append_failures_total",
            Counter,
            statistics.append_failures,
            "Deletes that could not be kept and failed.",
        ),
        ("spool_unassured_total", Counter, statistics.unassured, "Deletes that failed as a peer could not be told."),
        ("spool_passed_on_total", Counter, statistics.passed_on, "Kept deletes that a peer has passed on."),
        (
            "spool_replay_failures_total",
            Counter,
            statistics.replay_failures,
            "Attempts to work something off that failed.",
        ),
        ("spool_pending_deletes", Gauge, statistics.pending, "Deletes that are owed now."),
        ("spool_pending_bytes", Gauge, statistics.pending_bytes, "Their bytes on disk."),
        ("spool_servers_fenced", Gauge, statistics.servers_behind, "Servers that owe something now and are not read."),
        (
            "spool_servers_fenced_by_peers",
            Gauge,
            statistics.servers_held,
            "Servers that are not read because other routers owe them something.",
        ),
    ] {
        out.single(name, kind, help, value);
    }
}
