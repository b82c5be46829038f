//! Hold-off (§4.3 of the paper): for a while after a delete, `add` of that key is refused, so that a client that
//! warms this server up from another one cannot bring the old value back.
//!
//! ```text
//! set of the table:  floor | [ hash | until ] x 7
//! ```
//! The table has a fixed size. An entry that is displaced because its set is full raises the set's floor to its own
//! end: until then `add` is refused for *every* key of that set. Refusing too much costs a read of the database;
//! refusing too little would leave an old value in the cache permanently.

use crate::Now;
use crate::snapshot_codec::{SnapshotReader, SnapshotWriter};

const WAYS: usize = 7;
/// How many hold-offs for each set are saved one by one; the others become a floor.
const SAVED_PER_SET: usize = 4;

#[derive(Clone, Copy, Default)]
struct Entry {
    hash: u64,
    /// 0: no entry.
    until_ms: u64,
}

#[derive(Clone, Copy, Default)]
struct EntrySet {
    floor_ms: u64,
    entries: [Entry; WAYS],
}

/// The hold-offs of one stripe.
pub(crate) struct HoldOffTable {
    sets: Vec<EntrySet>,
    /// When the last hold-off ends. From then on a store does not read the table, which is rarely in the processor's
    /// cache. So a `set` may leave a hold-off in place that has ended. After a backward step of the clock it holds
    /// again until its end, which only refuses an `add`.
    last_end_ms: u64,
    /// Entries that became part of a floor.
    pub merged: u64,
}

impl HoldOffTable {
    /// A table of at most `table_bytes`.
    pub fn new(table_bytes: usize) -> HoldOffTable {
        let sets = (table_bytes / size_of::<EntrySet>()).max(1);
        HoldOffTable { sets: vec![Default::default(); 1 << sets.ilog2()], last_end_ms: 0, merged: 0 }
    }

