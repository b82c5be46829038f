//! How many keys of a server go into a datagram. It is halved when the server refuses a reply as too large, and raised
//! slowly while replies come: otherwise each read of a large page would be sent twice, first by UDP in vain.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// No datagram has as many keys.
const KEYS_MAX: usize = 1_024;
/// It is raised by one after this many datagrams with as many keys as it allows.
const DATAGRAMS_PER_RAISE: usize = 16;

/// The number of keys, in parts of `1 / DATAGRAMS_PER_RAISE` of a key.
pub(super) struct KeysMax(AtomicUsize);

impl Default for KeysMax {
    fn default() -> KeysMax {
        KeysMax(AtomicUsize::new(KEYS_MAX * DATAGRAMS_PER_RAISE))
    }
}

impl KeysMax {
    /// The number of keys that a datagram may have, at least 1.
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed) / DATAGRAMS_PER_RAISE
    }

    /// A reply to `keys` keys was too large. One value that is too large by itself says nothing about others.
    pub(super) fn halve(&self, keys: usize) {
        if keys > 1 {
            self.0.fetch_min(keys / 2 * DATAGRAMS_PER_RAISE, Relaxed);
        }
    }

    /// There was a reply to `keys` keys.
    pub(super) fn raise(&self, keys: usize) {
        let parts = self.0.load(Relaxed);
        if keys >= parts / DATAGRAMS_PER_RAISE && parts < KEYS_MAX * DATAGRAMS_PER_RAISE {
            // If another thread has changed it meanwhile, its change counts.
            let _ = self.0.compare_exchange(parts, parts + 1, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_halved_to_one_at_least_and_raised_by_full_datagrams() {
        let keys_max = KeysMax::default();
        assert_eq!(keys_max.get(), KEYS_MAX);
        keys_max.raise(KEYS_MAX);
        assert_eq!(keys_max.get(), KEYS_MAX);
        keys_max.halve(70);
        assert_eq!(keys_max.get(), 35);
        keys_max.halve(70);
        assert_eq!(keys_max.get(), 35, "both were sent before");
        (0..DATAGRAMS_PER_RAISE).for_each(|_| keys_max.raise(34));
        assert_eq!(keys_max.get(), 35);
        (0..DATAGRAMS_PER_RAISE).for_each(|_| keys_max.raise(35));
        assert_eq!(keys_max.get(), 36);
        for keys in [36, 3, 2, 1, 1] {
            keys_max.halve(keys);
        }
        assert_eq!(keys_max.get(), 1);
    }
}
