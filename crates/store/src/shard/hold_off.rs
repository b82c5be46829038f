//! Hold-off (§4.3 of the paper): for a while after a delete, `add` of that key is refused, so that a client that
//! warms this server up from another one cannot bring the old value back.
//!
//! ```text
//! set of the table:  floor | [ hash | until ] x 7
//! ```
//! The table has a fixed size and is part of the store's memory. A mark that must go because its set is full raises
//! the set's floor to its own end: until then `add` is refused for *every* key of that set. Refusing too much costs a
//! read of the database; refusing too little would leave an old value in the cache for good.

use crate::Now;
use crate::warm_restart::snapshot::{StateReader, StateWriter};

const WAYS: usize = 7;
/// So many hold-offs for each set outlive the process one by one; further ones become a floor.
const KEPT_PER_SET: usize = 4;

#[derive(Clone, Copy, Default)]
struct Mark {
    hash: u64,
    /// 0: no mark.
    until_ms: u64,
}

#[derive(Clone, Copy, Default)]
struct MarkSet {
    floor_ms: u64,
    marks: [Mark; WAYS],
}

/// The hold-offs of one stripe.
pub(crate) struct HoldOffTable {
    sets: Vec<MarkSet>,
    /// Marks that became part of a floor.
    pub merged: u64,
}

impl HoldOffTable {
    /// A table of at most `table_bytes`.
    pub fn new(table_bytes: usize) -> HoldOffTable {
        let sets = (table_bytes / size_of::<MarkSet>()).max(1);
        HoldOffTable { sets: vec![Default::default(); 1 << sets.ilog2()], merged: 0 }
    }

    /// The memory it takes.
    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<MarkSet>()
    }

    /// Refuses `add` from now until `until_ms`, and never shortens a hold-off.
    pub fn begin(&mut self, hash: u64, until_ms: u64, now: Now) {
        if until_ms <= now.unix_ms {
            return;
        }
        let set = self.set(hash);
        if let Some(mark) = set.marks.iter_mut().find(|mark| mark.hash == hash && mark.until_ms != 0) {
            mark.until_ms = mark.until_ms.max(until_ms);
            return;
        }
        let first_to_end = set.marks.iter_mut().min_by_key(|mark| mark.until_ms).expect("a set has ways");
        let displaced = std::mem::replace(first_to_end, Mark { hash, until_ms });
        if displaced.until_ms > now.unix_ms {
            set.floor_ms = set.floor_ms.max(displaced.until_ms);
            self.merged += 1;
        }
    }

    /// Ends the key's hold-off. A floor stays.
    pub fn end(&mut self, hash: u64) {
        if let Some(mark) = self.set(hash).marks.iter_mut().find(|mark| mark.hash == hash) {
            *mark = Mark::default();
        }
    }

    /// Whether `add` of the key is refused now.
    pub fn refuses(&mut self, hash: u64, now: Now) -> bool {
        let set = self.set(hash);
        let is_held_off = |mark: &Mark| mark.hash == hash && mark.until_ms > now.unix_ms;
        set.floor_ms > now.unix_ms || set.marks.iter().any(is_held_off)
    }

    /// Writes down the hold-offs that still run: as many as there is room for, those that end last, and for all others
    /// a floor under every set.
    pub fn save(&self, now: Now, state: &mut StateWriter) {
        let runs = |mark: &&Mark| mark.until_ms > now.unix_ms;
        let mut marks: Vec<&Mark> = self.sets.iter().flat_map(|set| &set.marks).filter(runs).collect();
        marks.sort_by_key(|mark| std::cmp::Reverse(mark.until_ms));
        let (kept, merged) = marks.split_at(marks.len().min(self.sets.len() * KEPT_PER_SET));
        let floors = self.sets.iter().map(|set| set.floor_ms);
        state.long(floors.chain(merged.iter().map(|mark| mark.until_ms)).max().unwrap_or(0));
        state.count(kept.len());
        for mark in kept {
            state.long(mark.hash);
            state.long(mark.until_ms);
        }
    }

    /// Takes up what was written down by a table of the same size.
    pub fn restore(&mut self, state: &mut StateReader<'_>) -> Option<()> {
        let floor_ms = state.long()?;
        self.sets.iter_mut().for_each(|set| set.floor_ms = floor_ms);
        for _ in 0..state.count(self.sets.len() * KEPT_PER_SET)? {
            let (hash, until_ms) = (state.long()?, state.long()?);
            // Those that are over by now go when their place is needed.
            self.begin(hash, until_ms, Now { unix_ms: 0 });
        }
        Some(())
    }

    /// The words that a table of at most `table_bytes` is written down in.
    pub fn state_words_max(table_bytes: usize) -> usize {
        let sets = (table_bytes / size_of::<MarkSet>()).max(1);
        3 + sets * KEPT_PER_SET * 4
    }

    fn set(&mut self, hash: u64) -> &mut MarkSet {
        let mask = self.sets.len() - 1;
        &mut self.sets[(hash >> 24) as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However small the table, no key may be added before its time.
    #[test]
    fn a_full_table_refuses_more_and_never_less() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        for hash in 1..=100 {
            table.begin(hash, 2_000 + hash, now);
        }
        assert!(table.merged > 0);
        for hash in 1..=100 {
            assert!(table.refuses(hash, Now { unix_ms: 2_000 + hash - 1 }), "{hash}");
        }
        assert!(table.refuses(777, now), "the floor holds for keys that share the set");
        assert!(!table.refuses(777, Now { unix_ms: 2_100 }));
    }

    #[test]
    fn an_end_leaves_the_neighbours_alone() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        table.begin(1, 2_000, now);
        table.begin(2, 2_000, now);
        table.end(1);
        assert!(!table.refuses(1, now));
        assert!(table.refuses(2, now));
    }
}
