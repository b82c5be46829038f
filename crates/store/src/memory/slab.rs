//! Slab classes: which chunks are free, and which pages a class has. Every store of an item allocates chunks here and
//! frees those of the item that it replaces.
//!
//! A page keeps the list of its own free chunks, so that a page can be given away, or freed once it is empty, without a
//! search. Chunks are carved from the front of a page when they are first needed: the rest of the page is not touched.

use crate::Now;
use crate::memory::age::Age;
use crate::memory::chunk::{ChunkKind, Header, Usage};
use crate::memory::class_counters::ClassCounters;
use crate::memory::geometry::Geometry;
use crate::memory::handle::Handle;
use crate::memory::pages::Pages;
use crate::snapshot_codec::{PageOwners, SnapshotReader, SnapshotWriter};
use crate::sync::{Mutex, lock};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

const NO_CHUNK: u32 = u32::MAX;

/// The chunks of one page. Guarded by the lock of its class.
pub(crate) struct PageRecord {
    /// The first free chunk, as a handle.
    free: AtomicU32,
    chunks_carved: AtomicU16,
    chunks_used: AtomicU16,
}

impl Default for PageRecord {
    fn default() -> Self {
        PageRecord { free: AtomicU32::new(NO_CHUNK), chunks_carved: AtomicU16::new(0), chunks_used: AtomicU16::new(0) }
    }
}

impl PageRecord {
    /// The number of chunks that were ever used: those in front of the rest.
    pub fn chunks_carved(&self) -> usize {
        self.chunks_carved.load(Relaxed).into()
    }

    /// The number of chunks that are not free.
    pub fn chunks_used(&self) -> usize {
        self.chunks_used.load(Relaxed).into()
    }

    fn has_free_chunk(&self, chunks: usize) -> bool {
        self.free.load(Relaxed) != NO_CHUNK || self.chunks_carved() < chunks
    }
}

pub(crate) struct Class {
    pub number: usize,
    /// In the order in which the CLOCK hand visits them. A new page comes right behind the hand, which reaches it last.
    pub pages: Vec<u32>,
    /// The pages with free chunks.
    partial: Vec<u32>,
    /// A page that is being given away: no new item is stored in it.
    pub draining: Option<u32>,
    /// The position of the CLOCK hand: an index into `pages`, a chunk.
    pub hand: (usize, usize),
    pub evictions_until_rebalance: usize,
    /// Chunks allocated in this life of the process.
    pub allocations: u64,
}

impl Class {
    pub fn new(number: usize) -> Class {
        let (pages, partial) = (Vec::new(), Vec::new());
        Class { number, pages, partial, draining: None, hand: (0, 0), evictions_until_rebalance: 1, allocations: 0 }
    }

    /// Adds a page right behind the hand.
    fn insert_page(&mut self, page: u32) {
        match self.hand.0 {
            0 => self.pages.push(page),
            place => {
                self.pages.insert(place, page);
                self.hand.0 += 1;
            }
        }
    }

    /// Removes a page. The order of the others stays: if the last one filled the gap, the newest page would come right
    /// in front of a hand that gives pages away.
    fn remove_page(&mut self, page: u32) {
        let Some(place) = self.pages.iter().position(|&other| other == page) else {
            return;
        };
        self.pages.remove(place);
        if place < self.hand.0 {
            self.hand.0 -= 1;
        } else if place == self.hand.0 {
            self.hand.1 = 0;
        }
        if self.hand.0 >= self.pages.len() {
            self.hand = (0, 0);
        }
    }
}

/// All slab classes; the last is the class of timer blocks.
pub(crate) struct Slabs {
    pub classes: Box<[Mutex<Class>]>,
    /// Published by each class, so that classes can be compared without their locks.
    pub ages: Box<[Age]>,
    pub counters: Box<[ClassCounters]>,
    records: Box<[PageRecord]>,
}

impl Slabs {
    /// Classes without pages.
    pub fn new(geometry: &Geometry, age_exponent: f64) -> Slabs {
        let classes = geometry.chunk_bytes.len();
        Slabs {
            classes: (0..classes).map(|class| Mutex::new(Class::new(class))).collect(),
            ages: geometry.chunk_bytes.iter().map(|&bytes| Age::new(bytes, age_exponent)).collect(),
            counters: (0..classes).map(|_| ClassCounters::default()).collect(),
            records: (0..geometry.pages_max).map(|_| PageRecord::default()).collect(),
        }
    }

    /// The chunks of a page.
    pub fn record(&self, page: u32) -> &PageRecord {
        &self.records[page as usize]
    }

    /// A free chunk, or the first of a free page. It is the caller's until it is published or freed.
    pub fn allocate(&self, pages: &Pages, class: &mut Class, now: Now) -> Option<Handle> {
        if class.partial.is_empty() {
            let page = pages.allocate_page()?;
            self.attach_page(pages, class, page, now);
        }
        self.allocate_in_class(pages, class)
    }

