//! Slab classes: which chunks are free, and which pages a class holds. Every store of an item takes chunks here and gives
//! back those of the item that it replaces.
//!
//! A page keeps the list of its own free chunks, so that a page can be given away, or return to the pool once nothing
//! is left in it, without a search. Chunks are carved from the front of a page when they are first needed: the rest
//! of the page is not touched.
//!
//! Whom to evict when nothing is free: `eviction.rs`. Which class deserves a page more: `rebalance.rs`.

use crate::Now;
use crate::memory::chunk::{Handle, State, Usage};
use crate::memory::{Memory, chunk_of, handle, page_of};
use crate::reclaim::rebalance;
use crate::shard::{NoRoom, Stripe};
use crate::sync::lock;
use crate::warm_restart::snapshot::{PagesTaken, StateReader, StateWriter};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering::Relaxed};

/// How often a store looks for room in a class, with pages brought in between, before it gives up.
const ATTEMPTS_MAX: usize = 4;
const NO_CHUNK: u32 = u32::MAX;

/// What is known of a page. Guarded by the lock of its class.
pub(crate) struct PageRecord {
    /// The first free chunk, as a handle.
    free: AtomicU32,
    carved: AtomicU16,
    taken: AtomicU16,
}

impl Default for PageRecord {
    fn default() -> Self {
        PageRecord { free: AtomicU32::new(NO_CHUNK), carved: AtomicU16::new(0), taken: AtomicU16::new(0) }
    }
}

impl PageRecord {
    /// Chunks before this one have been used.
    pub fn carved(&self) -> usize {
        self.carved.load(Relaxed).into()
    }

    /// How many chunks are not free.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed).into()
    }

    fn has_room(&self, chunks: usize) -> bool {
        self.free.load(Relaxed) != NO_CHUNK || self.carved() < chunks
    }
}

/// One slab class.
pub(crate) struct Class {
    pub class: usize,
    /// In the order in which the hand goes around them. A new page comes right behind the hand, which reaches it last.
    pub pages: Vec<u32>,
    /// Those of its pages in which chunks are free.
    partial: Vec<u32>,
    /// A page that is to be given away: nothing new goes in.
    pub draining: Option<u32>,
    /// Where eviction looks next: a place in `pages`, a chunk.
    pub hand: (usize, usize),
    pub evictions_until_look: usize,
    /// Chunks handed out in this life of the process.
    pub allocations: u64,
}

