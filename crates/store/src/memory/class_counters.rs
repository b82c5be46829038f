//! Counters of each slab class: items that leave it, and pages that move.

use crate::memory::chunk::Header;
use lookaside_sync::SharedCounter;

/// The counters of one class, on a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClassCounters {
    pub evictions: SharedCounter,
    pub evictions_unfetched: SharedCounter,
    pub evictions_with_expiry: SharedCounter,
    pub expirations: SharedCounter,
    pub expirations_unfetched: SharedCounter,
    pub refusals: SharedCounter,
    pub pages_gained: SharedCounter,
    pub pages_given: SharedCounter,
}

impl ClassCounters {
    /// Records that an item was removed: evicted, or expired.
    pub fn record_removal(&self, header: &Header, is_eviction: bool) {
        let is_unfetched = u64::from(!header.usage.is_fetched());
        if !is_eviction {
            self.expirations.add(1);
            self.expirations_unfetched.add(is_unfetched);
        } else {
            self.evictions.add(1);
            self.evictions_unfetched.add(is_unfetched);
            self.evictions_with_expiry.add(u64::from(header.expiry_s != 0));
        }
    }

    /// Evicted and expired items that were never fetched.
    pub fn unfetched(&self) -> [u64; 2] {
        [&self.evictions_unfetched, &self.expirations_unfetched].map(|counter| counter.value())
    }
}
