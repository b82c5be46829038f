//! The layout of a chunk: a header, and what follows it.
//!
//! ```text
//!           0          4          8          12         16
//! head      | sequence | expiry   | shape    | usage    | client flags? | extension? | chain? | key | value, or its first piece
//! continued | head     | next     | bytes    | usage    | piece of the value
//! free      |          | next     |          | usage
//!
//! shape     key bytes 8 | value bytes in this chunk 20 | is extended | has client flags | is chained | is stale
//! usage     stripe 8 | kind 2 | clock 2 | fetched 1 | last access, Unix seconds mod 2^19
//! extension meta state 4 | CAS unique 8
//! chain     handle of the first continuation 4 | bytes of the whole value 4
//! ```
//! Client flags are stored if they are not 0; the extension is stored if the item has a meta state or a CAS unique that
//! a client chose; the chain is stored if the value does not fit one chunk. A stale value needs no sequence and no last
//! access: together these bits hold the time until which it may be shown, in milliseconds.
//!
//! The usage lets an evictor choose a victim before it holds the stripe's lock: it names the stripe and says how the
//! item was used. Everything in front of the key is read and written as atomics, so nothing is torn; the locks give the
//! order.

use crate::memory::geometry::VALUE_BITS;
use crate::memory::handle::Handle;
use crate::memory::pages::Pages;
use crate::meta_state::MetaState;
use crate::sync::yield_point;
use crate::{Expiry, HashedKey, Now};
use std::sync::atomic::Ordering::Relaxed;

/// The header of every chunk.
pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const FLAGS_BYTES: usize = 4;
pub(crate) const CHAIN_BYTES: usize = 8;
pub(crate) const EXTENSION_BYTES: usize = 12;

const SHAPE_EXTENDED: u32 = 1 << 28;
const SHAPE_FLAGS: u32 = 1 << 29;
const SHAPE_CHAINED: u32 = 1 << 30;
const SHAPE_STALE: u32 = 1 << 31;

const KIND_SHIFT: u32 = 8;
const CLOCK_SHIFT: u32 = 10;
/// How often eviction passes an item over after its last access.
pub(crate) const CLOCK_MAX: u32 = 3;
const USAGE_FETCHED: u32 = 1 << 12;
const ACCESS_SHIFT: u32 = 13;
const ACCESS_MASK: u32 = (1 << 19) - 1;

/// The contents of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkKind {
    Free = 0,
    /// Not published: only the thread that allocated it touches it. Timer blocks stay in this state.
    Allocated = 1,
    /// The first chunk of an item in the index.
    Head = 2,
    /// A further piece of such an item's value.
    Continuation = 3,
}

/// The last word of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage(pub u32);

impl Usage {
    pub fn new(stripe: usize, kind: ChunkKind, clock: u32, now: Now) -> Usage {
        Usage(stripe as u32 | (kind as u32) << KIND_SHIFT | clock << CLOCK_SHIFT).with_access(now)
    }

    /// The usage of a chunk that is not published.
    pub fn allocated() -> Usage {
        Usage((ChunkKind::Allocated as u32) << KIND_SHIFT)
    }

    /// The number of the item's stripe.
    pub fn stripe(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub fn kind(self) -> ChunkKind {
        match self.0 >> KIND_SHIFT & 3 {
            0 => ChunkKind::Free,
            1 => ChunkKind::Allocated,
            2 => ChunkKind::Head,
            _ => ChunkKind::Continuation,
        }
    }

    pub fn clock(self) -> u32 {
        self.0 >> CLOCK_SHIFT & CLOCK_MAX
    }

    pub fn with_clock(self, clock: u32) -> Usage {
        Usage(self.0 & !(CLOCK_MAX << CLOCK_SHIFT) | clock << CLOCK_SHIFT)
    }

    pub fn is_fetched(self) -> bool {
        self.0 & USAGE_FETCHED != 0
    }

    pub fn with_fetched(self) -> Usage {
        Usage(self.0 | USAGE_FETCHED)
    }

    pub fn with_access(self, now: Now) -> Usage {
        self.with_access_bits(seconds(now))
    }

    /// Seconds since the last access; wraps after six days.
    pub fn access_age_s(self, now: Now) -> u32 {
        seconds(now).wrapping_sub(self.0 >> ACCESS_SHIFT) & ACCESS_MASK
    }

    fn with_access_bits(self, bits: u32) -> Usage {
        Usage(self.0 & !(ACCESS_MASK << ACCESS_SHIFT) | (bits & ACCESS_MASK) << ACCESS_SHIFT)
    }
}

/// The header of an item, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub sequence: u32,
    /// 0: never.
    pub expiry_s: u32,
    pub shape: u32,
    pub usage: Usage,
}