    /// A free chunk of a page that the class has.
    pub fn allocate_in_class(&self, pages: &Pages, class: &mut Class) -> Option<Handle> {
        let page = *class.partial.last()?;
        let record = &self.records[page as usize];
        let chunks = pages.geometry.chunks_per_page(class.number);
        let free = record.free.load(Relaxed);
        let chunk = if free != NO_CHUNK {
            record.free.store(pages.next(Handle(free)), Relaxed);
            Handle(free)
        } else {
            let carved = record.chunks_carved();
            record.chunks_carved.store(carved as u16 + 1, Relaxed);
            Handle::new(page, carved)
        };
        record.chunks_used.store(record.chunks_used() as u16 + 1, Relaxed);
        pages.set_usage(chunk, Usage::allocated());
        if !record.has_free_chunk(chunks) {
            class.partial.pop();
        }
        Some(chunk)
    }

    /// Frees allocated chunks.
    pub fn free_all(&self, pages: &Pages, chunks: &[Handle]) {
        chunks.iter().for_each(|&chunk| self.free(pages, chunk));
    }

    /// Frees an allocated chunk, and its page too if that becomes empty.
    pub fn free(&self, pages: &Pages, chunk: Handle) {
        let mut class = lock(&self.classes[pages.class_of(chunk)]);
        self.free_locked(pages, &mut class, chunk);
    }

    /// As [`Slabs::free`], under the class's lock.
    #[inline(always)]
    pub fn free_locked(&self, pages: &Pages, class: &mut Class, chunk: Handle) {
        let page = chunk.page();
        let record = &self.records[page as usize];
        debug_assert_eq!(pages.usage(chunk).kind(), ChunkKind::Allocated);
        pages.set_usage(chunk, Usage(0));
        record.chunks_used.store(record.chunks_used() as u16 - 1, Relaxed);
        let had_free_chunk = record.has_free_chunk(pages.geometry.chunks_per_page(class.number));
        pages.set_next(chunk, record.free.swap(chunk.0, Relaxed));
        if class.draining == Some(page) {
            return;
        }
        if !had_free_chunk {
            class.partial.push(page);
        }
        if record.chunks_used() == 0 {
            self.detach_page(class, page);
            pages.free_page(page);
        }
    }

    /// Gives a page to the class.
    pub fn attach_page(&self, pages: &Pages, class: &mut Class, page: u32, now: Now) {
        let record = &self.records[page as usize];
        record.free.store(NO_CHUNK, Relaxed);
        record.chunks_carved.store(0, Relaxed);
        record.chunks_used.store(0, Relaxed);
        pages.set_class(page, class.number);
        if class.pages.is_empty() {
            self.ages[class.number].reset(now);
        }
        self.insert_page(class, page);
        class.partial.push(page);
    }

    /// Removes a page from the class's lists: it is being given away, or is empty.
    pub fn detach_page(&self, class: &mut Class, page: u32) {
        class.remove_page(page);
        class.partial.retain(|&other| other != page);
        self.ages[class.number].set_pages(class.pages.len());
    }

    /// Puts a page that was not given away back on the class's lists.
    pub fn reattach_page(&self, pages: &Pages, class: &mut Class, page: u32) {
        self.insert_page(class, page);
        if self.records[page as usize].has_free_chunk(pages.geometry.chunks_per_page(class.number)) {
            class.partial.push(page);
        }
    }

    fn insert_page(&self, class: &mut Class, page: u32) {
        class.insert_page(page);
        self.ages[class.number].set_pages(class.pages.len());
    }

    /// Records the age of an evicted item, unless its time was over anyway: it shows how long items last in the class.
    pub fn record_evicted_age(&self, class: usize, header: &Header, now: Now) {
        if !header.is_stale() && !header.is_expired(now) {
            self.ages[class].record_eviction(header.usage.access_age_s(now), now);
        }
    }

    /// The first free chunk of a page.
    pub fn free_chunk(&self, page: u32) -> Option<Handle> {
        let free = self.records[page as usize].free.load(Relaxed);
        (free != NO_CHUNK).then_some(Handle(free))
    }

    /// The free chunk of the same page after this one.
    pub fn free_chunk_after(&self, pages: &Pages, chunk: Handle) -> Option<Handle> {
        let next = pages.next(chunk);
        (next != NO_CHUNK).then_some(Handle(next))
    }

    /// Whether the handle's chunk has been carved.
    pub fn is_carved(&self, chunk: Handle) -> bool {
        chunk.chunk() < self.records[chunk.page() as usize].chunks_carved()
    }

