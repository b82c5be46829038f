//! What all stripes share: the region, cut into equal pages, and who holds which page.
//!
//! ```text
//! region:  | page 0: index | page | page | page | ...                       | never used yet |
//!              |              |      +- slab page of a class: chunk | chunk | ... | not carved yet
//!              |              +- free, in the pool
//!              +- buckets of the index (index.rs)
//! ```
//! A handle names a page and a chunk in it. Every byte that the store takes is counted against the memory limit: the
//! region as a whole never exceeds it, together with what stripes and lists take beside it.
//!
//! Lock order, for the whole crate: one stripe; then the mover (`rebalance.rs`); then one class of items; then the class of
//! timers, which an item that is carried over needs for its timer (`transient.rs`); then the pool. A second stripe is only
//! ever tried for, never waited for: whoever evicts holds a class and looks for a victim whose stripe happens to be free.

pub(crate) mod audit;
pub(crate) mod chunk;
pub(crate) mod geometry;
pub(crate) mod index;
pub(crate) mod region;
pub(crate) mod slab;
pub(crate) mod slab_stats;
pub(crate) mod sysv_shm;
pub(crate) mod transient;

use crate::memory::chunk::Handle;
use crate::memory::geometry::{CHUNK_BITS, Geometry};
use crate::memory::index::Index;
use crate::memory::region::Region;
use crate::memory::slab::{Class, PageRecord};
use crate::memory::slab_stats::ClassCounters;
use crate::options::Options;
use crate::reclaim::eviction::EvictionHook;
use crate::reclaim::rebalance::{Age, Mover};
use crate::shard::{Lane, Stripe};
use crate::sync::{Mutex, lock, meet, try_lock};
use crate::warm_restart::snapshot::{PagesTaken, StateReader, StateWriter};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A limit that leaves fewer pages than this, beside what is taken for lists and stripes, is refused.
const LOWERED_PAGES_MIN: usize = 64;

/// A page of this kind belongs to no class.
const KIND_NONE: u8 = u8::MAX;

/// The memory of a store, and the locks around its parts.
pub(crate) struct Memory {
    pub region: Region,
    pub geometry: Geometry,
    pub index: Index,
    pub stripes: Box<[Lane]>,
    pub classes: Box<[Mutex<Class>]>,
    /// What each class publishes about itself, so that classes can be compared without their locks.
    pub ages: Box<[Age]>,
    pub class_counters: Box<[ClassCounters]>,
    pub mover: Mutex<Mover>,
    pub page_records: Box<[PageRecord]>,
    pub is_rebalanced: AtomicBool,
    pub age_exponent: f64,
    pub item_bytes_max: usize,
    memory_bytes_max: usize,
    /// The limit as it was set last.
    memory_limit: AtomicUsize,
    pub stale_ms: u64,
    pub transient_s: u32,
    /// A timer was not begun for want of a page.
    pub timers_want_page: AtomicBool,
    pub page_moves: AtomicU64,
    pub items_moved: AtomicU64,
    page_kinds: Box<[AtomicU8]>,
    /// The chunk size of each page, so that a handle becomes a place with one look.
    page_chunk_bytes: Box<[AtomicU32]>,
    page_shift: u32,
    pool: Mutex<Pool>,
    pages_used: AtomicU32,
    /// So many pages may be used: fewer than there are while the limit is lowered.
    pages_max: AtomicU32,
    /// Who is told of evictions.
    /// All items, up to an eighth behind.
    pub items: AtomicUsize,
    pub on_eviction: OnceLock<EvictionHook>,
}

/// Pages that nobody holds.
struct Pool {
    free: Vec<u32>,
    /// Pages from here on were never used, and are not resident.
    fresh: u32,
}

