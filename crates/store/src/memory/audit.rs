//! The invariants of the memory, checked by walking all of it. For tests: every stripe and class is locked meanwhile.
//!
//! * Each slot of the index names a head of its stripe whose key belongs in that bucket, and no key is there twice.
//! * Each head is in the index; each follower belongs to a chain that a head begins; all other chunks are free or hold
//!   timers.
//! * Each page knows how many of its chunks are taken, and its free list holds the rest of what was carved.

use crate::memory::chunk::{Handle, State};
use crate::memory::{Memory, handle};
use crate::sync::lock;
use std::collections::BTreeSet;

impl Memory {
    /// Panics if an invariant does not hold. No verb may be under way.
    pub fn audit(&self) {
        let mut known = BTreeSet::new();
        for (lane, stripe) in self.stripes.iter().enumerate() {
            let stripe = lock(&stripe.0);
            let before = known.len();
            let mut heads = 0;
            for (slot, head) in self.index.items_of(&self.region, lane) {
                let header = self.header(head);
                assert_eq!((header.usage.state(), header.usage.lane()), (State::Head, lane), "{head:?}");
                let key = self.hashed_key(head);
                assert_eq!(self.index.slot_of(&self.region, key, head), slot, "{head:?} lies where it is looked for");
                let same_key = |other| (self.key(self.at(other), &self.header(other)) == key.key()).then_some(other);
                assert_eq!(self.index.find(&self.region, key, same_key), Some((slot, head)), "a key is there once");
                assert!(known.insert(head.0), "{head:?} is in the index once");
                heads += 1;
                if header.is_chained() {
                    self.audit_chain(head, lane, &mut known);
                }
            }
            assert_eq!(heads, stripe.items(), "stripe {lane}, {} chunks", known.len() - before);
        }
        let taken: usize = (0..self.classes.len()).map(|class| self.audit_class(class, &known)).sum();
        assert_eq!(taken, known.len(), "every chunk that is taken belongs to an item");
    }

    fn audit_chain(&self, head: Handle, lane: usize, known: &mut BTreeSet<u32>) {
        let header = self.header(head);
        let (mut next, value_bytes) = self.chain(self.at(head), &header);
        let mut bytes = header.value_bytes_here();
        while bytes < value_bytes {
            let usage = self.usage(next);
            assert_eq!((usage.state(), usage.lane()), (State::Follower, lane), "{next:?} of {head:?}");
            assert_eq!(self.first_word(next), head.0, "{next:?} knows its head");
            assert!(known.insert(next.0), "{next:?} belongs to one item");
            let (piece, after) = self.follower(next);
            assert!(!piece.is_empty());
            bytes += piece.len();
            next = after;
        }
        assert_eq!(bytes, value_bytes);
    }

    /// Says how many chunks of the class hold items.
    fn audit_class(&self, class: usize, known: &BTreeSet<u32>) -> usize {
        let guard = lock(&self.classes[class]);
        let mut items = 0;
        for &page in guard.pages.iter().chain(&guard.draining) {
            let record = &self.page_records[page as usize];
            let mut taken = 0;
            for chunk in (0..record.carved()).map(|chunk| handle(page, chunk)) {
                match self.usage(chunk).state() {
                    State::Free => {}
                    State::Taken => {
                        assert_eq!(class, self.geometry.timer_class(), "{chunk:?} is taken and nobody's");
                        taken += 1;
                    }
                    State::Head | State::Follower => {
                        assert!(known.contains(&chunk.0), "{chunk:?} is in the index");
                        (taken, items) = (taken + 1, items + 1);
                    }
                }
            }
            assert_eq!(taken, record.taken(), "page {page}");
            let free = std::iter::successors(self.free_chunk(page), |&chunk| self.free_chunk_after(chunk)).count();
            assert_eq!(free, record.carved() - taken, "page {page}");
        }
        items
    }
}
