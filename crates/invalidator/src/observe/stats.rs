//! What the daemon can say of itself: counters, positions, and how long a commit takes to empty a cluster, and the
//! last of all clusters.
//!
//! Latency is wall-clock time from the commit, as the source tells it, to the acknowledgement of its last delete; a
//! clock that is behind the database's makes it 0, not negative.

use crate::Position;
use hdrhistogram::Histogram;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// So many commits are followed at once until the last cluster has applied them; beyond that the oldest is given up
/// (a cluster that is down must not cost memory) and counted.
const FOLLOWED_MAX: usize = 1 << 16;
/// Latencies above an hour are recorded as an hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;
/// Two digits: an error of 1 %, and 30 kB a histogram.
const LATENCY_DIGITS: u8 = 2;

/// What a pipeline is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Not connected yet.
    #[default]
    Starting,
    /// Reading and delivering, and nothing fails. Said once a position is on disk.
    Running,
    /// Deletes of some keys are not acknowledged, for this reason: they are kept and sent again; the others go on.
    Retrying(String),
    /// So many keys fail, for this reason, that reading waits.
    Blocked(String),
    /// The source fails, for this reason; it is tried again.
    SourceFailing(String),
    /// At an end, for this reason.
    Stopped(String),
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures of one cluster's pipeline.
#[derive(Debug)]
pub struct ClusterStatistics {
    /// The cluster.
    pub name: String,
    /// Deletes that were acknowledged.
    pub invalidations: Counter,
    /// Deletes that were not, and sent again.
    pub retried: Counter,
    /// Batches sent.
    pub batches: Counter,
    /// Keys in those batches.
    pub batch_keys: Counter,
    /// Deletes that no router has a way for: nothing can be cached there, so they are done with.
    pub unroutable: Counter,
    /// Commits that were followed until every delete was acknowledged.
    pub commits: Counter,
    /// How often the source failed.
    pub source_failures: Counter,
    /// How often the log no longer reached back to our position: deletes were lost.
    pub positions_lost: Counter,
    /// How often the position could not be saved.
    pub save_failures: Counter,
    lag_keys: AtomicU64,
    failing_keys: AtomicU64,
    failing_key_bytes: AtomicU64,
    commits_merged: AtomicU64,
    changing: Mutex<Changing>,
}

#[derive(Debug)]
struct Changing {
    /// Of reading; what is told of it depends on the others.
    state: State,
    /// Of delivering: retrying or blocked.
    trouble: Option<State>,
    saved: Option<Position>,
    latency_us: Histogram<u64>,
}

impl Default for Changing {
    fn default() -> Changing {
        Changing { state: State::Starting, trouble: None, saved: None, latency_us: histogram() }
    }
}

impl Changing {
    /// A killed daemon begins anew at another present unless its position is on disk: until then it does not run.
    fn state(&self) -> &State {
        match (&self.state, &self.saved) {
            (State::Running, None) => &State::Starting,
            (State::Running, Some(_)) => self.trouble.as_ref().unwrap_or(&State::Running),
            (other, _) => other,
        }
    }
}

impl ClusterStatistics {
    fn new(name: &str) -> ClusterStatistics {
        ClusterStatistics {
            name: name.to_string(),
            invalidations: Counter::default(),
            retried: Counter::default(),
            batches: Counter::default(),
            batch_keys: Counter::default(),
            unroutable: Counter::default(),
            commits: Counter::default(),
            source_failures: Counter::default(),
            positions_lost: Counter::default(),
            save_failures: Counter::default(),
            lag_keys: AtomicU64::new(0),
            failing_keys: AtomicU64::new(0),
            failing_key_bytes: AtomicU64::new(0),
            commits_merged: AtomicU64::new(0),
            changing: Mutex::new(Changing::default()),
        }
    }

    /// Reading does something else from now on.
    pub fn set_state(&self, state: State) {
        locked(&self.changing).state = state;
    }

    /// What the pipeline is doing.
    pub fn state(&self) -> State {
        locked(&self.changing).state().clone()
    }

    /// Deletes fail, or (None) no longer.
    pub(crate) fn set_trouble(&self, trouble: Option<State>) {
        locked(&self.changing).trouble = trouble;
    }

    /// The position that a restart would go on from.
    pub fn saved(&self) -> Option<Position> {
        locked(&self.changing).saved.clone()
    }

