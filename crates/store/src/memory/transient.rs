//! The transient item cache (§6.3 of the paper): an item with a short exptime leaves memory in the second in which it
//! expires, instead of using it until eviction reaches it. Stale values leave in the same way when their time is over.
//!
//! ```text
//! stripe:  wheel of 64 seconds -> block -> block -> ..      block: | . | next | entries | usage | entry x 30
//!                                                           entry: | handle | first word of the item |
//! ```
//! An entry does not belong to the item, which knows nothing of it. When the entry's second has come, the chunk is
//! checked; the entry is out of date if the chunk holds another item by then, whose first word differs, or if the item
//! was given more time. Blocks lie in pages of their own class and are counted like all memory; when items hold all
//! pages, the rebalancer brings one. When there are too many blocks, items are left to eviction or to the next
//! look-up.
//!
//! A wheel advances with the verbs that use its stripe, a few blocks at a time (`verbs/maintenance.rs`), and with
//! [`crate::Store::tick`]. While one lags behind, a timer that ends more than a wheel after it is not started.

use crate::memory::chunk::{ChunkKind, HEADER_BYTES, Header, Usage, seconds};
use crate::memory::geometry::TIMER_BLOCK_BYTES;
use crate::memory::handle::Handle;
use crate::memory::pages::Pages;
use crate::memory::slab::Slabs;
use crate::stripe::Stripe;
use crate::stripe::timer_wheel::{TimerWheel, WHEEL_S};
use crate::sync::lock;
use crate::{Expiry, Now};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Items that expire later than this get no timer.
const TRANSIENT_S_MAX: u32 = 60;
pub(crate) const ENTRY_BYTES: usize = 8;
const ENTRIES_PER_BLOCK: usize = (TIMER_BLOCK_BYTES - HEADER_BYTES) / ENTRY_BYTES;
/// Blocks use at most one page in this many.
const TIMER_PAGES_SHARE: usize = 16;

/// The state that all timers share. The wheels are the stripes'.
pub(crate) struct Timers {
    transient_s: u32,
    /// A timer was not started for want of a page.
    page_wanted: AtomicBool,
}

impl Timers {
    /// Timers for items that expire within `transient_s`.
    pub fn new(transient_s: u32) -> Timers {
        Timers { transient_s: transient_s.min(TRANSIENT_S_MAX), page_wanted: AtomicBool::new(false) }
    }

    /// Adds the blocks of a restored wheel to `blocks`. False if one is no block, or is listed twice: their links lie
    /// in the blocks, which have no checksum.
    pub fn add_blocks(&self, pages: &Pages, slabs: &Slabs, wheel: &TimerWheel, blocks: &mut HashSet<u32>) -> bool {
        let is_block = |block: Handle| {
            pages.class_if_any(block) == Some(pages.geometry.timer_class())
                && slabs.is_carved(block)
                && pages.usage(block) == Usage::allocated()
        };
        wheel.blocks.iter().all(|&first| {
            let mut block = Handle(first);
            while block.0 != 0 {
                if !is_block(block) || !blocks.insert(block.0) {
                    return false;
                }
                block = Handle(pages.next(block));
            }
            true
        })
    }

    /// Starts a timer for the item at `head` if it ends soon. Evicts nothing, since the caller may hold on to items.
    #[inline]
    pub fn start(
        &self,
        pages: &Pages,
        slabs: &Slabs,
        stripe: &mut Stripe,
        (head, header): (Handle, &Header),
        now: Now,
    ) {
        if header.is_stale() || header.expiry_s != 0 {
            self.start_if_soon(pages, slabs, stripe, (head, header), now);
        }
    }

    fn start_if_soon(
        &self,
        pages: &Pages,
        slabs: &Slabs,
        stripe: &mut Stripe,
        (head, header): (Handle, &Header),
        now: Now,
    ) {
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
        // A wheel that lags behind would take the second for an earlier one that it has not reached.
        stripe.wheel.skip_empty_seconds(now_s);
        if end_s > stripe.wheel.done_s + WHEEL_S {
            stripe.counters.transients_untimed += 1;
            return;
        }
        match self.block_with_space(pages, slabs, stripe, end_s, now) {
            Some((block, entries)) => write_entry(pages, block, entries, head, header.sequence),
            None => {
                stripe.counters.transients_untimed += 1;
                self.page_wanted.store(true, Relaxed);
            }
        }
    }

