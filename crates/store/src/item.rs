//! An item as it is stored and as it is shown.

use crate::Expiry;
use crate::memory::handle::Handle;
use crate::memory::pages::Pages;
use lookaside_protocol::Cas;

/// An item to store under a key.
#[derive(Clone, Copy, Debug)]
pub struct NewItem<'a> {
    /// Opaque to the store.
    pub flags: u32,
    /// The expiry.
    pub expiry: Expiry,
    /// The value.
    pub value: &'a [u8],
}

/// An item under a guard: valid while the closure that sees it runs.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The flags that it was stored with.
    pub flags: u32,
    /// Changes with every change of the value.
    pub cas: Cas,
    /// The expiry.
    pub expiry: Expiry,
    /// Seconds since the last access before this one.
    pub last_access_age_s: u32,
    /// Whether it was fetched before.
    pub fetched: bool,
    /// The value, in one piece unless it is chained over several chunks.
    pub value: Value<'a>,
}

/// A value's bytes: one piece, or several for a value that is chained over several chunks.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    first: &'a [u8],
    rest: Continuation<'a>,
}

/// The value after its first piece: `bytes`, from this chunk on.
#[derive(Clone, Copy)]
struct Continuation<'a> {
    chain: Option<(&'a Pages, Handle)>,
    bytes: usize,
}

impl<'a> Value<'a> {
    /// A value in one piece.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Value { first: bytes, rest: Continuation { chain: None, bytes: 0 } }
    }

    /// A value with `bytes` in the chunks that begin with `next`. The item's stripe is locked.
    pub(crate) fn chained(first: &'a [u8], pages: &'a Pages, next: Handle, bytes: usize) -> Self {
        Value { first, rest: Continuation { chain: Some((pages, next)), bytes } }
    }

    /// Its length in bytes.
    pub fn value_bytes(&self) -> usize {
        self.first.len() + self.rest.bytes
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.first).chain(self.rest)
    }

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

impl<'a> Iterator for Continuation<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.bytes == 0 {
            return None;
        }
        let (pages, handle) = self.chain?;
        let (piece, next) = pages.continuation(handle);
        let piece = &piece[..piece.len().min(self.bytes)];
        self.chain = Some((pages, next));
        self.bytes -= piece.len();
        Some(piece)
    }
}

impl std::fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value").field("value_bytes", &self.value_bytes()).finish_non_exhaustive()
    }
}
