//! One server's memory.
//!
//! A get looks its keys up in a batch under a [`Reader`]: index lines are prefetched, then items, then each item is
//! shown to a closure that renders the reply straight from it. A delete ([`Store::delete`]) removes the value (or
//! keeps it as a stale one), voids the key's lease and begins the hold-off.
//!
//! | | live item | stale value | lease | hold-off |
//! |---|---|---|---|---|
//! | get | shown | never shown | – | – |
//! | lease-get | shown | shown as such | handed out on a miss, one per interval | – |
//! | set | replaced | dropped | voided | ended |
//! | add | refused | dropped | voided | refused while it lasts |
//! | lease-set | refused unless the token holds | refreshed when the token is void | used up | refused while it lasts |
//! | delete | becomes stale, or goes | kept | voided | begun |
//!
//! Nothing here knows the network or reads a clock: `now` comes in with every call, and never goes back.
#![forbid(unsafe_code)]

mod item;
mod lease;
mod options;
mod outcome;
mod statistics;
mod time;

pub use item::{ItemView, NewItem, Value};
pub use lease::LeaseGet;
pub use options::{Options, OptionsError};
pub use outcome::{ArithmeticOutcome, DeleteOutcome, LeaseSetOutcome, StoreOutcome};
pub use statistics::Statistics;
pub use time::{Expiry, Now};

use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};

/// A key and its hash: computed once, used for the stripe, the index line and the tag.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'a> {
    key: &'a [u8],
    hash: u64,
}

impl<'a> HashedKey<'a> {
    /// Hashes `key`, which must be 1 to 250 bytes.
    pub fn new(key: &'a [u8]) -> Self {
        debug_assert!(!key.is_empty() && key.len() <= lookaside_protocol::KEY_BYTES_MAX);
        HashedKey { key, hash: todo!("hash") }
    }

    /// The key itself.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }
}

/// The memory of one server. Shared by its threads.
pub struct Store {}

/// A guard under which a batch of keys is looked up. Cheap to make: one per round of the server's loop.
pub struct Reader<'s> {
    _store: &'s Store,
}

impl Store {
    /// An empty store. Fails if the options contradict each other or the memory cannot be had.
    pub fn new(options: Options) -> Result<Store, OptionsError> {
        let _ = options;
        todo!()
    }

    /// Begins a batch of look-ups.
    pub fn reader(&self, now: Now) -> Reader<'_> {
        let _ = now;
        todo!()
    }

    /// Stores `item` under `key` as `mode` says.
    pub fn store(&self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        let _ = (key, mode, item, now);
        todo!()
    }

    /// Fills a miss: stores `item` if `token` still holds.
    pub fn lease_set(&self, key: HashedKey<'_>, token: LeaseToken, item: &NewItem<'_>, now: Now) -> LeaseSetOutcome {
        let _ = (key, token, item, now);
        todo!()
    }

    /// Removes the value, voids the lease, and refuses `add` for `hold_off_ms` from now on.
    pub fn delete(&self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        let _ = (key, hold_off_ms, now);
        todo!()
    }

    /// Adds to, or takes from, a decimal value in place.
    pub fn arithmetic(&self, key: HashedKey<'_>, direction: Direction, delta: u64, now: Now) -> ArithmeticOutcome {
        let _ = (key, direction, delta, now);
        todo!()
    }

    /// Forgets all that was stored before `at`, which may lie in the future.
    pub fn flush_all(&self, at: Now) {
        let _ = at;
        todo!()
    }

    /// Counters and gauges since the start.
    pub fn statistics(&self) -> Statistics {
        todo!()
    }
}

impl Reader<'_> {
    /// Asks the processor for the index line of `key`. First pass over a batch.
    pub fn prefetch_index(&self, key: HashedKey<'_>) {
        let _ = key;
    }

    /// Asks the processor for the item that the index names. Second pass over a batch.
    pub fn prefetch_item(&self, key: HashedKey<'_>) {
        let _ = key;
    }

    /// Shows the live item under `key` to `render`; `None` when there is none. Third pass over a batch.
    pub fn get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        let _ = (key, render);
        todo!()
    }

    /// As [`Reader::get`], and gives the item a new expiry first (`gat`, `touch`).
    pub fn get_and_touch<R>(
        &self,
        key: HashedKey<'_>,
        expiry: Expiry,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        let _ = (key, expiry, render);
        todo!()
    }

    /// A hit, or a lease to fill the miss with, or word that another client holds it.
    pub fn lease_get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        let _ = (key, render);
        todo!()
    }
}

#[allow(unused)]
fn cas_is_used(_: Cas) {}