    fn block_with_space(
        &self,
        pages: &Pages,
        slabs: &Slabs,
        stripe: &mut Stripe,
        end_s: u32,
        now: Now,
    ) -> Option<(Handle, usize)> {
        let newest = &mut stripe.wheel.blocks[(end_s % WHEEL_S) as usize];
        if *newest != 0 {
            let entries = entry_count(pages, Handle(*newest));
            if entries < ENTRIES_PER_BLOCK {
                return Some((Handle(*newest), entries));
            }
        }
        let block = allocate_block(pages, slabs, now)?;
        // Not before a page has arrived: a page move that is under way may be aborted.
        if self.page_wanted.load(Relaxed) {
            self.page_wanted.store(false, Relaxed);
        }
        pages.set_next(block, *newest);
        *newest = block.0;
        Some((block, 0))
    }

    /// Whether timers found no memory and may have another page.
    #[inline]
    pub fn needs_page(&self, pages: &Pages, slabs: &Slabs) -> bool {
        self.page_wanted.load(Relaxed) && slabs.ages[pages.geometry.timer_class()].pages() < pages_max(pages)
    }

    /// The class of timer blocks has got a page.
    pub fn record_page(&self) {
        self.page_wanted.store(false, Relaxed);
    }

    #[cfg(test)]
    pub fn request_page(&self) {
        self.page_wanted.store(true, Relaxed);
    }
}

fn pages_max(pages: &Pages) -> usize {
    pages.geometry.pages / TIMER_PAGES_SHARE + 1
}

/// A free block, or the first of a free page.
fn allocate_block(pages: &Pages, slabs: &Slabs, now: Now) -> Option<Handle> {
    let mut class = lock(&slabs.classes[pages.geometry.timer_class()]);
    if class.pages.len() >= pages_max(pages) {
        return slabs.allocate_in_class(pages, &mut class);
    }
    slabs.allocate(pages, &mut class, now)
}

/// The number of entries in a block. Bounded by its size, whatever the block says.
pub(crate) fn entry_count(pages: &Pages, block: Handle) -> usize {
    (pages.region.word(pages.offset_of(block) + 8).load(Relaxed) as usize).min(ENTRIES_PER_BLOCK)
}

fn write_entry(pages: &Pages, block: Handle, entries: usize, head: Handle, first_word: u32) {
    let at = pages.offset_of(block) + HEADER_BYTES + entries * ENTRY_BYTES;
    pages.region.word(at).store(head.0, Relaxed);
    pages.region.word(at + 4).store(first_word, Relaxed);
    pages.region.word(pages.offset_of(block) + 8).store(entries as u32 + 1, Relaxed);
}

/// The chunk of an entry, and the first word that it had.
pub(crate) fn entry(pages: &Pages, block: Handle, index: usize) -> (Handle, u32) {
    let at = pages.offset_of(block) + HEADER_BYTES + index * ENTRY_BYTES;
    (Handle(pages.region.word(at).load(Relaxed)), pages.region.word(at + 4).load(Relaxed))
}

/// Whether the chunk still holds the item of its entry. The class is locked for the check, so that its page stays what
/// it is; after that the stripe's lock, which the caller holds, keeps the item in place.
pub(crate) fn is_current(pages: &Pages, slabs: &Slabs, chunk: Handle, first_word: u32, stripe: usize) -> bool {
    let Some(class) = pages.class_if_any(chunk) else {
        return false;
    };
    let _guard = lock(&slabs.classes[class]);
    if pages.class_if_any(chunk) != Some(class) || !slabs.is_carved(chunk) {
        return false;
    }
    let usage = pages.usage(chunk);
    usage.kind() == ChunkKind::Head && usage.stripe() == stripe && pages.first_word(chunk) == first_word
}
