//! Growth of the index, two buckets with a store at most, unless a key finds no slot (`grow_index_in_all_stripes`). The
//! page mover's lock guards it, since a growing index may need a page.

use super::eviction::Evictor;
use super::rebalance::{Mover, Rebalancer, STEP_CHUNKS, Target, oldest_class};
use crate::Now;
use crate::memory::Memory;
use crate::stripe::Stripe;
use crate::sync::try_lock;
use std::sync::atomic::Ordering::Relaxed;

impl Rebalancer {
    /// Adds buckets to the index if the stripe needs them.
    pub fn grow_index(&self, memory: &Memory, evictor: &Evictor, own: &mut Stripe, now: Now) {
        /// More than one, so that the index can catch up.
        const BUCKETS_PER_STORE_MAX: usize = 2;
        for _ in 0..BUCKETS_PER_STORE_MAX {
            if !memory.index.needs_growth(own.items(), memory.items.load(Relaxed))
                || !self.add_bucket(memory, evictor, own, now)
            {
                return;
            }
        }
    }

    /// Adds a bucket to each stripe, or as many as the index may have; `false` if it adds none.
    pub fn grow_index_in_all_stripes(&self, memory: &Memory, evictor: &Evictor, own: &mut Stripe, now: Now) -> bool {
        let grow = |_| memory.index.may_grow(memory.items.load(Relaxed)) && self.add_bucket(memory, evictor, own, now);
        (0..memory.stripes.len()).map(grow).take_while(|&has_grown| has_grown).count() > 0
    }

    /// Adds a bucket; `false` if a lock is held by another thread or there is no page for it yet.
    fn add_bucket(&self, memory: &Memory, evictor: &Evictor, own: &mut Stripe, now: Now) -> bool {
        let (pages, index) = (&memory.pages, &memory.index);
        let Some(mut mover) = try_lock(&self.mover) else {
            return false;
        };
        if index.needs_page() && !mover.is_index_page_added {
            let Some(page) = mover.index_spare.take().or_else(|| pages.allocate_page()) else {
                self.move_page_to_index(memory, evictor, &mut mover, own, now);
                return false;
            };
            index.add_page(page);
            mover.is_index_page_added = true;
        }
        let grow = |_: &mut Stripe| index.grow(&pages.region, |item| pages.hashed_key(item));
        let has_grown = memory.try_stripe(index.growing_stripe(), own, grow).is_some();
        mover.is_index_page_added &= !has_grown;
        has_grown
    }

    fn move_page_to_index(&self, memory: &Memory, evictor: &Evictor, mover: &mut Mover, own: &mut Stripe, now: Now) {
        if mover.current.is_none()
            && let Some(from) = oldest_class(memory, None, 0, now)
        {
            mover.start(memory, from, Target::Index, 0);
        }
        self.step(memory, evictor, mover, STEP_CHUNKS, own, now);
    }
}
