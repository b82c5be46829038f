//! The router's metrics in Prometheus's text format. Every family is present from the start.
//!
//! The number of series is bounded: verbs, results and failures are few and fixed; the first [`POOLS_MAX`] pools and
//! the first [`SERVERS_MAX`] servers by name are reported, and a metric counts the rest. No label holds a key or a
//! client.

use super::server_status::{ServerStatus, collect_servers};
use super::stats_command::sum_background;
use crate::resize::status::{HistoryState, ResizeState};
use crate::shared::{SharedState, StatsSource};
use crate::stats::by_verb::ResultClass;
use crate::stats::command_class::CommandClass;
use crate::stats::counters::CounterDelta;
use crate::stats::per_target::{FAILURES, TargetStatsSum};
use crate::stats::plain_leases;
use lookaside_routing::Address;
use lookaside_telemetry::MetricKind::{Counter, Gauge, Histogram, Summary};
use lookaside_telemetry::{Exposition, MetricKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const POOLS_MAX: usize = 200;
/// The most servers that are reported, some 40 lines each.
const SERVERS_MAX: usize = 1_000;
/// The most pairs of a pool and a server that are reported.
const POOL_SERVERS_MAX: usize = 4_000;

pub(crate) fn render(shared: &SharedState, version: &str) -> String {
    let mut out = Exposition::new("lookaside_router_");
    out.family("info", Gauge, "The version that runs.");
    out.sample(&[("version", version)], 1);
    let sources = shared.sources();
    write_process(shared, &sources, &mut out);
    write_background(shared, &mut out);
    write_window(&sources, &mut out);
    write_requests(&sources, &shared.sum_counters(), &mut out);
    write_config(shared, &mut out);
    write_resize(shared, &mut out);
    write_plain_leases(shared, &mut out);
    write_pools(&sources, &mut out);
    write_spool(&sources, &mut out);
    write_spares(&sources, &mut out);
    write_start_gate(&sources, &mut out);
    write_read_permits(shared, &mut out);
    write_tls(shared, &mut out);
    write_servers(shared, &sources, &mut out);
    out.into_text()
}

fn write_process(shared: &SharedState, sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let identity = shared.identity();
    out.single("start_time_seconds", Gauge, "When the router started, since 1970.", identity.started_unix_s);
    out.single("threads", Gauge, "Threads, each with connections of its own to the servers.", sources.len());
    out.single("connections", Gauge, "Connected clients.", shared.connections());
    let max = sources.first().map_or(0, |source| source.connections_max());
    out.single("connections_max", Gauge, "The limit on connected clients.", max);
    out.single(
        "held_value_bytes",
        Gauge,
        "Bytes of large values that wait to be written to clients.",
        shared.reply_bytes(),
    );
    out.single(
        "held_input_bytes",
        Gauge,
        "Bytes of clients' large commands that are half received.",
        shared.input_bytes(),
    );
    out.single(
        "held_output_bytes",
        Gauge,
        "Bytes of large replies that clients have not read yet.",
        shared.output_bytes(),
    );
    out.single(
        "held_delete_bytes",
        Gauge,
        "Bytes of deletes in progress behind others of their connection.",
        shared.delete_bytes(),
    );
}

fn write_background(shared: &SharedState, out: &mut Exposition) {
    let background = sum_background(shared);
    out.single(
        "background_batches",
        Gauge,
        "Batches that continue after their caller has its reply.",
        background.running,
    );
    let help = "Batches of several children of which some continued after their caller had its reply.";
    out.single("background_fan_outs_total", Counter, help, background.fan_outs);
    let help = "Copies that no caller waits for: shadows, fills of an L1.";
    out.single("background_copies_total", Counter, help, background.copies);
    let help = "Batches whose caller had to wait because too many ran in the background.";
    out.single("background_blocked_total", Counter, help, background.blocked);
    let help = "Copies that were dropped because too many ran in the background.";
    out.single("background_dropped_total", Counter, help, background.dropped);
}

fn write_window(sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let windows: Vec<_> = sources.iter().filter_map(|source| source.tree().window()).collect();
    let sum = |part: fn(&lookaside_client::WindowStatistics) -> usize| windows.iter().map(part).sum::<usize>();
    out.single(
        "window_requests",
        Gauge,
        "Requests that may be outstanding (--window), over all threads; 0 without it.",
        sum(|w| w.size),
    );
    out.single("window_waiting_requests", Gauge, "Requests that wait for the window.", sum(|w| w.waiting));
}

/// A counter of `stats`: its metric, value and help text.
type CounterMetric = (&'static str, fn(&CounterDelta) -> u64, &'static str);

/// The counters of `stats` that no other metric has.
#[rustfmt::skip]
const COUNTER_METRICS: &[CounterMetric] = &[
    ("connections_accepted_total", |delta| delta.total_connections, "Client connections accepted."),
    ("connections_rejected_total", |delta| delta.rejected_connections, "Client connections closed at once because of --max-conns."),
    ("connections_evicted_total", |delta| delta.evicted_connections, "Client connections closed for a new one because of --max-conns."),
    (
        "connections_foreign_protocol_total",
        |delta| delta.closed_foreign_protocol,
        "Client connections closed because the client spoke HTTP or began a TLS handshake.",
    ),
    ("connections_long_line_total", |delta| delta.closed_long_line, "Client connections closed for a line without an end."),
    ("connections_input_bound_total", |delta| delta.closed_input_bound, "Client connections closed because of the bound on the input of all clients."),
    ("connections_output_bound_total", |delta| delta.closed_output_bound, "Client connections closed because of the bound on the unread replies of all clients."),
    ("connections_idle_total", |delta| delta.idle_kicks, "Client connections closed because of --idle-timeout."),
    (
        "connections_stalled_total",
        |delta| delta.stalled_connections,
        "Client connections closed because the client did not read its replies, or did not end a large command, in time.",
    ),
    ("auth_total", |delta| delta.auth_cmds, "Login attempts of clients (-Y, -S)."),
    ("auth_errors_total", |delta| delta.auth_errors, "Refused logins: guesses, or a client with an old password."),
    ("login_timeouts_total", |delta| delta.login_timeouts, "Client connections closed because the client did not log in within --login-timeout-ms."),
    ("accept_errors_total", |delta| delta.accept_errors, "Failures to accept a client's connection."),
    ("bad_commands_total", |delta| delta.bad_commands, "Commands that were malformed or not allowed."),
    ("flush_all_total", |delta| delta.cmd_flush, "Commands flush_all, refused ones too."),
    ("lease_tokens_total", |delta| delta.lease_tokens, "Lease tokens sent to clients."),
    ("lease_hot_misses_total", |delta| delta.lease_hot_misses, "Lease-gets with the reply: another client holds the lease."),
    ("lease_sets_void_total", |delta| delta.lease_sets_void, "Lease-sets that stored no live value because a delete came between."),
    ("batches_total", |delta| delta.batches, "Batches of clients' requests."),
    ("batched_requests_total", |delta| delta.batched_requests, "Requests in those batches."),
    ("overlapped_batches_total", |delta| delta.overlapped_batches, "Batches of deletes that did not wait for an earlier one of their connection."),
    ("received_bytes_total", |delta| delta.bytes_read, "Bytes read from clients."),
    ("sent_bytes_total", |delta| delta.bytes_written, "Bytes written to clients."),
];

fn write_requests(sources: &[Arc<dyn StatsSource>], delta: &CounterDelta, out: &mut Exposition) {
    out.family("requests_total", Counter, "Clients' requests, keys of a get one by one, by verb and result.");
    for class in CommandClass::all() {
        for result in ResultClass::ALL {
            let count: u64 = sources.iter().map(|source| source.results().count(class, result)).sum();
            out.sample(&[("verb", class.name()), ("result", result.name())], count);
        }
    }
    for (name, value, help) in COUNTER_METRICS {
        out.single(name, Counter, help, value(delta));
    }
}

fn write_config(shared: &SharedState, out: &mut Exposition) {
    let status = shared.config_status();
    let is_good = u8::from(status.refusal.is_none());
    out.single("config_last_reload_successful", Gauge, "Whether the last configuration was applied.", is_good);
    let help = "When the configuration in force was applied, since 1970.";
    out.single("config_last_reload_success_timestamp_seconds", Gauge, help, shared.unix_s(status.loaded));
    out.single(
        "config_reload_failures_total",
        Counter,
        "Configurations that were refused or could not be read.",
        status.failures,
    );
}

fn write_pools(sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let mut pools: BTreeMap<String, (TargetStatsSum, BTreeSet<Address>)> = BTreeMap::new();
    for source in sources {
        for (name, pool) in source.tree().target_stats().into_iter().flat_map(|stats| &stats.pools) {
            let (sum, servers) = pools.entry(name.clone()).or_default();
            sum.add(&pool.stats);
            servers.extend(pool.servers.iter().cloned());
        }
    }
    out.single(
        "pools_left_out",
        Gauge,
        "Pools that are not reported because there are too many.",
        pools.len().saturating_sub(POOLS_MAX),
    );
    let reported: Vec<_> = pools.into_iter().take(POOLS_MAX).collect();
    out.family("pool_server", Gauge, "The servers of a pool: 1 for each.");
    let pairs = reported.iter().flat_map(|(pool, (_, servers))| servers.iter().map(move |server| (pool, server)));
    for (pool, server) in pairs.take(POOL_SERVERS_MAX) {
        out.sample(&[("pool", pool), ("server", &server.0)], 1);
    }
    let measured: Vec<_> = reported.iter().map(|(pool, (sum, _))| (&**pool, sum)).collect();
    write_request_metrics("pool", "at the pool", &measured, out);
    let help = "From the start of a batch at a pool to its last outcome, failover within the pool included.";
    out.family("pool_batch_seconds", Histogram, help);
    for (pool, sum) in measured {
        out.histogram(&[("pool", pool)], &sum.latency);
    }
}

/// Requests and failures of each pool, or of each server.
fn write_request_metrics(label: &str, location: &str, measured: &[(&str, &TargetStatsSum)], out: &mut Exposition) {
    out.family(&format!("{label}_requests_total"), Counter, &format!("Requests {location}."));
    for (name, sum) in measured {
        out.sample(&[(label, name)], sum.requests);
    }
    let help = format!("Requests {location} that had no reply or an error, by reason.");
    out.family(&format!("{label}_failures_total"), Counter, &help);
    for (name, sum) in measured {
        for (reason, count) in FAILURES.iter().zip(sum.failures) {
            out.sample(&[(label, name), ("reason", reason)], count);
        }
    }
}

/// A counter of each server: its metric, kind, value and help text.
type ServerMetric = (&'static str, MetricKind, fn(&ServerStatus) -> u64, &'static str);

#[rustfmt::skip]
const SERVER_METRICS: &[ServerMetric] = &[
    ("server_outstanding_requests", Gauge, |server| server.sum.outstanding, "Requests that are queued, or sent and without a reply."),
    ("server_writes_total", Counter, |server| server.sum.writes, "Writes to the server. Requests divided by writes is the size of a batch."),
    ("server_late_batches_total", Counter, |server| server.sum.late_batches, "Batches whose replies came after they had timed out."),
    ("server_connects_total", Counter, |server| server.sum.connects, "Connections made."),
    ("server_connect_failures_total", Counter, |server| server.sum.connect_failures, "Failures to connect."),
    ("server_connections_lost_total", Counter, |server| server.sum.connections_lost, "Connections that ended with requests outstanding."),
    ("server_malformed_total", Counter, |server| server.sum.malformed, "Connections closed because of a malformed reply."),
    ("server_probes_total", Counter, |server| server.sum.probes, "Probes sent while the server was TKO."),
    ("server_moves_total", Counter, |server| server.sum.relocations, "Changes of the address that the server's name resolves to."),
    ("server_tko_total", Counter, |server| server.sum.tko_marks, "How often the server became TKO."),
    ("server_spooled_deletes", Gauge, |server| server.backlog.deletes, "Deletes that are spooled for the server (--spool)."),
    ("server_spooled_bytes", Gauge, |server| server.backlog.bytes, "Their bytes on disk."),
    ("server_flush_pending", Gauge, |server| u64::from(server.backlog.flush_pending), "Whether the server is flushed (flush_all) before it is read again."),
    ("server_fenced", Gauge, |server| u64::from(server.is_fenced), "Whether the server is not read because it has undelivered deletes, here or at another router."),
];

fn write_servers(shared: &SharedState, sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let servers = collect_servers(shared);
    out.single("servers", Gauge, "Servers that the configuration names.", servers.len());
    let unreported = servers.len().saturating_sub(SERVERS_MAX);
    out.single("servers_left_out", Gauge, "Servers that are not reported because there are too many.", unreported);
    let reported: Vec<_> = servers.iter().take(SERVERS_MAX).map(|(name, server)| (&**name, server)).collect();
    out.family("server_state", Gauge, "1 for the server's state: up, soft_tko, hard_tko, or fenced.");
    for (name, server) in &reported {
        for state in ServerStatus::STATES {
            out.sample(&[("server", name), ("state", state)], u8::from(server.state() == state));
        }
    }
    out.family("server_fenced_seconds", Gauge, "Seconds since the server was fenced; 0 if it is not.");
    for (name, server) in &reported {
        out.sample(&[("server", name)], server.fenced_for.as_secs_f64());
    }
    for (family, kind, value, help) in SERVER_METRICS {
        out.family(family, *kind, help);
        for (name, server) in &reported {
            out.sample(&[("server", name)], value(server));
        }
    }
    let mut stats: BTreeMap<String, TargetStatsSum> = BTreeMap::new();
    for source in sources {
        for ((address, _), server) in source.tree().target_stats().into_iter().flat_map(|stats| &stats.servers) {
            stats.entry(address.to_string()).or_default().add(server);
        }
    }
    let measured: Vec<_> = reported.iter().filter_map(|(name, _)| Some((*name, stats.get(*name)?))).collect();
    write_request_metrics("server", "at the server", &measured, out);
    out.family("server_batch_seconds", Summary, "From the start of a batch for the server to its last outcome.");
    for (name, sum) in measured {
        out.summary(&[("server", name)], &sum.latency);
    }
}

fn write_spares(sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let tree = sources.first().map(|source| source.tree());
    let statistics = tree.as_ref().and_then(|tree| tree.spares()).map(|spares| spares.statistics()).unwrap_or_default();
    let open = tree.map_or(0, |tree| tree.fail_open_pools().len());
    out.single("pools_failing_open", Gauge, "Pools that use TKO servers because too many are TKO.", open);
    out.single("spares_serving", Gauge, "Spares that serve instead of a server.", statistics.in_use);
    out.single("spare_takeovers_total", Counter, "How often a spare began to serve.", statistics.takeovers);
    out.single("spare_returns_total", Counter, "How often a server replaced its spare again.", statistics.returns);
    let help = "How often a spare was not used because it could not be flushed.";
    out.single("spare_refusals_total", Counter, help, statistics.refusals);
}

fn write_start_gate(sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let tree = sources.first().map(|source| source.tree());
    let gate = tree.as_ref().and_then(|tree| tree.start_gate());
    let is_open = u8::from(gate.is_none_or(|gate| gate.is_open()));
    out.single("start_gate_open", Gauge, "0 while gets wait for the invalidator (--wait-for-invalidator).", is_open);
    let help = "Requests refused because the invalidator had not caught up.";
    out.single("start_gate_refused_total", Counter, help, gate.map_or(0, |gate| gate.refused()));
}

fn write_resize(shared: &SharedState, out: &mut Exposition) {
    let resize = shared.resize();
    out.family("resize_state", Gauge, "The step of a change of the configuration: 1 for the current one.");
    for state in ResizeState::ALL {
        out.sample(&[("state", state.name())], u8::from(state == resize.state()));
    }
    let help = "Where the history of changes is: 1 for recorded (in etcd), away, refused, or unused.";
    out.family("resize_history", Gauge, help);
    for state in HistoryState::ALL {
        out.sample(&[("state", state.name())], u8::from(state == resize.history()));
    }
    let help = "Configurations to whose servers deletes go; more than 1 during a change.";
    out.single("configurations_covered", Gauge, help, resize.covered());
    let help = "How often another configuration came into force.";
    out.single("configuration_changes_total", Counter, help, resize.changes.value());
    let help = "Deletes sent to servers that only other covered configurations name for their keys.";
    out.single("covering_deletes_total", Counter, help, resize.covering_deletes.value());
    let former = &resize.former_owners;
    let help = "Values found at the former owners of keys that have moved.";
    out.single("former_owner_hits_total", Counter, help, former.hits.value());
    let help = "Keys that have moved and were not at their former owners, either.";
    out.single("former_owner_misses_total", Counter, help, former.misses.value());
    let help = "Reads that former owners did not answer in time.";
    out.single("former_owner_errors_total", Counter, help, former.errors.value());
    let help = "Values copied from former owners to new ones.";
    out.single("former_owner_fills_total", Counter, help, former.fills.value());
    let help = "Servers flushed before they joined a pool.";
    out.single("servers_emptied_total", Counter, help, resize.servers_emptied.value());
    let help = "Attempts to void the leases of a server that has leases and does not know lease-void-all.";
    out.single("lease_voids_refused_total", Counter, help, resize.lease_voids_refused.value());
    let help = "Keys listed at servers in search of copies that a former configuration placed.";
    out.single("purge_keys_checked_total", Counter, help, resize.purges.keys_checked.value());
    let help = "Keys deleted at servers because only a former configuration placed them there.";
    out.single("purge_keys_removed_total", Counter, help, resize.purges.keys_removed.value());
}

fn write_read_permits(shared: &SharedState, out: &mut Exposition) {
    let permits = shared.read_permits();
    let help = "Permits given to clients that read servers directly: about 14 a second for each client.";
    out.single("read_permits_total", Counter, help, permits.given.value());
    let help = "Requests for such a permit that were refused: while the start gate is closed, or keys warm up.";
    out.single("read_permits_refused_total", Counter, help, permits.refused.value());
}

fn write_plain_leases(shared: &SharedState, out: &mut Exposition) {
    let clients = shared.lease_clients();
    let help = "Keys whose misses are remembered for clients that know no leases.";
    out.single("plain_lease_misses", Gauge, help, clients.remembered());
    for (name, help, value) in plain_leases::counts(clients) {
        out.single(&format!("{name}_total"), Counter, help, value);
    }
}

fn write_tls(shared: &SharedState, out: &mut Exposition) {
    let certificates = shared.certificates();
    let sessions = certificates.map_or(0, |certificates| certificates.new_sessions.load(Relaxed));
    out.single("tls_new_sessions_total", Counter, "Clients' TLS handshakes that succeeded.", sessions);
    let errors = certificates.map_or(0, |certificates| certificates.handshake_errors.load(Relaxed));
    let help = "Clients' TLS handshakes that failed or timed out.";
    out.single("tls_handshake_errors_total", Counter, help, errors);
    let age_s = certificates.map_or(0, |certificates| certificates.age_s());
    let help = "Seconds since the certificates in force were read; 0 without any.";
    out.single("tls_certificates_age_seconds", Gauge, help, age_s);
}

fn write_spool(sources: &[Arc<dyn StatsSource>], out: &mut Exposition) {
    let tree = sources.first().map(|source| source.tree());
    let statistics = tree.as_ref().and_then(|tree| tree.spool()).map(|spool| spool.statistics()).unwrap_or_default();
    for (name, kind, value, help) in [
        ("spool_deletes_total", Counter, statistics.counts.spooled, "Deletes that were spooled for their servers."),
        (
            "spool_recovered_total",
            Counter,
            statistics.counts.recovered,
            "Spooled deletes of an earlier run, found at the start.",
        ),
        (
            "spool_replayed_total",
            Counter,
            statistics.counts.replayed,
            "Spooled and recovered deletes that their server has executed.",
        ),
        (
            "spool_repeated_total",
            Counter,
            statistics.counts.repeated,
            "Deletes that were in the backlog already and were not stored again.",
        ),
        (
            "spool_refused_total",
            Counter,
            statistics.counts.refused,
            "Spooled deletes that their server rejected permanently.",
        ),
        (
            "spool_overflows_total",
            Counter,
            statistics.counts.overflows,
            "How often a server's backlog exceeded its limit and was replaced by a flush.",
        ),
        ("spool_flushes_total", Counter, statistics.counts.flushes, "How often a server was flushed."),
        (
            "spool_append_failures_total",
            Counter,
            statistics.counts.append_failures,
            "Deletes that failed because they could not be spooled.",
        ),
        (
            "spool_refused_no_peer_total",
            Counter,
            statistics.counts.refused_no_peer,
            "Deletes that failed because a peer could not fence.",
        ),
        ("spool_forwarded_total", Counter, statistics.counts.forwarded, "Spooled deletes that a peer has forwarded."),
        ("spool_replay_failures_total", Counter, statistics.counts.replay_failures, "Attempts to replay that failed."),
        ("spool_pending_deletes", Gauge, statistics.pending, "Spooled deletes that are not delivered yet."),
        ("spool_pending_bytes", Gauge, statistics.pending_bytes, "Their bytes on disk."),
        (
            "spool_servers_fenced",
            Gauge,
            statistics.servers_fenced,
            "Servers that are not read because they have undelivered deletes.",
        ),
        (
            "spool_servers_fenced_by_peers",
            Gauge,
            statistics.servers_fenced_by_peers,
            "Servers that are not read because other routers have undelivered deletes for them.",
        ),
        (
            "spool_peers_unreachable",
            Gauge,
            statistics.peers_unreachable,
            "Routers of --spool-peers that do not answer.",
        ),
    ] {
        out.single(name, kind, help, value);
    }
}
