//! Counters and gauges of a store.

/// A snapshot; counters count from the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Live items and stale ones, as far as they take memory.
    pub items: u64,
    /// Items stored since the start.
    pub items_total: u64,
    /// Memory that items, metadata and the index take, in bytes.
    pub memory_bytes: u64,
    /// Items dropped to make room.
    pub evictions: u64,
    /// Items dropped because their time had come.
    pub expirations: u64,
    /// Lease tokens handed out.
    pub lease_tokens: u64,
    /// Misses told to wait for another client's fill.
    pub lease_hot_misses: u64,
    /// Lease-sets that were stored.
    pub lease_sets_stored: u64,
    /// Lease-sets refused because a delete or another set came between.
    pub lease_sets_refused: u64,
    /// Stale values shown.
    pub stale_hits: u64,
    /// Adds refused by a hold-off.
    pub hold_off_refusals: u64,
}
