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
//! The meta dialect's verbs see more (`marks.rs`): an item that a look has made and nobody has filled (a stub), and one
//! that was marked as out of date. Both are memcached's answer to the herds that leases hold back; who uses the one need
//! not know of the other.
//!
//! | | stub | marked as stale |
//! |---|---|---|
//! | look ([`Reader::look`]) | shown, without a value | shown as such; the first one wins |
//! | get, touch, replace, cas, append, incr | taken for absent | taken for absent |
//! | lease-get | taken for absent: a token | shown as stale, with a token |
//! | set, add, lease-set with a token that holds | replaced | replaced |
//! | lease-set with a void token | refused | refused |
//! | delete | goes | becomes a stale value as a live one does, or goes |
//!
//! A stub voids no lease, as nothing was stored; a mark as stale does, as a delete does. Winning is no lease: it refuses
//! nobody's store.
//!
//! Inside, keys are spread over stripes, each with its own lock (`stripe.rs`). Items lie in memory that all stripes
//! share: pages of one region (`memory.rs`), cut into the chunks of slab classes (`slab.rs`), found through an index that
//! grows a bucket at a time (`index.rs`). No lock is shared by all verbs; in which order those that are shared by some
//! are taken is said in `memory.rs`.
//!
//! A store can outlive its process: [`Store::attach`] and [`Store::save`] (`warm_restart.rs`).
//!
//! Nothing here knows the network or reads a clock: `now` comes in with every call, and never goes back.

mod crawl;
mod item;
mod key;
mod memory;
mod meta_conditions;
mod meta_state;
mod options;
mod outcome;
mod reclaim;
mod shard;
mod stats;
mod sync;
mod time;
mod verbs;
mod warm_restart;

pub use crawl::{Crawl, CrawlItem};
pub use item::{ItemView, NewItem, Value};
pub use key::HashedKey;
pub use memory::slab_stats::ClassStatistics;
pub use meta_conditions::{
    MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaGetOutcome, MetaSet, Recache,
};
pub use options::{Options, OptionsError};
pub use outcome::{ArithmeticOutcome, DeleteOutcome, LeaseSetOutcome, PageMove, StoreOutcome};
pub use reclaim::eviction::{Evicted, EvictionHook};
pub use shard::lease::LeaseGet;
pub use stats::Statistics;
pub use time::{Expiry, Now};
pub use warm_restart::{
    ColdStartReason, Preparation, RegionError, RegionName, RemovedRegion, Saved, Start, remove_region,
};

use lookaside_protocol::{Direction, LeaseToken, StoreMode};
use memory::Memory;
use memory::geometry::Geometry;
use memory::region::{self, Region};
use memory::{index, slab_stats};

use shard::{Lane, Locked, Stripe};
use std::sync::atomic::Ordering::Relaxed;
use sync::{Mutex, lock};
use warm_restart::Kept;

/// One tick clears pages of so many bytes at most.
const SHRUNK_PER_TICK_BYTES: usize = 64 << 20;