impl Class {
    pub fn new(class: usize) -> Class {
        let (pages, partial) = (Vec::new(), Vec::new());
        Class { class, pages, partial, draining: None, hand: (0, 0), evictions_until_look: 1, allocations: 0 }
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

    /// Takes a page out. The order of the others stays: were the last put in its place, then the newest page would come
    /// right before a hand that gives pages away.
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

impl Memory {
    /// A chunk of `class`, for whose sake others may be evicted. It is the caller's until it is published or freed.
    pub fn allocate(&self, class: usize, own: &mut Stripe, now: Now) -> Result<Handle, NoRoom> {
        for _ in 0..ATTEMPTS_MAX {
            let mut spoils = Vec::new();
            let mut guard = lock(&self.classes[class]);
            if let Some(free) = self.take_free(&mut guard, now) {
                guard.allocations += 1;
                return Ok(free);
            }
            let swept = self.sweep(&mut guard, own, &mut spoils, now);
            guard.allocations += u64::from(swept.is_some());
            let wants_more = swept.is_some() && rebalance::is_time_to_look(&mut guard, &self.geometry);
            drop(guard);
            self.free_all(&spoils);
            match swept {
                Some(chunk) => {
                    self.rebalance(class, wants_more, own, now);
                    return Ok(chunk);
                }
                None => self.seize_page(Some(class), own, now)?,
            }
        }
        self.class_counters[class].refusals.fetch_add(1, Relaxed);
        Err(NoRoom)
    }

    /// A chunk that nobody holds, or the first of a page that nobody holds.
    pub fn take_free(&self, class: &mut Class, now: Now) -> Option<Handle> {
        if class.partial.is_empty() {
            let page = self.take_page()?;
            self.attach(class, page, now);
        }
        self.take_free_here(class)
    }

    /// A free chunk of a page that the class has.
    pub fn take_free_here(&self, class: &mut Class) -> Option<Handle> {
        let page = *class.partial.last()?;
        let record = &self.page_records[page as usize];
        let chunks = self.geometry.chunks_per_page(class.class);
        let free = record.free.load(Relaxed);
        let chunk = if free != NO_CHUNK {
            record.free.store(self.next(Handle(free)), Relaxed);
            Handle(free)
        } else {
            let carved = record.carved();
            record.carved.store(carved as u16 + 1, Relaxed);
            handle(page, carved)
        };
        record.taken.store(record.taken() as u16 + 1, Relaxed);
        self.set_usage(chunk, Usage::taken());
        if !record.has_room(chunks) {
            class.partial.pop();
        }
        Some(chunk)
    }

    /// Gives chunks back.
    pub fn free_all(&self, chunks: &[Handle]) {
        chunks.iter().for_each(|&chunk| self.free(chunk));
    }

    /// Gives a chunk back that was taken, and its page too if that was the last one in it.
    pub fn free(&self, chunk: Handle) {
        let mut class = lock(&self.classes[self.class_of(chunk)]);
        self.free_in(&mut class, chunk);
    }

    /// As [`Memory::free`], under the class's lock.
    pub fn free_in(&self, class: &mut Class, chunk: Handle) {
        let page = page_of(chunk);
        let record = &self.page_records[page as usize];
        debug_assert_eq!(self.usage(chunk).state(), State::Taken);
        self.set_usage(chunk, Usage(0));
        record.taken.store(record.taken() as u16 - 1, Relaxed);
        let had_room = record.has_room(self.geometry.chunks_per_page(class.class));
        self.set_next(chunk, record.free.swap(chunk.0, Relaxed));
        if class.draining == Some(page) {
            return;
        }
        if !had_room {
            class.partial.push(page);
        }
        if record.taken() == 0 {
            self.detach(class, page);
            self.return_page(page);
        }
    }

    /// Makes a page the class's own.
    pub fn attach(&self, class: &mut Class, page: u32, now: Now) {
        let record = &self.page_records[page as usize];
        record.free.store(NO_CHUNK, Relaxed);
        record.carved.store(0, Relaxed);
        record.taken.store(0, Relaxed);
        self.set_page_class(page, class.class);
        if class.pages.is_empty() {
            self.ages[class.class].begin(now);
        }
        self.list(class, page);
        class.partial.push(page);
    }

    /// Takes a page off the class's lists: it will be given away, or is.
    pub fn detach(&self, class: &mut Class, page: u32) {
        class.remove_page(page);
        class.partial.retain(|&other| other != page);
        self.ages[class.class].set_pages(class.pages.len());
    }

    /// A page that was to be given away stays after all.
    pub fn keep(&self, class: &mut Class, page: u32) {
        self.list(class, page);
        if self.page_records[page as usize].has_room(self.geometry.chunks_per_page(class.class)) {
            class.partial.push(page);
        }
    }

    fn list(&self, class: &mut Class, page: u32) {
        class.insert_page(page);
        self.ages[class.class].set_pages(class.pages.len());
    }

    /// The first free chunk of a page.
    pub fn free_chunk(&self, page: u32) -> Option<Handle> {
        let free = self.page_records[page as usize].free.load(Relaxed);
        (free != NO_CHUNK).then_some(Handle(free))
    }

    /// The free chunk of the same page after this one.
    pub fn free_chunk_after(&self, chunk: Handle) -> Option<Handle> {
        let next = self.next(chunk);
        (next != NO_CHUNK).then_some(Handle(next))
    }

    /// Writes down a class from which no page is being taken.
    pub fn save_class(&self, class: &Class, state: &mut StateWriter) {
        assert!(class.draining.is_none());
        let (place, chunk) = class.hand;
        [class.pages.len(), place, chunk, class.evictions_until_look].into_iter().for_each(|count| state.count(count));
        for &page in &class.pages {
            let record = &self.page_records[page as usize];
            let (carved, taken) = (record.carved.load(Relaxed), record.taken.load(Relaxed));
            state.word(page);
            state.word(record.free.load(Relaxed));
            state.word(u32::from(taken) << 16 | u32::from(carved));
        }
    }

    /// Takes up what was written down.
    pub fn restore_class(
        &self,
        class: &mut Class,
        pages_taken: &mut PagesTaken,
        state: &mut StateReader<'_>,
    ) -> Option<()> {
        let chunks = self.geometry.chunks_per_page(class.class);
        let pages = state.count(self.geometry.pages)?;
        let hand = (state.count(pages)?, state.count(chunks)?);
        class.evictions_until_look = state.count(chunks)?;
        for _ in 0..pages {
            let page = pages_taken.take(state.word()?)?;
            let (free, counts) = (state.word()?, state.word()?);
            let (carved, taken) = (counts as u16, (counts >> 16) as u16);
            let is_free_chunk = |free: Handle| page_of(free) == page && chunk_of(free) < carved.into();
            if usize::from(carved) > chunks || taken > carved || free != NO_CHUNK && !is_free_chunk(Handle(free)) {
                return None;
            }
            let record = &self.page_records[page as usize];
            record.free.store(free, Relaxed);
            record.carved.store(carved, Relaxed);
            record.taken.store(taken, Relaxed);
            self.set_page_class(page, class.class);
            self.keep(class, page);
        }
        class.hand = if hand.0 < pages { hand } else { (0, 0) };
        Some(())
    }

    /// The chunk number of a handle is below what has been carved of its page.
    pub fn is_carved(&self, chunk: Handle) -> bool {
        chunk_of(chunk) < self.page_records[page_of(chunk) as usize].carved()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages in the order in which the hand comes to them.
    fn order(class: &Class) -> Vec<u32> {
        let (before, from) = class.pages.split_at(class.hand.0);
        [from, before].concat()
    }

    #[test]
    fn a_new_page_gets_a_whole_round() {
        let mut class = Class::new(0);
        (1..=4).for_each(|page| class.insert_page(page));
        assert_eq!(order(&class), [1, 2, 3, 4]);
        class.hand = (2, 7);
        class.insert_page(5);
        assert_eq!((order(&class), class.hand.1), (vec![3, 4, 1, 2, 5], 7));
    }

    /// Pages used to change places with the last one, which was the newest: classes that took and gave pages evicted
    /// what had just been stored, and kept for ever what nobody asked for.
    #[test]
    fn a_page_that_leaves_brings_no_other_in_front_of_the_hand() {
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
