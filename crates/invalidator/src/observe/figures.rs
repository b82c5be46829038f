//! Counters and gauges: their names in `stats` and for Prometheus, and their meaning.

use super::cluster_statistics::ClusterStatistics;
use crate::rules::RowRules;
use std::sync::atomic::Ordering::Relaxed;

/// A number that every cluster has.
pub(super) struct Figure {
    /// Its name in `stats`, after `cluster:NAME:`.
    pub stat: &'static str,
    /// The name of its sum over all clusters in `stats`; `None` if the sum is not shown.
    pub total: Option<&'static str>,
    /// Its name for Prometheus, after the prefix of the program.
    pub metric: &'static str,
    pub value: fn(&ClusterStatistics) -> u64,
    /// A sentence.
    pub help: &'static str,
}

const fn figure(
    stat: &'static str,
    total: Option<&'static str>,
    metric: &'static str,
    value: fn(&ClusterStatistics) -> u64,
    help: &'static str,
) -> Figure {
    Figure { stat, total, metric, value, help }
}

/// A number of the row rules, which all clusters share.
pub(super) struct RuleFigure {
    /// Its name in `stats`. For Prometheus it has the program's prefix, and a counter `_total` at its end.
    pub stat: &'static str,
    pub value: fn(&RowRules) -> u64,
    /// A sentence.
    pub help: &'static str,
}

const fn rule_figure(stat: &'static str, value: fn(&RowRules) -> u64, help: &'static str) -> RuleFigure {
    RuleFigure { stat, value, help }
}

#[rustfmt::skip]
pub(super) const RULE_COUNTERS: &[RuleFigure] = &[
    rule_figure("rules_loaded", |r| r.statistics.loads.value(), "How often the rule file was loaded, the start included."),
    rule_figure("rules_refused", |r| r.statistics.load_failures.value(), "How often a changed rule file was refused; the rules before it stay."),
    rule_figure("row_changes", |r| r.statistics.changes.value(), "Changes of rows and tables with a rule, once for each cluster that reads them."),
    rule_figure("row_keys", |r| r.statistics.keys.value(), "Keys that these changes named."),
    rule_figure("row_keys_refused", |r| r.statistics.keys_refused.value(), "Keys of rules that no server accepts (too long, with white space); ignored."),
    rule_figure("row_changes_inexpressible", |r| r.statistics.inexpressible.value(), "Changes that cannot be expressed as keys."),
    rule_figure("row_changes_without_key", |r| r.statistics.without_key.value(), "Changes that named no key."),
    rule_figure("row_flushes", |r| r.statistics.flushes.value(), "Changes for which rules demanded a flush of the cluster or of pools (otherwise)."),
];

#[rustfmt::skip]
pub(super) const RULE_GAUGES: &[RuleFigure] = &[
    rule_figure("rules", |row_rules| row_rules.current().iter().count() as u64, "Rules in use."),
    rule_figure("rules_uncovered", |r| r.statistics.uncovered(), "PostgreSQL: rules whose table is missing, or not all of whose changes are in the log."),
    rule_figure("outboxes_unpublished", |r| r.statistics.unpublished_outboxes(), "PostgreSQL: outbox tables whose rows are not in the log: their keys are not deleted."),
];

