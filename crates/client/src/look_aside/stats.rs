//! Counters of the application's client.

use lookaside_sync::{SharedCounter, counters};
use std::sync::Arc;

counters! {
    pub(super) struct ClientCounters(SharedCounter);

    /// Events at a [`crate::Client`] and its clones since it was made, or since
    /// [`crate::Client::with_own_statistics`].
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
    /// Batches that this client waited for, one after the other or at the same time. With batching, a batch counts once
    /// for each client of [`crate::Client::with_own_statistics`] that has lookups in it.
    round_trips,
    /// Bytes of the values that lookups found, stale ones included.
    bytes_read,
    /// Bytes of the values that were sent to servers.
    bytes_written,
    /// Loaded values that mean that there is no such row.
    absent_loads,
    /// Values that were found and could not be decoded.
    undecodable,
    /// Lookups that were sent to a replica as well.
    hedges,
    /// Lookups that the replica answered first.
    hedges_won,
    /// Lookups that were late, and were not sent to a replica because of the limit.
    hedges_withheld,
    /// Calls that their deadline ended.
    deadlines_exceeded,
}

/// The counters of one clone, and of those that it was made from.
#[derive(Clone, Debug, Default)]
pub(super) struct CallCounters {
    own: Arc<ClientCounters>,
    /// Those that count the same events, too.
    outer: Option<Arc<CallCounters>>,
}

impl CallCounters {
    /// New counters, whose events count for `self`, too.
    pub(super) fn nested(&self) -> CallCounters {
        CallCounters { own: Arc::default(), outer: Some(Arc::new(self.clone())) }
    }

    pub(super) fn add(&self, counter: impl Fn(&ClientCounters) -> &SharedCounter, amount: u64) {
        let mut counters = self;
        loop {
            counter(&counters.own).add(amount);
            let Some(outer) = &counters.outer else { return };
            counters = outer;
        }
    }

    pub(super) fn snapshot(&self) -> ClientStatistics {
        self.own.snapshot()
    }

    /// Equal for clones, and different for others.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.own).addr()
    }
}
