//! The region, cut into equal pages, and which slab class holds which page.
//!
//! ```text
//! region:  | page 0: index | page | page | page | ...                       | never used yet |
//!              |              |      +- slab page of a class: chunk | chunk | ... | not carved yet
//!              |              +- free
//!              +- buckets of the index (index.rs)
//! ```
//! Every byte that the store uses is counted against the memory limit: pages, and the stripes and lists beside them.

use crate::memory::geometry::Geometry;
use crate::memory::handle::Handle;
use crate::memory::key::KeyHasher;
use crate::memory::region::Region;
use crate::options::Options;
use crate::snapshot_codec::{PageOwners, SnapshotReader, SnapshotWriter};
use crate::sync::{Mutex, lock, yield_point};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// A limit that leaves fewer pages than this, beside lists and stripes, is refused.
const LOWERED_PAGES_MIN: usize = 64;

/// A page of this kind belongs to no class.
const KIND_NONE: u8 = u8::MAX;

pub(crate) struct Pages {
    pub region: Region,
    pub geometry: Geometry,
    /// The hash of the keys in these pages.
    pub hasher: KeyHasher,
    kinds: Box<[AtomicU8]>,
    /// The chunk size of each page, so that one load turns a handle into an offset.
    chunk_bytes: Box<[AtomicU32]>,
    page_shift: u32,
    free: Mutex<FreePages>,
    used: AtomicU32,
    /// The number of pages that may be used: fewer than there are while the limit is below the highest so far.
    used_max: AtomicU32,
    /// The most that it has ever been.
    pages_highest: AtomicU32,
    /// The highest limit that can be set.
    memory_bytes_max: usize,
    /// The limit as it was last set.
    memory_limit: AtomicUsize,
}

/// Pages without an owner.
struct FreePages {
    returned: Vec<u32>,
    /// Pages from here on were never used, and are not resident.
    fresh: u32,
    /// The number of pages that the region has.
    pages: usize,
}

impl Pages {
    /// Free pages in a region that has the geometry's size.
    pub fn new(options: &Options, geometry: Geometry, region: Region) -> Pages {
        Pages {
            kinds: (0..geometry.pages_max).map(|_| AtomicU8::new(KIND_NONE)).collect(),
            chunk_bytes: (0..geometry.pages_max).map(|_| AtomicU32::new(0)).collect(),
            page_shift: geometry.page_bytes.ilog2(),
            free: Mutex::new(FreePages { returned: Vec::new(), fresh: 1, pages: geometry.pages }),
            used: AtomicU32::new(1),
            used_max: AtomicU32::new(geometry.pages as u32),
            pages_highest: AtomicU32::new(geometry.pages as u32),
            memory_bytes_max: match geometry.pages_max > geometry.pages {
                true => options.memory_bytes_reserved,
                false => options.memory_bytes_max,
            },
            memory_limit: AtomicUsize::new(options.memory_bytes_max),
            hasher: KeyHasher::new(options.hash_seed),
            region,
            geometry,
        }
    }

    /// The offset of a chunk in the region.
    #[inline]
    pub fn offset_of(&self, handle: Handle) -> usize {
        let page = handle.page() as usize;
        (page << self.page_shift) + handle.chunk() * self.chunk_bytes[page].load(Relaxed) as usize
    }

    /// The class of the chunk's page. The page must belong to a class.
    #[inline]
    pub fn class_of(&self, handle: Handle) -> usize {
        usize::from(self.kinds[handle.page() as usize].load(Relaxed))
    }

    /// Prefetches an item. A hint: nothing is locked, so the handle may be out of date.
    #[inline]
    pub fn prefetch(&self, handle: Handle) {
        /// Covers a header, a key and a small value. The processor's own prefetcher finds the rest of a larger item.
        const PREFETCH_BYTES_MAX: usize = 256;
        const LINE_BYTES: usize = 64;
        yield_point();
        let page = handle.page() as usize;
        let Some(chunk_bytes) = self.chunk_bytes.get(page) else { return };
        let chunk_bytes = chunk_bytes.load(Relaxed) as usize;
        let at = (page << self.page_shift) + handle.chunk() * chunk_bytes;
        let lines = (0..chunk_bytes.min(PREFETCH_BYTES_MAX)).step_by(LINE_BYTES);
        lines.for_each(|line| self.region.prefetch(at + line));
    }

    /// The class of the handle's page, if it belongs to one: for handles that may be out of date.
    pub fn class_if_any(&self, handle: Handle) -> Option<usize> {
        yield_point();
        let kind = usize::from(self.kinds.get(handle.page() as usize)?.load(Relaxed));
        (kind < self.geometry.chunk_bytes.len()).then_some(kind)
    }

