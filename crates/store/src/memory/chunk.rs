//! What stands at the front of a chunk.
//!
//! ```text
//!           0          4          8          12         16
//! head      | sequence | expiry   | shape    | usage    | client flags? | extension? | chain? | key | value, or its first piece
//! follower  | head     | next     | bytes    | usage    | piece of the value
//! free      |          | next     |          | usage
//!
//! shape     key bytes 8 | value bytes in this chunk 20 | is extended | has client flags | is chained | is stale
//! usage     stripe 8 | state 2 | clock 2 | fetched 1 | last access, Unix seconds mod 2^19
//! extension marks 4 | CAS unique 8
//! chain     handle of the first follower 4 | bytes of the whole value 4
//! ```
//! Client flags are there if they are not 0; the extension is there if the item bears a mark or a CAS unique that a client
//! has chosen; the chain is there if the value does not fit one chunk. A stale value needs no sequence and no last access:
//! together these bits say until when it may be shown, in milliseconds.
//!
//! The usage tells an evictor, who does not hold the stripe's lock yet, all that it needs to choose a victim: whose item
//! it is and how it was used. Everything in front of the key is read and written as atomics; nothing is torn, and order
//! comes from the locks.

use crate::memory::Memory;
use crate::meta_state::Marks;
use crate::sync::meet;
use crate::{Expiry, Now};
use std::sync::atomic::Ordering::Relaxed;

/// What every chunk carries in front.
pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const FLAGS_BYTES: usize = 4;
pub(crate) const CHAIN_BYTES: usize = 8;
pub(crate) const EXTENSION_BYTES: usize = 12;

const SHAPE_EXTENDED: u32 = 1 << 28;
const SHAPE_FLAGS: u32 = 1 << 29;
const SHAPE_CHAINED: u32 = 1 << 30;
const SHAPE_STALE: u32 = 1 << 31;
const VALUE_BITS: u32 = 20;
/// No chunk is larger, so that the bytes of a value in it can be told.
pub(crate) const CHUNK_BYTES_LIMIT: usize = 1 << VALUE_BITS;

const STATE_SHIFT: u32 = 8;
const CLOCK_SHIFT: u32 = 10;
/// How often an item may be passed over by eviction after it was last asked for.
pub(crate) const CLOCK_MAX: u32 = 3;
const USAGE_FETCHED: u32 = 1 << 12;
const ACCESS_SHIFT: u32 = 13;
const ACCESS_MASK: u32 = (1 << 19) - 1;

/// Where a chunk lies: page and number within the page. 0 is none: the first page belongs to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub u32);

/// What a chunk is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free = 0,
    /// Taken by a thread, and nobody else's business.
    Taken = 1,
    /// An item that the index knows.
    Head = 2,
    /// A further piece of such an item's value.
    Follower = 3,
}

/// The last word of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage(pub u32);

impl Usage {
    pub fn new(lane: usize, state: State, clock: u32, now: Now) -> Usage {
        Usage(lane as u32 | (state as u32) << STATE_SHIFT | clock << CLOCK_SHIFT).accessed(now)
    }

    /// Of a chunk that belongs to the thread that has it.
    pub fn taken() -> Usage {
        Usage((State::Taken as u32) << STATE_SHIFT)
    }

