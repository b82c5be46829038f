//! The work that is due in a stripe before a verb runs: scheduled flushes, and items whose timer has ended.

use super::StripeGuard;
use crate::Now;
use crate::memory::chunk::seconds;
use crate::memory::handle::Handle;
use crate::memory::index::RemovalReason;
use crate::memory::transient;
use crate::stripe::timer_wheel::WHEEL_S;

/// How many timer blocks one verb handles.
const BLOCKS_PER_VERB_MAX: usize = 4;

impl StripeGuard<'_> {
    pub(super) fn run_due(&mut self, now: Now) {
        if self.stripe.flushes.remove_due(now) {
            self.flush();
        }
        let is_done = self.advance_wheel(BLOCKS_PER_VERB_MAX, now);
        let next_second_ms = (now.unix_ms / 1000 + 1) * 1000;
        let next_flush_ms = self.stripe.flushes.next_ms();
        self.stripe.due_ms = if is_done { next_flush_ms.min(next_second_ms) } else { now.unix_ms };
    }

    /// Removes all items and leases. Hold-offs stay: the values that they keep out are older still.
    pub fn flush(&mut self) {
        let memory = &self.shared.memory;
        for (slot, handle) in memory.index.items_of_stripe(&memory.pages.region, self.stripe.number) {
            let found = self.item_at(slot, handle);
            // A stale value was deleted before.
            let reason = (!found.header.is_stale()).then_some(RemovalReason::Flushed);
            self.remove_item_because(found, reason);
        }
        self.clear_wheel();
        self.void_leases();
    }

    /// Voids all leases.
    pub fn void_leases(&mut self) {
        self.stripe.leases.clear();
    }

    /// Removes items that have expired since the last call, handling up to `blocks_max` timer blocks; `false` if some
    /// are left.
    pub fn advance_wheel(&mut self, blocks_max: usize, now: Now) -> bool {
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
                let block = self.remove_first_block(place);
                self.expire_entries(block, now);
            }
            self.stripe.wheel.done_s = second;
            second += 1;
        }
        true
    }

    fn clear_wheel(&mut self) {
        let memory = &self.shared.memory;
        for place in 0..WHEEL_S as usize {
            while self.stripe.wheel.blocks[place] != 0 {
                let block = self.remove_first_block(place);
                memory.slabs.free(&memory.pages, block);
            }
        }
    }

    fn remove_first_block(&mut self, place: usize) -> Handle {
        let block = Handle(self.stripe.wheel.blocks[place]);
        self.stripe.wheel.blocks[place] = self.shared.memory.pages.next(block);
        block
    }

    fn expire_entries(&mut self, block: Handle, now: Now) {
        let (pages, slabs) = (&self.shared.memory.pages, &self.shared.memory.slabs);
        for index in 0..transient::entry_count(pages, block) {
            let (chunk, first_word) = transient::entry(pages, block, index);
            if !transient::is_current(pages, slabs, chunk, first_word, self.stripe.number) {
                continue;
            }
            let header = pages.header(chunk);
            if header.is_expired(now) {
                let (memory, evictor) = (&self.shared.memory, &self.shared.reclaimer.evictor);
                let mut freed = vec![chunk];
                evictor.evict(memory, chunk, &header, &mut self.stripe, &mut freed, now);
                slabs.free_all(pages, &freed);
                self.stripe.counters.transient_expirations += 1;
            }
        }
        slabs.free(pages, block);
    }
}
