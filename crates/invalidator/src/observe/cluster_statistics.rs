//! The statistics of one cluster's pipeline.

use super::{
    distribution::{Distribution, LATENCY_US_MAX},
    source_lag::SourceLag,
};
use crate::{Position, source::Anomalies};
use lookaside_sync::{Mutex, SharedCounter};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

/// The data of a TCP packet on Ethernet: 1,500 bytes without the headers of IP and of TCP with timestamps.
const PACKET_BYTES: usize = 1_448;
/// The most keys of a batch, as the command line allows.
const BATCH_KEYS_MAX: u64 = 100_000;

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
    /// Deletes were lost, and the cluster's routers do not flush it, for this reason. It is retried; nothing is read.
    FlushFailing(String),
    /// Stopped, for this reason.
    Stopped(String),
    /// Another invalidator is active (`--shared-state`).
    Standby,
}

impl PipelineState {
    /// The names of all states.
    pub const NAMES: [&str; 8] =
        ["starting", "running", "retrying", "blocked", "source_failing", "flush_failing", "stopped", "standby"];

    /// Its name in `stats`.
    pub fn name(&self) -> &'static str {
        match self {
            PipelineState::Starting => "starting",
            PipelineState::Running => "running",
            PipelineState::Retrying(_) => "retrying",
            PipelineState::Blocked(_) => "blocked",
            PipelineState::SourceFailing(_) => "source_failing",
            PipelineState::FlushFailing(_) => "flush_failing",
            PipelineState::Stopped(_) => "stopped",
            PipelineState::Standby => "standby",
        }
    }

    /// The reason; `None` if the state has none.
    pub fn why(&self) -> Option<&str> {
        match self {
            PipelineState::Starting | PipelineState::Running | PipelineState::Standby => None,
            PipelineState::Retrying(why)
            | PipelineState::Blocked(why)
            | PipelineState::SourceFailing(why)
            | PipelineState::FlushFailing(why)
            | PipelineState::Stopped(why) => Some(why),
        }
    }
}

/// The statistics of one cluster's pipeline.
#[derive(Debug)]
pub struct ClusterStatistics {
    /// The name of the cluster.
    pub name: String,
    /// Deletes that were acknowledged.
    pub invalidations: SharedCounter,
    /// Flushes of the cluster that were acknowledged. They are not among the deletes.
    pub flushes: SharedCounter,
    /// Flushes of pools that were acknowledged. They are not among the deletes.
    pub pool_flushes: SharedCounter,
    /// Deletes that were refused and are retried.
    pub retried: SharedCounter,
    /// Batches sent.
    pub batches: SharedCounter,
    /// Keys in those batches.
    pub batch_keys: SharedCounter,
    /// Batches that waited for more keys while another one was unanswered.
    pub lingered_batches: SharedCounter,
    /// Deletes sent to routers, each time that one got them.
    pub(super) deletes_sent: SharedCounter,
    /// The bytes of these.
    pub(super) delete_bytes: SharedCounter,
    /// The packets that these need.
    pub(super) delete_packets: SharedCounter,
    /// Keys of commits that servers would refuse (too long, with white space). Nothing can be cached under them.
    pub keys_rejected: SharedCounter,
    /// Statements that change rows and are in the log without them, so that keys which only rows name are not deleted.
    pub statements_without_rows: SharedCounter,
    /// Transactions of the log that have no end; their keys are deleted.
    pub transactions_unfinished: SharedCounter,
    /// Statements and rows outside of any transaction; their keys are deleted.
    pub changes_without_gtid: SharedCounter,
    /// Deletes for which every router of the cluster reports that it has no route. Nothing can be cached there, so they
    /// are not retried.
    pub unroutable: SharedCounter,
    /// Commits that were tracked until every delete was acknowledged.
    pub commits: SharedCounter,
    /// How often the source failed.
    pub source_failures: SharedCounter,
    /// How often the log no longer reached back to the position, so that deletes were lost.
    pub positions_lost: SharedCounter,
    /// How often no router of the cluster flushed it after a lost position.
    pub flush_failures: SharedCounter,
    /// How often the position could not be saved.
    pub save_failures: SharedCounter,
    /// Batches that another router got too because the first had not answered within the hedge delay.
    pub hedged_batches: SharedCounter,
    /// Deletes that one router refused and another one got at once.
    pub rerouted: SharedCounter,
    /// Deletes that one router refused and another one applied.
    pub router_refusals: SharedCounter,
    /// How often a router was put behind the others for a while, as it did not apply what another one applied.
    pub router_demotions: SharedCounter,
    /// How often a router stopped answering.
    pub router_failures: SharedCounter,
    /// How often refused deletes were sent again at once because a router answered after none had.
    pub recoveries: SharedCounter,
    /// How often a router was notified that it may serve gets (`--wait-for-invalidator`).
    pub start_gates_opened: SharedCounter,
    routers_tko: AtomicU64,
    router_configs: AtomicU64,
    pub(super) pending_keys: AtomicU64,
    pub(super) retry_queue_keys: AtomicU64,
    pub(super) retry_queue_bytes: AtomicU64,
    pub(super) commits_merged: AtomicU64,
    pub(super) duplicates_removed: AtomicU64,
    pub(super) locked: Mutex<LockedStatistics>,
}

#[derive(Debug)]
pub(super) struct LockedStatistics {
    /// The state that is shown depends on the other fields too.
    reading_state: PipelineState,
    /// Retrying or blocked; `None` if deletes are acknowledged.
    delivery_state: Option<PipelineState>,
    pub saved_position: Option<Position>,
    /// How far the saved position is behind the log; `None` if that was not looked up or cannot be.
    pub source_lag: Option<SourceLag>,
    /// When the oldest commit with a pending delete was committed; `None` if nothing is pending.
    pub oldest_pending_at: Option<SystemTime>,
    pub latency_us: Distribution,
    pub batch_sizes: Distribution,
}

