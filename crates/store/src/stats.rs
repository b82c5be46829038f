//! Counters and gauges of a store.

/// A snapshot; counters count from the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Live items and stale ones in memory.
    pub items: u64,
    /// Items stored since the start.
    pub items_total: u64,
    /// The bytes of live and stale items: header, key and value.
    pub items_bytes: u64,
    /// Memory in use, in bytes: whole pages, lists and the index.
    pub memory_bytes: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Evicted items that were never fetched.
    pub evictions_unfetched: u64,
    /// Stores refused because no memory was found for them.
    pub stores_out_of_memory: u64,
    /// Stores refused because their item was too large.
    pub stores_too_large: u64,
    /// Gets of an item that had expired, as far as it is still known: misses.
    pub gets_expired: u64,
    /// Gets of an item that was flushed, as far as it is still known: misses.
    pub gets_flushed: u64,
    /// Items removed because they had expired; without evictions also stale values that were removed to make room.
    pub expirations: u64,
    /// Expired items that were never fetched.
    pub expirations_unfetched: u64,
    /// Lease tokens issued.
    pub lease_tokens: u64,
    /// Misses that must wait for another client's fill.
    pub lease_hot_misses: u64,
    /// Lease-sets that were stored.
    pub lease_sets_stored: u64,
    /// Lease-sets refused because a delete or another set came between.
    pub lease_sets_refused: u64,
    /// Stale values shown.
    pub stale_hits: u64,
    /// Adds refused by a hold-off.
    pub hold_off_refusals: u64,
    /// Leases displaced from a full table while their token held: safe, but those fills are refused.
    pub leases_displaced: u64,
    /// Hold-offs merged because a table was full: safe, but adds of other keys are refused with them.
    pub hold_offs_merged: u64,
    /// Items removed by their timer in the second in which they expired; part of `expirations`.
    pub transient_expirations: u64,
    /// Items without a timer for want of memory: they leave when a look-up or eviction finds them.
    pub transients_untimed: u64,
    /// Pages that moved from one slab class to another, or to the index.
    pub page_moves: u64,
    /// Items that were relocated to another page of their class when theirs moved away.
    pub items_moved: u64,
    /// The part of the memory that the buckets of the index use, in bytes.
    pub index_bytes: u64,
    /// Free pages.
    pub pages_free: u64,
}

impl std::ops::Add for Statistics {
    type Output = Statistics;

    fn add(self, other: Statistics) -> Statistics {
        Statistics {
            items: self.items + other.items,
            items_total: self.items_total + other.items_total,
            items_bytes: self.items_bytes + other.items_bytes,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            evictions: self.evictions + other.evictions,
            evictions_unfetched: self.evictions_unfetched + other.evictions_unfetched,
            stores_out_of_memory: self.stores_out_of_memory + other.stores_out_of_memory,
            stores_too_large: self.stores_too_large + other.stores_too_large,
            gets_expired: self.gets_expired + other.gets_expired,
            gets_flushed: self.gets_flushed + other.gets_flushed,
            expirations: self.expirations + other.expirations,
            expirations_unfetched: self.expirations_unfetched + other.expirations_unfetched,
            lease_tokens: self.lease_tokens + other.lease_tokens,
            lease_hot_misses: self.lease_hot_misses + other.lease_hot_misses,
            lease_sets_stored: self.lease_sets_stored + other.lease_sets_stored,
            lease_sets_refused: self.lease_sets_refused + other.lease_sets_refused,
            stale_hits: self.stale_hits + other.stale_hits,
            hold_off_refusals: self.hold_off_refusals + other.hold_off_refusals,
            leases_displaced: self.leases_displaced + other.leases_displaced,
            hold_offs_merged: self.hold_offs_merged + other.hold_offs_merged,
            transient_expirations: self.transient_expirations + other.transient_expirations,
            transients_untimed: self.transients_untimed + other.transients_untimed,
            page_moves: self.page_moves + other.page_moves,
            items_moved: self.items_moved + other.items_moved,
            index_bytes: self.index_bytes + other.index_bytes,
            pages_free: self.pages_free + other.pages_free,
        }
    }
}