    pub(crate) fn set_saved(&self, position: Position) {
        locked(&self.changing).saved = Some(position);
    }

    pub(crate) fn set_lag_keys(&self, keys: usize) {
        self.lag_keys.store(keys as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_failing(&self, (keys, key_bytes): (usize, usize)) {
        self.failing_keys.store(keys as u64, Ordering::Relaxed);
        self.failing_key_bytes.store(key_bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_commits_merged(&self, commits: u64) {
        self.commits_merged.store(commits, Ordering::Relaxed);
    }
}

/// The figures of the daemon.
#[derive(Debug)]
pub struct Statistics {
    clusters: Vec<Arc<ClusterStatistics>>,
    last: Mutex<LastCluster>,
}

/// Follows commits until the last cluster has applied them.
#[derive(Debug)]
struct LastCluster {
    latency_us: Histogram<u64>,
    waiting: BTreeMap<String, Vec<usize>>,
    order: VecDeque<String>,
    given_up: u64,
}

impl Statistics {
    /// All at zero, for clusters of these names.
    pub fn new<'a>(clusters: impl IntoIterator<Item = &'a str>) -> Arc<Statistics> {
        let clusters = clusters.into_iter().map(|name| Arc::new(ClusterStatistics::new(name))).collect();
        let last =
            LastCluster { latency_us: histogram(), waiting: BTreeMap::new(), order: VecDeque::new(), given_up: 0 };
        Arc::new(Statistics { clusters, last: Mutex::new(last) })
    }

    /// The figures of each cluster, in the order given at the start.
    pub fn clusters(&self) -> &[Arc<ClusterStatistics>] {
        &self.clusters
    }

    /// Cluster number `cluster` has applied every delete of the commit at `position`.
    pub(crate) fn applied(&self, cluster: usize, position: &Position, committed_at: SystemTime, now: SystemTime) {
        let took_us = micros(now.duration_since(committed_at).unwrap_or_default());
        self.clusters[cluster].commits.add(1);
        locked(&self.clusters[cluster].changing).latency_us.saturating_record(took_us);
        locked(&self.last).applied(cluster, self.clusters.len(), position, took_us);
    }

    /// Every figure by name, as `stats` reports them.
    pub fn report(&self) -> Vec<(String, String)> {
        let sum = |counter: fn(&ClusterStatistics) -> &Counter| -> u64 {
            self.clusters.iter().map(|cluster| counter(cluster).get()).sum()
        };
        let (batches, batch_keys) = (sum(|c| &c.batches), sum(|c| &c.batch_keys));
        let mut lines = Lines(Vec::new());
        lines.add("invalidations_total", sum(|c| &c.invalidations));
        lines.add("invalidations_retried", sum(|c| &c.retried));
        lines.add("unroutable", sum(|c| &c.unroutable));
        lines.add("batches", batches);
        lines.add("keys_per_batch", format!("{:.2}", batch_keys as f64 / batches.max(1) as f64));
        lines.add("source_failures", sum(|c| &c.source_failures));
        lines.add("positions_lost", sum(|c| &c.positions_lost));
        lines.add("save_failures", sum(|c| &c.save_failures));
        let last = locked(&self.last);
        lines.add("commits_to_last_cluster", last.latency_us.len());
        lines.add("commits_given_up_following", last.given_up);
        lines.latency("", &last.latency_us);
        drop(last);
        for cluster in &self.clusters {
            lines.cluster(cluster);
        }
        lines.0
    }
}

impl LastCluster {
    fn applied(&mut self, cluster: usize, clusters: usize, position: &Position, took_us: u64) {
        if clusters == 1 {
            return self.latency_us.saturating_record(took_us);
        }
        match self.waiting.get_mut(&position.0) {
            Some(done) => {
                if !done.contains(&cluster) {
                    done.push(cluster);
                }
                if done.len() == clusters {
                    // Its name stays in `order` until it is passed there: see below.
                    self.waiting.remove(&position.0);
                    self.latency_us.saturating_record(took_us);
                }
            }
            None => {
                self.waiting.insert(position.0.clone(), vec![cluster]);
                self.order.push_back(position.0.clone());
            }
        }
        while self.order.len() > FOLLOWED_MAX
            || self.order.front().is_some_and(|oldest| !self.waiting.contains_key(oldest))
        {
            let Some(oldest) = self.order.pop_front() else { break };
            if self.waiting.remove(&oldest).is_some() {
                self.given_up += 1;
            }
        }
    }
}

struct Lines(Vec<(String, String)>);

impl Lines {
    fn add(&mut self, name: impl Into<String>, value: impl Display) {
        self.0.push((name.into(), value.to_string()));
    }

    fn latency(&mut self, prefix: &str, latency_us: &Histogram<u64>) {
        self.add(format!("{prefix}latency_us_p50"), latency_us.value_at_quantile(0.50));
        self.add(format!("{prefix}latency_us_p99"), latency_us.value_at_quantile(0.99));
        self.add(format!("{prefix}latency_us_max"), latency_us.max());
    }

    fn cluster(&mut self, cluster: &ClusterStatistics) {
        let prefix = format!("cluster:{}:", cluster.name);
        let changing = locked(&cluster.changing);
        let (state, why) = match changing.state() {
            State::Starting => ("starting", None),
            State::Running => ("running", None),
            State::Retrying(why) => ("retrying", Some(why)),
            State::Blocked(why) => ("blocked", Some(why)),
            State::SourceFailing(why) => ("source_failing", Some(why)),
            State::Stopped(why) => ("stopped", Some(why)),
        };
        self.add(format!("{prefix}state"), state);
        if let Some(why) = why {
            self.add(format!("{prefix}why"), why.replace(|c: char| c.is_control(), " "));
        }
        self.add(format!("{prefix}position"), changing.saved.as_ref().map_or("-", |position| &position.0));
        self.add(format!("{prefix}lag_keys"), cluster.lag_keys.load(Ordering::Relaxed));
        self.add(format!("{prefix}failing_keys"), cluster.failing_keys.load(Ordering::Relaxed));
        self.add(format!("{prefix}failing_key_bytes"), cluster.failing_key_bytes.load(Ordering::Relaxed));
        self.add(format!("{prefix}unroutable"), cluster.unroutable.get());
        self.add(format!("{prefix}commits"), cluster.commits.get());
        self.add(format!("{prefix}commits_merged"), cluster.commits_merged.load(Ordering::Relaxed));
        self.add(format!("{prefix}invalidations"), cluster.invalidations.get());
        self.add(format!("{prefix}retried"), cluster.retried.get());
        self.add(format!("{prefix}batches"), cluster.batches.get());
        self.add(format!("{prefix}source_failures"), cluster.source_failures.get());
        self.add(format!("{prefix}positions_lost"), cluster.positions_lost.get());
        self.latency(&prefix, &changing.latency_us);
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, LATENCY_DIGITS).expect("the bounds are in order")
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Figures that a panicking thread left behind are still figures.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(statistics: &Statistics, name: &str) -> String {
        statistics.report().into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    #[test]
    fn the_last_cluster_sets_the_latency() {
        let statistics = Statistics::new(["a", "b"]);
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let position = Position("1".into());
        statistics.applied(0, &position, at(1000), at(1001));
        assert_eq!(figure(&statistics, "commits_to_last_cluster"), "0");
        statistics.applied(0, &position, at(1000), at(1002));
        assert_eq!(figure(&statistics, "commits_to_last_cluster"), "0", "the same cluster again is not the last");
        statistics.applied(1, &position, at(1000), at(1050));
        assert_eq!(figure(&statistics, "commits_to_last_cluster"), "1");
        let last: u64 = figure(&statistics, "latency_us_p99").parse().expect("a number");
        assert!((49_500..=50_500).contains(&last), "{last}");
        let first: u64 = figure(&statistics, "cluster:a:latency_us_p50").parse().expect("a number");
        assert!((990..=1_010).contains(&first), "{first}");
        statistics.applied(1, &Position("2".into()), at(1000), at(900));
        assert_eq!(figure(&statistics, "cluster:b:commits"), "2", "a clock that is behind does no harm");
    }

    #[test]
    fn what_a_dead_cluster_leaves_behind_is_bounded() {
        let statistics = Statistics::new(["alive", "dead"]);
        for number in 0..FOLLOWED_MAX + 10 {
            let now = SystemTime::UNIX_EPOCH;
            statistics.applied(0, &Position(number.to_string()), now, now);
        }
        assert_eq!(figure(&statistics, "commits_given_up_following"), "10");
        assert!(locked(&statistics.last).order.len() <= FOLLOWED_MAX);
    }
}
