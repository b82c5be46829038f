//! `stats items` and `stats slabs`: memcached's names for each slab class of the store, and a few of ours behind them.
//!
//! Not counted by class, and 0 there: the hits of commands (`stats` has them for all classes together), and what belongs to
//! memcached's several LRUs. `cmd_set` counts chunks handed out. `age` is the time since the next victim was last asked for,
//! `mem_requested` and `number` are estimates in classes of more than a thousand chunks (`lookaside_store::ClassStatistics`).

use crate::observe::stats::{names, stat};
use crate::startup::ServerState;
use lookaside_store::{ClassStatistics, Now};

impl ServerState {
    /// `stats items`: nothing for a class without items, as memcached has it.
    pub(super) fn items(&self, now: Now, out: &mut Vec<u8>) {
        for class in self.store.class_statistics(now).iter().filter(|class| class.items > 0) {
            for name in names::ITEMS {
                stat(&format!("items:{}:{name}", class.number), of_items(class, name), out);
            }
        }
    }

    /// `stats slabs`: classes that hold pages, then the sum.
    pub(super) fn slabs(&self, now: Now, out: &mut Vec<u8>) {
        let classes = self.store.class_statistics(now);
        let active = || classes.iter().filter(|class| class.pages > 0);
        for class in active() {
            for name in names::SLABS {
                stat(&format!("{}:{name}", class.number), of_slab(class, name), out);
            }
        }
        stat("active_slabs", active().count(), out);
        let malloced: usize = active().map(|class| class.pages * class.chunks_per_page * class.chunk_bytes).sum();
        stat("total_malloced", malloced, out);
        for class in active() {
            for name in names::OUR_SLABS {
                stat(&format!("{}:{name}", class.number), of_slab(class, name), out);
            }
        }
    }
}

fn of_items(class: &ClassStatistics, name: &str) -> u64 {
    match name {
        "number" | "number_cold" => class.items as u64,
        "age" => class.age_s,
        "mem_requested" => class.items_bytes as u64,
        "evicted" => class.evictions,
        "evicted_nonzero" => class.evictions_with_expiry,
        "evicted_time" => class.evicted_age_s.unwrap_or(0),
        "evicted_unfetched" => class.evictions_unfetched,
        "reclaimed" => class.expirations,
        "expired_unfetched" => class.expirations_unfetched,
        "outofmemory" => class.refusals,
        _ => 0,
    }
}

fn of_slab(class: &ClassStatistics, name: &str) -> u64 {
    match name {
        "chunk_size" => class.chunk_bytes as u64,
        "chunks_per_page" => class.chunks_per_page as u64,
        "total_pages" => class.pages as u64,
        "total_chunks" => (class.pages * class.chunks_per_page) as u64,
        "used_chunks" => class.chunks_used as u64,
        "free_chunks" => class.chunks_free as u64,
        "free_chunks_end" => class.chunks_fresh as u64,
        "cmd_set" => class.allocations,
        "pages_gained" => class.pages_gained,
        "pages_given" => class.pages_given,
        _ => 0,
    }
}
