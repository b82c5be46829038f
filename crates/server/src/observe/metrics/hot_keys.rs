//! The most requested keys, in bounded memory: the space-saving sketch of Metwally, Agrawal and El Abbadi (2005).
//!
//! [`KEYS_MAX`] keys are counted. A new key replaces the key with the smallest count, and starts from that count, which
//! is its possible error. A key with a share of more than 1 / [`KEYS_MAX`] is always among the counted keys. Every
//! [`SAMPLES_UNTIL_HALVED`] samples all counts are halved, so that keys that were hot an hour ago are replaced.

pub(crate) const KEYS_MAX: usize = 128;

const SAMPLES_UNTIL_HALVED: u64 = 1 << 16;

/// A key with fewer samples is not reported.
const SAMPLES_MIN: u64 = 10;

/// A key with a share below 1 / this is not reported: otherwise the reported names would change with every scrape.
const REPORTED_SHARE_DIVISOR: u64 = 100;

/// One thread's sketch.
#[derive(Clone, Debug, Default)]
pub(crate) struct HotKeys {
    keys: Vec<KeyCount>,
    /// Samples of all keys, including replaced ones.
    pub(crate) samples: u64,
}

#[derive(Clone, Debug)]
struct KeyCount {
    key: Vec<u8>,
    count: u64,
    error: u64,
}

impl HotKeys {
    pub(crate) fn count(&mut self, key: &[u8]) {
        self.samples += 1;
        if let Some(counted) = self.keys.iter_mut().find(|counted| counted.key == key) {
            counted.count += 1;
        } else if self.keys.len() < KEYS_MAX {
            self.keys.push(KeyCount { key: key.to_vec(), count: 1, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|counted| counted.count) {
            least.error = least.count;
            least.count += 1;
            least.key.clear();
            least.key.extend_from_slice(key);
        }
        if self.samples >= SAMPLES_UNTIL_HALVED {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.samples /= 2;
        for counted in &mut self.keys {
            counted.count /= 2;
            counted.error /= 2;
        }
    }

    pub(crate) fn add(&mut self, other: &HotKeys) {
        self.samples += other.samples;
        for one in &other.keys {
            match self.keys.iter_mut().find(|counted| counted.key == one.key) {
                Some(counted) => {
                    counted.count += one.count;
                    counted.error += one.error;
                }
                None => self.keys.push(one.clone()),
            }
        }
    }

    /// The hottest keys, in descending order, each with a lower bound of its samples.
    pub(crate) fn top(&self, keys_max: usize) -> Vec<(Vec<u8>, u64)> {
        let mut keys: Vec<_> = self.keys.iter().map(|one| (one.key.clone(), one.count - one.error)).collect();
        let samples_min = SAMPLES_MIN.max(self.samples / REPORTED_SHARE_DIVISOR);
        keys.retain(|(_, samples)| *samples >= samples_min);
        keys.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        keys.truncate(keys_max);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_keys_are_found_among_many_in_bounded_memory() {
        let mut sketch = HotKeys::default();
        for number in 0..200_000u64 {
            sketch.count(match number % 10 {
                0 | 1 => b"first",
                2 => b"second",
                _ => &[],
            });
            sketch.count(format!("cold {number}").as_bytes());
        }
        assert!(sketch.keys.len() == KEYS_MAX && sketch.samples < SAMPLES_UNTIL_HALVED);
        let top: Vec<_> = sketch.top(3).into_iter().map(|(key, _)| key).collect();
        assert_eq!(top, [&b""[..], b"first", b"second"]);
        let share = sketch.top(2)[1].1 as f64 / sketch.samples as f64;
        assert!((0.08..0.101).contains(&share), "a tenth at most, not {share}");
    }

    #[test]
    fn a_key_that_is_not_hot_is_not_reported() {
        let mut sketch = HotKeys::default();
        (0..9).for_each(|_| sketch.count(b"rare"));
        assert_eq!(sketch.top(20), []);
        sketch.count(b"rare");
        assert_eq!(sketch.top(20), [(b"rare".to_vec(), 10)]);
        (0..1_100).for_each(|_| sketch.count(b"hot"));
        assert_eq!(sketch.top(20), [(b"hot".to_vec(), 1_100)], "ten of 1,110 are less than a hundredth");
    }

    #[test]
    fn keys_that_were_hot_are_replaced() {
        let mut sketch = HotKeys::default();
        (0..SAMPLES_UNTIL_HALVED).for_each(|_| sketch.count(b"old"));
        (0..SAMPLES_UNTIL_HALVED).for_each(|_| sketch.count(b"new"));
        assert_eq!(sketch.top(1)[0].0, b"new");
        let mut both = HotKeys::default();
        both.add(&sketch);
        both.add(&sketch);
        assert_eq!((both.samples, both.top(1)[0].1), (2 * sketch.samples, 2 * sketch.top(1)[0].1));
    }
}