impl Memory {
    /// An empty memory in a region that has the geometry's size.
    pub fn new(options: &Options, geometry: Geometry, stripes: Box<[Lane]>, region: Region) -> Memory {
        let classes_count = geometry.chunk_bytes.len();
        Memory {
            index: Index::new(&geometry),
            stripes,
            classes: (0..classes_count).map(|class| Mutex::new(Class::new(class))).collect(),
            ages: geometry.chunk_bytes.iter().map(|&bytes| Age::new(bytes, options.age_exponent)).collect(),
            class_counters: (0..classes_count).map(|_| ClassCounters::default()).collect(),
            mover: Mutex::default(),
            page_records: (0..geometry.pages).map(|_| PageRecord::default()).collect(),
            is_rebalanced: AtomicBool::new(options.rebalance),
            age_exponent: options.age_exponent,
            item_bytes_max: options.item_bytes_max,
            memory_bytes_max: options.memory_bytes_max,
            memory_limit: AtomicUsize::new(options.memory_bytes_max),
            stale_ms: options.stale_ms.into(),
            transient_s: options.transient_s.min(crate::memory::transient::TRANSIENT_S_MAX),
            timers_want_page: AtomicBool::new(false),
            page_moves: AtomicU64::new(0),
            items_moved: AtomicU64::new(0),
            page_kinds: (0..geometry.pages).map(|_| AtomicU8::new(KIND_NONE)).collect(),
            page_chunk_bytes: (0..geometry.pages).map(|_| AtomicU32::new(0)).collect(),
            page_shift: geometry.page_bytes.ilog2(),
            pool: Mutex::new(Pool { free: Vec::new(), fresh: 1 }),
            pages_used: AtomicU32::new(1),
            pages_max: AtomicU32::new(geometry.pages as u32),
            items: AtomicUsize::new(0),
            on_eviction: OnceLock::new(),
            region,
            geometry,
        }
    }

    /// Where a chunk begins in the region.
    #[inline]
    pub fn at(&self, handle: Handle) -> usize {
        let page = (handle.0 >> CHUNK_BITS) as usize;
        let chunk = (handle.0 & ((1 << CHUNK_BITS) - 1)) as usize;
        (page << self.page_shift) + chunk * self.page_chunk_bytes[page].load(Relaxed) as usize
    }

    /// The class whose page the chunk lies in. The page must be a class's.
    #[inline]
    pub fn class_of(&self, handle: Handle) -> usize {
        usize::from(self.page_kinds[page_of(handle) as usize].load(Relaxed))
    }

    /// Asks the processor for an item. A hint: nothing is locked, so the handle may be out of date.
    #[inline]
    pub fn prefetch(&self, handle: Handle) {
        /// As far as a header, a key and a small value reach. What follows in a larger item the processor's own
        /// prefetching finds.
        const PREFETCH_BYTES_MAX: usize = 256;
        const LINE_BYTES: usize = 64;
        meet();
        let page = page_of(handle) as usize;
        let Some(chunk_bytes) = self.page_chunk_bytes.get(page) else { return };
        let chunk_bytes = chunk_bytes.load(Relaxed) as usize;
        let at = (page << self.page_shift) + chunk_of(handle) * chunk_bytes;
        let lines = (0..chunk_bytes.min(PREFETCH_BYTES_MAX)).step_by(LINE_BYTES);
        lines.for_each(|line| self.region.prefetch(at + line));
    }

    /// The class of the page that a handle names, if it has one: for handles that may be out of date.
    pub fn class_if_any(&self, handle: Handle) -> Option<usize> {
        meet();
        let kind = usize::from(self.page_kinds.get(page_of(handle) as usize)?.load(Relaxed));
        (kind < self.classes.len()).then_some(kind)
    }

    /// A page that nobody holds.
    pub fn take_page(&self) -> Option<u32> {
        let mut pool = lock(&self.pool);
        if self.pages_used.load(Relaxed) >= self.pages_max.load(Relaxed) {
            return None;
        }
        let page = match pool.free.pop() {
            Some(page) => page,
            None if (pool.fresh as usize) < self.geometry.pages => {
                pool.fresh += 1;
                pool.fresh - 1
            }
            None => return None,
        };
        self.pages_used.fetch_add(1, Relaxed);
        Some(page)
    }

    /// Gives a page back.
    pub fn return_page(&self, page: u32) {
        self.page_kinds[page as usize].store(KIND_NONE, Relaxed);
        self.pages_used.fetch_sub(1, Relaxed);
        if self.is_lowered() {
            self.release(page);
        }
        lock(&self.pool).free.push(page);
    }

