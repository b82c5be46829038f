//! Memory for new items when none is free.
//!
//! A store first takes a free chunk of its class, then a free page; then it evicts an item of the class
//! (`eviction.rs`); and if the class has nothing to evict, it takes a page from another class (`rebalance.rs`). Pages
//! also move to classes that make more of them, and to the index when it grows (`index_growth.rs`). Without evictions
//! all of these remove only items that have expired or are stale.

pub(crate) mod eviction;
mod index_growth;
pub(crate) mod rebalance;

use crate::Now;
use crate::memory::handle::Handle;
use crate::memory::{Memory, OutOfMemory};
use crate::options::Options;
use crate::stripe::Stripe;
use crate::sync::lock;
use eviction::Evictor;
use rebalance::Rebalancer;

/// How often a store looks for a chunk in its class, with pages brought in between, before it fails.
const ATTEMPTS_MAX: usize = 4;

pub(crate) struct Reclaimer {
    pub evictor: Evictor,
    pub rebalancer: Rebalancer,
}

impl Reclaimer {
    pub fn new(options: &Options) -> Reclaimer {
        Reclaimer { evictor: Evictor::new(options), rebalancer: Rebalancer::new(options.rebalance) }
    }

    /// A chunk of `class`, for which other items may be evicted. It is the caller's until it is published or freed.
    pub fn allocate(&self, memory: &Memory, class: usize, own: &mut Stripe, now: Now) -> Result<Handle, OutOfMemory> {
        let allocated = self.find_chunk(memory, class, own, now);
        if allocated.is_err() {
            memory.slabs.counters[class].refusals.add(1);
        }
        allocated
    }

    fn find_chunk(&self, memory: &Memory, class: usize, own: &mut Stripe, now: Now) -> Result<Handle, OutOfMemory> {
        let (pages, slabs) = (&memory.pages, &memory.slabs);
        for _ in 0..ATTEMPTS_MAX {
            let mut guard = lock(&slabs.classes[class]);
            if let Some(free) = slabs.allocate(pages, &mut guard, now) {
                guard.allocations += 1;
                return Ok(free);
            }
            let mut freed = Vec::new();
            let evicted = self.evictor.sweep(memory, &mut guard, own, &mut freed, now);
            guard.allocations += u64::from(evicted.is_some());
            let is_rebalance_due = evicted.is_some() && rebalance::count_eviction(&mut guard, &pages.geometry);
            drop(guard);
            slabs.free_all(pages, &freed);
            match evicted {
                Some(chunk) => {
                    self.rebalancer.rebalance(memory, &self.evictor, class, is_rebalance_due, own, now);
                    return Ok(chunk);
                }
                None => self.rebalancer.steal_page(memory, &self.evictor, Some(class), own, now)?,
            }
        }
        Err(OutOfMemory)
    }
}
