//! The age of a slab class (§6.2 of the paper): how long ago its next victim was last accessed. `reclaim/rebalance.rs`
//! compares classes by it, without their locks.
//!
//! The age is estimated from the ages of the items evicted last (an exponential mean), and grows with the clock while
//! the class evicts nothing. It is weighted by (chunk size)^exponent. At 0 this is the paper's rule, which treats a
//! hit on a large item like one on a small item, though it costs many times the memory. Measured, 0.5 gains more than
//! any other change here.

use crate::Now;
use crate::snapshot_codec::{SnapshotReader, SnapshotWriter};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One evicted item's share in the mean age.
const AGE_SHARE: f64 = 1.0 / 64.0;

/// The age and size of one class.
pub(crate) struct Age {
    weight: f64,
    pages: AtomicU32,
    /// `f64` bits: the mean age of the items evicted last, in seconds; negative: none yet.
    mean_s: AtomicU64,
    /// `f64` bits: the time at which the next victim was last accessed, in Unix seconds.
    tail_s: AtomicU64,
}

impl Age {
    pub fn new(chunk_bytes: usize, exponent: f64) -> Age {
        let weight = (chunk_bytes as f64).powf(exponent);
        Age { weight, pages: AtomicU32::new(0), mean_s: AtomicU64::new(0), tail_s: AtomicU64::new(0) }
    }

    /// Starts at age 0: the class gets its first page.
    pub fn reset(&self, now: Now) {
        self.mean_s.store((-1.0f64).to_bits(), Relaxed);
        self.tail_s.store(unix_s(now).to_bits(), Relaxed);
    }

    pub fn set_pages(&self, pages: usize) {
        self.pages.store(pages as u32, Relaxed);
    }

    /// The number of pages that the class has.
    pub fn pages(&self) -> usize {
        self.pages.load(Relaxed) as usize
    }

    /// Records that an item of this age was evicted.
    pub fn record_eviction(&self, age_s: u32, now: Now) {
        let (mean_s, age_s) = (f64::from_bits(self.mean_s.load(Relaxed)), f64::from(age_s));
        let mean_s = if mean_s < 0.0 { age_s } else { mean_s + (age_s - mean_s) * AGE_SHARE };
        self.mean_s.store(mean_s.to_bits(), Relaxed);
        self.tail_s.store((unix_s(now) - mean_s).to_bits(), Relaxed);
    }

    pub fn save(&self, snapshot: &mut SnapshotWriter) {
        snapshot.put_u64(self.mean_s.load(Relaxed));
        snapshot.put_u64(self.tail_s.load(Relaxed));
    }

    pub fn restore(&self, snapshot: &mut SnapshotReader<'_>) -> Option<()> {
        self.mean_s.store(snapshot.get_u64()?, Relaxed);
        self.tail_s.store(snapshot.get_u64()?, Relaxed);
        Some(())
    }

    /// The age of the next victim, in whole seconds.
    pub fn age_s(&self, now: Now) -> u64 {
        (unix_s(now) - f64::from_bits(self.tail_s.load(Relaxed))).max(0.0) as u64
    }

    /// The mean age of the items evicted last, in whole seconds.
    pub fn evicted_age_s(&self) -> Option<u64> {
        let mean_s = f64::from_bits(self.mean_s.load(Relaxed));
        (self.pages.load(Relaxed) > 0 && mean_s >= 0.0).then_some(mean_s as u64)
    }

    /// The weighted age of the next victim; `None` if the class has no pages.
    pub fn weighted(&self, now: Now) -> Option<f64> {
        let age_s = unix_s(now) - f64::from_bits(self.tail_s.load(Relaxed));
        (self.pages.load(Relaxed) > 0).then_some(age_s * self.weight)
    }
}

fn unix_s(now: Now) -> f64 {
    now.unix_ms as f64 / 1000.0
}
