//! A key and its hash, computed once and used for the stripe, the index and the tables of leases and hold-offs, each of
//! which uses other bits of it.
//!
//! Each store has a hash function of its own, chosen by a secret seed ([`KeyHasher`]): a client that knows the program
//! cannot choose keys that contend for one stripe's lock and evict each other. The seed is saved with a region, whose
//! index depends on it. Two keys with the same hash share a lease and a hold-off, which errs towards refusal.
//!
//! Out of scope: a client that measures which of its keys evict each other, or that may list keys in the order of the
//! index.

use super::handle::SlotAt;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

/// The hash function of one store: rapidhash v3, whose secrets all follow from a seed.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    secrets: RapidSecrets,
}

impl KeyHasher {
    /// The function of this seed. The same in every process of one build.
    pub const fn new(seed: u64) -> KeyHasher {
        KeyHasher { secrets: RapidSecrets::seed(seed) }
    }

    /// Hashes `key`, which must be 1 to 250 bytes.
    #[inline]
    pub fn hash<'a>(&self, key: &'a [u8]) -> HashedKey<'a> {
        debug_assert!(!key.is_empty() && key.len() <= lookaside_protocol::KEY_BYTES_MAX);
        HashedKey { key, hash: rapidhash_v3_seeded(key, &self.secrets), hint: None }
    }
}

/// The slot in which a prefetch saw a key's tag. It may be out of date, and is ignored by other stores.
#[derive(Clone, Copy, Debug)]
struct Hint {
    store: u32,
    slot: SlotAt,
}

/// A key and its hash, for the store whose [`KeyHasher`] made it.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'a> {
    key: &'a [u8],
    hash: u64,
    hint: Option<Hint>,
}

impl<'a> HashedKey<'a> {
    /// The key itself.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Sets the slot in which a prefetch saw the key's tag in the index of this store.
    #[inline]
    pub(crate) fn set_hint(&mut self, store: u32, slot: SlotAt) {
        self.hint = Some(Hint { store, slot });
    }

    /// The slot of this store's index to look in first.
    #[inline]
    pub(crate) fn hint(&self, store: u32) -> Option<SlotAt> {
        self.hint.filter(|hint| hint.store == store).map(|hint| hint.slot)
    }

    /// The full hash: identifies the key in the lease and hold-off tables; its low bits choose the bucket.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The top 24 bits, which the index compares before the key. Never 0, which is the tag of an empty slot.
    #[inline]
    pub(crate) fn tag(&self) -> u32 {
        ((self.hash >> 40) as u32).max(1)
    }

    /// The number of the key's stripe, of `1 << stripe_bits`: the low bits.
    #[inline]
    pub(crate) fn stripe(&self, stripe_bits: u32) -> usize {
        self.hash as usize & ((1 << stripe_bits) - 1)
    }
}