    /// Takes a free page.
    pub fn allocate_page(&self) -> Option<u32> {
        let mut free = lock(&self.free);
        if self.used.load(Relaxed) >= self.used_max.load(Relaxed) {
            return None;
        }
        let page = match free.returned.pop() {
            Some(page) => page,
            None if (free.fresh as usize) < free.pages => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        self.used.fetch_add(1, Relaxed);
        Some(page)
    }

    /// Makes a page free.
    pub fn free_page(&self, page: u32) {
        self.unset_class(page);
        self.used.fetch_sub(1, Relaxed);
        if self.is_limit_lowered() {
            self.discard(page);
        }
        lock(&self.free).returned.push(page);
    }

    fn is_limit_lowered(&self) -> bool {
        self.used_max.load(Relaxed) < self.pages_highest.load(Relaxed)
    }

    fn discard(&self, page: u32) {
        self.region.discard(page as usize * self.geometry.page_bytes, self.geometry.page_bytes);
    }

    /// The number of pages in use beyond the limit.
    pub fn pages_over_limit(&self) -> usize {
        self.used.load(Relaxed).saturating_sub(self.used_max.load(Relaxed)) as usize
    }

    /// The memory limit, in bytes.
    pub fn memory_limit(&self) -> usize {
        self.memory_limit.load(Relaxed)
    }

    /// Sets the limit; `false` if it is out of bounds, or if the system does not give the memory. Free pages go back to
    /// the system at once, others as they are cleared.
    pub fn set_memory_limit(&self, memory_bytes: usize) -> bool {
        let for_pages_bytes = memory_bytes.saturating_sub(self.geometry.fixed_bytes);
        let pages = (for_pages_bytes / self.geometry.page_bytes).min(self.geometry.pages_max);
        if memory_bytes > self.memory_bytes_max || pages < LOWERED_PAGES_MIN {
            return false;
        }
        // Both under one lock, so that of two concurrent changes the same one is last in both; allocations read the
        // second under this lock.
        let mut free = lock(&self.free);
        if pages > free.pages {
            if self.region.grow(pages * self.geometry.page_bytes).is_err() {
                return false;
            }
            free.pages = pages;
            self.pages_highest.store(pages as u32, Relaxed);
        }
        self.memory_limit.store(memory_bytes, Relaxed);
        self.used_max.store(pages as u32, Relaxed);
        let is_lowered = self.is_limit_lowered();
        // The free pages are off the list while they are discarded: a thread that needs one meanwhile evicts instead.
        let discarded = if is_lowered { std::mem::take(&mut free.returned) } else { Vec::new() };
        drop(free);
        if is_lowered {
            discarded.iter().for_each(|&page| self.discard(page));
            lock(&self.free).returned.extend(discarded);
        }
        true
    }

    pub fn set_class(&self, page: u32, class: usize) {
        self.kinds[page as usize].store(class as u8, Relaxed);
        self.chunk_bytes[page as usize].store(self.geometry.chunk_bytes[class] as u32, Relaxed);
    }

    /// The page belongs to no class from now on.
    pub fn unset_class(&self, page: u32) {
        self.kinds[page as usize].store(KIND_NONE, Relaxed);
    }

    /// The number of free pages that may be used.
    pub fn pages_free(&self) -> usize {
        self.used_max.load(Relaxed).saturating_sub(self.used.load(Relaxed)) as usize
    }

    /// All memory that the store uses, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.geometry.fixed_bytes + self.used.load(Relaxed) as usize * self.geometry.page_bytes
    }

    /// Saves which pages are free.
    pub fn save(&self, snapshot: &mut SnapshotWriter) {
        let free = lock(&self.free);
        snapshot.put_u32(free.fresh);
        snapshot.put_count(free.returned.len());
        free.returned.iter().for_each(|&page| snapshot.put_u32(page));
    }

    /// Restores which pages are free; returns the first page that was never used.
    pub fn restore(&self, owners: &mut PageOwners, snapshot: &mut SnapshotReader<'_>) -> Option<usize> {
        let fresh = snapshot.get_count(self.geometry.pages)?;
        let returned = (0..snapshot.get_count(fresh)?).map(|_| owners.claim(snapshot.get_u32()?));
        let returned = returned.collect::<Option<Vec<_>>>()?;
        self.used.store((fresh - returned.len()) as u32, Relaxed);
        *lock(&self.free) = FreePages { returned, fresh: fresh as u32, pages: self.geometry.pages };
        Some(fresh)
    }
}
