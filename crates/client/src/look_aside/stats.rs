//! Counters of the application's client.

use lookaside_sync::{SharedCounter, counters};

counters! {
    pub(super) struct ClientCounters(SharedCounter);

    /// Events at a [`crate::Client`] and its clones since it was made.
    pub struct ClientStatistics;

    /// Keys looked up; each retry of a hot miss counts again.
    gets,
    /// Lookups that found a live value.
    hits,
    /// Lookups that found no live value, but a stale one.
    stale,
    /// Lookups that found no live value, those with a stale value included.
    misses,
    /// Lookups that were retried because another client held the lease.
    hot_miss_waits,
    /// Fills that were stored.
    fills,
    /// Fills that were refused because of a delete in between.
    fills_refused,
    /// Operations that failed or whose reply was an error.
    errors,
    /// Keys loaded from the database.
    loads,
}
