//! What the application of a region has done.

use lookaside_client::{MarkerStatistics, RegionalClient};
use std::sync::atomic::{AtomicU64, Ordering};

/// The activity of the application in a region, since the start.
#[derive(Debug, Default)]
pub struct DemoCounters {
    pub(super) database_reads: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) stale_reads: AtomicU64,
    pub(super) own_reads: AtomicU64,
    pub(super) own_stale_reads: AtomicU64,
    pub(super) master_reads: AtomicU64,
    pub(super) lag_us: AtomicU64,
    /// Of each cluster; empty in the master region.
    regional: Vec<RegionalClient>,
}

impl DemoCounters {
    /// The counters of an application with these clients.
    pub(super) fn new(regional: Vec<RegionalClient>) -> DemoCounters {
        DemoCounters { regional, ..DemoCounters::default() }
    }

    /// Database queries.
    pub fn database_reads(&self) -> u64 {
        self.database_reads.load(Ordering::Relaxed)
    }

    /// Failed reads and writes.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Values that were older than a commit that had been acknowledged when the read began.
    pub fn stale_reads(&self) -> u64 {
        self.stale_reads.load(Ordering::Relaxed)
    }

    /// Reads of users that had just written the same key.
    pub fn own_reads(&self) -> u64 {
        self.own_reads.load(Ordering::Relaxed)
    }

    /// Of these, those that were older than the user's own write: 0, unless a promise is broken.
    pub fn own_stale_reads(&self) -> u64 {
        self.own_stale_reads.load(Ordering::Relaxed)
    }

    /// How long the region's database took to show the last commit that was watched, or, if it does not show it yet,
    /// for how long it has not; in microseconds. 0 in the master region.
    pub fn lag_us(&self) -> u64 {
        self.lag_us.load(Ordering::Relaxed)
    }

    /// Database queries that went from a replica region to the master.
    pub fn master_reads(&self) -> u64 {
        self.master_reads.load(Ordering::Relaxed)
    }

    /// Remote markers set and found, by all clusters together.
    pub fn markers(&self) -> MarkerStatistics {
        let mut sum = MarkerStatistics::default();
        self.regional.iter().for_each(|client| sum.add(&client.marker_statistics()));
        sum
    }
}
