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
//! | replace, cas, append, prepend, incr, decr | changed | taken for absent | voided | – |
//! | lease-set | refused | refreshed when the token is void, replaced when it holds | used up | – |
//! | delete | becomes stale, or goes | kept | voided | begun |
//! | flush | goes | goes | voided | – |
//!
//! A lease-set during a hold-off: tokens from before the delete are void, and a token from after it belongs to a
//! reader that has seen the database after the delete, so it may fill.
//!
//! Inside, keys are spread over stripes, each with its own lock, its own share of the memory, an index and a log of
//! records; `stripe.rs` has the picture. No lock is shared between stripes, and no verb takes two.
//!
//! Nothing here knows the network or reads a clock: `now` comes in with every call, and never goes back.

mod arithmetic;
mod eviction;
mod flush;
mod hold_off;
mod index;
mod item;
mod key;
mod lease;
mod log;
mod options;
mod outcome;
mod prefetch;
mod read;
mod record;
mod statistics;
mod stripe;
mod time;
mod write;

pub use item::{ItemView, NewItem, Value};
pub use key::HashedKey;
pub use lease::LeaseGet;
pub use options::{Options, OptionsError};
pub use outcome::{ArithmeticOutcome, DeleteOutcome, LeaseSetOutcome, StoreOutcome};
pub use statistics::Statistics;
pub use time::{Expiry, Now};

use lookaside_protocol::{Direction, LeaseToken, StoreMode};
use std::sync::{Mutex, MutexGuard, PoisonError};
use stripe::Stripe;

/// The memory of one server. Shared by its threads.
pub struct Store {
    stripes: Box<[Mutex<Stripe>]>,
    stripe_bits: u32,
}

/// A guard under which a batch of keys is looked up. Cheap to make: one per round of the server's loop.
///
/// A closure that is shown an item must not call the same store: it runs under a lock.
pub struct Reader<'s> {
    store: &'s Store,
    now: Now,
}

impl Store {
    /// An empty store. Fails if the options contradict each other or the memory cannot be had.
    pub fn new(options: Options) -> Result<Store, OptionsError> {
        let stripe_bits = options.check()?;
        let lanes = 1 << stripe_bits;
        let stripes = (0..lanes).map(|lane| Mutex::new(Stripe::new(&options, lane, lanes))).collect();
        Ok(Store { stripes, stripe_bits })
    }

    /// Begins a batch of look-ups.
    pub fn reader(&self, now: Now) -> Reader<'_> {
        Reader { store: self, now }
    }

    /// Stores `item` under `key` as `mode` says. `append` and `prepend` keep the item's flags and expiry. A `set` that
    /// is refused for its size removes the value it was to replace.
    pub fn store(&self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.stripe(key).store(key, mode, item, now)
    }

    /// Fills a miss: stores `item` if `token` still holds.
    pub fn lease_set(&self, key: HashedKey<'_>, token: LeaseToken, item: &NewItem<'_>, now: Now) -> LeaseSetOutcome {
        self.stripe(key).lease_set(key, token, item, now)
    }

    /// Removes the value, voids the lease, and refuses `add` for `hold_off_ms` from now on.
    pub fn delete(&self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.stripe(key).delete(key, hold_off_ms, now)
    }

    /// Adds to, or takes from, a decimal value in place.
    pub fn arithmetic(&self, key: HashedKey<'_>, direction: Direction, delta: u64, now: Now) -> ArithmeticOutcome {
        self.stripe(key).arithmetic(key, direction, delta, now)
    }

    /// Forgets all that was stored before `at`, which may lie in the future. With an `at` that has come already, all
    /// that was stored before this call is gone when it returns. Up to eight flushes can lie ahead.
    pub fn flush_all(&self, at: Now) {
        for stripe in &self.stripes {
            lock(stripe).flushes.add(at);
        }
    }

    /// Counters and gauges since the start.
    pub fn statistics(&self) -> Statistics {
        self.stripes.iter().map(|stripe| lock(stripe).statistics()).fold(Statistics::default(), |sum, one| sum + one)
    }

    fn stripe(&self, key: HashedKey<'_>) -> MutexGuard<'_, Stripe> {
        lock(&self.stripes[key.stripe(self.stripe_bits)])
    }
}

impl Reader<'_> {
    /// Asks the processor for the index line of `key`. First pass over a batch.
    pub fn prefetch_index(&self, key: HashedKey<'_>) {
        self.store.stripe(key).index.prefetch(key.tag());
    }

    /// Asks the processor for the item that the index names. Second pass over a batch.
    pub fn prefetch_item(&self, key: HashedKey<'_>) {
        self.store.stripe(key).prefetch_record(key);
    }

    /// Shows the live item under `key` to `render`; `None` when there is none. Third pass over a batch.
    pub fn get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        self.store.stripe(key).get(key, None, self.now, render)
    }

    /// As [`Reader::get`], and gives the item a new expiry first (`gat`, `touch`).
    pub fn get_and_touch<R>(
        &self,
        key: HashedKey<'_>,
        expiry: Expiry,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        self.store.stripe(key).get(key, Some(expiry), self.now, render)
    }

    /// A hit, or a lease to fill the miss with, or word that another client holds it.
    pub fn lease_get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        self.store.stripe(key).lease_get(key, self.now, render)
    }
}

/// A closure that panics while it is shown an item leaves the stripe whole: all changes are made before it runs.
fn lock(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}
