//! Where records lie: segments of equal size, filled one after the other, oldest first in line to be reclaimed.
//!
//! ```text
//! order:  [ oldest ] [ ... ] [ large ] [ ... ] [ open: records | free ]
//! ```
//! A record larger than an eighth of a segment gets a segment of its own size ("large"), which is given back to the
//! allocator as soon as the record dies. So little is lost at the end of a segment, memory is asked for in few sizes,
//! and what is counted is what is taken.
//!
//! Absent: any idea of which records are worth keeping (see `eviction.rs`) or of who refers to them (`index.rs`).

use crate::record::{Header, State, UNIT_BYTES};
use std::collections::VecDeque;

const OFFSET_BITS: u32 = 14;
const SEGMENT_BYTES_MIN: usize = 4 << 10;
const SEGMENT_BYTES_MAX: usize = UNIT_BYTES << OFFSET_BITS;
/// The last number is left out, so that no slot of the index looks like a free one.
const SEGMENTS_MAX: usize = (1 << (32 - OFFSET_BITS)) - 1;
/// A stripe is cut into about this many segments.
const SEGMENTS_PER_STRIPE: usize = 64;
/// What an allocator keeps beside a block, and rounds up to: 16 bytes fit glibc and musl.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

/// Where a record lies: segment in the upper bits, offset in units in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub u32);

impl Handle {
    /// The record at `offset` bytes of `segment`.
    pub fn new(segment: usize, offset: usize) -> Handle {
        Handle(((segment << OFFSET_BITS) | (offset / UNIT_BYTES)) as u32)
    }

    fn segment(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    fn offset(self) -> usize {
        (self.0 & ((1 << OFFSET_BITS) - 1)) as usize * UNIT_BYTES
    }
}

/// A run of records.
#[derive(Default)]
pub(crate) struct Segment {
    pub bytes: Vec<u8>,
    /// Records end here.
    pub used: usize,
    /// Of the used bytes, those of dead records.
    pub dead: usize,
    /// It was made for one large record.
    is_own: bool,
}

/// The records of one stripe.
pub(crate) struct Log {
    segments: Vec<Segment>,
    numbers_free: Vec<u32>,
    /// Oldest first.
    order: VecDeque<u32>,
    open: Option<usize>,
    segment_bytes: usize,
    held_bytes: usize,
    segments_max: usize,
}

impl Log {
    /// An empty log for a stripe of `stripe_bytes`.
    pub fn new(stripe_bytes: usize) -> Log {
        let share = (stripe_bytes / SEGMENTS_PER_STRIPE).max(1);
        let segment_bytes = (1 << share.ilog2()).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let segments_max = (stripe_bytes / (segment_bytes / 8)).min(SEGMENTS_MAX);
        Log {
            segments: Vec::with_capacity(segments_max),
            numbers_free: Vec::with_capacity(segments_max),
            order: VecDeque::with_capacity(segments_max),
            open: None,
            segment_bytes,
            held_bytes: 0,
            segments_max,
        }
    }

    /// What the log takes however little it holds.
    pub fn table_bytes(&self) -> usize {
        self.segments_max * (size_of::<Segment>() + 2 * size_of::<u32>())
    }

    /// What the segments take.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// What one more segment would take.
    pub fn segment_cost_bytes(&self) -> usize {
        allocated_bytes(self.segment_bytes)
    }

    /// Whether a record of this size gets a segment of its own.
    pub fn is_large(&self, record_bytes: usize) -> bool {
        record_bytes > self.segment_bytes / 8
    }

    /// Whether a segment may be added at all.
    pub fn has_number_free(&self) -> bool {
        self.order.len() < self.segments_max
    }

    /// Room for a record in the open segment, if it has as much.
    pub fn append(&mut self, record_bytes: usize) -> Option<Handle> {
        let number = self.open?;
        let segment = &mut self.segments[number];
        let offset = segment.used;
        if offset + record_bytes > segment.bytes.len() {
            return None;
        }
        segment.used += record_bytes;
        Some(Handle::new(number, offset))
    }

    /// Adds an empty segment and fills that one from now on. The caller has made room.
    pub fn open_segment(&mut self) {
        let number = self.add(Segment { bytes: vec![0; self.segment_bytes], ..Segment::default() });
        self.open = Some(number);
    }

