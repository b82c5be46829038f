//! A key and its hash, computed once and used for the stripe, the index and the tables of leases and hold-offs, each of
//! which uses other bits of it.
//!
//! Absent: a secret in the hash. Keys that are crafted to collide contend for one stripe's lock and evict each other,
//! but get no more memory than others (`Index::may_grow`). Two keys with the same hash share a lease and a hold-off,
//! which errs towards refusal.

use super::handle::SlotAt;

/// The slot in which a prefetch saw a key's tag. It may be out of date, and is ignored by other stores.
#[derive(Clone, Copy, Debug)]
struct Hint {
    store: u32,
    slot: SlotAt,
}

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'a> {
    key: &'a [u8],
    hash: u64,
    hint: Option<Hint>,
}

impl<'a> HashedKey<'a> {
    /// Hashes `key`, which must be 1 to 250 bytes.
    pub fn new(key: &'a [u8]) -> Self {
        debug_assert!(!key.is_empty() && key.len() <= lookaside_protocol::KEY_BYTES_MAX);
        HashedKey { key, hash: rapidhash::v3::rapidhash_v3(key), hint: None }
    }

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