#[rustfmt::skip]
pub(super) const COUNTERS: &[Figure] = &[
    figure("invalidations", Some("invalidations_total"), "deletes_total", |c| c.invalidations.value(), "Deletes acknowledged."),
    figure("flushes", Some("flushes"), "flushes_total", |c| c.flushes.value(), "Flushes of the cluster acknowledged: demanded by rules, or after a lost position."),
    figure("pool_flushes", Some("pool_flushes"), "pool_flushes_total", |c| c.pool_flushes.value(), "Flushes of pools acknowledged (otherwise = \"flush-pools\"), once for each prefix of keys."),
    figure("retried", Some("invalidations_retried"), "deletes_retried_total", |c| c.retried.value(), "Deletes not acknowledged and sent again."),
    figure("unroutable", Some("unroutable"), "deletes_unroutable_total", |c| c.unroutable.value(), "Deletes that the routers have no route for; not sent again."),
    figure("keys_rejected", Some("keys_rejected"), "keys_rejected_total", |c| c.keys_rejected.value(), "Keys of commits that no server accepts (too long, with white space); ignored."),
    figure("statements_without_rows", Some("statements_without_rows"), "statements_without_rows_total", |c| c.statements_without_rows.value(), "MariaDB, MySQL: statements that change rows and are in the log without them; keys that only rows name are not deleted."),
    figure("transactions_unfinished", Some("transactions_unfinished"), "transactions_unfinished_total", |c| c.transactions_unfinished.value(), "MariaDB, MySQL: transactions without an end in the log; their keys are deleted."),
    figure("changes_without_gtid", Some("changes_without_gtid"), "changes_without_gtid_total", |c| c.changes_without_gtid.value(), "MariaDB, MySQL: statements and rows with keys outside of any transaction; these keys are deleted."),
    figure("commits", None, "commits_total", |c| c.commits.value(), "Commits whose deletes were all acknowledged."),
    figure("commits_merged", None, "commits_merged_total", |c| c.commits_merged.load(Relaxed), "Commits merged with others because many were pending."),
    figure("batches", Some("batches"), "batches_total", |c| c.batches.value(), "Batches sent."),
    figure("lingered_batches", Some("lingered_batches"), "lingered_batches_total", |c| c.lingered_batches.value(), "Batches that waited for more keys while another one was unanswered (--linger-ms-max)."),
    figure("duplicates_removed", Some("duplicates_removed"), "duplicates_removed_total", |c| c.duplicates_removed.load(Relaxed), "Keys of commits that needed no delete of their own, as a pending one covers them."),
    figure("deletes_sent", Some("deletes_sent"), "deletes_sent_total", |c| c.deletes_sent.value(), "Deletes sent to routers: also copies for a second router, and retries."),
    figure("delete_bytes", Some("delete_bytes"), "delete_bytes_total", |c| c.delete_bytes.value(), "The bytes of these."),
    figure("packets", Some("packets"), "packets_total", |c| c.delete_packets.value(), "The packets that these need, each of 1,448 bytes of data at most."),
    figure("packets_unbatched", Some("packets_unbatched"), "packets_unbatched_total", |c| c.deletes_sent.value() + c.duplicates_removed.load(Relaxed), "The packets if each delete of each commit were sent by itself."),
    figure("hedged_batches", Some("hedged_batches"), "hedged_batches_total", |c| c.hedged_batches.value(), "Batches that a second router got too (--hedge-delay-ms)."),
    figure("rerouted", Some("rerouted"), "deletes_rerouted_total", |c| c.rerouted.value(), "Deletes that one router refused and that were sent to another one at once."),
    figure("router_refusals", Some("router_refusals"), "router_refusals_total", |c| c.router_refusals.value(), "Deletes that one router refused and another one applied."),
    figure("router_demotions", Some("router_demotions"), "router_demotions_total", |c| c.router_demotions.value(), "How often a router was asked after the others for a while, as it did not apply what another one applied."),
    figure("router_failures", Some("router_failures"), "router_failures_total", |c| c.router_failures.value(), "How often a router stopped answering."),
    figure("recoveries", None, "recoveries_total", |c| c.recoveries.value(), "How often a router answered after none had; failed deletes are then sent at once."),
    figure("start_gates_opened", None, "start_gates_opened_total", |c| c.start_gates_opened.value(), "How often a router was notified that it may serve."),
    figure("source_failures", Some("source_failures"), "source_failures_total", |c| c.source_failures.value(), "Failures to read the commit log."),
    figure("positions_lost", Some("positions_lost"), "positions_lost_total", |c| c.positions_lost.value(), "How often the log no longer reached back to the position."),
    figure("flush_failures", Some("flush_failures"), "flush_failures_total", |c| c.flush_failures.value(), "How often no router of the cluster flushed it after a lost position; retried."),
    figure("save_failures", Some("save_failures"), "save_failures_total", |c| c.save_failures.value(), "Failures to save a position."),
];

#[rustfmt::skip]
pub(super) const GAUGES: &[Figure] = &[
    figure("pending_keys", None, "pending_keys", |c| c.pending_keys.load(Relaxed), "Deletes not yet acknowledged."),
    figure("retry_queue_keys", None, "retry_queue_keys", |c| c.retry_queue_keys.load(Relaxed), "Keys whose deletes failed and are retried."),
    figure("retry_queue_bytes", None, "retry_queue_bytes", |c| c.retry_queue_bytes.load(Relaxed), "Their bytes."),
    figure("routers_tko", None, "routers_tko", ClusterStatistics::routers_tko, "Routers that do not answer; batches go to the others first."),
    figure("router_configs", None, "router_configs", ClusterStatistics::router_configs, "Different configurations of the cluster's routers: 1, or 0 if there is one router; more while a change is loaded."),
];
