//! The statistics of the daemon: those of each cluster, and the latency from a commit to its last acknowledged delete
//! in all clusters. `stats` shows them ([`Statistics::report`]), and Prometheus ([`super::prometheus`]).
//!
//! Latency is wall-clock time from the commit, as the source reports it, to the acknowledgement of its last delete. If
//! our clock is behind the database's, the latency is 0.

pub use super::cluster_statistics::{ClusterStatistics, PipelineState};

use super::{
    all_clusters::AllClustersLatency,
    distribution::Distribution,
    election_stats::ElectionStatistics,
    figures::{COUNTERS, GAUGES, RULE_COUNTERS, RULE_GAUGES},
    source_lookups::SourceLookups,
    spool_stats::SpoolStatistics,
};
use crate::{Position, rules::RowRules};
use lookaside_sync::{Mutex, SharedCounter};
use std::{
    fmt::Display,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// The most tables that are shown with counters of their own.
pub(super) const TABLES_SHOWN_MAX: usize = 100;

/// The statistics of the daemon.
#[derive(Debug)]
pub struct Statistics {
    clusters: Vec<Arc<ClusterStatistics>>,
    pub(crate) row_rules: Arc<RowRules>,
    pub(super) source_lookups: SourceLookups,
    /// Connections of `--listen` that were closed because one more was opened than may be.
    pub connections_displaced: SharedCounter,
    /// The statistics of the spool.
    pub spool: Arc<SpoolStatistics>,
    /// Whether this invalidator is active.
    pub election: Arc<ElectionStatistics>,
    pub(super) all_clusters: Mutex<AllClustersLatency>,
}

impl Statistics {
    /// Zeroes, for clusters of these names.
    pub fn new<'a>(clusters: impl IntoIterator<Item = &'a str>) -> Arc<Statistics> {
        Statistics::with_row_rules(clusters, Arc::default())
    }

    /// As [`Statistics::new`]; the counters of `row_rules` are shown besides.
    pub fn with_row_rules<'a>(
        clusters: impl IntoIterator<Item = &'a str>,
        row_rules: Arc<RowRules>,
    ) -> Arc<Statistics> {
        let clusters = clusters.into_iter().map(|name| Arc::new(ClusterStatistics::new(name))).collect();
        Arc::new(Statistics {
            clusters,
            row_rules,
            source_lookups: SourceLookups::default(),
            connections_displaced: SharedCounter::default(),
            spool: Arc::default(),
            election: Arc::default(),
            all_clusters: Mutex::new(AllClustersLatency::new()),
        })
    }

    /// The statistics of each cluster, in the order given to [`Statistics::new`].
    pub fn clusters(&self) -> &[Arc<ClusterStatistics>] {
        &self.clusters
    }

    /// Records that the pipelines have stopped, as another invalidator is active.
    pub(crate) fn set_standby(&self) {
        self.clusters.iter().for_each(|cluster| cluster.set_standby());
    }

    /// Records that cluster number `cluster` has applied every delete of the commit at `position`.
    pub fn record_applied(&self, cluster: usize, position: &Position, committed_at: SystemTime, now: SystemTime) {
        let latency_us = as_micros(now.duration_since(committed_at).unwrap_or_default());
        self.clusters[cluster].commits.add(1);
        self.clusters[cluster].locked.lock().latency_us.record(latency_us);
        self.all_clusters.lock().record_applied(cluster, self.clusters.len(), &position.0, latency_us);
    }

    /// Every statistic by name, as `stats` reports them at `now`.
    pub fn report(&self, now: SystemTime) -> Vec<(String, String)> {
        let sum =
            |value: fn(&ClusterStatistics) -> u64| self.clusters.iter().map(|cluster| value(cluster)).sum::<u64>();
        let mut lines = StatLines(Vec::new());
        for (name, value) in self.election.report() {
            lines.add(name, value);
        }
        for counter in COUNTERS {
            if let Some(total) = counter.total {
                // Those of the spool were read once for all clusters.
                let of_spool = if total == "keys_rejected" { self.spool.keys_rejected.value() } else { 0 };
                lines.add(total, sum(counter.value) + of_spool);
            }
        }
        let (packets, deletes) = (sum(|c| c.delete_packets.value()), sum(|c| c.deletes_sent.value()));
        lines.add_ratio("keys_per_batch", sum(|c| c.batch_keys.value()), sum(|c| c.batches.value()));
        lines.add_ratio("keys_per_packet", deletes, packets);
        lines.add_ratio("bytes_per_packet", sum(|c| c.delete_bytes.value()), packets);
        for (name, value) in self.spool.report() {
            lines.add(name, value);
        }
        let all_clusters = self.all_clusters.lock();
        lines.add("commits_in_all_clusters", all_clusters.latency_us.count());
        lines.add("commits_untracked", all_clusters.untracked);
        lines.add_latency("", &all_clusters.latency_us);
        drop(all_clusters);
        for (name, value) in self.source_lookups.report() {
            lines.add(name, value);
        }
        lines.add("connections_displaced", self.connections_displaced.value());
        lines.add_row_rules(&self.row_rules);
        for cluster in &self.clusters {
            lines.add_cluster(cluster, now);
        }
        lines.0
    }
}

struct StatLines(Vec<(String, String)>);

impl StatLines {
    fn add(&mut self, name: impl Into<String>, value: impl Display) {
        self.0.push((name.into(), value.to_string()));
    }

    fn add_ratio(&mut self, name: &str, dividend: u64, divisor: u64) {
        self.add(name, format!("{:.2}", dividend as f64 / divisor.max(1) as f64));
    }

