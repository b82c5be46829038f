//! What each slab class counts about items that leave it and pages that move.

use crate::Now;
use crate::memory::chunk::Header;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of one class, on a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClassCounters {
    pub evictions: AtomicU64,
    pub evictions_unfetched: AtomicU64,
    pub evictions_with_expiry: AtomicU64,
    pub expirations: AtomicU64,
    pub expirations_unfetched: AtomicU64,
    pub refusals: AtomicU64,
    pub pages_gained: AtomicU64,
    pub pages_given: AtomicU64,
}

impl ClassCounters {
    /// Records that an item expired or was evicted.
    pub fn record_removal(&self, header: &Header, now: Now) {
        let is_unfetched = u64::from(!header.usage.is_fetched());
        if header.is_expired(now) {
            self.expirations.fetch_add(1, Relaxed);
            self.expirations_unfetched.fetch_add(is_unfetched, Relaxed);
        } else {
            self.evictions.fetch_add(1, Relaxed);
            self.evictions_unfetched.fetch_add(is_unfetched, Relaxed);
            self.evictions_with_expiry.fetch_add(u64::from(header.expiry_s != 0), Relaxed);
        }
    }

    /// Evicted and expired items that were never fetched.
    pub fn unfetched(&self) -> [u64; 2] {
        [&self.evictions_unfetched, &self.expirations_unfetched].map(|counter| counter.load(Relaxed))
    }
}
