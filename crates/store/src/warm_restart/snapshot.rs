//! The state of a store beside its region (§6.4 of the paper). Items, keys, buckets, free chunks and timer blocks lie
//! in the region already and stay as they are: no item is read, so the cost depends on the number of pages, not of
//! items.
//!
//! ```text
//! state:   hash seed 2 | index | free pages | class x n | stripe x n                                    words of 32 bits
//! index    page ahead? | buckets 2 | page of each run of buckets ..
//! free     first page never used | free pages | page ..
//! class    pages | hand 2 | evictions to rebalance | mean age 2 | tail 2 | (page, first free chunk, carved and used) ..
//! stripe   items | their bytes 2 | sequence | flushes | time 2 .. | floor 2 | hold-offs | (hash 2, until 2) .. | wheel second, block 64
//! ```
//! Not saved: leases and counters (`mod.rs`), and what follows from the rest (the class of a page, which pages have
//! free chunks).
//!
//! The words have a checksum. Page numbers and handles in them are checked all the same, so that no access leaves the
//! region; if one makes no sense, nothing is restored. Neither is it if a list of free chunks or of timer blocks, whose
//! links lie in the pages, does not match the state. All else in the pages is trusted (`mod.rs`).

use crate::Now;
use crate::memory::Memory;
use crate::memory::geometry::Geometry;
use crate::shared::Shared;
use crate::snapshot_codec::{PageOwners, SnapshotReader, SnapshotWriter};
use crate::stripe::Stripe;
use crate::sync::lock;
use crate::warm_restart::superblock::SUPERBLOCK_BYTES;
use std::collections::HashSet;

/// The parts of which there is one.
const FIXED_WORDS: usize = 8;
/// A page is in the index, free or in a class, where it needs most words.
const PAGE_WORDS: usize = 3;
const CLASS_WORDS: usize = 8;
const WORD_BYTES: usize = size_of::<u32>();
/// The area ends at a page boundary of the kernel.
const AREA_ALIGNMENT_BYTES: usize = 4096;

/// The bytes that the state of such a store needs at most.
pub(crate) fn area_bytes(memory_bytes: usize, pages: usize, classes: usize, stripes: usize) -> usize {
    let stripe_words = Stripe::snapshot_words_max(memory_bytes / stripes);
    let words = FIXED_WORDS + pages * PAGE_WORDS + classes * CLASS_WORDS + stripes * stripe_words;
    (words * WORD_BYTES).next_multiple_of(AREA_ALIGNMENT_BYTES)
}

/// The part of the region that holds the state.
pub(crate) fn area(geometry: &Geometry) -> std::ops::Range<usize> {
    let begin = geometry.pages * geometry.page_bytes;
    begin..geometry.region_bytes() - SUPERBLOCK_BYTES
}

/// Saves the state. No verb may be under way, and none may follow.
pub(crate) fn save(shared: &Shared, now: Now) -> Vec<u32> {
    let memory = &shared.memory;
    let mut snapshot = SnapshotWriter::default();
    let is_page_ahead = shared.reclaimer.rebalancer.abort_move(memory);
    snapshot.put_u64(shared.hash_seed);
    snapshot.put_u32(is_page_ahead.into());
    memory.index.save(is_page_ahead, &mut snapshot);
    memory.pages.save(&mut snapshot);
    for (class, age) in memory.slabs.classes.iter().zip(&memory.slabs.ages) {
        memory.slabs.save_class(&lock(class), &mut snapshot);
        age.save(&mut snapshot);
    }
    memory.stripes.iter().for_each(|stripe| lock(&stripe.0).save(now, &mut snapshot));
    snapshot.into_words()
}

/// The seed of the hash of keys that a state was saved with; `None` if it is too short.
pub(crate) fn hash_seed(words: &[u32]) -> Option<u64> {
    SnapshotReader::new(words).get_u64()
}

/// Restores a state into a store that is new but for its region and has its [`hash_seed`]. After a `None` the store
/// must not be used.
pub(crate) fn restore(shared: &Shared, words: &[u32]) -> Option<()> {
    let memory = &shared.memory;
    let (pages, slabs) = (&memory.pages, &memory.slabs);
    let mut snapshot = SnapshotReader::new(words);
    let mut owners = PageOwners::new(pages.geometry.pages);
    if snapshot.get_u64()? != shared.hash_seed {
        return None;
    }
    let is_page_ahead = snapshot.get_count(1)? == 1;
    memory.index.restore(is_page_ahead, &mut owners, &mut snapshot)?;
    shared.reclaimer.rebalancer.set_index_page_added(is_page_ahead);
    let fresh = pages.restore(&mut owners, &mut snapshot)?;
    for (class, age) in slabs.classes.iter().zip(&slabs.ages) {
        slabs.restore_class(pages, &mut lock(class), &mut owners, &mut snapshot)?;
        age.restore(&mut snapshot)?;
    }
    for stripe in &memory.stripes {
        lock(&stripe.0).restore(&mut snapshot)?;
    }
    let is_complete = owners.are_exactly_those_before(fresh) && snapshot.is_at_end();
    (is_complete && are_lists_sound(memory)).then_some(())
}

/// Whether the lists whose links lie in the pages, of free chunks and of timer blocks, have exactly the chunks that the
/// state counts: a wrong link would give one chunk to two items.
fn are_lists_sound(memory: &Memory) -> bool {
    let (pages, slabs) = (&memory.pages, &memory.slabs);
    let mut blocks = HashSet::new();
    let mut stripes = memory.stripes.iter();
    let are_timers_sound =
        stripes.all(|stripe| memory.timers.add_blocks(pages, slabs, &lock(&stripe.0).wheel, &mut blocks));
    let blocks_used = slabs.chunks_used(&lock(&slabs.classes[pages.geometry.timer_class()]));
    let mut classes = slabs.classes.iter();
    are_timers_sound
        && blocks.len() == blocks_used
        && classes.all(|class| slabs.are_free_lists_sound(pages, &lock(class)))
}
