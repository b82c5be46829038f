//! `stats items` and `stats slabs`: memcached's names for each slab class of the store, followed by a few of ours.
//!
//! Always 0, because they are not counted by class: the hits of commands (`stats` has them for all classes together),
//! and what belongs to memcached's several LRUs. `cmd_set` counts allocated chunks. `age` is the time since the last
//! access to the next victim. In classes of more than a thousand chunks, `mem_requested` and `number` are estimates
//! (`lookaside_store::ClassStatistics`).

use super::list::stat;
use super::names;
use crate::shared::ServerState;
use lookaside_store::{ClassStatistics, Now};

impl ServerState {
    /// Appends `stats items`: as in memcached, nothing for a class without items.
    pub(super) fn write_items(&self, now: Now, out: &mut Vec<u8>) {
        for class in self.store.class_statistics(now).iter().filter(|class| class.items > 0) {
            for name in names::ITEMS {
                stat(&format!("items:{}:{name}", class.number), items_stat(class, name), out);
            }
        }
    }

    /// Appends `stats slabs`: the classes that have pages, then the sum.
    pub(super) fn write_slabs(&self, now: Now, out: &mut Vec<u8>) {
        let classes = self.store.class_statistics(now);
        let active = || classes.iter().filter(|class| class.pages > 0);
        for class in active() {
            for name in names::SLABS {
                stat(&format!("{}:{name}", class.number), slab_stat(class, name), out);
            }
        }
        stat("active_slabs", active().count(), out);
        let malloced: usize = active().map(|class| class.pages * class.chunks_per_page * class.chunk_bytes).sum();
        stat("total_malloced", malloced, out);
        for class in active() {
            for name in names::OUR_SLABS {
                stat(&format!("{}:{name}", class.number), slab_stat(class, name), out);
            }
        }
    }
}

fn items_stat(class: &ClassStatistics, name: &str) -> u64 {
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

fn slab_stat(class: &ClassStatistics, name: &str) -> u64 {
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
