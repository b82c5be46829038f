//! `stats detail`: how often the keys of each prefix are used (memcached's `stats_prefix.c`).
//!
//! As in memcached, prefixes count the get verbs, the storage commands and `delete`, of keys that contain the
//! delimiter.

use lookaside_sync::Mutex;
use std::collections::BTreeMap;

/// A thread counts at most this many prefixes; later ones are not counted.
pub(crate) const PREFIXES_MAX: usize = 8192;

pub(crate) struct PrefixStats(Mutex<Prefixes>);

struct Prefixes {
    delimiter: u8,
    counts: BTreeMap<Vec<u8>, PrefixCounts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixCounts {
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) deletes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    Get { is_hit: bool },
    Set,
    Delete,
}

impl PrefixStats {
    pub(crate) const fn new() -> PrefixStats {
        PrefixStats(Mutex::new(Prefixes { delimiter: b':', counts: BTreeMap::new() }))
    }

    /// Sets the byte that ends a prefix.
    pub(crate) fn set_delimiter(&self, delimiter: u8) {
        self.0.lock().delimiter = delimiter;
    }

    /// Counts a use of `key`, if it has a prefix.
    pub(crate) fn count(&self, key: &[u8], key_use: KeyUse) {
        let mut prefixes = self.0.lock();
        let delimiter = prefixes.delimiter;
        let Some(end) = key.iter().position(|&byte| byte == delimiter) else { return };
        let prefix = &key[..end];
        if !prefixes.counts.contains_key(prefix) {
            if prefixes.counts.len() >= PREFIXES_MAX {
                return;
            }
            prefixes.counts.insert(prefix.to_vec(), PrefixCounts::default());
        }
        let counts = prefixes.counts.get_mut(prefix).expect("it was there or has just been inserted");
        match key_use {
            KeyUse::Get { is_hit } => {
                counts.gets += 1;
                counts.hits += u64::from(is_hit);
            }
            KeyUse::Set => counts.sets += 1,
            KeyUse::Delete => counts.deletes += 1,
        }
    }

    pub(crate) fn add_to(&self, sum: &mut BTreeMap<Vec<u8>, PrefixCounts>) {
        for (prefix, counts) in &self.0.lock().counts {
            let total = sum.entry(prefix.clone()).or_default();
            total.gets += counts.gets;
            total.hits += counts.hits;
            total.sets += counts.sets;
            total.deletes += counts.deletes;
        }
    }

    /// Removes all counts (`stats reset`).
    pub(crate) fn reset(&self) {
        self.0.lock().counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_bounded() {
        let stats = PrefixStats::new();
        for number in 0..2 * PREFIXES_MAX {
            stats.count(format!("p{number}:k").as_bytes(), KeyUse::Get { is_hit: true });
        }
        stats.count(b"no delimiter", KeyUse::Set);
        stats.count(b"p0:again", KeyUse::Get { is_hit: false });
        let mut sum = BTreeMap::new();
        stats.add_to(&mut sum);
        assert_eq!((sum.len(), sum[&b"p0"[..]].gets, sum[&b"p0"[..]].hits), (PREFIXES_MAX, 2, 1));
    }
}
