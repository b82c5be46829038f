//! The transient item cache (§6.3 of the paper): an item with a short exptime leaves memory in the second in which it
//! expires, instead of taking room until eviction comes by. Stale values whose time is over leave in the same way.
//!
//! ```text
//! stripe:  wheel of 64 seconds -> block -> block -> ..      block: | . | next | entries | usage | entry x 30
//!                                                           entry: | handle | first word of the item |
//! ```
//! An entry is a note, not a link: items know nothing of it. When its second has come, the chunk is looked at; if it
//! holds another item by now, whose first word differs, or one that was given more time, the note was out of date.
//! Blocks lie in pages of their own class and are counted like all memory; when items hold all pages, one is taken from
//! them. When there are too many blocks, items are left to be found by eviction or by who asks for them.
//!
//! A wheel turns with the verbs that come to its stripe, [`BLOCKS_PER_VERB_MAX`] blocks at a time, and with
//! [`crate::Store::tick`]. While one lags behind, a timer that ends more than a wheel after it is not begun.

use crate::memory::Memory;
use crate::memory::chunk::{HEADER_BYTES, Handle, State, seconds};
use crate::memory::geometry::TIMER_BLOCK_BYTES;
use crate::shard::{Locked, Stripe};
use crate::sync::lock;
use crate::warm_restart::snapshot::{StateReader, StateWriter};
use crate::{Expiry, Now};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) const WHEEL_S: u32 = 64;
/// Expiries further ahead than this are left alone.
pub(crate) const TRANSIENT_S_MAX: u32 = 60;
pub(crate) const ENTRY_BYTES: usize = 8;
const ENTRIES_PER_BLOCK: usize = (TIMER_BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES;
/// Blocks take no more than one page in this many.
pub(crate) const TIMER_PAGES_SHARE: usize = 16;
const BLOCKS_PER_VERB_MAX: usize = 4;

/// The timers of one stripe.
pub(crate) struct Wheel {
    /// The newest block of each second; 0: none.
    blocks: [u32; WHEEL_S as usize],
    /// All up to this second have been worked off.
    done_s: u32,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel { blocks: [0; WHEEL_S as usize], done_s: 0 }
    }
}

impl Wheel {
    /// Writes down where the blocks are; they lie in the region.
    pub fn save(&self, state: &mut StateWriter) {
        state.word(self.done_s);
        self.blocks.iter().for_each(|&block| state.word(block));
    }

    /// Takes up what was written down.
    pub fn restore(&mut self, state: &mut StateReader<'_>) -> Option<()> {
        self.done_s = state.word()?;
        for block in &mut self.blocks {
            *block = state.word()?;
        }
        Some(())
    }

    /// Seconds up to now in which nothing is due are worked off. Once around is enough.
    fn pass_empty_seconds(&mut self, now_s: u32) {
        self.done_s = self.done_s.max(now_s.saturating_sub(WHEEL_S));
        while self.done_s < now_s && self.blocks[((self.done_s + 1) % WHEEL_S) as usize] == 0 {
            self.done_s += 1;
        }
    }
}

impl Memory {
    /// Whether a wheel that was taken up names timer blocks.
    pub fn is_sound(&self, wheel: &Wheel) -> bool {
        let is_block = |block: Handle| self.class_if_any(block) == Some(self.geometry.timer_class());
        wheel
            .blocks
            .iter()
            .map(|&block| Handle(block))
            .all(|block| block.0 == 0 || is_block(block) && self.is_carved(block))
    }

    /// Notes when the item at `head` is over, if that is soon. Evicts nobody: the caller may hold on to items.
    pub fn begin_timer(&self, stripe: &mut Stripe, head: Handle, now: Now) {
        let header = self.header(head);
        let stale_end_s = match header.is_stale() {
            true => Some((header.stale_until_ms().div_ceil(1000)) as u32),
            false => None,
        };
        let end_s = match (header.expiry(), stale_end_s) {
            (Expiry::At { unix_s }, Some(stale_end_s)) => unix_s.min(stale_end_s),
            (Expiry::At { unix_s }, None) => unix_s,
            (Expiry::Never, Some(stale_end_s)) => stale_end_s,
            (Expiry::Never, None) => return,
        };
        let now_s = seconds(now);
        if end_s <= now_s || end_s - now_s > self.transient_s {
            return;
        }
        // A wheel that lags behind would take the second for an earlier one, which is not worked off yet.
        stripe.wheel.pass_empty_seconds(now_s);
        if end_s > stripe.wheel.done_s + WHEEL_S {
            stripe.counters.transients_untimed += 1;
            return;
        }
        match self.block_with_room(stripe, end_s, now) {
            Some((block, entries)) => self.write_entry(block, entries, head, header.sequence),
            None => {
                stripe.counters.transients_untimed += 1;
                self.timers_want_page.store(true, Relaxed);
            }
        }
    }