impl Header {
    pub fn key_bytes(&self) -> usize {
        (self.shape & 0xff) as usize
    }

    /// The value bytes in the head.
    pub fn inline_value_bytes(&self) -> usize {
        (self.shape >> 8 & ((1 << VALUE_BITS) - 1)) as usize
    }

    pub fn has_flags(&self) -> bool {
        self.shape & SHAPE_FLAGS != 0
    }

    pub fn is_extended(&self) -> bool {
        self.shape & SHAPE_EXTENDED != 0
    }

    pub fn is_chained(&self) -> bool {
        self.shape & SHAPE_CHAINED != 0
    }

    pub fn is_stale(&self) -> bool {
        self.shape & SHAPE_STALE != 0
    }

    pub fn expiry(&self) -> Expiry {
        match self.expiry_s {
            0 => Expiry::Never,
            unix_s => Expiry::At { unix_s },
        }
    }

    /// The time until which a stale value may be shown.
    pub fn stale_until_ms(&self) -> u64 {
        u64::from(self.usage.0 >> ACCESS_SHIFT) << 32 | u64::from(self.sequence)
    }

    /// The same item as a stale value, which gets no second chance from eviction.
    pub fn into_stale(self, until_ms: u64) -> Header {
        let usage = self.usage.with_clock(0).with_access_bits((until_ms >> 32) as u32);
        Header { sequence: until_ms as u32, shape: self.shape | SHAPE_STALE, usage, ..self }
    }

    /// Whether the item may not be shown any more at `now`. A stale value ends at the earlier of its two times.
    pub fn is_expired(&self, now: Now) -> bool {
        self.is_stale() && self.stale_until_ms() <= now.unix_ms || self.expiry().is_past(now)
    }

    fn extension_at(&self) -> usize {
        HEADER_BYTES + if self.has_flags() { FLAGS_BYTES } else { 0 }
    }

    fn chain_at(&self) -> usize {
        self.extension_at() + if self.is_extended() { EXTENSION_BYTES } else { 0 }
    }

    /// The offset of the key in the head: behind all optional fields.
    pub fn key_at(&self) -> usize {
        self.chain_at() + if self.is_chained() { CHAIN_BYTES } else { 0 }
    }

    fn value_at(&self) -> usize {
        self.key_at() + self.key_bytes()
    }

    /// The bytes of the head in use.
    pub fn head_bytes(&self) -> usize {
        self.value_at() + self.inline_value_bytes()
    }
}

/// The optional parts of an item.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub has_flags: bool,
    pub is_extended: bool,
    pub is_chained: bool,
}

/// The shape of an item with this many bytes of key and of value in the head, and these optional parts.
pub(crate) fn shape(key_bytes: usize, value_bytes: usize, parts: Parts) -> u32 {
    debug_assert!(key_bytes < 1 << 8 && value_bytes < 1 << VALUE_BITS);
    let flags = if parts.has_flags { SHAPE_FLAGS } else { 0 };
    let extended = if parts.is_extended { SHAPE_EXTENDED } else { 0 };
    let chained = if parts.is_chained { SHAPE_CHAINED } else { 0 };
    key_bytes as u32 | (value_bytes as u32) << 8 | flags | extended | chained
}

/// An expiry as it is stored. 0 stands for never, so second 0 is stored as second 1; both are long past.
pub(crate) fn expiry_s(expiry: Expiry) -> u32 {
    match expiry {
        Expiry::Never => 0,
        Expiry::At { unix_s } => unix_s.max(1),
    }
}

pub(crate) fn seconds(now: Now) -> u32 {
    (now.unix_ms / 1000) as u32
}

/// Access to chunks. An item's fields other than the usage are written under the lock of its stripe. A reader without
/// it (`try_head`, `clear_chunk`, `Slabs::sample`) may see an old header: it reads it again under the lock before it
/// changes such a field or evicts the item, or only adds it up.
impl Pages {
    pub fn usage(&self, handle: Handle) -> Usage {
        yield_point();
        Usage(self.region.word(self.offset_of(handle) + 12).load(Relaxed))
    }

