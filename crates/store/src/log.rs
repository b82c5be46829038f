//! Where records lie: a ring of pages of equal size, written at the young end and reclaimed at the old one.
//!
//! ```text
//!  pages:   [ .. reclaimed | oldest record | ... ] [ ... ] [ ... record that | ] [ goes on | ... youngest | free ]
//!                            ^ tail                                                                         ^ head
//! ```
//! A record flows over into the next pages, so that a value of any size takes what it needs and no more; only its
//! header and key are kept in one piece (a dead filler ends a page that has no room for them). Memory is asked for in
//! one size and kept for reuse, so what is counted is what is taken, whatever the values' sizes.
//!
//! Absent: any idea of which records are worth keeping (see `eviction.rs`) or of who refers to them (`index.rs`).

use crate::prefetch;
use crate::record::{HEADER_BYTES, Header, State, UNIT_BYTES};
use crate::{Expiry, Value};
use std::collections::VecDeque;

/// How much of a record is asked for ahead, in the processor's lines: header, key, and most values whole.
const PREFETCH_LINES: usize = 4;
const OFFSET_BITS: u32 = 14;
const PAGE_BYTES_MIN: usize = 4 << 10;
const PAGE_BYTES_MAX: usize = UNIT_BYTES << OFFSET_BITS;
const PAGES_MAX: usize = 1 << (32 - OFFSET_BITS);
/// A stripe is cut into about this many pages.
const PAGES_PER_STRIPE: usize = 128;
/// What an allocator keeps beside a block, rounded up: 16 bytes fit glibc and musl.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

/// Where a record lies: the page's number, as far as it fits, in the upper bits; the offset in units in the lower. The
/// last units of a page never begin a record, so no slot of the index looks like a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub u32);

impl Handle {
    fn new(page: usize, offset: usize) -> Handle {
        Handle((((page & (PAGES_MAX - 1)) << OFFSET_BITS) | (offset / UNIT_BYTES)) as u32)
    }

    fn page(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize * UNIT_BYTES
    }
}

pub(crate) type Page = Box<[u8]>;

/// The records of one stripe.
pub(crate) struct Log {
    /// Oldest first.
    pages: VecDeque<Page>,
    /// Pages that hold nothing now.
    spare: Vec<Page>,
    /// How many pages have been reclaimed before the oldest.
    page_first: usize,
    /// Where the oldest record begins in the oldest page.
    tail: usize,
    /// Where the next record begins in the youngest page.
    head: usize,
    dead_bytes: usize,
    page_bytes: usize,
}

impl Log {
    /// An empty log for a stripe of `stripe_bytes`.
    pub fn new(stripe_bytes: usize) -> Log {
        let share = (stripe_bytes / PAGES_PER_STRIPE).max(1);
        let page_bytes = (1 << share.ilog2()).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let pages_max = stripe_bytes / page_bytes;
        Log {
            pages: VecDeque::with_capacity(pages_max),
            spare: Vec::with_capacity(pages_max),
            page_first: 0,
            tail: 0,
            head: page_bytes,
            dead_bytes: 0,
            page_bytes,
        }
    }

    /// All that the log takes.
    pub fn bytes(&self) -> usize {
        let tables = (self.pages.capacity() + self.spare.capacity()) * size_of::<Page>();
        tables + (self.pages.len() + self.spare.len()) * self.page_cost_bytes()
    }

    /// What one more page takes.
    pub fn page_cost_bytes(&self) -> usize {
        self.page_bytes + ALLOCATION_OVERHEAD_BYTES
    }

    /// The memory that [`Log::append`] of such a record would ask for, with so many pages left over; `None` when there
    /// can be no more pages.
    pub fn append_cost_bytes(&self, key_bytes: usize, record_bytes: usize, pages_over: usize) -> Option<usize> {
        let rest_bytes = self.page_bytes - self.head;
        let usable_bytes = if rest_bytes < HEADER_BYTES + key_bytes { 0 } else { rest_bytes };
        let pages = record_bytes.saturating_sub(usable_bytes).div_ceil(self.page_bytes) + pages_over;
        let has_numbers = self.pages.len() + pages < PAGES_MAX;
        has_numbers.then(|| pages.saturating_sub(self.spare.len()) * self.page_cost_bytes())
    }

    /// Room for a record at the young end. The caller has made sure of the memory.
    pub fn append(&mut self, key_bytes: usize, record_bytes: usize) -> Handle {
        if self.page_bytes - self.head < HEADER_BYTES + key_bytes {
            self.end_page();
        }
        let handle = Handle::new(self.page_first + self.pages.len() - 1, self.head);
        self.head += record_bytes;
        while self.head > self.page_bytes {
            self.add_page();
            self.head -= self.page_bytes;
        }
        handle
    }

