//! A number that one thread raises.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread raises and any thread may read: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Raises the number. Only the owning thread may call this; a second writer would lose counts, nothing worse.
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed) + amount, Relaxed);
    }

    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