    /// Adds a segment for one large record. The caller has made room.
    pub fn append_large(&mut self, record_bytes: usize) -> Handle {
        let number = self.add(Segment { bytes: vec![0; record_bytes], used: record_bytes, dead: 0, is_own: true });
        Handle::new(number, 0)
    }

    /// The record at `handle`, and all that follows it in its segment.
    pub fn record(&self, handle: Handle) -> &[u8] {
        &self.segments[handle.segment()].bytes[handle.offset()..]
    }

    /// As [`Log::record`], to be written.
    pub fn record_mut(&mut self, handle: Handle) -> &mut [u8] {
        &mut self.segments[handle.segment()].bytes[handle.offset()..]
    }

    /// The header of the record at `handle`.
    pub fn header(&self, handle: Handle) -> Header {
        Header::decode(self.record(handle))
    }

    /// Nothing refers to the record at `handle` any more.
    pub fn bury(&mut self, handle: Handle) {
        let mut header = self.header(handle);
        let number = handle.segment();
        if self.is_own(number) {
            self.take(number);
            return;
        }
        header.state = State::Dead;
        header.encode(self.record_mut(handle));
        self.segments[number].dead += header.record_bytes();
    }

    /// The segment that is first in line to be reclaimed.
    pub fn oldest(&self) -> Option<usize> {
        self.order.front().map(|&number| number as usize)
    }

    /// The segment with the most dead records, if they are at least half of it.
    pub fn mostly_dead(&self) -> Option<usize> {
        let number = self.order.iter().copied().max_by_key(|&number| self.segments[number as usize].dead)? as usize;
        (self.segments[number].dead * 2 >= self.segment_bytes).then_some(number)
    }

    /// Whether the segment holds one large record.
    pub fn is_own(&self, number: usize) -> bool {
        self.segments[number].is_own
    }

    /// How far the segment is filled.
    pub fn used_bytes(&self, number: usize) -> usize {
        self.segments[number].used
    }

    /// Half of what a segment holds.
    pub fn segment_half_bytes(&self) -> usize {
        self.segment_bytes / 2
    }

    /// Moves the record at `from` to `to`, which lies not behind it in the same segment, under a new header.
    pub fn move_back(&mut self, from: Handle, to: Handle, header: &Header) {
        let bytes = &mut self.segments[from.segment()].bytes;
        bytes.copy_within(from.offset()..from.offset() + header.tight_bytes(), to.offset());
        header.encode(&mut bytes[to.offset()..]);
    }

    /// The segment has been cleared up to `used`: it is filled from now on, and is the youngest.
    pub fn reopen(&mut self, number: usize, used: usize) {
        let segment = &mut self.segments[number];
        segment.used = used;
        segment.dead = 0;
        self.make_youngest(number);
        self.open = Some(number);
    }

    /// Puts the segment last in line.
    pub fn make_youngest(&mut self, number: usize) {
        self.order.retain(|&other| other as usize != number);
        self.order.push_back(number as u32);
    }

    /// Takes the segment out of the log.
    pub fn take(&mut self, number: usize) -> Segment {
        let segment = std::mem::take(&mut self.segments[number]);
        self.held_bytes -= allocated_bytes(segment.bytes.len());
        self.order.retain(|&other| other as usize != number);
        self.numbers_free.push(number as u32);
        if self.open == Some(number) {
            self.open = None;
        }
        segment
    }

    /// Drops every segment.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.numbers_free.clear();
        self.order.clear();
        self.open = None;
        self.held_bytes = 0;
    }

    fn add(&mut self, segment: Segment) -> usize {
        self.held_bytes += allocated_bytes(segment.bytes.len());
        let number = match self.numbers_free.pop() {
            Some(number) => {
                self.segments[number as usize] = segment;
                number
            }
            None => {
                self.segments.push(segment);
                (self.segments.len() - 1) as u32
            }
        };
        self.order.push_back(number);
        number as usize
    }
}

/// What a record of this size takes when it gets a segment of its own.
pub(crate) fn allocated_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(ALLOCATION_OVERHEAD_BYTES) + ALLOCATION_OVERHEAD_BYTES
}