    /// Saves a class without a draining page.
    pub fn save_class(&self, class: &Class, snapshot: &mut SnapshotWriter) {
        assert!(class.draining.is_none());
        let (place, chunk) = class.hand;
        let counts = [class.pages.len(), place, chunk, class.evictions_until_rebalance];
        counts.into_iter().for_each(|count| snapshot.put_count(count));
        for &page in &class.pages {
            let record = &self.records[page as usize];
            let (carved, used) = (record.chunks_carved.load(Relaxed), record.chunks_used.load(Relaxed));
            snapshot.put_u32(page);
            snapshot.put_u32(record.free.load(Relaxed));
            snapshot.put_u32(u32::from(used) << 16 | u32::from(carved));
        }
    }

    /// Restores what [`Slabs::save_class`] saved.
    pub fn restore_class(
        &self,
        pages: &Pages,
        class: &mut Class,
        owners: &mut PageOwners,
        snapshot: &mut SnapshotReader<'_>,
    ) -> Option<()> {
        let chunks = pages.geometry.chunks_per_page(class.number);
        let page_count = snapshot.get_count(pages.geometry.pages)?;
        let hand = (snapshot.get_count(page_count)?, snapshot.get_count(chunks)?);
        class.evictions_until_rebalance = snapshot.get_count(chunks)?;
        for _ in 0..page_count {
            let page = owners.claim(snapshot.get_u32()?)?;
            let (free, counts) = (snapshot.get_u32()?, snapshot.get_u32()?);
            let (carved, used) = (counts as u16, (counts >> 16) as u16);
            let is_free_chunk = |free: Handle| free.page() == page && free.chunk() < carved.into();
            if usize::from(carved) > chunks || used > carved || free != NO_CHUNK && !is_free_chunk(Handle(free)) {
                return None;
            }
            let record = &self.records[page as usize];
            record.free.store(free, Relaxed);
            record.chunks_carved.store(carved, Relaxed);
            record.chunks_used.store(used, Relaxed);
            pages.set_class(page, class.number);
            self.reattach_page(pages, class, page);
        }
        class.hand = if hand.0 < page_count { hand } else { (0, 0) };
        Some(())
    }

    /// Whether the free list of each page of a restored class has all its carved chunks that are not used, and nothing
    /// else. The links lie in the chunks, which have no checksum. Reads the header of each free chunk.
    pub fn are_free_lists_sound(&self, pages: &Pages, class: &Class) -> bool {
        class.pages.iter().all(|&page| self.is_free_list_sound(pages, page))
    }

    fn is_free_list_sound(&self, pages: &Pages, page: u32) -> bool {
        let record = &self.records[page as usize];
        let mut next = record.free.load(Relaxed);
        // A list with a cycle has no end, so it cannot have an end after this many chunks.
        for _ in record.chunks_used()..record.chunks_carved() {
            let chunk = Handle(next);
            let is_here = chunk.page() == page && chunk.chunk() < record.chunks_carved();
            if next == NO_CHUNK || !is_here || pages.usage(chunk) != Usage(0) {
                return false;
            }
            next = pages.next(chunk);
        }
        next == NO_CHUNK
    }

    /// The number of chunks that a class uses.
    pub fn chunks_used(&self, class: &Class) -> usize {
        class.pages.iter().map(|&page| self.records[page as usize].chunks_used()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages in the order in which the hand visits them.
    fn order(class: &Class) -> Vec<u32> {
        let (before, from) = class.pages.split_at(class.hand.0);
        [from, before].concat()
    }

    #[test]
    fn the_hand_reaches_a_new_page_last() {
        let mut class = Class::new(0);
        (1..=4).for_each(|page| class.insert_page(page));
        assert_eq!(order(&class), [1, 2, 3, 4]);
        class.hand = (2, 7);
        class.insert_page(5);
        assert_eq!((order(&class), class.hand.1), (vec![3, 4, 1, 2, 5], 7));
    }

    /// Once a page that left was replaced by the last one, which was the newest: classes that gained and gave pages
    /// evicted the items stored last, and kept unused items for ever.
    #[test]
    fn removing_a_page_keeps_the_order_of_the_others() {
        let mut class = Class::new(0);
        (1..=6).for_each(|page| class.insert_page(page));
        class.hand = (2, 7);
        class.remove_page(4);
        assert_eq!((order(&class), class.hand.1), (vec![3, 5, 6, 1, 2], 7));
        class.remove_page(1);
        assert_eq!((order(&class), class.hand.1), (vec![3, 5, 6, 2], 7));
        class.remove_page(3);
        assert_eq!((order(&class), class.hand.1), (vec![5, 6, 2], 0));
        class.hand = (2, 7);
        class.remove_page(6);
        assert_eq!((order(&class), class.hand.1), (vec![2, 5], 0));
    }
}