    fn add_latency(&mut self, prefix: &str, latency_us: &Distribution) {
        self.add(format!("{prefix}latency_us_p50"), latency_us.quantile(0.50));
        self.add(format!("{prefix}latency_us_p99"), latency_us.quantile(0.99));
        self.add(format!("{prefix}latency_us_max"), latency_us.max());
    }

    fn add_row_rules(&mut self, row_rules: &RowRules) {
        for figure in RULE_GAUGES.iter().chain(RULE_COUNTERS) {
            self.add(figure.stat, (figure.value)(row_rules));
        }
        for (table, inexpressible, without_key) in row_rules.statistics.tables_at_fault(TABLES_SHOWN_MAX) {
            let table = table.replace(|c: char| c.is_whitespace() || c.is_control(), "_");
            self.add(format!("table:{table}:inexpressible"), inexpressible);
            self.add(format!("table:{table}:without_key"), without_key);
        }
    }

    /// Adds a number that may be unknown.
    fn add_known(&mut self, name: String, value: Option<impl Display>) {
        self.add(name, value.map_or_else(|| "-".to_string(), |value| value.to_string()));
    }

    fn add_cluster(&mut self, cluster: &ClusterStatistics, now: SystemTime) {
        let prefix = format!("cluster:{}:", cluster.name);
        let locked = cluster.locked.lock();
        let state = locked.state();
        self.add(format!("{prefix}state"), state.name());
        if let Some(why) = state.why() {
            self.add(format!("{prefix}why"), why.replace(|c: char| c.is_control(), " "));
        }
        self.add(format!("{prefix}position"), locked.saved_position.as_ref().map_or("-", |position| &position.0));
        let age_ms = |at: SystemTime| now.duration_since(at).unwrap_or_default().as_millis();
        self.add(format!("{prefix}oldest_pending_ms"), locked.oldest_pending_at.map_or(0, age_ms));
        let lag = locked.source_lag.as_ref();
        self.add_known(format!("{prefix}source_lag_ms"), lag.map(|lag| lag.behind_for.as_millis()));
        self.add_known(format!("{prefix}source_lag_transactions"), lag.and_then(|lag| lag.transactions));
        self.add_known(format!("{prefix}source_lag_transaction_ids"), lag.and_then(|lag| lag.transaction_ids));
        self.add_known(format!("{prefix}source_lag_bytes"), lag.and_then(|lag| lag.bytes));
        for gauge in GAUGES {
            self.add(format!("{prefix}{}", gauge.stat), (gauge.value)(cluster));
        }
        for counter in COUNTERS {
            self.add(format!("{prefix}{}", counter.stat), (counter.value)(cluster));
        }
        self.add_latency(&prefix, &locked.latency_us);
    }
}

fn as_micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::all_clusters::TRACKED_COMMITS_MAX;
    use super::*;
    use std::time::Duration;

    fn stat(statistics: &Statistics, name: &str) -> String {
        statistics
            .report(SystemTime::UNIX_EPOCH)
            .into_iter()
            .find(|(n, _)| n == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .1
    }

    #[test]
    fn last_cluster_determines_the_latency() {
        let statistics = Statistics::new(["a", "b"]);
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let position = Position("1".into());
        statistics.record_applied(0, &position, at(1000), at(1001));
        assert_eq!(stat(&statistics, "commits_in_all_clusters"), "0");
        statistics.record_applied(0, &position, at(1000), at(1002));
        assert_eq!(stat(&statistics, "commits_in_all_clusters"), "0", "the same cluster again is not the last");
        statistics.record_applied(1, &position, at(1000), at(1050));
        assert_eq!(stat(&statistics, "commits_in_all_clusters"), "1");
        let all: u64 = stat(&statistics, "latency_us_p99").parse().expect("a number");
        assert!((49_500..=50_500).contains(&all), "{all}");
        let first: u64 = stat(&statistics, "cluster:a:latency_us_p50").parse().expect("a number");
        assert!((990..=1_010).contains(&first), "{first}");
        statistics.record_applied(1, &Position("2".into()), at(1000), at(900));
        assert_eq!(stat(&statistics, "cluster:b:commits"), "2", "our clock may be behind");
    }

    #[test]
    fn tracked_commits_of_a_dead_cluster_are_bounded() {
        let statistics = Statistics::new(["alive", "dead"]);
        for number in 0..TRACKED_COMMITS_MAX + 10 {
            let now = SystemTime::UNIX_EPOCH;
            statistics.record_applied(0, &Position(number.to_string()), now, now);
        }
        assert_eq!(stat(&statistics, "commits_untracked"), "10");
        assert!(statistics.all_clusters.lock().order.len() <= TRACKED_COMMITS_MAX);
    }

    #[test]
    fn packets_are_compared_with_each_delete_by_itself() {
        let statistics = Statistics::new(["a", "b"]);
        let [a, b] = statistics.clusters() else { panic!("two clusters") };
        assert_eq!(stat(&statistics, "keys_per_packet"), "0.00");
        // 100 deletes of 20 bytes need two packets, and 30 others were spared: 130 packets, one for each.
        a.record_sent(100, 2_000);
        a.set_duplicates_removed(30);
        b.record_sent(1, 20);
        assert_eq!(stat(&statistics, "packets"), "3");
        assert_eq!(stat(&statistics, "packets_unbatched"), "131");
        assert_eq!(stat(&statistics, "keys_per_packet"), "33.67");
        assert_eq!(stat(&statistics, "cluster:a:packets_unbatched"), "130");
    }
}
