//! The invariants of the memory, checked by walking all of it. For tests: every stripe and class is locked meanwhile.
//!
//! * Each slot of the index names a head of its stripe whose key belongs in that bucket, and no key is there twice.
//! * Each head is in the index; each continuation belongs to a chain that starts with a head; all other chunks are
//!   free or hold timers.
//! * Each page's count of used chunks is right, and its free list holds the rest of the carved ones.

use crate::memory::Memory;
use crate::memory::chunk::ChunkKind;
use crate::memory::handle::Handle;
use crate::sync::lock;
use std::collections::BTreeSet;

/// Panics if an invariant does not hold. No verb may be under way.
pub(crate) fn audit(memory: &Memory) {
    let (pages, index) = (&memory.pages, &memory.index);
    let mut known = BTreeSet::new();
    for (number, stripe) in memory.stripes.iter().enumerate() {
        let stripe = lock(&stripe.0);
        let before = known.len();
        let (mut heads, mut bytes) = (0, 0);
        for (slot, head) in index.items_of_stripe(&pages.region, number) {
            let header = pages.header(head);
            assert_eq!((header.usage.kind(), header.usage.stripe()), (ChunkKind::Head, number), "{head:?}");
            let key = pages.hashed_key(head);
            assert_eq!(index.slot_of(&pages.region, key, head), slot, "{head:?} is in a slot of its key");
            let same_key =
                |other| (pages.key(pages.offset_of(other), &pages.header(other)) == key.key()).then_some(other);
            assert_eq!(index.find(&pages.region, key, same_key), Some((slot, head)), "no key is in the index twice");
            assert!(known.insert(head.0), "{head:?} is in the index once");
            heads += 1;
            bytes += pages.item_bytes(pages.offset_of(head), &header) as u64;
            if header.is_chained() {
                audit_chain(memory, head, number, &mut known);
            }
        }
        assert_eq!(heads, stripe.items(), "stripe {number}, {} chunks", known.len() - before);
        assert_eq!(bytes, stripe.items_bytes(), "stripe {number}");
    }
    let used: usize = (0..memory.slabs.classes.len()).map(|class| audit_class(memory, class, &known)).sum();
    assert_eq!(used, known.len(), "every published chunk belongs to an item");
}

fn audit_chain(memory: &Memory, head: Handle, stripe: usize, known: &mut BTreeSet<u32>) {
    let pages = &memory.pages;
    let header = pages.header(head);
    let (mut next, value_bytes) = pages.chain(pages.offset_of(head), &header);
    let mut bytes = header.inline_value_bytes();
    while bytes < value_bytes {
        let usage = pages.usage(next);
        assert_eq!((usage.kind(), usage.stripe()), (ChunkKind::Continuation, stripe), "{next:?} of {head:?}");
        assert_eq!(pages.first_word(next), head.0, "{next:?} names its head");
        assert!(known.insert(next.0), "{next:?} belongs to one item");
        let (piece, after) = pages.continuation(next);
        assert!(!piece.is_empty());
        bytes += piece.len();
        next = after;
    }
    assert_eq!(bytes, value_bytes);
}

/// Returns the number of chunks of the class that hold items.
fn audit_class(memory: &Memory, class: usize, known: &BTreeSet<u32>) -> usize {
    let (pages, slabs) = (&memory.pages, &memory.slabs);
    let guard = lock(&slabs.classes[class]);
    let mut items = 0;
    for &page in guard.pages.iter().chain(&guard.draining) {
        let record = slabs.record(page);
        let mut used = 0;
        for chunk in (0..record.chunks_carved()).map(|chunk| Handle::new(page, chunk)) {
            match pages.usage(chunk).kind() {
                ChunkKind::Free => {}
                ChunkKind::Allocated => {
                    assert_eq!(class, pages.geometry.timer_class(), "{chunk:?} is allocated and not published");
                    used += 1;
                }
                ChunkKind::Head | ChunkKind::Continuation => {
                    assert!(known.contains(&chunk.0), "{chunk:?} is in the index");
                    (used, items) = (used + 1, items + 1);
                }
            }
        }
        assert_eq!(used, record.chunks_used(), "page {page}");
        let after = |&chunk: &Handle| slabs.free_chunk_after(pages, chunk);
        let free = std::iter::successors(slabs.free_chunk(page), after).count();
        assert_eq!(free, record.chunks_carved() - used, "page {page}");
    }
    items
}
