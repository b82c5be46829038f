//! An item as it goes in and as it is shown.

use crate::Expiry;
use crate::memory::Memory;
use crate::memory::chunk::Handle;
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

/// A value's bytes: one piece, or several for a value that is chained over several chunks.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    first: &'a [u8],
    rest: Rest<'a>,
}

/// What follows the first piece: so many bytes, from this chunk on.
#[derive(Clone, Copy)]
struct Rest<'a> {
    chain: Option<(&'a Memory, Handle)>,
    bytes: usize,
}

impl<'a> Value<'a> {
    /// A value in one piece.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Value { first: bytes, rest: Rest { chain: None, bytes: 0 } }
    }

    /// A value of which `bytes` are in the chunks that begin with `next`. The item's stripe is locked.
    pub(crate) fn chained(first: &'a [u8], memory: &'a Memory, next: Handle, bytes: usize) -> Self {
        Value { first, rest: Rest { chain: Some((memory, next)), bytes } }
    }

    /// Its length in bytes.
    pub fn value_bytes(&self) -> usize {
        self.first.len() + self.rest.bytes
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.first).chain(self.rest)
    }

    /// The bytes, if they are in one piece.
    pub(crate) fn in_one_piece(&self) -> Option<&'a [u8]> {
        (self.rest.bytes == 0).then_some(self.first)
    }

    /// Appends all of it to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.first);
        if self.rest.bytes > 0 {
            self.rest.for_each(|piece| out.extend_from_slice(piece));
        }
    }

    /// A copy in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.value_bytes());
        self.append_to(&mut bytes);
        bytes
    }
}

impl<'a> Iterator for Rest<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.bytes == 0 {
            return None;
        }
        let (memory, handle) = self.chain?;
        let (piece, next) = memory.follower(handle);
        let piece = &piece[..piece.len().min(self.bytes)];
        self.chain = Some((memory, next));
        self.bytes -= piece.len();
        Some(piece)
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value").field("value_bytes", &self.value_bytes()).finish_non_exhaustive()
    }
}
