//! [`Store`] and [`Reader`]: every call from outside of the crate. A call for a key runs under the lock of the key's
//! stripe ([`StripeGuard`]).

use crate::ages::AgeMarks;
use crate::crawl::{Crawl, CrawlItem, Reclaimed};
use crate::memory::class_counters::ClassCounters;
use crate::memory::geometry::Geometry;
use crate::memory::region::{self, Region};
use crate::memory::slab_stats::ClassStatistics;
use crate::memory::{audit, index};
use crate::meta_conditions::{
    MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaGetOutcome, MetaSet,
};
use crate::reclaim::eviction::EvictionHook;
use crate::shared::Shared;
use crate::stripe::{self, Stripe};
use crate::sync::{Mutex, lock};
use crate::verbs::StripeGuard;
use crate::warm_restart::{self, Preparation, RegionError, RegionName, Saved, SharedRegion, Start};
use crate::{
    ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, ItemAge, ItemView, KeyHasher, LeaseGet, LeaseSetOutcome,
    NewItem, Now, Options, OptionsError, PageMove, Statistics, StoreNumber, StoreOutcome,
};
use lookaside_protocol::{Direction, LeaseToken, StoreMode};
use std::sync::atomic::Ordering::Relaxed;

/// One tick clears at most this many bytes of pages.
const SHRUNK_PER_TICK_BYTES: usize = 64 << 20;

/// The memory of one server. Shared by its threads.
pub struct Store {
    pub(crate) shared: Shared,
    /// `None` if the memory ends with the process. Behind `shared`, which must be dropped first.
    region: Option<SharedRegion>,
    /// Nothing is locked under it, and no stripe's lock is held with it.
    ages: Mutex<AgeMarks>,
}

/// Looks up a batch of keys. Cheap to make: one per round of the server's loop.
///
/// A closure that is shown an item must not call the same store: it runs under a lock.
pub struct Reader<'s> {
    store: &'s Store,
    now: Now,
}

impl Store {
    /// An empty store. Fails if the options contradict each other or the system gives too little memory.
    pub fn new(options: Options) -> Result<Store, OptionsError> {
        let geometry = Store::geometry(&options)?;
        let memory_bytes = options.memory_bytes_max;
        let no_memory = |error: std::io::Error| OptionsError::NoMemory { memory_bytes, reason: error.to_string() };
        let region = Region::with_reserve(geometry.region_bytes(), geometry.reserved_bytes()).map_err(no_memory)?;
        let stripes = stripe::create_all(&options, geometry.stripe_bits);
        Ok(Store::with_shared(Shared::new(&options, geometry, stripes, region), None))
    }

    fn with_shared(shared: Shared, region: Option<SharedRegion>) -> Store {
        Store { shared, region, ages: Mutex::default() }
    }

    /// The geometry of a store that ends with its process.
    pub(crate) fn geometry(options: &Options) -> Result<Geometry, OptionsError> {
        Geometry::new(options, |stripes| Stripe::new(options, 0, stripes).bytes(), None)
    }

    /// A store in the region `name`: as it was saved there, or empty with the reason. Its cost depends on the number
    /// of pages; no item is read.
    pub fn attach(options: Options, name: &RegionName, now: Now) -> Result<(Store, Start), RegionError> {
        let attached = Preparation::new(options, name).map_err(RegionError::Options)?.attach(now, || true)?;
        Ok(attached.expect("it was wanted"))
    }

    /// Drops the page tables of part of the region, from byte `at` on, while other threads use the store. To be called
    /// ahead of a [`Store::save`], because detaching a large region takes long. The next access maps a page again.
    /// Returns the byte to continue from; `None` at the end, and for a store without a region.
    pub fn drop_page_tables(&self, at: usize) -> Option<usize> {
        self.region.as_ref()?;
        warm_restart::drop_page_tables(&self.shared.memory.pages.region, at)
    }

    /// Saves the store in its region for the next process; `None` for a store without a region. To be called once all
    /// threads that use it have ended.
    pub fn save(self, now: Now) -> Result<Option<Saved>, RegionError> {
        let Some(region) = &self.region else { return Ok(None) };
        warm_restart::save(&self.shared, region, self.statistics().items, now).map(Some)
    }