/// The memory of one server. Shared by its threads.
pub struct Store {
    memory: Memory,
    /// The claim to the region, if that outlives the process. Behind `memory`, which must be dropped first.
    kept: Option<Kept>,
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
        let geometry = Store::geometry(&options, false)?;
        let memory_bytes = options.memory_bytes_max;
        let no_memory = |error: std::io::Error| OptionsError::NoMemory { memory_bytes, reason: error.to_string() };
        let region = Region::new(geometry.region_bytes()).map_err(no_memory)?;
        Ok(Store { memory: Store::memory(&options, geometry, region), kept: None })
    }

    fn geometry(options: &Options, is_kept: bool) -> Result<Geometry, OptionsError> {
        Geometry::new(options, is_kept, |stripes| Stripe::new(options, 0, stripes).bytes())
    }

    /// An empty memory in a region of the right size.
    fn memory(options: &Options, geometry: Geometry, region: Region) -> Memory {
        let stripes = Store::stripes(options, &geometry);
        Memory::new(options, geometry, stripes, region)
    }

    fn stripes(options: &Options, geometry: &Geometry) -> Box<[Lane]> {
        let lanes = 1 << geometry.stripe_bits;
        (0..lanes).map(|lane| Lane(Mutex::new(Stripe::new(options, lane, lanes)))).collect()
    }

    /// Begins a batch of look-ups.
    pub fn reader(&self, now: Now) -> Reader<'_> {
        Reader { store: self, now }
    }

    /// Stores `item` under `key` as `mode` says. `append` and `prepend` keep the item's flags and expiry. A `set` that
    /// is refused for its size removes the value it was to replace.
    pub fn store(&self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.stripe(key, now).store(key, mode, item, now)
    }

    /// Fills a miss: stores `item` if `token` still holds.
    pub fn lease_set(&self, key: HashedKey<'_>, token: LeaseToken, item: &NewItem<'_>, now: Now) -> LeaseSetOutcome {
        self.stripe(key, now).lease_set(key, token, item, now)
    }

    /// Removes the value, voids the lease, and refuses `add` for `hold_off_ms` from now on.
    pub fn delete(&self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.stripe(key, now).delete(key, hold_off_ms, now)
    }

    /// Adds to, or takes from, a decimal value in place.
    pub fn arithmetic(&self, key: HashedKey<'_>, direction: Direction, delta: u64, now: Now) -> ArithmeticOutcome {
        self.stripe(key, now).arithmetic(key, direction, delta, now)
    }

    /// As [`Store::store`], on terms; items that bear marks are there for it. Tells the bytes of the whole value too.
    pub fn meta_set(
        &self,
        key: HashedKey<'_>,
        mode: StoreMode,
        item: &NewItem<'_>,
        terms: &MetaSet,
        now: Now,
    ) -> (StoreOutcome, usize) {
        self.stripe(key, now).meta_set(key, mode, item, terms, now)
    }

    /// Removes the item or changes it as the terms say, and voids the lease; begins no hold-off.
    pub fn meta_delete(&self, key: HashedKey<'_>, terms: &MetaDelete, now: Now) -> MetaDeleteOutcome {
        self.stripe(key, now).meta_delete(key, terms, now)
    }

    /// As [`Store::arithmetic`], on terms; items that bear marks are there for it.
    pub fn meta_arithmetic(
        &self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        terms: &MetaArithmetic,
        now: Now,
    ) -> MetaArithmeticOutcome {
        self.stripe(key, now).meta_arithmetic(key, direction, delta, terms, now)
    }

    /// Forgets all that was stored before `at`, which may lie in the future. With an `at` that has come already, all
    /// that was stored before this call is gone when it returns, and nothing that is stored later goes. Up to eight
    /// flushes can lie ahead; false says that this is one more, and that nothing will be done.
    #[must_use]
    pub fn flush_all(&self, at: Now, now: Now) -> bool {
        let mut is_taken = true;
        for lane in 0..self.memory.stripes.len() {
            let mut locked = Locked::new(&self.memory, lane, now);
            if at <= now {
                locked.flush();
            } else {
                // Stripes carry out what is due when they are asked, so their schedules may differ for a moment.
                is_taken &= locked.stripe.flushes.add(at);
                locked.stripe.due_ms = locked.stripe.due_ms.min(at.unix_ms);
            }
        }
        is_taken
    }

    /// Takes out what has expired by `now` although nobody asks for it, carries out flushes that are due, and clears some
    /// pages after the memory limit was lowered. To be called about once a second; each stripe is locked for a moment, one
    /// after the other.
    pub fn tick(&self, now: Now) {
        for lane in 0..self.memory.stripes.len() {
            Locked::new(&self.memory, lane, now).turn_wheel_by(usize::MAX, now);
        }
        let shrink = |attempt| self.memory.shrink(attempt, &mut Locked::new(&self.memory, 0, now).stripe, now);
        let _ = (0..SHRUNK_PER_TICK_BYTES / self.memory.geometry.page_bytes).all(shrink);
    }

    /// Lowers the memory limit, or raises it again, to at most what the options said; says whether it is so now. Where more
    /// memory is in use, pages are cleared with the next stores and [`Store::tick`]s, those first that serve least.
    #[must_use]
    pub fn set_memory_limit(&self, memory_bytes: usize) -> bool {
        self.memory.set_memory_limit(memory_bytes)
    }

    /// The memory limit, in bytes.
    pub fn memory_limit(&self) -> usize {
        self.memory.memory_limit()
    }

    /// Moves a page from one slab class to another, both by their numbers as [`ClassStatistics`] has them. What was asked
    /// for lately in it moves to other pages of its class, the rest is evicted.
    pub fn move_page(&self, from: usize, to: usize, now: Now) -> PageMove {
        let is_class = |number: usize| (1..=self.memory.geometry.timer_class()).contains(&number);
        match is_class(from) && is_class(to) {
            true => self.memory.move_page(from - 1, to - 1, &mut Locked::new(&self.memory, 0, now).stripe, now),
            false => PageMove::BadClass,
        }
    }

    /// Whether pages move by themselves from now on, as [`Options::rebalance`] says at the start.
    pub fn set_rebalance(&self, is_on: bool) {
        self.memory.is_rebalanced.store(is_on, Relaxed);
    }

    /// Whether they do.
    pub fn is_rebalanced(&self) -> bool {
        self.memory.is_rebalanced.load(Relaxed)
    }

    /// Begins a walk over all items, or over one in so many, chosen by their keys; nothing while there are too many walks.
    /// Among too many, those that made no step for a minute are given up ([`Crawl::is_given_up`]).
    pub fn begin_crawl(&self, one_in: u32, now: Now) -> Option<Crawl> {
        self.memory.begin_crawl(one_in, now)
    }

    /// Shows the items that were not deleted on a walk, up to eight for each of `buckets_max` buckets; says whether the walk
    /// goes on. One stripe is locked at a time, for one bucket. What is said of [`Reader`]'s closures holds for `show`.
    pub fn crawl(&self, crawl: &mut Crawl, buckets_max: usize, now: Now, show: impl FnMut(CrawlItem<'_>)) -> bool {
        self.memory.crawl(crawl, buckets_max, now, show)
    }

    /// Counters and gauges since the start.
    pub fn statistics(&self) -> Statistics {
        let stripes = self.memory.stripes.iter().map(|stripe| lock(&stripe.0).statistics());
        let unfetched = self.memory.class_counters.iter().map(slab_stats::ClassCounters::unfetched);
        let [evictions_unfetched, expirations_unfetched] =
            unfetched.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        Statistics {
            memory_bytes: self.memory.memory_bytes() as u64,
            page_moves: self.memory.page_moves.load(Relaxed),
            items_moved: self.memory.items_moved.load(Relaxed),
            index_bytes: (self.memory.index.buckets() * index::BUCKET_BYTES) as u64,
            pages_free: self.memory.pages_free() as u64,
            evictions_unfetched,
            expirations_unfetched,
            ..stripes.fold(Statistics::default(), |sum, one| sum + one)
        }
    }

    /// From now on tells this of evictions; says whether it is the first to be told, and the only one there may be.
    pub fn on_eviction(&self, hook: EvictionHook) -> bool {
        self.memory.on_eviction.set(hook).is_ok()
    }

    /// What there is to say about each slab class that is or was in use. Classes are locked one after the other, each for
    /// as long as a look at some of its chunks takes.
    pub fn class_statistics(&self, now: Now) -> Vec<ClassStatistics> {
        self.memory.class_statistics(now)
    }

    /// Walks through all memory and panics if it is not whole. For tests; no other call may be under way.
    #[doc(hidden)]
    pub fn audit(&self) {
        self.memory.audit();
    }

    /// From now on whatever writes to the memory that items and index lie in ends the process. For tests of what does not.
    #[doc(hidden)]
    pub fn make_read_only(&self) -> std::io::Result<()> {
        self.memory.region.make_read_only()
    }

    #[inline]
    fn stripe(&self, key: HashedKey<'_>, now: Now) -> Locked<'_> {
        Locked::new(&self.memory, key.stripe(self.memory.geometry.stripe_bits), now)
    }
}

impl Reader<'_> {
    /// Asks the processor for all that look-ups of `keys` will touch: for an index line of each, then for the items that
    /// are named there, or else for the key's other line, and last for the items named on those. No lock is taken: what
    /// is seen may be out of date, and then the wrong line is fetched. The keys know from then on where they were seen, so
    /// that their look-ups are shorter. First pass over a batch, of which 64 keys are taken at a time.
    pub fn prefetch(&self, keys: &mut [HashedKey<'_>]) {
        const KEYS_AT_ONCE: usize = 64;
        let memory = &self.store.memory;
        let (index, region) = (&memory.index, &memory.region);
        let view = index.view();
        for keys in keys.chunks_mut(KEYS_AT_ONCE) {
            let mut lines = [[0; 2]; KEYS_AT_ONCE];
            for (key, lines) in keys.iter().zip(&mut lines) {
                region::prefetch_for_writing(&memory.stripes[key.stripe(memory.geometry.stripe_bits)]);
                *lines = view.lines(*key);
                region.prefetch(lines[0]);
            }
            let mut elsewhere = 0u64;
            for (place, (key, lines)) in keys.iter_mut().zip(lines).enumerate() {
                match index.guess(region, key, lines[0]) {
                    Some(handle) => memory.prefetch(handle),
                    None => {
                        region.prefetch(lines[1]);
                        elsewhere |= 1 << place;
                    }
                }
            }
            while elsewhere != 0 {
                let place = elsewhere.trailing_zeros() as usize;
                elsewhere &= elsewhere - 1;
                if let Some(handle) = index.guess(region, &mut keys[place], lines[place][1]) {
                    memory.prefetch(handle);
                }
            }
        }
    }

    /// Shows the live item under `key` to `render`; `None` when there is none. Second pass over a batch.
    #[inline]
    pub fn get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        self.store.stripe(key, self.now).get(key, None, self.now, render)
    }

    /// As [`Reader::get`], and gives the item a new expiry first (`gat`, `touch`).
    pub fn get_and_touch<R>(
        &self,
        key: HashedKey<'_>,
        expiry: Expiry,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        self.store.stripe(key, self.now).get(key, Some(expiry), self.now, render)
    }

    /// As [`Reader::get`], on terms; items that bear marks are there for it.
    pub fn meta_get<R>(
        &self,
        key: HashedKey<'_>,
        terms: &MetaGet,
        render: impl FnOnce(MetaGetOutcome<'_>) -> R,
    ) -> Option<R> {
        self.store.stripe(key, self.now).meta_get(key, terms, self.now, render)
    }

    /// A hit, or a lease to fill the miss with, or word that another client holds it.
    pub fn lease_get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        self.store.stripe(key, self.now).lease_get(key, self.now, render)
    }
}
