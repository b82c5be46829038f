//! A key and its hash. Every verb takes one: hashed once, then used for the stripe, the index and the tables of
//! leases and hold-offs, each of which takes other bits of it.
//!
//! Absent: a secret in the hash. Whoever crafts keys that collide makes them wait for one stripe's lock and evict each
//! other; more memory than others they do not get (`Index::may_grow`). Two keys of one hash share a lease and a hold-off,
//! which errs towards refusal.

use crate::memory::index::SlotAt;

/// Where a prefetch has seen a key's tag. It may be out of date, and says nothing to another store.
#[derive(Clone, Copy, Debug)]
struct Guess {
    store: u32,
    slot: SlotAt,
}

/// A key and its hash: computed once, used for the stripe, the index line and the tag.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'a> {
    key: &'a [u8],
    hash: u64,
    guess: Option<Guess>,
}

impl<'a> HashedKey<'a> {
    /// Hashes `key`, which must be 1 to 250 bytes.
    pub fn new(key: &'a [u8]) -> Self {
        debug_assert!(!key.is_empty() && key.len() <= lookaside_protocol::KEY_BYTES_MAX);
        HashedKey { key, hash: rapidhash::v3::rapidhash_v3(key), guess: None }
    }

    /// The key itself.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Notes the slot in which a prefetch has seen the key's tag in this store's index.
    #[inline]
    pub(crate) fn note_guess(&mut self, store: u32, slot: SlotAt) {
        self.guess = Some(Guess { store, slot });
    }

    /// Where to look first in this store's index: a slot that the key could lie in.
    #[inline]
    pub(crate) fn guess(&self, store: u32) -> Option<SlotAt> {
        self.guess.filter(|guess| guess.store == store).map(|guess| guess.slot)
    }

    /// All of the hash: who is who in the tables of leases and hold-offs; its low bits choose the bucket.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The top 24 bits: what is compared in the index before a key is. Never 0, which is the tag of an empty slot.
    #[inline]
    pub(crate) fn tag(&self) -> u32 {
        ((self.hash >> 40) as u32).max(1)
    }

    /// The low bits: which of `1 << stripe_bits` stripes.
    #[inline]
    pub(crate) fn stripe(&self, stripe_bits: u32) -> usize {
        self.hash as usize & ((1 << stripe_bits) - 1)
    }
}