    fn block_with_room(&self, stripe: &mut Stripe, end_s: u32, now: Now) -> Option<(Handle, usize)> {
        let newest = &mut stripe.wheel.blocks[(end_s % WHEEL_S) as usize];
        if *newest != 0 {
            let entries = self.entries(Handle(*newest));
            if entries < ENTRIES_PER_BLOCK {
                return Some((Handle(*newest), entries));
            }
        }
        let block = self.take_timer_block(now)?;
        // Not before there is room indeed: a page on its way may be given up.
        if self.timers_want_page.load(Relaxed) {
            self.timers_want_page.store(false, Relaxed);
        }
        self.set_next(block, *newest);
        *newest = block.0;
        Some((block, 0))
    }

    /// Whether timers found no room and may have more.
    pub fn do_timers_want_page(&self) -> bool {
        self.timers_want_page.load(Relaxed) && self.ages[self.geometry.timer_class()].pages() < self.timer_pages_max()
    }

    fn timer_pages_max(&self) -> usize {
        self.geometry.pages / TIMER_PAGES_SHARE + 1
    }

    /// A block, if there is room: a free one, or the first of a page that nobody holds. When all pages are held by items,
    /// one is brought (`rebalance.rs`), for the timers that come then.
    fn take_timer_block(&self, now: Now) -> Option<Handle> {
        let mut class = lock(&self.classes[self.geometry.timer_class()]);
        if class.pages.len() >= self.timer_pages_max() {
            return self.take_free_here(&mut class);
        }
        self.take_free(&mut class, now)
    }

    /// Never more than there are, whatever the block says.
    fn entries(&self, block: Handle) -> usize {
        (self.region.word(self.at(block) + 8).load(Relaxed) as usize).min(ENTRIES_PER_BLOCK)
    }

    fn write_entry(&self, block: Handle, entries: usize, head: Handle, first_word: u32) {
        let at = self.at(block) + HEADER_BYTES + entries * ENTRY_BYTES;
        self.region.word(at).store(head.0, Relaxed);
        self.region.word(at + 4).store(first_word, Relaxed);
        self.region.word(self.at(block) + 8).store(entries as u32 + 1, Relaxed);
    }

    fn entry(&self, block: Handle, index: usize) -> (Handle, u32) {
        let at = self.at(block) + HEADER_BYTES + index * ENTRY_BYTES;
        (Handle(self.region.word(at).load(Relaxed)), self.region.word(at + 4).load(Relaxed))
    }

    /// Whether the chunk still holds the item that was noted. The class is locked for the look, so that its page stays
    /// what it is; after that the stripe's lock, which the caller holds, keeps the item in place.
    fn still_holds(&self, noted: Handle, first_word: u32, lane: usize) -> bool {
        let Some(class) = self.class_if_any(noted) else {
            return false;
        };
        let _guard = lock(&self.classes[class]);
        if self.class_if_any(noted) != Some(class) || !self.is_carved(noted) {
            return false;
        }
        let usage = self.usage(noted);
        usage.state() == State::Head && usage.lane() == lane && self.first_word(noted) == first_word
    }
}

impl Locked<'_> {
    /// Drops what has expired since the last time, a bounded number of blocks at a time.
    /// Says whether nothing was left over.
    pub fn turn_wheel(&mut self, now: Now) -> bool {
        self.turn_wheel_by(BLOCKS_PER_VERB_MAX, now)
    }

    /// As [`Locked::turn_wheel`], by up to so many blocks.
    pub fn turn_wheel_by(&mut self, blocks_max: usize, now: Now) -> bool {
        let now_s = seconds(now);
        let mut blocks_left = blocks_max;
        // After a long pause once around is enough: each entry is checked against the time.
        let mut second = (self.stripe.wheel.done_s + 1).max(now_s.saturating_sub(WHEEL_S - 1));
        while second <= now_s {
            let place = (second % WHEEL_S) as usize;
            while self.stripe.wheel.blocks[place] != 0 {
                if blocks_left == 0 {
                    return false;
                }
                blocks_left -= 1;
                let block = Handle(self.stripe.wheel.blocks[place]);
                self.stripe.wheel.blocks[place] = self.memory.next(block);
                self.work_off(block, now);
            }
            self.stripe.wheel.done_s = second;
            second += 1;
        }
        true
    }

    /// Forgets all timers.
    pub fn clear_wheel(&mut self) {
        for place in 0..WHEEL_S as usize {
            while self.stripe.wheel.blocks[place] != 0 {
                let block = Handle(self.stripe.wheel.blocks[place]);
                self.stripe.wheel.blocks[place] = self.memory.next(block);
                self.memory.free(block);
            }
        }
    }

    fn work_off(&mut self, block: Handle, now: Now) {
        for index in 0..self.memory.entries(block) {
            let (noted, first_word) = self.memory.entry(block, index);
            if !self.memory.still_holds(noted, first_word, self.stripe.lane) {
                continue;
            }
            let header = self.memory.header(noted);
            if header.is_past(now) {
                let mut chunks = vec![noted];
                self.memory.evict(noted, &header, &mut self.stripe, &mut chunks, now);
                self.memory.free_all(&chunks);
                self.stripe.counters.transient_expirations += 1;
            }
        }
        self.memory.free(block);
    }
}