    /// Starts a batch of look-ups.
    pub fn reader(&self, now: Now) -> Reader<'_> {
        Reader { store: self, now }
    }

    /// Stores `item` under `key` as `mode` says. `append` and `prepend` keep the item's flags and expiry. A `set` that
    /// is refused for its size, or for want of memory, removes the older value.
    pub fn store(&self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.lock_stripe(key, now).store(key, mode, item, now)
    }

    /// Fills a miss: stores `item` if `token` still holds.
    pub fn lease_set(&self, key: HashedKey<'_>, token: LeaseToken, item: &NewItem<'_>, now: Now) -> LeaseSetOutcome {
        self.lock_stripe(key, now).lease_set(key, token, item, now)
    }

    /// Ends the lease of `token`, if that still holds, as if it had not been issued: no client has received it.
    pub fn release_lease(&self, key: HashedKey<'_>, token: LeaseToken, now: Now) {
        self.lock_stripe(key, now).release_lease(key, token);
    }

    /// Removes the value, voids the lease, and refuses `add` for `hold_off_ms` from now on.
    pub fn delete(&self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.lock_stripe(key, now).delete(key, hold_off_ms, now)
    }

    /// Adds to a decimal value, or subtracts from it.
    pub fn arithmetic(&self, key: HashedKey<'_>, direction: Direction, delta: u64, now: Now) -> ArithmeticOutcome {
        self.lock_stripe(key, now).arithmetic(key, direction, delta, now)
    }

    /// As [`Store::store`], with conditions, and for items whatever their meta state. Returns the bytes of the whole
    /// value too.
    pub fn meta_set(
        &self,
        key: HashedKey<'_>,
        mode: StoreMode,
        item: &NewItem<'_>,
        conditions: &MetaSet,
        now: Now,
    ) -> (StoreOutcome, usize) {
        self.lock_stripe(key, now).meta_set(key, mode, item, conditions, now)
    }

    /// Removes the item or changes it as the conditions say, and voids the lease; starts no hold-off.
    pub fn meta_delete(&self, key: HashedKey<'_>, conditions: &MetaDelete, now: Now) -> MetaDeleteOutcome {
        self.lock_stripe(key, now).meta_delete(key, conditions, now)
    }

    /// As [`Store::arithmetic`], with conditions, and for items whatever their meta state.
    pub fn meta_arithmetic(
        &self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        conditions: &MetaArithmetic,
        now: Now,
    ) -> MetaArithmeticOutcome {
        self.lock_stripe(key, now).meta_arithmetic(key, direction, delta, conditions, now)
    }

    /// Removes all items that were stored before `at`, which may lie in the future. If `at` has come already, all items
    /// stored before this call are gone when it returns, and none stored later is removed. Up to eight flushes can be
    /// scheduled; `false` if this would be one more, and then nothing is done.
    #[must_use]
    pub fn flush_all(&self, at: Now, now: Now) -> bool {
        let mut is_accepted = true;
        for stripe in 0..self.shared.memory.stripes.len() {
            let mut guard = StripeGuard::lock(&self.shared, stripe, now);
            if at <= now {
                guard.flush();
            } else {
                // A stripe runs a flush with its next verb, so the schedules of stripes may differ for a moment.
                is_accepted &= guard.stripe.flushes.add(at);
                guard.stripe.due_ms = guard.stripe.due_ms.min(at.unix_ms);
            }
        }
        is_accepted
    }

    /// Voids all leases. A token that was issued before this call fills nothing when it returns.
    pub fn void_leases(&self, now: Now) {
        for stripe in 0..self.shared.memory.stripes.len() {
            StripeGuard::lock(&self.shared, stripe, now).void_leases();
        }
    }

    /// Removes items whose timer has ended by `now`, runs flushes that are due, and clears some pages after the memory
    /// limit was lowered. To be called about once a second; each stripe is locked for a moment, one after the other.
    pub fn tick(&self, now: Now) {
        let Shared { memory, reclaimer, .. } = &self.shared;
        for stripe in 0..memory.stripes.len() {
            StripeGuard::lock(&self.shared, stripe, now).advance_wheel(usize::MAX, now);
        }
        let shrink = |attempt| {
            let own = &mut StripeGuard::lock(&self.shared, 0, now).stripe;
            reclaimer.rebalancer.shrink(memory, &reclaimer.evictor, attempt, own, now)
        };
        let _ = (0..SHRUNK_PER_TICK_BYTES / memory.pages.geometry.page_bytes).all(shrink);
    }

    /// Notes which items are stored by now, so that [`Store::item_age`] knows later how old they are. To be called
    /// about once a second; each stripe is locked for a moment, one after the other. `clock` is read before and
    /// afterwards: an item is stored at a time of the caller's choice, so a time that was read before does not bound
    /// it.
    pub fn mark_ages(&self, clock: impl Fn() -> Now) {
        let begun = clock();
        let stripes = self.shared.memory.stripes.iter();
        let sequences = stripes.map(|stripe| lock(&stripe.0).sequence()).collect();
        lock(&self.ages).add(begun, sequences, clock());
    }

    /// How long ago the item with this number was stored. Not to be called while an item is shown.
    pub fn item_age(&self, number: StoreNumber, now: Now) -> ItemAge {
        lock(&self.ages).age(number, now)
    }

    /// Lowers or raises the memory limit, to at most what the options reserve; `false` if it is out of bounds, or if
    /// the system does not give the memory. If more memory is in use, the next stores and [`Store::tick`]s clear pages,
    /// starting with the class of the greatest age. Without evictions, pages whose items cannot be relocated stay.
    #[must_use]
    pub fn set_memory_limit(&self, memory_bytes: usize) -> bool {
        self.shared.memory.pages.set_memory_limit(memory_bytes)
    }

    /// The memory limit, in bytes.
    pub fn memory_limit(&self) -> usize {
        self.shared.memory.pages.memory_limit()
    }

    /// Moves a page from one slab class to another, both by their numbers as in [`ClassStatistics`]. Items accessed
    /// lately move to other pages of their class, the others are evicted.
    pub fn move_page(&self, from: usize, to: usize, now: Now) -> PageMove {
        let Shared { memory, reclaimer, .. } = &self.shared;
        let is_class = |number: usize| (1..=memory.pages.geometry.timer_class()).contains(&number);
        if !is_class(from) || !is_class(to) {
            return PageMove::BadClass;
        }
        let own = &mut StripeGuard::lock(&self.shared, 0, now).stripe;
        reclaimer.rebalancer.move_page(memory, &reclaimer.evictor, from - 1, to - 1, own, now)
    }

    /// Switches automatic page moves on or off ([`Options::rebalance`]).
    pub fn set_rebalance_enabled(&self, is_on: bool) {
        self.shared.reclaimer.rebalancer.is_enabled.store(is_on, Relaxed);
    }

    /// Whether pages move automatically.
    pub fn is_rebalance_enabled(&self) -> bool {
        self.shared.reclaimer.rebalancer.is_enabled.load(Relaxed)
    }

    /// Starts a crawl over one item in `one_in`, chosen by their keys; 1: all items. `None` if there are too many
    /// crawls. When there would be too many, those that made no step for a minute are given up
    /// ([`Crawl::is_given_up`]).
    pub fn start_crawl(&self, one_in: u32, now: Now) -> Option<Crawl> {
        Crawl::start(&self.shared, one_in, now)
    }

    /// Shows the items that were not deleted, up to eight for each of the next `buckets_max` buckets; `false` if the
    /// crawl is at its end. One stripe is locked at a time, for one bucket. `show` must not call the store.
    pub fn crawl(&self, crawl: &mut Crawl, buckets_max: usize, now: Now, show: impl FnMut(CrawlItem<'_>)) -> bool {
        crawl.step(&self.shared, buckets_max, now, show)
    }

    /// Removes items that have expired, of the classes with a number that `wants_class` accepts, from the next
    /// `buckets_max` buckets; `false` if the crawl is at its end. One stripe is locked at a time, for one bucket.
    pub fn reclaim_expired(
        &self,
        crawl: &mut Crawl,
        buckets_max: usize,
        now: Now,
        wants_class: impl Fn(usize) -> bool,
    ) -> (Reclaimed, bool) {
        crawl.reclaim(&self.shared, buckets_max, now, wants_class)
    }

    /// Counters and gauges since the start.
    pub fn statistics(&self) -> Statistics {
        let Shared { memory, reclaimer, .. } = &self.shared;
        let stripes = memory.stripes.iter().map(|stripe| lock(&stripe.0).statistics());
        let unfetched = memory.slabs.counters.iter().map(ClassCounters::unfetched);
        let [evictions_unfetched, expirations_unfetched] =
            unfetched.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        Statistics {
            memory_bytes: memory.pages.memory_bytes() as u64,
            page_moves: reclaimer.rebalancer.page_moves.value(),
            items_moved: reclaimer.rebalancer.items_moved.value(),
            index_bytes: (memory.index.buckets() * index::BUCKET_BYTES) as u64,
            pages_free: memory.pages.pages_free() as u64,
            evictions_unfetched,
            expirations_unfetched,
            ..stripes.fold(Statistics::default(), |sum, one| sum + one)
        }
    }

    /// Sets a hook that is called for each eviction; `false` if one was set before, which then stays.
    pub fn on_eviction(&self, hook: EvictionHook) -> bool {
        self.shared.reclaimer.evictor.hook.set(hook).is_ok()
    }

    /// Statistics of each slab class that is or was in use. Classes are locked one after the other, each while some of
    /// its chunks are sampled.
    pub fn class_statistics(&self, now: Now) -> Vec<ClassStatistics> {
        self.shared.memory.slabs.statistics(&self.shared.memory.pages, self.shared.item_bytes_max, now)
    }

    /// Panics if an invariant of the memory does not hold. For tests; no other call may be under way.
    #[doc(hidden)]
    pub fn audit(&self) {
        audit::audit(&self.shared.memory);
    }

    /// Maps the memory of items and index read-only, so that a write ends the process. For tests.
    #[doc(hidden)]
    pub fn make_read_only(&self) -> std::io::Result<()> {
        self.shared.memory.pages.region.make_read_only()
    }

    /// The hash function of this store, which all keys that are passed to it must be hashed with.
    #[inline]
    pub fn hasher(&self) -> &KeyHasher {
        &self.shared.memory.pages.hasher
    }

    #[inline]
    fn lock_stripe(&self, key: HashedKey<'_>, now: Now) -> StripeGuard<'_> {
        debug_assert_eq!(self.hasher().hash(key.key()).hash(), key.hash(), "the key was hashed for another store");
        StripeGuard::lock(&self.shared, key.stripe(self.shared.memory.pages.geometry.stripe_bits), now)
    }
}

impl Reader<'_> {
    /// Prefetches what look-ups of `keys` will touch: an index line of each, then the item that it names, or else the
    /// key's other line, and last the items named on those. No lock is taken: if an index line is out of date, the
    /// wrong item is fetched. Each key gets a hint of its slot, so that its look-up is shorter. First pass over a
    /// batch; handles 64 keys at a time.
    pub fn prefetch(&self, keys: &mut [HashedKey<'_>]) {
        const KEYS_AT_ONCE: usize = 64;
        let memory = &self.store.shared.memory;
        let (pages, index, region) = (&memory.pages, &memory.index, &memory.pages.region);
        let view = index.view();
        for keys in keys.chunks_mut(KEYS_AT_ONCE) {
            let mut lines = [[0; 2]; KEYS_AT_ONCE];
            for (key, lines) in keys.iter().zip(&mut lines) {
                region::prefetch_for_writing(&memory.stripes[key.stripe(pages.geometry.stripe_bits)]);
                *lines = view.lines(*key);
                region.prefetch(lines[0]);
            }
            let mut missing = 0u64;
            for (place, (key, lines)) in keys.iter_mut().zip(lines).enumerate() {
                match index.find_hint(region, key, lines[0]) {
                    Some(handle) => pages.prefetch(handle),
                    None => {
                        region.prefetch(lines[1]);
                        missing |= 1 << place;
                    }
                }
            }
            while missing != 0 {
                let place = missing.trailing_zeros() as usize;
                missing &= missing - 1;
                if let Some(handle) = index.find_hint(region, &mut keys[place], lines[place][1]) {
                    pages.prefetch(handle);
                }
            }
        }
    }

    /// Shows the live item under `key` to `render`; `None` if there is none. Second pass over a batch.
    #[inline]
    pub fn get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        self.store.lock_stripe(key, self.now).get(key, None, self.now, render)
    }

    /// As [`Reader::get`], and gives the item a new expiry first (`gat`).
    pub fn get_and_touch<R>(
        &self,
        key: HashedKey<'_>,
        expiry: Expiry,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        self.store.lock_stripe(key, self.now).get(key, Some(expiry), self.now, render)
    }

    /// Gives the live item under `key` a new expiry; returns whether there is one.
    pub fn touch(&self, key: HashedKey<'_>, expiry: Expiry) -> bool {
        self.store.lock_stripe(key, self.now).touch(key, expiry, self.now)
    }

    /// As [`Reader::get`], with conditions, and for items whatever their meta state.
    pub fn meta_get<R>(
        &self,
        key: HashedKey<'_>,
        conditions: &MetaGet,
        render: impl FnOnce(MetaGetOutcome<'_>) -> R,
    ) -> Option<R> {
        self.store.lock_stripe(key, self.now).meta_get(key, conditions, self.now, render)
    }

    /// Shows the live item, or a token to fill the miss with, or that another client holds one.
    pub fn lease_get<R>(&self, key: HashedKey<'_>, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        self.store.lock_stripe(key, self.now).lease_get(key, self.now, render)
    }
}

impl Preparation {
    /// As [`Store::attach`], if `is_wanted` returns `true`, which is called when all else is done; else `None`. A
    /// saved region is not written to before, so that another process can still restore it.
    pub fn attach(self, now: Now, is_wanted: impl FnOnce() -> bool) -> Result<Option<(Store, Start)>, RegionError> {
        let attached = self.attach_shared(now, is_wanted)?;
        Ok(attached.map(|(shared, region, start)| (Store::with_shared(shared, Some(region)), start)))
    }
}
