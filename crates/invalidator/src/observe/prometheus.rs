//! The metrics in Prometheus's text format. Every family is present from the start. Clusters are few and fixed, and no
//! label holds a key.

use super::{
    cluster_statistics::{ClusterStatistics, PipelineState},
    distribution::Distribution,
    election_stats::ElectionStatistics,
    figures::{COUNTERS, Figure, GAUGES, RULE_COUNTERS, RULE_GAUGES},
    source_lag::SourceLag,
    source_lookups::SourceLookups,
    spool_stats::SpoolStatistics,
    stats::{Statistics, TABLES_SHOWN_MAX},
};
use crate::rules::RowRules;
use lookaside_telemetry::{
    Exposition,
    MetricKind::{self, Counter, Gauge, Histogram},
};
use std::time::SystemTime;

/// The bounds of the buckets of latencies, in microseconds.
const LATENCY_BOUNDS_US: &[u64] = &[
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    60_000_000,
    600_000_000,
];
/// The bounds of the buckets of keys per batch.
const BATCH_BOUNDS: &[u64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000];

/// The text at `now`.
pub fn render(statistics: &Statistics, now: SystemTime) -> String {
    let mut out = Exposition::new("lookaside_invalidator_");
    out.family("info", Gauge, "The version that runs.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    write_election(&statistics.election, &mut out);
    write_states(statistics, &mut out);
    COUNTERS.iter().for_each(|counter| write_figure(statistics, counter, Counter, &mut out));
    GAUGES.iter().for_each(|gauge| write_figure(statistics, gauge, Gauge, &mut out));
    write_row_rules(&statistics.row_rules, &mut out);
    write_spool(&statistics.spool, &mut out);
    write_source_lookups(&statistics.source_lookups, &mut out);
    out.single(
        "connections_displaced_total",
        Counter,
        "Connections of --listen closed because one more was opened than may be.",
        statistics.connections_displaced.value(),
    );
    write_ages(statistics, now, &mut out);
    write_histograms(statistics, &mut out);
    out.into_text()
}

fn write_election(election: &ElectionStatistics, out: &mut Exposition) {
    out.family("active", Gauge, "1 if this invalidator delivers deletes, 0 if it is a standby (--shared-state).");
    out.sample(&[], u8::from(election.is_active()));
    let help = "Since the last renewal of the shared state. No sample of a standby, or without --shared-state.";
    out.family("renewal_age_seconds", Gauge, help);
    election.renewal_age_s().into_iter().for_each(|age_s| out.sample(&[], age_s));
    out.family("takeovers_total", Counter, "How often this invalidator became active (--shared-state).");
    out.sample(&[], election.takeovers.value());
    let help = "How often it did because the session of the former active one had ended.";
    out.single("takeovers_at_session_end_total", Counter, help, election.takeovers_at_session_end.value());
    let help = "How often it did because the former active one had shown no sign of life.";
    out.single("takeovers_at_hang_total", Counter, help, election.takeovers_at_hang.value());
    let help =
        "1 of the active one while its session holds a lock, and of a standby that sees it: it takes over at once.";
    out.single("session_lock", Gauge, help, u8::from(election.has_session_lock()));
    out.family("shared_state_failures_total", Counter, "Failures to read or renew the shared state.");
    out.sample(&[], election.failures.value());
    let help = "1 if this is a standby and the active invalidator has other clusters, rules or another slot.";
    out.family("shared_options_differ", Gauge, help);
    out.sample(&[], u8::from(election.options_differ()));
}

fn write_states(statistics: &Statistics, out: &mut Exposition) {
    out.family("state", Gauge, "1 for the state of the cluster's pipeline.");
    for cluster in statistics.clusters() {
        let current = cluster.state();
        for state in PipelineState::NAMES {
            out.sample(&[("cluster", &cluster.name), ("state", state)], u8::from(state == current.name()));
        }
    }
}

fn write_figure(statistics: &Statistics, figure: &Figure, kind: MetricKind, out: &mut Exposition) {
    out.family(figure.metric, kind, figure.help);
    for cluster in statistics.clusters() {
        out.sample(&[("cluster", &cluster.name)], (figure.value)(cluster));
    }
}

fn write_row_rules(row_rules: &RowRules, out: &mut Exposition) {
    for gauge in RULE_GAUGES {
        out.family(gauge.stat, Gauge, gauge.help);
        out.sample(&[], (gauge.value)(row_rules));
    }
    for counter in RULE_COUNTERS {
        out.family(&format!("{}_total", counter.stat), Counter, counter.help);
        out.sample(&[], (counter.value)(row_rules));
    }
    let tables = row_rules.statistics.tables_at_fault(TABLES_SHOWN_MAX);
    let help = "Changes of a table that cannot be expressed as keys. Up to 100 tables at fault.";
    out.family("table_changes_inexpressible_total", Counter, help);
    tables.iter().for_each(|(table, inexpressible, _)| out.sample(&[("table", table)], inexpressible));
    let help = "Changes of a table that named no key. Up to 100 tables at fault.";
    out.family("table_changes_without_key_total", Counter, help);
    tables.iter().for_each(|(table, _, without_key)| out.sample(&[("table", table)], without_key));
}

fn write_spool(spool: &SpoolStatistics, out: &mut Exposition) {
    let (segments, bytes) = spool.size();
    for (name, value, help) in [
        (
            "spool_segments",
            segments,
            "PostgreSQL: files of the spool. This and the others of the spool are 0 without one.",
        ),
        ("spool_bytes", bytes, "Their bytes (--spool-bytes-max)."),
        (
            "spool_kept_bytes",
            spool.kept_bytes(),
            "Bytes of commits that every cluster has acknowledged, kept for a replay (--spool-keep-bytes).",
        ),
    ] {
        out.family(name, Gauge, help);
        out.sample(&[], value);
    }
    for (name, counter, help) in [
        ("spool_commits_total", &spool.commits, "Commits written to the spool."),
        ("spool_failures_total", &spool.failures, "Failures to write or sync the spool; nothing is read meanwhile."),
        ("spool_gaps_total", &spool.gaps, "How often the log no longer reached back to the end of the spool."),
        (
            "spool_discarded_segments_total",
            &spool.discarded_segments,
            "Segments that were removed because the spool was full, and that clusters needed.",
        ),
        (
            "spool_kept_discarded_total",
            &spool.kept_discarded,
            "Segments kept for a replay that were removed because the disk was full.",
        ),
        (
            "spool_keys_rejected_total",
            &spool.keys_rejected,
            "Keys of commits that no server accepts (too long, with white space), found while the log was read into the \
             spool; ignored.",
        ),
        (
            "spool_messages_untransactional_total",
            &spool.messages_untransactional,
            "Messages of the log that are not part of a transaction (pg_logical_emit_message(false, ...)); ignored.",
        ),
        (
            "spool_messages_oversized_total",
            &spool.messages_oversized,
            "Messages and rows of the log of over 16 MiB; ignored.",
        ),
    ] {
        out.family(name, Counter, help);
        out.sample(&[], counter.value());
    }
}

fn write_source_lookups(lookups: &SourceLookups, out: &mut Exposition) {
    let help =
        "MariaDB, MySQL: 1 if deletes can be lost by the settings, according to the last look-up that could see them.";
    out.single("source_unusable", Gauge, help, u8::from(lookups.are_settings_unsafe()));
    let help = "Look-ups of the end of the log that failed: no connection, no answer, a start that would be refused (a \
                privilege, a login), unsafe settings, or bytes that could not be looked up.";
    out.family("source_lookup_failures_total", Counter, help);
    lookups.failures().for_each(|(kind, count)| out.sample(&[("kind", kind)], count));
}

fn write_ages(statistics: &Statistics, now: SystemTime, out: &mut Exposition) {
    let help = "Age of the oldest commit with a pending delete; 0 if nothing is pending.";
    out.family("oldest_pending_commit_seconds", Gauge, help);
    for cluster in statistics.clusters() {
        let committed_at = cluster.locked.lock().oldest_pending_at;
        let age = committed_at.map(|at| now.duration_since(at).unwrap_or_default());
        out.sample(&[("cluster", &cluster.name)], age.unwrap_or_default().as_secs_f64());
    }
    let seconds = |lag: &SourceLag| Some(lag.behind_for.as_secs_f64());
    let help = "For how long the saved position has been behind the end of the log. No sample while that is unknown.";
    write_lag(statistics, "source_lag_seconds", help, seconds, out);
    let help = "Transactions (SQLite: rows of the journal) between the saved position and the end of the log. Not for \
                PostgreSQL.";
    write_lag(statistics, "source_lag_transactions", help, |lag| lag.transactions.map(|n| n as f64), out);
    let help = "PostgreSQL: about how many transaction ids were given out since the saved position, in all databases of the \
                server, also to transactions that were rolled back.";
    write_lag(statistics, "source_lag_transaction_ids", help, |lag| lag.transaction_ids.map(|n| n as f64), out);
    let help = "Bytes of the log between the saved position and the end. Not for SQLite.";
    write_lag(statistics, "source_lag_bytes", help, |lag| lag.bytes.map(|bytes| bytes as f64), out);
}

fn write_lag(
    statistics: &Statistics,
    name: &str,
    help: &str,
    value: impl Fn(&SourceLag) -> Option<f64>,
    out: &mut Exposition,
) {
    out.family(name, Gauge, help);
    for cluster in statistics.clusters() {
        if let Some(value) = cluster.locked.lock().source_lag.as_ref().and_then(&value) {
            out.sample(&[("cluster", &cluster.name)], value);
        }
    }
}

fn write_histograms(statistics: &Statistics, out: &mut Exposition) {
    let help = "From a commit's logged time to the cluster's last acknowledgement of its deletes.";
    out.family("commit_seconds", Histogram, help);
    for cluster in statistics.clusters() {
        let latency_us = &cluster.locked.lock().latency_us;
        write_buckets(&[("cluster", &cluster.name)], latency_us, LATENCY_BOUNDS_US, 1e6, out);
    }
    let help = "From a commit's logged time to the last cluster's acknowledgement, as far as commits were followed.";
    out.family("commit_in_all_clusters_seconds", Histogram, help);
    write_buckets(&[], &statistics.all_clusters.lock().latency_us, LATENCY_BOUNDS_US, 1e6, out);
    out.family("batch_keys", Histogram, "Keys of a batch.");
    for cluster in statistics.clusters() {
        write_batch_keys(cluster, out);
    }
}

fn write_batch_keys(cluster: &ClusterStatistics, out: &mut Exposition) {
    write_buckets(&[("cluster", &cluster.name)], &cluster.locked.lock().batch_sizes, BATCH_BOUNDS, 1.0, out);
}

/// Writes a histogram of values that are recorded in parts of a unit, `parts` of which are one.
fn write_buckets(labels: &[(&str, &str)], values: &Distribution, bounds: &[u64], parts: f64, out: &mut Exposition) {
    let below: Vec<_> = bounds.iter().map(|&bound| (bound as f64 / parts, values.count_up_to(bound))).collect();
    out.buckets(labels, &below, values.count(), values.sum() as f64 / parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Position,
        rules::{Rules, WatchedTable},
    };
    use std::time::Duration;

    #[test]
    fn every_figure_of_a_cluster_is_shown() {
        let statistics = Statistics::new(["one"]);
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let cluster = &statistics.clusters()[0];
        cluster.set_oldest_pending(Some(at(500)));
        cluster.record_batch(7);
        statistics.record_applied(0, &Position("1".into()), at(1_000), at(1_004));
        let text = render(&statistics, at(2_000));
        for line in [
            "state{cluster=\"one\",state=\"starting\"} 1",
            "batches_total{cluster=\"one\"} 1",
            "oldest_pending_commit_seconds{cluster=\"one\"} 1.5",
            "commit_seconds_bucket{cluster=\"one\",le=\"0.002\"} 0",
            "commit_seconds_bucket{cluster=\"one\",le=\"0.005\"} 1",
            "commit_seconds_sum{cluster=\"one\"} 0.004",
            "batch_keys_bucket{cluster=\"one\",le=\"5\"} 0",
            "batch_keys_bucket{cluster=\"one\",le=\"10\"} 1",
            "batch_keys_count{cluster=\"one\"} 1",
        ] {
            assert!(text.contains(&format!("lookaside_invalidator_{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("source_lag_seconds{"), "unknown until it is looked up");
    }

    #[test]
    fn row_rules_are_shown_as_in_stats() {
        let rules = "[[rule]]\ntable = 'app.\"t\"'\nkeys = ['t:{id}']\notherwise = 'flush-cluster'";
        let row_rules = RowRules::new(Rules::parse(rules).expect("valid"));
        let rule = row_rules.current().iter().next().expect("one rule").clone();
        let mut table = WatchedTable::new(row_rules.clone(), rule, None);
        table.add_table_change(crate::rules::TableChange::Truncate, &mut Vec::new());
        let statistics = Statistics::with_row_rules(["one"], row_rules);
        let (text, stats) = (render(&statistics, SystemTime::UNIX_EPOCH), statistics.report(SystemTime::UNIX_EPOCH));
        for line in [
            "rules 1",
            "rules_uncovered 0",
            "outboxes_unpublished 0",
            "rules_loaded_total 0",
            "rules_refused_total 0",
            "row_changes_total 1",
            "row_keys_total 0",
            "row_keys_refused_total 0",
            "row_changes_inexpressible_total 1",
            "row_changes_without_key_total 1",
            "row_flushes_total 1",
        ] {
            assert!(text.contains(&format!("\nlookaside_invalidator_{line}\n")), "{line}: {text}");
            let (metric, value) = line.split_once(' ').expect("a value");
            let stat = metric.trim_end_matches("_total");
            assert!(stats.contains(&(stat.into(), value.into())), "{stat}: {stats:?}");
        }
        for count in ["inexpressible", "without_key"] {
            let line = format!(r#"lookaside_invalidator_table_changes_{count}_total{{table="app.\"t\""}} 1"#);
            assert!(text.contains(&line), "{line}: {text}");
            let stat = format!(r#"table:app."t":{count}"#);
            assert!(stats.contains(&(stat, "1".to_owned())), "{stats:?}");
        }
    }
}
