//! What an application's client counts.

use super::{ClientError, FillOutcome, Lookup};
use std::sync::atomic::{AtomicU64, Ordering};

/// What has happened at a [`crate::Client`] and its clones since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStatistics {
    /// Keys looked up; each retry of a hot miss counts again.
    pub gets: u64,
    /// Lookups that found a live value.
    pub hits: u64,
    /// Lookups that found nothing live and were shown a stale value.
    pub stale: u64,
    /// Lookups that found nothing live, those with a stale value included.
    pub misses: u64,
    /// Lookups of which another client held the lease, and that were waited for.
    pub hot_miss_waits: u64,
    /// Fills that were stored.
    pub fills: u64,
    /// Fills that were refused because a delete came between.
    pub fills_refused: u64,
    /// Operations that failed or were answered with an error.
    pub errors: u64,
    /// Keys loaded from the database.
    pub loads: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    gets: AtomicU64,
    hits: AtomicU64,
    stale: AtomicU64,
    misses: AtomicU64,
    hot_miss_waits: AtomicU64,
    fills: AtomicU64,
    fills_refused: AtomicU64,
    errors: AtomicU64,
    loads: AtomicU64,
}

impl ClientCounters {
    pub(crate) fn snapshot(&self) -> ClientStatistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientStatistics {
            gets: read(&self.gets),
            hits: read(&self.hits),
            stale: read(&self.stale),
            misses: read(&self.misses),
            hot_miss_waits: read(&self.hot_miss_waits),
            fills: read(&self.fills),
            fills_refused: read(&self.fills_refused),
            errors: read(&self.errors),
            loads: read(&self.loads),
        }
    }

    pub(crate) fn gets(&self, keys: usize) {
        add(&self.gets, keys);
    }

    pub(crate) fn lookup(&self, lookup: &Result<Lookup, ClientError>) {
        match lookup {
            Ok(Lookup::Hit { .. }) => add(&self.hits, 1),
            Ok(Lookup::Stale { .. }) => {
                add(&self.misses, 1);
                add(&self.stale, 1);
            }
            Ok(Lookup::Miss { .. }) => add(&self.misses, 1),
            Err(_) => self.error(),
        }
    }

    pub(crate) fn filled(&self, filled: &Result<FillOutcome, ClientError>) {
        match filled {
            Ok(FillOutcome::Stored) => add(&self.fills, 1),
            Ok(FillOutcome::Refused) => add(&self.fills_refused, 1),
            Err(_) => self.error(),
        }
    }

    pub(crate) fn hot_miss_waits(&self, keys: usize) {
        add(&self.hot_miss_waits, keys);
    }

    pub(crate) fn loads(&self, keys: usize) {
        add(&self.loads, keys);
    }

    pub(crate) fn error(&self) {
        add(&self.errors, 1);
    }
}

/// Relaxed: counters order nothing.
fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}