    fn is_lowered(&self) -> bool {
        (self.pages_max.load(Relaxed) as usize) < self.geometry.pages
    }

    fn release(&self, page: u32) {
        self.region.release(page as usize * self.geometry.page_bytes, self.geometry.page_bytes);
    }

    /// How many pages are used beyond the limit.
    pub fn pages_over(&self) -> usize {
        self.pages_used.load(Relaxed).saturating_sub(self.pages_max.load(Relaxed)) as usize
    }

    /// What the store may take.
    pub fn memory_limit(&self) -> usize {
        self.memory_limit.load(Relaxed)
    }

    /// Lowers the limit, or raises it again; says whether it can be so. Pages that nobody holds go back to the system at
    /// once, others as they are cleared.
    pub fn set_memory_limit(&self, memory_bytes: usize) -> bool {
        let for_pages_bytes = memory_bytes.saturating_sub(self.geometry.fixed_bytes);
        let pages = (for_pages_bytes / self.geometry.page_bytes).min(self.geometry.pages);
        if memory_bytes > self.memory_bytes_max || pages < LOWERED_PAGES_MIN {
            return false;
        }
        // Together, so that of two changes at once one is the last in both; the pool is what asks for the second.
        let mut pool = lock(&self.pool);
        self.memory_limit.store(memory_bytes, Relaxed);
        self.pages_max.store(pages as u32, Relaxed);
        let is_lowered = self.is_lowered();
        // Taken out meanwhile: whoever needs one of them evicts instead.
        let free = if is_lowered { std::mem::take(&mut pool.free) } else { Vec::new() };
        drop(pool);
        if is_lowered {
            free.iter().for_each(|&page| self.release(page));
            lock(&self.pool).free.extend(free);
        }
        true
    }

    pub fn set_page_class(&self, page: u32, class: usize) {
        self.page_kinds[page as usize].store(class as u8, Relaxed);
        self.page_chunk_bytes[page as usize].store(self.geometry.chunk_bytes[class] as u32, Relaxed);
    }

    /// The page now belongs to no class.
    pub fn unset_page_class(&self, page: u32) {
        self.page_kinds[page as usize].store(KIND_NONE, Relaxed);
    }

    /// Writes down which pages nobody holds.
    pub fn save_pool(&self, state: &mut StateWriter) {
        let pool = lock(&self.pool);
        state.word(pool.fresh);
        state.count(pool.free.len());
        pool.free.iter().for_each(|&page| state.word(page));
    }

    /// Takes up what was written down; says from which page on none was ever used.
    pub fn restore_pool(&self, taken: &mut PagesTaken, state: &mut StateReader<'_>) -> Option<usize> {
        let fresh = state.count(self.geometry.pages)?;
        let free = (0..state.count(fresh)?).map(|_| taken.take(state.word()?)).collect::<Option<Vec<_>>>()?;
        self.pages_used.store((fresh - free.len()) as u32, Relaxed);
        *lock(&self.pool) = Pool { free, fresh: fresh as u32 };
        Some(fresh)
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> usize {
        self.geometry.pages - self.pages_used.load(Relaxed) as usize
    }

    /// All that the store takes.
    pub fn memory_bytes(&self) -> usize {
        self.geometry.fixed_bytes + self.pages_used.load(Relaxed) as usize * self.geometry.page_bytes
    }

    /// Runs `act` on a stripe if it is `own`, or if nobody holds it.
    pub fn try_stripe<R>(&self, lane: usize, own: &mut Stripe, act: impl FnOnce(&mut Stripe) -> R) -> Option<R> {
        if lane == own.lane {
            return Some(act(own));
        }
        try_lock(&self.stripes[lane].0).map(|mut stripe| act(&mut stripe))
    }
}

pub(crate) fn page_of(handle: Handle) -> u32 {
    handle.0 >> CHUNK_BITS
}

pub(crate) fn chunk_of(handle: Handle) -> usize {
    (handle.0 & ((1 << CHUNK_BITS) - 1)) as usize
}

pub(crate) fn handle(page: u32, chunk: usize) -> Handle {
    Handle(page << CHUNK_BITS | chunk as u32)
}