    pub fn set_usage(&self, handle: Handle, usage: Usage) {
        self.set_usage_at(self.offset_of(handle), usage);
    }

    #[inline]
    pub fn set_usage_at(&self, at: usize, usage: Usage) {
        self.region.word(at + 12).store(usage.0, Relaxed);
    }

    /// Changes the usage unless another thread just did.
    pub fn exchange_usage(&self, handle: Handle, old: Usage, new: Usage) -> bool {
        yield_point();
        self.region.word(self.offset_of(handle) + 12).compare_exchange(old.0, new.0, Relaxed, Relaxed).is_ok()
    }

    /// The first word of a chunk: an item's sequence, a continuation's head.
    pub fn first_word(&self, handle: Handle) -> u32 {
        self.region.word(self.offset_of(handle)).load(Relaxed)
    }

    /// The second word of a chunk: the next free chunk, the next continuation.
    pub fn next(&self, handle: Handle) -> u32 {
        self.region.word(self.offset_of(handle) + 4).load(Relaxed)
    }

    pub fn set_next(&self, handle: Handle, next: u32) {
        self.region.word(self.offset_of(handle) + 4).store(next, Relaxed);
    }

    pub fn header(&self, handle: Handle) -> Header {
        self.header_at(self.offset_of(handle))
    }

    #[inline]
    pub fn header_at(&self, at: usize) -> Header {
        let [sequence, expiry_s, shape, usage] = self.region.header(at).each_ref().map(|word| word.load(Relaxed));
        Header { sequence, expiry_s, shape, usage: Usage(usage) }
    }

    /// The header of the item at `at` if its key is `key`.
    #[inline]
    pub fn header_if_key(&self, at: usize, key: &[u8]) -> Option<Header> {
        let header = self.header_at(at);
        let is_same_key = header.key_bytes() == key.len() && self.region.bytes(at + header.key_at(), key.len()) == key;
        is_same_key.then_some(header)
    }

    pub fn set_header(&self, handle: Handle, header: &Header) {
        let at = self.offset_of(handle);
        let words = [header.sequence, header.expiry_s, header.shape, header.usage.0];
        for (index, word) in words.into_iter().enumerate() {
            self.region.word(at + 4 * index).store(word, Relaxed);
        }
    }

    pub fn set_expiry(&self, handle: Handle, expiry_s: u32) {
        self.region.word(self.offset_of(handle) + 4).store(expiry_s, Relaxed);
    }

    #[inline]
    pub fn key(&self, at: usize, header: &Header) -> &[u8] {
        self.region.bytes(at + header.key_at(), header.key_bytes())
    }

    #[inline]
    pub fn flags(&self, at: usize, header: &Header) -> u32 {
        match header.has_flags() {
            true => self.region.word(at + HEADER_BYTES).load(Relaxed),
            false => 0,
        }
    }

    /// The meta state of an item.
    pub fn meta_state(&self, at: usize, header: &Header) -> MetaState {
        match header.is_extended() {
            true => MetaState(self.region.word(at + header.extension_at()).load(Relaxed)),
            false => MetaState::NONE,
        }
    }

    /// Changes the meta state of an item that is extended.
    pub fn set_meta_state(&self, at: usize, header: &Header, state: MetaState) {
        debug_assert!(header.is_extended());
        self.region.word(at + header.extension_at()).store(state.0, Relaxed);
    }

    /// The CAS unique that is stored with an item; `None` if it follows from the header.
    pub fn explicit_cas(&self, at: usize, header: &Header) -> Option<u64> {
        let at = at + header.extension_at();
        let half = |at| u64::from(self.region.word(at).load(Relaxed));
        header.is_extended().then(|| half(at + 4) | half(at + 8) << 32)
    }

    pub fn set_explicit_cas(&self, at: usize, header: &Header, cas: u64) {
        let at = at + header.extension_at();
        self.region.word(at + 4).store(cas as u32, Relaxed);
        self.region.word(at + 8).store((cas >> 32) as u32, Relaxed);
    }

    /// The value, or its first piece.
    #[inline]
    pub fn inline_value(&self, at: usize, header: &Header) -> &[u8] {
        self.region.bytes(at + header.value_at(), header.inline_value_bytes())
    }

