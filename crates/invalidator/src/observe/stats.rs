//! The statistics of the daemon: counters, states, positions, and the latency from a commit to its last acknowledged
//! delete, in each cluster and in all clusters.
//!
//! Latency is wall-clock time from the commit, as the source reports it, to the acknowledgement of its last delete. If
//! our clock is behind the database's, the latency is 0.

use super::spool_stats::SpoolStatistics;
use crate::Position;
use hdrhistogram::Histogram;
use lookaside_sync::Mutex;
use lookaside_sync::SharedCounter;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// The most commits tracked until all clusters have applied them. Beyond it the oldest is dropped and counted: a
/// cluster that is down must not use up memory.
const TRACKED_COMMITS_MAX: usize = 1 << 16;
/// Latencies above an hour are recorded as an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Two digits: an error of 1 %, and 30 kB per histogram.
const LATENCY_DIGITS: u8 = 2;

/// The state of a pipeline, as `stats` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PipelineState {
    /// Not connected yet, or no position is on disk yet.
    #[default]
    Starting,
    /// Reading and delivering, without failures.
    Running,
    /// Some deletes were refused, for this reason. They are retried; other keys proceed.
    Retrying(String),
    /// The retry queue is full, for this reason, and reading waits.
    Blocked(String),
    /// The source fails, for this reason. It is retried.
    SourceFailing(String),
    /// Stopped, for this reason.
    Stopped(String),
}

/// The statistics of one cluster's pipeline.
#[derive(Debug)]
pub struct ClusterStatistics {
    /// The name of the cluster.
    pub name: String,
    /// Deletes that were acknowledged.
    pub invalidations: SharedCounter,
    /// Deletes that were refused and are retried.
    pub retried: SharedCounter,
    /// Batches sent.
    pub batches: SharedCounter,
    /// Keys in those batches.
    pub batch_keys: SharedCounter,
    /// Deletes for which no router has a route. Nothing can be cached there, so they are not retried.
    pub unroutable: SharedCounter,
    /// Commits that were tracked until every delete was acknowledged.
    pub commits: SharedCounter,
    /// How often the source failed.
    pub source_failures: SharedCounter,
    /// How often the log no longer reached back to the position, so that deletes were lost.
    pub positions_lost: SharedCounter,
    /// How often the position could not be saved.
    pub save_failures: SharedCounter,
    /// Batches that another router got too because the first had not answered within the hedge delay.
    pub hedged_batches: SharedCounter,
    /// Deletes that one router refused and another one got at once.
    pub rerouted: SharedCounter,
    /// Deletes that one router refused and another one applied.
    pub router_refusals: SharedCounter,
    /// How often a router stopped answering.
    pub router_failures: SharedCounter,
    /// How often refused deletes were sent again at once because a router answered after none had.
    pub recoveries: SharedCounter,
    /// How often a router was notified that it may serve gets (`--wait-for-invalidator`).
    pub start_gates_opened: SharedCounter,
    routers_suspect: AtomicU64,
    pending_keys: AtomicU64,
    retry_queue_keys: AtomicU64,
    retry_queue_bytes: AtomicU64,
    commits_merged: AtomicU64,
    locked: Mutex<LockedStatistics>,
}

#[derive(Debug)]
struct LockedStatistics {
    /// The state that is shown depends on the other fields too.
    reading_state: PipelineState,
    /// Retrying or blocked; `None` if deletes are acknowledged.
    delivery_state: Option<PipelineState>,
    saved_position: Option<Position>,
    latency_us: Histogram<u64>,
}

impl Default for LockedStatistics {
    fn default() -> LockedStatistics {
        LockedStatistics {
            reading_state: PipelineState::Starting,
            delivery_state: None,
            saved_position: None,
            latency_us: histogram(),
        }
    }
}

impl LockedStatistics {
    /// The state to show. Until a position is on disk that is `Starting`: a daemon killed before would resume at a
    /// later present.
    fn state(&self) -> &PipelineState {
        match (&self.reading_state, &self.saved_position) {
            (PipelineState::Running, None) => &PipelineState::Starting,
            (PipelineState::Running, Some(_)) => self.delivery_state.as_ref().unwrap_or(&PipelineState::Running),
            (other, _) => other,
        }
    }
}

impl ClusterStatistics {
    fn new(name: &str) -> ClusterStatistics {
        ClusterStatistics {
            name: name.to_string(),
            invalidations: SharedCounter::default(),
            retried: SharedCounter::default(),
            batches: SharedCounter::default(),
            batch_keys: SharedCounter::default(),
            unroutable: SharedCounter::default(),
            commits: SharedCounter::default(),
            source_failures: SharedCounter::default(),
            positions_lost: SharedCounter::default(),
            save_failures: SharedCounter::default(),
            hedged_batches: SharedCounter::default(),
            rerouted: SharedCounter::default(),
            router_refusals: SharedCounter::default(),
            router_failures: SharedCounter::default(),
            recoveries: SharedCounter::default(),
            start_gates_opened: SharedCounter::default(),
            routers_suspect: AtomicU64::new(0),
            pending_keys: AtomicU64::new(0),
            retry_queue_keys: AtomicU64::new(0),
            retry_queue_bytes: AtomicU64::new(0),
            commits_merged: AtomicU64::new(0),
            locked: Mutex::new(LockedStatistics::default()),
        }
    }