impl Default for LockedStatistics {
    fn default() -> LockedStatistics {
        LockedStatistics {
            reading_state: PipelineState::Starting,
            delivery_state: None,
            saved_position: None,
            source_lag: None,
            oldest_pending_at: None,
            latency_us: Distribution::new(LATENCY_US_MAX),
            batch_sizes: Distribution::new(BATCH_KEYS_MAX),
        }
    }
}

impl LockedStatistics {
    /// The state to show. Until a position is on disk that is `Starting`: a daemon killed before would resume at a
    /// later present.
    pub fn state(&self) -> &PipelineState {
        match (&self.reading_state, &self.saved_position) {
            (PipelineState::Running, None) => &PipelineState::Starting,
            (PipelineState::Running, Some(_)) => self.delivery_state.as_ref().unwrap_or(&PipelineState::Running),
            (other, _) => other,
        }
    }
}

impl ClusterStatistics {
    /// Zeroes.
    pub(super) fn new(name: &str) -> ClusterStatistics {
        ClusterStatistics {
            name: name.to_string(),
            invalidations: SharedCounter::default(),
            flushes: SharedCounter::default(),
            pool_flushes: SharedCounter::default(),
            retried: SharedCounter::default(),
            batches: SharedCounter::default(),
            batch_keys: SharedCounter::default(),
            lingered_batches: SharedCounter::default(),
            deletes_sent: SharedCounter::default(),
            delete_bytes: SharedCounter::default(),
            delete_packets: SharedCounter::default(),
            keys_rejected: SharedCounter::default(),
            statements_without_rows: SharedCounter::default(),
            transactions_unfinished: SharedCounter::default(),
            changes_without_gtid: SharedCounter::default(),
            unroutable: SharedCounter::default(),
            commits: SharedCounter::default(),
            source_failures: SharedCounter::default(),
            positions_lost: SharedCounter::default(),
            flush_failures: SharedCounter::default(),
            save_failures: SharedCounter::default(),
            hedged_batches: SharedCounter::default(),
            rerouted: SharedCounter::default(),
            router_refusals: SharedCounter::default(),
            router_demotions: SharedCounter::default(),
            router_failures: SharedCounter::default(),
            recoveries: SharedCounter::default(),
            start_gates_opened: SharedCounter::default(),
            routers_tko: AtomicU64::new(0),
            router_configs: AtomicU64::new(0),
            pending_keys: AtomicU64::new(0),
            retry_queue_keys: AtomicU64::new(0),
            retry_queue_bytes: AtomicU64::new(0),
            commits_merged: AtomicU64::new(0),
            duplicates_removed: AtomicU64::new(0),
            locked: Mutex::new(LockedStatistics::default()),
        }
    }

    /// Sets the state of reading.
    pub fn set_state(&self, state: PipelineState) {
        self.locked.lock().reading_state = state;
    }

    /// Records that the pipeline does not run, and has nothing pending.
    pub(super) fn set_standby(&self) {
        self.set_pending_keys(0);
        self.set_retry_queue_size((0, 0));
        let mut locked = self.locked.lock();
        locked.reading_state = PipelineState::Standby;
        locked.delivery_state = None;
        locked.saved_position = None;
        locked.source_lag = None;
        locked.oldest_pending_at = None;
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
    pub fn routers_tko(&self) -> u64 {
        self.routers_tko.load(Ordering::Relaxed)
    }

    /// How many different configurations the cluster's routers have; 0 if there is one router, or none has answered.
    pub fn router_configs(&self) -> u64 {
        self.router_configs.load(Ordering::Relaxed)
    }

    pub(crate) fn set_router_configs(&self, configs: usize) {
        self.router_configs.store(configs as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_routers_tko(&self, routers: usize) {
        self.routers_tko.store(routers as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_pending_keys(&self, keys: usize) {
        self.pending_keys.store(keys as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_retry_queue_size(&self, (keys, key_bytes): (usize, usize)) {
        self.retry_queue_keys.store(keys as u64, Ordering::Relaxed);
        self.retry_queue_bytes.store(key_bytes as u64, Ordering::Relaxed);
    }

    /// Records irregularities of the log.
    pub(crate) fn record_anomalies(&self, anomalies: Anomalies) {
        self.statements_without_rows.add(anomalies.without_rows);
        self.transactions_unfinished.add(anomalies.unfinished);
        self.changes_without_gtid.add(anomalies.without_gtid);
    }

    /// Records that a batch of `keys` keys was sent.
    pub(crate) fn record_batch(&self, keys: usize) {
        self.batches.add(1);
        self.batch_keys.add(keys as u64);
        self.locked.lock().batch_sizes.record(keys as u64);
    }

    pub(crate) fn set_oldest_pending(&self, committed_at: Option<SystemTime>) {
        self.locked.lock().oldest_pending_at = committed_at;
    }

    pub(crate) fn set_source_lag(&self, lag: Option<SourceLag>) {
        self.locked.lock().source_lag = lag;
    }

    /// Records that a router got `deletes` deletes of these bytes in all, in one write.
    pub(crate) fn record_sent(&self, deletes: usize, bytes: usize) {
        self.deletes_sent.add(deletes as u64);
        self.delete_bytes.add(bytes as u64);
        self.delete_packets.add(bytes.div_ceil(PACKET_BYTES) as u64);
    }

    pub(crate) fn set_duplicates_removed(&self, keys: u64) {
        self.duplicates_removed.store(keys, Ordering::Relaxed);
    }

    pub(crate) fn set_commits_merged(&self, commits: u64) {
        self.commits_merged.store(commits, Ordering::Relaxed);
    }
}