    /// The first continuation of a chained item, and the bytes of the whole value.
    pub fn chain(&self, at: usize, header: &Header) -> (Handle, usize) {
        let at = at + header.chain_at();
        let next = self.region.word(at).load(Relaxed);
        (Handle(next), self.region.word(at + 4).load(Relaxed) as usize)
    }

    pub fn set_chain(&self, handle: Handle, header: &Header, first: Handle, value_bytes: usize) {
        let at = self.offset_of(handle) + header.chain_at();
        self.region.word(at).store(first.0, Relaxed);
        self.region.word(at + 4).store(value_bytes as u32, Relaxed);
    }

    /// The bytes that an item uses for header, key and value, in all of its chunks.
    #[inline]
    pub fn item_bytes(&self, at: usize, header: &Header) -> usize {
        match header.is_chained() {
            true => header.head_bytes() + self.chain(at, header).1.saturating_sub(header.inline_value_bytes()),
            false => header.head_bytes(),
        }
    }

    /// A continuation's piece of the value, and the next continuation.
    pub fn continuation(&self, handle: Handle) -> (&[u8], Handle) {
        let at = self.offset_of(handle);
        let bytes = self.region.word(at + 8).load(Relaxed) as usize;
        assert!(bytes > 0, "every continuation has a piece, so that walking a chain ends");
        (self.region.bytes(at + HEADER_BYTES, bytes), Handle(self.next(handle)))
    }

    /// Fills an allocated chunk with a piece of a value; it is published with its head.
    pub fn write_continuation(&self, handle: Handle, next: u32, piece: &[u8]) {
        let at = self.offset_of(handle);
        self.set_next(handle, next);
        self.region.word(at + 8).store(piece.len() as u32, Relaxed);
        self.region.write(at + HEADER_BYTES, piece);
    }

    /// Publishes the continuations of a chained item. The index has a slot for the item, so that its head follows at
    /// once.
    pub fn publish_continuations(&self, head: Handle, header: &Header, stripe: usize, now: Now) {
        if !header.is_chained() {
            return;
        }
        let (mut next, value_bytes) = self.chain(self.offset_of(head), header);
        let mut bytes_left = value_bytes - header.inline_value_bytes();
        while bytes_left > 0 {
            let (piece, after) = self.continuation(next);
            bytes_left -= piece.len();
            self.publish_continuation(next, head, stripe, now);
            next = after;
        }
    }

    fn publish_continuation(&self, handle: Handle, head: Handle, stripe: usize, now: Now) {
        self.region.word(self.offset_of(handle)).store(head.0, Relaxed);
        self.set_usage(handle, Usage::new(stripe, ChunkKind::Continuation, 0, now));
    }

    /// Fills an allocated chunk with flags, key, and the part of the value that lies in the head.
    pub fn write_head(&self, handle: Handle, header: &Header, flags: u32, key: &[u8], value: &[u8]) {
        let at = self.offset_of(handle);
        if header.has_flags() {
            self.region.word(at + HEADER_BYTES).store(flags, Relaxed);
        }
        self.region.write(at + header.key_at(), key);
        self.region.write(at + header.value_at(), &value[..header.inline_value_bytes()]);
    }

    /// Copies what follows the header of an item in one chunk into an allocated chunk.
    pub fn copy_payload(&self, from: Handle, to: Handle, header: &Header) {
        let bytes = header.head_bytes() - HEADER_BYTES;
        let payload = self.region.bytes(self.offset_of(from) + HEADER_BYTES, bytes);
        self.region.write(self.offset_of(to) + HEADER_BYTES, payload);
    }

    /// Unlinks the chunks of an item that the index no longer has, for the caller to free; all but the head go to
    /// `freed`.
    pub fn unlink_chunks(&self, head: Handle, header: &Header, freed: &mut Vec<Handle>) {
        if header.is_chained() {
            let (mut next, value_bytes) = self.chain(self.offset_of(head), header);
            let mut bytes_left = value_bytes.saturating_sub(header.inline_value_bytes());
            while bytes_left > 0 {
                let (piece, after) = self.continuation(next);
                bytes_left = bytes_left.saturating_sub(piece.len());
                self.set_usage(next, Usage::allocated());
                freed.push(next);
                next = after;
            }
        }
        self.set_usage(head, Usage::allocated());
    }

    /// The key of an item whose stripe is locked.
    pub fn hashed_key(&self, head: Handle) -> HashedKey<'_> {
        let at = self.offset_of(head);
        self.hasher.hash(self.key(at, &self.header_at(at)))
    }
}
