//! An item as it goes in and as it is shown.

use crate::Expiry;
use lookaside_protocol::Cas;

/// What is to be stored under a key.
#[derive(Clone, Copy, Debug)]
pub struct NewItem<'a> {
    /// Opaque to the store.
    pub flags: u32,
    /// When the item leaves.
    pub expiry: Expiry,
    /// The value.
    pub value: &'a [u8],
}

/// An item under a guard: valid while the closure that sees it runs.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// As it was stored with.
    pub flags: u32,
    /// Changes with every change of the value.
    pub cas: Cas,
    /// When the item leaves.
    pub expiry: Expiry,
    /// Seconds since the item was last asked for.
    pub last_access_age_s: u32,
    /// Whether it had been asked for before.
    pub fetched: bool,
    /// The value, in one piece unless it is chained over several chunks.
    pub value: Value<'a>,
}

/// A value's bytes: one piece, or several for a value larger than the largest chunk.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    first: &'a [u8],
}

impl<'a> Value<'a> {
    /// A value in one piece.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Value { first: bytes }
    }

    /// Its length in bytes.
    pub fn value_bytes(&self) -> usize {
        self.first.len()
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.first)
    }
}