    pub fn lane(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub fn state(self) -> State {
        match self.0 >> STATE_SHIFT & 3 {
            0 => State::Free,
            1 => State::Taken,
            2 => State::Head,
            _ => State::Follower,
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

    pub fn fetched(self) -> Usage {
        Usage(self.0 | USAGE_FETCHED)
    }

    pub fn accessed(self, now: Now) -> Usage {
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

    /// The bytes of the value that lie in the head.
    pub fn value_bytes_here(&self) -> usize {
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

    /// Until when a stale value may be shown.
    pub fn stale_until_ms(&self) -> u64 {
        u64::from(self.usage.0 >> ACCESS_SHIFT) << 32 | u64::from(self.sequence)
    }

    /// The same item as a stale value, which eviction will not spare.
    pub fn stale(self, until_ms: u64) -> Header {
        let usage = self.usage.with_clock(0).with_access_bits((until_ms >> 32) as u32);
        Header { sequence: until_ms as u32, shape: self.shape | SHAPE_STALE, usage, ..self }
    }

    /// Whether nobody may see the item any more at `now`. A stale value is gone at the earlier of its two ends.
    pub fn is_past(&self, now: Now) -> bool {
        self.is_stale() && self.stale_until_ms() <= now.unix_ms || self.expiry().is_past(now)
    }

    fn extension_at(&self) -> usize {
        HEADER_BYTES + if self.has_flags() { FLAGS_BYTES } else { 0 }
    }

    fn chain_at(&self) -> usize {
        self.extension_at() + if self.is_extended() { EXTENSION_BYTES } else { 0 }
    }

    /// Where the key begins in the head: behind every field that may or may not be there.
    pub fn key_at(&self) -> usize {
        self.chain_at() + if self.is_chained() { CHAIN_BYTES } else { 0 }
    }

    fn value_at(&self) -> usize {
        self.key_at() + self.key_bytes()
    }

    /// The bytes of the head that are in use.
    pub fn head_bytes(&self) -> usize {
        self.value_at() + self.value_bytes_here()
    }
}

/// What an item needs beside key and value.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub has_flags: bool,
    pub is_extended: bool,
    pub is_chained: bool,
}

/// The shape of an item with so many bytes of key, of value in the head, and with what else it needs.
pub(crate) fn shape(key_bytes: usize, value_bytes: usize, parts: Parts) -> u32 {
    debug_assert!(key_bytes < 1 << 8 && value_bytes < 1 << VALUE_BITS);
    let flags = if parts.has_flags { SHAPE_FLAGS } else { 0 };
    let extended = if parts.is_extended { SHAPE_EXTENDED } else { 0 };
    let chained = if parts.is_chained { SHAPE_CHAINED } else { 0 };
    key_bytes as u32 | (value_bytes as u32) << 8 | flags | extended | chained
}

/// An expiry as it is kept. The first second of all is as past as the one after it.
pub(crate) fn expiry_s(expiry: Expiry) -> u32 {
    match expiry {
        Expiry::Never => 0,
        Expiry::At { unix_s } => unix_s.max(1),
    }
}

/// The moment in whole seconds.
pub(crate) fn seconds(now: Now) -> u32 {
    (now.unix_ms / 1000) as u32
}

/// Headers and what they describe. Fields are read and written under the lock of the item's stripe, but for the usage.
impl Memory {
    pub fn usage(&self, handle: Handle) -> Usage {
        meet();
        Usage(self.region.word(self.at(handle) + 12).load(Relaxed))
    }

    pub fn set_usage(&self, handle: Handle, usage: Usage) {
        self.set_usage_at(self.at(handle), usage);
    }

    #[inline]
    pub fn set_usage_at(&self, at: usize, usage: Usage) {
        self.region.word(at + 12).store(usage.0, Relaxed);
    }

    /// Changes the usage unless somebody else just did.
    pub fn exchange_usage(&self, handle: Handle, old: Usage, new: Usage) -> bool {
        meet();
        self.region.word(self.at(handle) + 12).compare_exchange(old.0, new.0, Relaxed, Relaxed).is_ok()
    }

    /// The first word of a chunk: an item's sequence, a follower's head.
    pub fn first_word(&self, handle: Handle) -> u32 {
        self.region.word(self.at(handle)).load(Relaxed)
    }

    /// The second word of a chunk: the next free chunk, the next follower.
    pub fn next(&self, handle: Handle) -> u32 {
        self.region.word(self.at(handle) + 4).load(Relaxed)
    }

    pub fn set_next(&self, handle: Handle, next: u32) {
        self.region.word(self.at(handle) + 4).store(next, Relaxed);
    }

    pub fn header(&self, handle: Handle) -> Header {
        self.header_at(self.at(handle))
    }

    #[inline]
    pub fn header_at(&self, at: usize) -> Header {
        let [sequence, expiry_s, shape, usage] = self.region.header(at).each_ref().map(|word| word.load(Relaxed));
        Header { sequence, expiry_s, shape, usage: Usage(usage) }
    }

    /// The header of the item at `at`, if that is the item of `key`.
    #[inline]
    pub fn header_if(&self, at: usize, key: &[u8]) -> Option<Header> {
        let header = self.header_at(at);
        let is_it = header.key_bytes() == key.len() && self.region.bytes(at + header.key_at(), key.len()) == key;
        is_it.then_some(header)
    }

    pub fn set_header(&self, handle: Handle, header: &Header) {
        let at = self.at(handle);
        let words = [header.sequence, header.expiry_s, header.shape, header.usage.0];
        for (index, word) in words.into_iter().enumerate() {
            self.region.word(at + 4 * index).store(word, Relaxed);
        }
    }

    pub fn set_expiry(&self, handle: Handle, expiry_s: u32) {
        self.region.word(self.at(handle) + 4).store(expiry_s, Relaxed);
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

    /// The marks that an item bears.
    pub fn marks(&self, at: usize, header: &Header) -> Marks {
        match header.is_extended() {
            true => Marks(self.region.word(at + header.extension_at()).load(Relaxed)),
            false => Marks::NONE,
        }
    }

    /// Changes the marks of an item that is extended.
    pub fn set_marks(&self, at: usize, header: &Header, marks: Marks) {
        debug_assert!(header.is_extended());
        self.region.word(at + header.extension_at()).store(marks.0, Relaxed);
    }

    /// The CAS unique that an item was given, if it does not follow from its header.
    pub fn given_cas(&self, at: usize, header: &Header) -> Option<u64> {
        let at = at + header.extension_at();
        let half = |at| u64::from(self.region.word(at).load(Relaxed));
        header.is_extended().then(|| half(at + 4) | half(at + 8) << 32)
    }

    pub fn set_given_cas(&self, at: usize, header: &Header, cas: u64) {
        let at = at + header.extension_at();
        self.region.word(at + 4).store(cas as u32, Relaxed);
        self.region.word(at + 8).store((cas >> 32) as u32, Relaxed);
    }

    /// The value, or its first piece.
    #[inline]
    pub fn value_here(&self, at: usize, header: &Header) -> &[u8] {
        self.region.bytes(at + header.value_at(), header.value_bytes_here())
    }

    /// The first follower of an item that is chained, and the bytes of the whole value.
    pub fn chain(&self, at: usize, header: &Header) -> (Handle, usize) {
        let at = at + header.chain_at();
        let next = self.region.word(at).load(Relaxed);
        (Handle(next), self.region.word(at + 4).load(Relaxed) as usize)
    }

    pub fn set_chain(&self, handle: Handle, header: &Header, first: Handle, value_bytes: usize) {
        let at = self.at(handle) + header.chain_at();
        self.region.word(at).store(first.0, Relaxed);
        self.region.word(at + 4).store(value_bytes as u32, Relaxed);
    }

    /// A follower's piece of the value, and the follower after it.
    pub fn follower(&self, handle: Handle) -> (&[u8], Handle) {
        let at = self.at(handle);
        let bytes = self.region.word(at + 8).load(Relaxed) as usize;
        assert!(bytes > 0, "every follower has a piece: whoever walks a chain comes to its end");
        (self.region.bytes(at + HEADER_BYTES, bytes), Handle(self.next(handle)))
    }

    /// Fills a chunk that was taken with a piece of a value; it is published with its head.
    pub fn write_follower(&self, handle: Handle, next: u32, piece: &[u8]) {
        let at = self.at(handle);
        self.set_next(handle, next);
        self.region.word(at + 8).store(piece.len() as u32, Relaxed);
        self.region.write(at + HEADER_BYTES, piece);
    }

    /// Makes the followers of a chained item part of it. The index has room for the item: nobody meets them before its head.
    pub fn publish_followers(&self, head: Handle, header: &Header, lane: usize, now: Now) {
        if !header.is_chained() {
            return;
        }
        let (mut next, value_bytes) = self.chain(self.at(head), header);
        let mut bytes_left = value_bytes - header.value_bytes_here();
        while bytes_left > 0 {
            let (piece, after) = self.follower(next);
            bytes_left -= piece.len();
            self.publish_follower(next, head, lane, now);
            next = after;
        }
    }

    /// Makes a follower part of the item at `head`.
    fn publish_follower(&self, handle: Handle, head: Handle, lane: usize, now: Now) {
        self.region.word(self.at(handle)).store(head.0, Relaxed);
        self.set_usage(handle, Usage::new(lane, State::Follower, 0, now));
    }

    /// Fills a chunk that was taken with flags, key and value, or as much of it as is said to lie here.
    pub fn write_head(&self, handle: Handle, header: &Header, flags: u32, key: &[u8], value: &[u8]) {
        let at = self.at(handle);
        if header.has_flags() {
            self.region.word(at + HEADER_BYTES).store(flags, Relaxed);
        }
        self.region.write(at + header.key_at(), key);
        self.region.write(at + header.value_at(), &value[..header.value_bytes_here()]);
    }

    /// Copies what follows the header of an item that is in one chunk into one that was taken.
    pub fn copy_payload(&self, from: Handle, to: Handle, header: &Header) {
        let bytes = header.head_bytes() - HEADER_BYTES;
        let payload = self.region.bytes(self.at(from) + HEADER_BYTES, bytes);
        self.region.write(self.at(to) + HEADER_BYTES, payload);
    }
}
