//! A random sample of keys, of bounded size.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
};

/// The keys with the least hashes among all that were added: each key has the same chance to be one of them, however
/// often and in which order it was added. Another seed gives another sample.
#[derive(Debug)]
pub struct KeySample {
    seed: u64,
    keys_max: usize,
    keys: BTreeSet<(u64, Vec<u8>)>,
}

impl KeySample {
    /// An empty sample of up to `keys_max` keys.
    pub fn new(keys_max: usize, seed: u64) -> KeySample {
        KeySample { seed, keys_max, keys: BTreeSet::new() }
    }

    /// Adds a key.
    pub fn add(&mut self, key: Vec<u8>) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((self.seed, &key));
        let is_full = self.keys.len() >= self.keys_max;
        if is_full && self.keys.last().is_none_or(|(last, _)| hash > *last) {
            return;
        }
        self.keys.insert((hash, key));
        if self.keys.len() > self.keys_max {
            self.keys.pop_last();
        }
    }

    /// The keys, in random order.
    pub fn into_keys(self) -> Vec<Vec<u8>> {
        self.keys.into_iter().map(|(_, key)| key).collect()
    }
}

impl Extend<Vec<u8>> for KeySample {
    fn extend<T: IntoIterator<Item = Vec<u8>>>(&mut self, keys: T) {
        keys.into_iter().for_each(|key| self.add(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn key(number: u32) -> Vec<u8> {
        format!("user:{number:04}").into_bytes()
    }

    fn sample(keys_max: usize, seed: u64, keys: impl IntoIterator<Item = u32>) -> Vec<Vec<u8>> {
        let mut sample = KeySample::new(keys_max, seed);
        sample.extend(keys.into_iter().map(key));
        sample.into_keys()
    }

    /// An audit whose rounds had the first keys each time never compared the others.
    #[test]
    fn each_key_is_chosen_equally_often() {
        const SEEDS: u64 = 200;
        let mut chosen = BTreeMap::<Vec<u8>, u32>::new();
        for seed in 0..SEEDS {
            let keys = sample(10, seed, 0..100);
            assert_eq!(keys.len(), 10);
            keys.into_iter().for_each(|key| *chosen.entry(key).or_default() += 1);
        }
        // 20 expected, with a standard deviation of 4.2.
        assert_eq!(chosen.len(), 100, "each key is in some sample");
        assert!(chosen.values().all(|count| (3..=40).contains(count)), "{chosen:?}");
    }

    #[test]
    fn a_sample_depends_on_the_set_of_keys_alone() {
        let once = sample(10, 7, 0..100);
        assert_eq!(once, sample(10, 7, (0..100).rev().chain(0..50)));
        assert_ne!(once, sample(10, 8, 0..100));
        assert_eq!(sample(10, 7, 0..5).len(), 5);
        assert_eq!(sample(0, 7, 0..5).len(), 0);
    }
}
