//! What a store knows beside its region, written down when it ends and taken up by the next process (§6.4 of the paper).
//! Items, keys, buckets, free chunks and timer blocks lie in the region already and stay as they are: no item is looked
//! at, so what this costs depends on the number of pages, not of items.
//!
//! ```text
//! state:   index | pool | class x n | stripe x n                                          words of 32 bits
//! index    page ahead? | buckets 2 | page of each run of buckets ..
//! pool     first page never used | free pages | page ..
//! class    pages | hand 2 | look | mean age 2 | tail 2 | (page, first free chunk, carved and taken) ..
//! stripe   items | sequence | flushes | moment 2 .. | floor 2 | hold-offs | (hash 2, until 2) .. | wheel: second, blocks 64
//! ```
//! Not written: leases, so that every token of the earlier life is void; counters, which count one life; what follows
//! from the rest (whose a page is, where chunks are free).
//!
//! What is read has the right checksum, so it is what an earlier process wrote. Page numbers and handles in it are checked
//! all the same, so that nothing outside the region is ever reached for; if one makes no sense, nothing is taken up. That
//! is said of these words alone: the pages have no checksum and are trusted like a process's memory (`warm_restart.rs`).

use crate::Now;
use crate::memory::Memory;
use crate::memory::geometry::Geometry;
use crate::shard::Stripe;
use crate::sync::lock;

/// The parts that there is one of.
const FIXED_WORDS: usize = 8;
/// A page is in the index, in the pool or in a class, where it takes most.
const PAGE_WORDS: usize = 3;
const CLASS_WORDS: usize = 8;
const WORD_BYTES: usize = size_of::<u32>();
/// The area ends where the kernel's pages do.
const AREA_ALIGNMENT_BYTES: usize = 4096;

/// How much room the state of such a store needs at most.
pub(crate) fn area_bytes(memory_bytes: usize, pages: usize, classes: usize, stripes: usize) -> usize {
    let stripe_words = Stripe::state_words_max(memory_bytes / stripes);
    let words = FIXED_WORDS + pages * PAGE_WORDS + classes * CLASS_WORDS + stripes * stripe_words;
    (words * WORD_BYTES).next_multiple_of(AREA_ALIGNMENT_BYTES)
}

/// Words in the order in which they will be read.
#[derive(Default)]
pub(crate) struct StateWriter {
    words: Vec<u32>,
}

impl StateWriter {
    pub fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    pub fn long(&mut self, long: u64) {
        self.words.extend([long as u32, (long >> 32) as u32]);
    }

    /// A count or a place, which never comes near 2^32.
    pub fn count(&mut self, count: usize) {
        self.word(u32::try_from(count).expect("counts of pages, chunks and a stripe's items fit a word"));
    }

    pub fn into_words(self) -> Vec<u32> {
        self.words
    }
}

/// Reads what was written. `None` from any of these: it makes no sense.
pub(crate) struct StateReader<'a> {
    words: &'a [u32],
}

impl<'a> StateReader<'a> {
    pub fn new(words: &'a [u32]) -> StateReader<'a> {
        StateReader { words }
    }

    pub fn word(&mut self) -> Option<u32> {
        let (&word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    pub fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) | u64::from(self.word()?) << 32)
    }

    /// A count of at most so many.
    pub fn count(&mut self, most: usize) -> Option<usize> {
        let count = self.word()? as usize;
        (count <= most).then_some(count)
    }

    pub fn is_at_end(&self) -> bool {
        self.words.is_empty()
    }
}

/// Which pages have been found an owner, so that none has two.
pub(crate) struct PagesTaken(Vec<bool>);

impl PagesTaken {
    /// `None`: there is no such page, or it is somebody's already.
    pub fn take(&mut self, page: u32) -> Option<u32> {
        let is_taken = self.0.get_mut(page as usize)?;
        (!std::mem::replace(is_taken, true)).then_some(page)
    }

    /// Whether all before `fresh` are somebody's, and no other is.
    fn are_those_before(&self, fresh: usize) -> bool {
        self.0.iter().enumerate().all(|(page, &is_taken)| is_taken == (page < fresh))
    }
}

impl Memory {
    /// Writes down the state. No verb may be under way, and none may follow.
    pub fn save(&self, now: Now) -> Vec<u32> {
        let mut state = StateWriter::default();
        let is_page_ahead = self.settle();
        state.word(is_page_ahead.into());
        self.index.save(is_page_ahead, &mut state);
        self.save_pool(&mut state);
        for (class, age) in self.classes.iter().zip(&self.ages) {
            self.save_class(&lock(class), &mut state);
            age.save(&mut state);
        }
        self.stripes.iter().for_each(|stripe| lock(&stripe.0).save(now, &mut state));
        state.into_words()
    }

    /// Takes up a state, in a memory that is new but for its region. After a `None` the memory is good for nothing.
    pub fn restore(&self, words: &[u32]) -> Option<()> {
        let mut state = StateReader::new(words);
        let mut taken = PagesTaken(vec![false; self.geometry.pages]);
        let is_page_ahead = state.count(1)? == 1;
        self.index.restore(is_page_ahead, &mut taken, &mut state)?;
        self.set_index_page_added(is_page_ahead);
        let fresh = self.restore_pool(&mut taken, &mut state)?;
        for (class, age) in self.classes.iter().zip(&self.ages) {
            self.restore_class(&mut lock(class), &mut taken, &mut state)?;
            age.restore(&mut state)?;
        }
        for stripe in &self.stripes {
            lock(&stripe.0).restore(&mut state)?;
        }
        let wheels_are_sound = self.stripes.iter().all(|stripe| self.is_sound(&lock(&stripe.0).wheel));
        (wheels_are_sound && taken.are_those_before(fresh) && state.is_at_end()).then_some(())
    }
}

/// The room for the state, and where it begins in the region.
pub(crate) fn area(geometry: &Geometry) -> std::ops::Range<usize> {
    let begin = geometry.pages * geometry.page_bytes;
    begin..geometry.region_bytes() - crate::warm_restart::superblock::SUPERBLOCK_BYTES
}
