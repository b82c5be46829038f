//! From a key's tag to the place of its record. Every verb comes by here.
//!
//! Open addressing with linear probing in a table of `u64`: tag in the upper half, [`Handle`] in the lower. Removal
//! shifts the followers back, so there are no tombstones and a miss ends at the first free slot. A slot's home is the
//! low bits of its tag, so the table doubles without looking at a record.
//!
//! Absent: keys. The caller compares them, since they lie in the log.

use crate::log::Handle;
use crate::prefetch;

const FREE: u64 = u64::MAX;
const SLOTS_MIN: usize = 64;

/// The index of one stripe.
pub(crate) struct Index {
    slots: Vec<u64>,
    items: usize,
}

impl Index {
    /// The smallest index.
    pub fn new() -> Index {
        Index { slots: vec![FREE; SLOTS_MIN], items: 0 }
    }

    /// How many records are in it.
    pub fn items(&self) -> usize {
        self.items
    }

    /// The memory it takes.
    pub fn bytes(&self) -> usize {
        self.slots.len() * size_of::<u64>()
    }

    /// Whether it must grow, or lose an item, before the next insert: at seven eighths.
    pub fn is_full(&self) -> bool {
        self.items + 1 > self.slots.len() / 8 * 7
    }

    /// Doubles the table.
    pub fn grow(&mut self) {
        let slots_new = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![FREE; slots_new]);
        for slot in old.into_iter().filter(|&slot| slot != FREE) {
            self.place(slot);
        }
    }

    /// The position and record of the slot with `tag` that `is_it` recognizes.
    pub fn find(&self, tag: u32, mut is_it: impl FnMut(Handle) -> bool) -> Option<(usize, Handle)> {
        let mask = self.slots.len() - 1;
        let mut position = tag as usize & mask;
        loop {
            let slot = self.slots[position];
            if slot == FREE {
                return None;
            }
            if tag_of(slot) == tag && is_it(handle_of(slot)) {
                return Some((position, handle_of(slot)));
            }
            position = (position + 1) & mask;
        }
    }

    /// Asks the processor for the line where the search for `tag` begins.
    pub fn prefetch(&self, tag: u32) {
        prefetch::line_of(&self.slots[tag as usize & (self.slots.len() - 1)]);
    }

    /// The position of the record at `handle`, which must be in the index.
    pub fn position_of(&self, tag: u32, handle: Handle) -> usize {
        self.find(tag, |other| other == handle).expect("a record that is not dead is in the index").0
    }

    /// Adds a record that is not there yet. The index must not be full.
    pub fn insert(&mut self, tag: u32, handle: Handle) {
        debug_assert!(!self.is_full());
        self.items += 1;
        self.place(slot(tag, handle));
    }

    /// The record at `position` has moved.
    pub fn relocate(&mut self, position: usize, handle: Handle) {
        self.slots[position] = slot(tag_of(self.slots[position]), handle);
    }

    /// Takes out the record at `position`, and closes the gap.
    pub fn remove(&mut self, position: usize) {
        let mask = self.slots.len() - 1;
        let mut gap = position;
        let mut next = (gap + 1) & mask;
        while self.slots[next] != FREE {
            let home = tag_of(self.slots[next]) as usize & mask;
            // A slot may move back into the gap if its home does not lie behind the gap.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[gap] = FREE;
        self.items -= 1;
    }

    fn place(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut position = tag_of(slot) as usize & mask;
        while self.slots[position] != FREE {
            position = (position + 1) & mask;
        }
        self.slots[position] = slot;
    }
}

fn slot(tag: u32, handle: Handle) -> u64 {
    (u64::from(tag) << 32) | u64::from(handle.0)
}

fn tag_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

fn handle_of(slot: u64) -> Handle {
    Handle(slot as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Few tags, so that chains of neighbours form, wrap around the end and are broken up again.
        #[test]
        fn an_index_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..80), 1..400)) {
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            for (add, key) in steps {
                let tag = (key / 2).wrapping_sub(8);
                match index.find(tag, |handle| handle == Handle(key)) {
                    Some((position, _)) if !add => {
                        index.remove(position);
                        model.remove(&key);
                    }
                    None if add => {
                        if index.is_full() {
                            index.grow();
                        }
                        index.insert(tag, Handle(key));
                        model.insert(key, tag);
                    }
                    found => prop_assert_eq!(found.is_some(), model.contains_key(&key)),
                }
                prop_assert_eq!(index.items(), model.len());
                for (&key, &tag) in &model {
                    prop_assert!(index.find(tag, |handle| handle == Handle(key)).is_some());
                }
            }
        }
    }
}