    /// The oldest record, dead or not.
    pub fn oldest(&self) -> Option<Handle> {
        (!self.pages.is_empty()).then(|| Handle::new(self.page_first, self.tail))
    }

    /// Drops the oldest record: its pages are spare as soon as they hold no other.
    pub fn pop(&mut self) {
        let Some(header) = self.oldest().map(|handle| self.header(handle)) else { return };
        if header.state == State::Dead {
            self.dead_bytes -= header.record_bytes();
        }
        self.tail += header.record_bytes();
        while self.pages.len() > 1 && self.page_bytes.saturating_sub(self.tail) < HEADER_BYTES {
            // What is left of a page is too short for a filler when it is too short for a header.
            self.tail = self.tail.saturating_sub(self.page_bytes);
            self.page_first += 1;
            self.spare.extend(self.pages.pop_front());
        }
        if self.pages.len() == 1 && self.tail == self.head {
            self.page_first += 1;
            self.spare.extend(self.pages.pop_front());
            (self.tail, self.head) = (0, self.page_bytes);
        }
    }

    /// Nothing refers to the record at `handle` any more.
    pub fn bury(&mut self, handle: Handle) {
        let header = Header { state: State::Dead, ..self.header(handle) };
        self.write_header(handle, &header);
        self.dead_bytes += header.record_bytes();
    }

    /// Whether a third of the pages is dead, so that tidying up frees more than evicting.
    pub fn is_cluttered(&self) -> bool {
        self.dead_bytes * 3 > self.pages.len() * self.page_bytes
    }

    /// The header of the record at `handle`.
    pub fn header(&self, handle: Handle) -> Header {
        Header::decode(&self.page(handle)[handle.offset()..])
    }

    /// Its key.
    pub fn key(&self, handle: Handle) -> &[u8] {
        let record = &self.page(handle)[handle.offset()..];
        &record[HEADER_BYTES..][..Header::decode(record).key_bytes.into()]
    }

    /// Asks the processor for its first lines, without reading them: the value's length is not known yet.
    pub fn prefetch(&self, handle: Handle) {
        let record = &self.page(handle)[handle.offset()..];
        record.chunks(prefetch::LINE_BYTES).take(PREFETCH_LINES).for_each(|line| prefetch::line_of(&line[0]));
    }

    /// Its value.
    pub fn value(&self, handle: Handle, header: &Header) -> Value<'_> {
        let value_bytes = header.value_bytes as usize;
        let value_start = handle.offset() + HEADER_BYTES + usize::from(header.key_bytes);
        let here = &self.page(handle)[value_start..];
        let first = &here[..value_bytes.min(here.len())];
        Value::chained(first, &self.pages, self.place_of(handle) + 1, value_bytes - first.len())
    }

    /// Changes the header only.
    pub fn write_header(&mut self, handle: Handle, header: &Header) {
        let place = self.place_of(handle);
        header.encode(&mut self.pages[place][handle.offset()..]);
    }

    /// Writes the whole record, for which there is room at `handle`.
    pub fn write(&mut self, handle: Handle, header: &Header, key: &[u8], value: &[u8]) {
        self.write_header(handle, header);
        let mut place = self.place_of(handle);
        let key_start = handle.offset() + HEADER_BYTES;
        let (key_place, mut here) = self.pages[place][key_start..].split_at_mut(key.len());
        key_place.copy_from_slice(key);
        let mut rest = value;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(here.len()));
            here[..piece.len()].copy_from_slice(piece);
            if after.is_empty() {
                return;
            }
            rest = after;
            place += 1;
            here = &mut self.pages[place];
        }
    }

    /// Gives the pages that hold nothing back to the allocator.
    pub fn drop_spare(&mut self) {
        self.spare.clear();
    }

    /// Where the page of `handle` stands in line.
    fn place_of(&self, handle: Handle) -> usize {
        handle.page().wrapping_sub(self.page_first) & (PAGES_MAX - 1)
    }

    fn page(&self, handle: Handle) -> &[u8] {
        &self.pages[self.place_of(handle)]
    }

    /// Makes what is left of the youngest page a dead record, and begins another page.
    fn end_page(&mut self) {
        let rest_bytes = self.page_bytes - self.head;
        if rest_bytes >= HEADER_BYTES {
            let filler = Header {
                cas: 0,
                expiry: Expiry::Never,
                flags: 0,
                value_bytes: (rest_bytes - HEADER_BYTES) as u32,
                key_bytes: 0,
                spare_units: 0,
                state: State::Dead,
                referenced: false,
                fetched: false,
            };
            self.write_header(Handle::new(self.page_first + self.pages.len() - 1, self.head), &filler);
            self.dead_bytes += rest_bytes;
        }
        self.add_page();
        self.head = 0;
    }

    fn add_page(&mut self) {
        let page = self.spare.pop().unwrap_or_else(|| vec![0; self.page_bytes].into_boxed_slice());
        self.pages.push_back(page);
    }
}