    /// Sets the state of reading.
    pub fn set_state(&self, state: PipelineState) {
        self.locked.lock().reading_state = state;
    }

    /// The state of the pipeline.
    pub fn state(&self) -> PipelineState {
        self.locked.lock().state().clone()
    }

    /// Sets the state of delivery; `None` if deletes are acknowledged.
    pub(crate) fn set_delivery_state(&self, state: Option<PipelineState>) {
        self.locked.lock().delivery_state = state;
    }

    /// The position that a restart would resume from; `None` until one is saved.
    pub fn saved_position(&self) -> Option<Position> {
        self.locked.lock().saved_position.clone()
    }

    pub(crate) fn set_saved_position(&self, position: Position) {
        self.locked.lock().saved_position = Some(position);
    }

    /// How many of the cluster's routers do not answer.
    pub fn routers_suspect(&self) -> u64 {
        self.routers_suspect.load(Ordering::Relaxed)
    }

    pub(crate) fn set_routers_suspect(&self, routers: usize) {
        self.routers_suspect.store(routers as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_pending_keys(&self, keys: usize) {
        self.pending_keys.store(keys as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_retry_queue_size(&self, (keys, key_bytes): (usize, usize)) {
        self.retry_queue_keys.store(keys as u64, Ordering::Relaxed);
        self.retry_queue_bytes.store(key_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_commits_merged(&self, commits: u64) {
        self.commits_merged.store(commits, Ordering::Relaxed);
    }
}

/// The statistics of the daemon.
#[derive(Debug)]
pub struct Statistics {
    clusters: Vec<Arc<ClusterStatistics>>,
    /// The statistics of the spool.
    pub spool: Arc<SpoolStatistics>,
    all_clusters: Mutex<AllClustersLatency>,
}

/// Tracks commits until all clusters have applied them.
#[derive(Debug)]
struct AllClustersLatency {
    latency_us: Histogram<u64>,
    /// By position: the clusters that have applied the commit.
    applied_by: BTreeMap<String, Vec<usize>>,
    /// The positions in the order of their first application, some of them no longer tracked.
    order: VecDeque<String>,
    untracked: u64,
}

impl Statistics {
    /// Zeroes, for clusters of these names.
    pub fn new<'a>(clusters: impl IntoIterator<Item = &'a str>) -> Arc<Statistics> {
        let clusters = clusters.into_iter().map(|name| Arc::new(ClusterStatistics::new(name))).collect();
        let all_clusters = AllClustersLatency {
            latency_us: histogram(),
            applied_by: BTreeMap::new(),
            order: VecDeque::new(),
            untracked: 0,
        };
        Arc::new(Statistics { clusters, spool: Arc::default(), all_clusters: Mutex::new(all_clusters) })
    }

    /// The statistics of each cluster, in the order given to [`Statistics::new`].
    pub fn clusters(&self) -> &[Arc<ClusterStatistics>] {
        &self.clusters
    }

    /// Records that cluster number `cluster` has applied every delete of the commit at `position`.
    pub(crate) fn record_applied(
        &self,
        cluster: usize,
        position: &Position,
        committed_at: SystemTime,
        now: SystemTime,
    ) {
        let latency_us = as_micros(now.duration_since(committed_at).unwrap_or_default());
        self.clusters[cluster].commits.add(1);
        self.clusters[cluster].locked.lock().latency_us.saturating_record(latency_us);
        self.all_clusters.lock().record_applied(cluster, self.clusters.len(), position, latency_us);
    }

    /// Every statistic by name, as `stats` reports them.
    pub fn report(&self) -> Vec<(String, String)> {
        let sum = |counter: fn(&ClusterStatistics) -> &SharedCounter| -> u64 {
            self.clusters.iter().map(|cluster| counter(cluster).value()).sum()
        };
        let (batches, batch_keys) = (sum(|c| &c.batches), sum(|c| &c.batch_keys));
        let mut lines = StatLines(Vec::new());
        lines.add("invalidations_total", sum(|c| &c.invalidations));
        lines.add("invalidations_retried", sum(|c| &c.retried));
        lines.add("unroutable", sum(|c| &c.unroutable));
        lines.add("batches", batches);
        lines.add("keys_per_batch", format!("{:.2}", batch_keys as f64 / batches.max(1) as f64));
        lines.add("hedged_batches", sum(|c| &c.hedged_batches));
        lines.add("rerouted", sum(|c| &c.rerouted));
        lines.add("router_refusals", sum(|c| &c.router_refusals));
        lines.add("router_failures", sum(|c| &c.router_failures));
        lines.add("source_failures", sum(|c| &c.source_failures));
        lines.add("positions_lost", sum(|c| &c.positions_lost));
        lines.add("save_failures", sum(|c| &c.save_failures));
        for (name, value) in self.spool.report() {
            lines.add(name, value);
        }
        let all_clusters = self.all_clusters.lock();
        lines.add("commits_in_all_clusters", all_clusters.latency_us.len());
        lines.add("commits_untracked", all_clusters.untracked);
        lines.add_latency("", &all_clusters.latency_us);
        drop(all_clusters);
        for cluster in &self.clusters {
            lines.add_cluster(cluster);
        }
        lines.0
    }
}

impl AllClustersLatency {
    fn record_applied(&mut self, cluster: usize, clusters: usize, position: &Position, latency_us: u64) {
        if clusters == 1 {
            return self.latency_us.saturating_record(latency_us);
        }
        match self.applied_by.get_mut(&position.0) {
            Some(applied) => {
                if !applied.contains(&cluster) {
                    applied.push(cluster);
                }
                if applied.len() == clusters {
                    // Its position stays in `order` until it is the oldest there: see below.
                    self.applied_by.remove(&position.0);
                    self.latency_us.saturating_record(latency_us);
                }
            }
            None => {
                self.applied_by.insert(position.0.clone(), vec![cluster]);
                self.order.push_back(position.0.clone());
            }
        }
        while self.order.len() > TRACKED_COMMITS_MAX
            || self.order.front().is_some_and(|oldest| !self.applied_by.contains_key(oldest))
        {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.applied_by.remove(&oldest).is_some() {
                self.untracked += 1;
            }
        }
    }
}

struct StatLines(Vec<(String, String)>);

impl StatLines {
    fn add(&mut self, name: impl Into<String>, value: impl Display) {
        self.0.push((name.into(), value.to_string()));
    }

    fn add_latency(&mut self, prefix: &str, latency_us: &Histogram<u64>) {
        self.add(format!("{prefix}latency_us_p50"), latency_us.value_at_quantile(0.50));
        self.add(format!("{prefix}latency_us_p99"), latency_us.value_at_quantile(0.99));
        self.add(format!("{prefix}latency_us_max"), latency_us.max());
    }

    fn add_cluster(&mut self, cluster: &ClusterStatistics) {
        let prefix = format!("cluster:{}:", cluster.name);
        let locked = cluster.locked.lock();
        let (state, why) = match locked.state() {
            PipelineState::Starting => ("starting", None),
            PipelineState::Running => ("running", None),
            PipelineState::Retrying(why) => ("retrying", Some(why)),
            PipelineState::Blocked(why) => ("blocked", Some(why)),
            PipelineState::SourceFailing(why) => ("source_failing", Some(why)),
            PipelineState::Stopped(why) => ("stopped", Some(why)),
        };
        self.add(format!("{prefix}state"), state);
        if let Some(why) = why {
            self.add(format!("{prefix}why"), why.replace(|c: char| c.is_control(), " "));
        }
        self.add(format!("{prefix}position"), locked.saved_position.as_ref().map_or("-", |position| &position.0));
        self.add(format!("{prefix}pending_keys"), cluster.pending_keys.load(Ordering::Relaxed));
        self.add(format!("{prefix}retry_queue_keys"), cluster.retry_queue_keys.load(Ordering::Relaxed));
        self.add(format!("{prefix}retry_queue_bytes"), cluster.retry_queue_bytes.load(Ordering::Relaxed));
        self.add(format!("{prefix}unroutable"), cluster.unroutable.value());
        self.add(format!("{prefix}commits"), cluster.commits.value());
        self.add(format!("{prefix}commits_merged"), cluster.commits_merged.load(Ordering::Relaxed));
        self.add(format!("{prefix}invalidations"), cluster.invalidations.value());
        self.add(format!("{prefix}retried"), cluster.retried.value());
        self.add(format!("{prefix}batches"), cluster.batches.value());
        self.add(format!("{prefix}hedged_batches"), cluster.hedged_batches.value());
        self.add(format!("{prefix}rerouted"), cluster.rerouted.value());
        self.add(format!("{prefix}router_refusals"), cluster.router_refusals.value());
        self.add(format!("{prefix}routers_suspect"), cluster.routers_suspect());
        self.add(format!("{prefix}router_failures"), cluster.router_failures.value());
        self.add(format!("{prefix}recoveries"), cluster.recoveries.value());
        self.add(format!("{prefix}start_gates_opened"), cluster.start_gates_opened.value());
        self.add(format!("{prefix}source_failures"), cluster.source_failures.value());
        self.add(format!("{prefix}positions_lost"), cluster.positions_lost.value());
        self.add_latency(&prefix, &locked.latency_us);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("the bounds are in order")
}

fn as_micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(statistics: &Statistics, name: &str) -> String {
        statistics.report().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
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
}