    /// The memory that it uses.
    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<EntrySet>()
    }

    /// Refuses `add` from now until `until_ms`, and never shortens a hold-off.
    pub fn add(&mut self, hash: u64, until_ms: u64, now: Now) {
        if until_ms <= now.unix_ms {
            return;
        }
        self.last_end_ms = self.last_end_ms.max(until_ms);
        let set = self.set(hash);
        if let Some(entry) = set.entries.iter_mut().find(|entry| entry.hash == hash && entry.until_ms != 0) {
            entry.until_ms = entry.until_ms.max(until_ms);
            return;
        }
        let first_to_end = set.entries.iter_mut().min_by_key(|entry| entry.until_ms).expect("a set has ways");
        let displaced = std::mem::replace(first_to_end, Entry { hash, until_ms });
        if displaced.until_ms > now.unix_ms {
            set.floor_ms = set.floor_ms.max(displaced.until_ms);
            self.merged += 1;
        }
    }

    /// Ends the key's hold-off. A floor stays.
    pub fn remove(&mut self, hash: u64, now: Now) {
        if self.last_end_ms <= now.unix_ms {
            return;
        }
        if let Some(entry) = self.set(hash).entries.iter_mut().find(|entry| entry.hash == hash) {
            *entry = Entry::default();
        }
    }

    /// Whether `add` of the key is refused now.
    pub fn refuses(&mut self, hash: u64, now: Now) -> bool {
        if self.last_end_ms <= now.unix_ms {
            return false;
        }
        let set = self.set(hash);
        let is_held_off = |entry: &Entry| entry.hash == hash && entry.until_ms > now.unix_ms;
        set.floor_ms > now.unix_ms || set.entries.iter().any(is_held_off)
    }

    /// Saves the hold-offs that still run: [`SAVED_PER_SET`] for each set, those that end last, and for all others a
    /// floor under every set.
    pub fn save(&self, now: Now, snapshot: &mut SnapshotWriter) {
        let runs = |entry: &&Entry| entry.until_ms > now.unix_ms;
        let mut entries: Vec<&Entry> = self.sets.iter().flat_map(|set| &set.entries).filter(runs).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.until_ms));
        let (saved, merged) = entries.split_at(entries.len().min(self.sets.len() * SAVED_PER_SET));
        let floors = self.sets.iter().map(|set| set.floor_ms);
        snapshot.put_u64(floors.chain(merged.iter().map(|entry| entry.until_ms)).max().unwrap_or(0));
        snapshot.put_count(saved.len());
        for entry in saved {
            snapshot.put_u64(entry.hash);
            snapshot.put_u64(entry.until_ms);
        }
    }

    /// Restores what a table of the same size saved.
    pub fn restore(&mut self, snapshot: &mut SnapshotReader<'_>) -> Option<()> {
        let floor_ms = snapshot.get_u64()?;
        self.sets.iter_mut().for_each(|set| set.floor_ms = floor_ms);
        self.last_end_ms = floor_ms;
        for _ in 0..snapshot.get_count(self.sets.len() * SAVED_PER_SET)? {
            let (hash, until_ms) = (snapshot.get_u64()?, snapshot.get_u64()?);
            // Those that have ended by now are displaced first.
            self.add(hash, until_ms, Now { unix_ms: 0 });
        }
        Some(())
    }

    /// The words that a table of at most `table_bytes` is saved in, at most.
    pub fn snapshot_words_max(table_bytes: usize) -> usize {
        let sets = (table_bytes / size_of::<EntrySet>()).max(1);
        3 + sets * SAVED_PER_SET * 4
    }

    fn set(&mut self, hash: u64) -> &mut EntrySet {
        let mask = self.sets.len() - 1;
        &mut self.sets[(hash >> 24) as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However small the table, no key may be added before its hold-off ends.
    #[test]
    fn a_full_table_refuses_more_and_never_less() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        for hash in 1..=100 {
            table.add(hash, 2_000 + hash, now);
        }
        assert!(table.merged > 0);
        for hash in 1..=100 {
            assert!(table.refuses(hash, Now { unix_ms: 2_000 + hash - 1 }), "{hash}");
        }
        assert!(table.refuses(777, now), "the floor holds for keys that share the set");
        assert!(!table.refuses(777, Now { unix_ms: 2_100 }));
    }

    #[test]
    fn ending_one_hold_off_keeps_the_others() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        table.add(1, 2_000, now);
        table.add(2, 2_000, now);
        table.remove(1, now);
        assert!(!table.refuses(1, now));
        assert!(table.refuses(2, now));
    }

    #[test]
    fn a_restored_table_refuses_what_it_refused() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        (1..=10).for_each(|hash| table.add(hash, 2_000 + hash, now));
        let mut snapshot = SnapshotWriter::default();
        table.save(now, &mut snapshot);
        let mut restored = HoldOffTable::new(1);
        let words = snapshot.into_words();
        restored.restore(&mut SnapshotReader::new(&words)).expect("what was saved");
        for hash in 1..=10 {
            assert!(restored.refuses(hash, Now { unix_ms: 2_000 + hash - 1 }), "{hash}");
        }
        assert!(!restored.refuses(1, Now { unix_ms: 2_010 }), "all have ended");
    }

    #[test]
    fn a_floor_is_restored_without_hold_offs() {
        let now = Now { unix_ms: 1_000 };
        let mut table = HoldOffTable::new(1);
        (1..=8).for_each(|hash| table.add(hash, 2_000 + hash, now));
        (2..=8).for_each(|hash| table.remove(hash, now));
        let mut snapshot = SnapshotWriter::default();
        table.save(now, &mut snapshot);
        let mut restored = HoldOffTable::new(1);
        restored.restore(&mut SnapshotReader::new(&snapshot.into_words())).expect("what was saved");
        assert!(restored.refuses(1, Now { unix_ms: 2_000 }) && !restored.refuses(1, Now { unix_ms: 2_001 }));
    }
}
