//! Who leaves when memory is short. Serves every store.
//!
//! Segments are reclaimed oldest first. Of the records in one, those that were asked for since the last round stay
//! (they are moved to the front of the segment, which then is filled again as the youngest), the others go: CLOCK over
//! a log. A segment that is half dead is tidied up before anything is evicted. At most half of a segment may stay, so
//! that every round frees something.
//!
//! A stale value never stays: it has been deleted once already.

use crate::log::{Handle, allocated_bytes};
use crate::record::{Header, State};
use crate::stripe::{Found, NoRoom, Stripe};
use crate::{HashedKey, Now};

/// The index may take one part in this many of a stripe's memory; then small items are evicted for new ones.
const INDEX_SHARE: usize = 3;

impl Stripe {
    /// Room for a record in the log.
    pub(crate) fn allocate(&mut self, record_bytes: usize, now: Now) -> Result<Handle, NoRoom> {
        if self.log.is_large(record_bytes) {
            self.make_room(allocated_bytes(record_bytes), now)?;
            return Ok(self.log.append_large(record_bytes));
        }
        loop {
            if let Some(handle) = self.log.append(record_bytes) {
                return Ok(handle);
            }
            if self.has_room(self.log.segment_cost_bytes()) {
                self.log.open_segment();
            } else {
                self.recycle_segment(now)?;
            }
        }
    }

    /// Lets the index take one more record.
    pub(crate) fn make_index_room(&mut self, now: Now) -> Result<(), NoRoom> {
        while self.index.is_full() {
            let growth_bytes = self.index.bytes();
            if 2 * growth_bytes > self.bytes_max / INDEX_SHARE {
                self.release_segment(now)?;
            } else {
                self.make_room(growth_bytes, now)?;
                self.index.grow();
            }
        }
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.log.has_number_free() && self.memory_bytes() + bytes <= self.bytes_max
    }

    /// Gives segments back until `bytes` are free.
    fn make_room(&mut self, bytes: usize, now: Now) -> Result<(), NoRoom> {
        while !self.has_room(bytes) {
            self.release_segment(now)?;
        }
        Ok(())
    }

    /// Makes room in a segment for small records; what leaves it is decided here.
    fn recycle_segment(&mut self, now: Now) -> Result<(), NoRoom> {
        if let Some(number) = self.log.mostly_dead() {
            self.compact(number, true, now);
            return Ok(());
        }
        let number = self.log.oldest().ok_or(NoRoom)?;
        if self.log.is_own(number) {
            self.release_large(number, now);
        } else {
            self.compact(number, false, now);
        }
        Ok(())
    }

    /// Gives the oldest segment back to the allocator. Records worth keeping move to the open segment as far as it
    /// has room.
    fn release_segment(&mut self, now: Now) -> Result<(), NoRoom> {
        let number = self.log.oldest().ok_or(NoRoom)?;
        if self.log.is_own(number) {
            self.release_large(number, now);
            return Ok(());
        }
        let segment = self.log.take(number);
        let mut offset = 0;
        while offset < segment.used {
            let record = &segment.bytes[offset..];
            let header = Header::decode(record);
            let handle = Handle::new(number, offset);
            offset += header.record_bytes();
            if header.state == State::Dead {
                continue;
            }
            let position = self.index.position_of(HashedKey::new(header.key(record)).tag(), handle);
            let is_kept = header.referenced && !header.is_past(now);
            match is_kept.then(|| self.log.append(header.tight_bytes())).flatten() {
                Some(moved) => {
                    let place = self.log.record_mut(moved);
                    place[..header.tight_bytes()].copy_from_slice(&record[..header.tight_bytes()]);
                    Header { spare_units: 0, referenced: false, ..header }.encode(place);
                    self.index.relocate(position, moved);
                }
                None => {
                    self.index.remove(position);
                    self.count_leaver(&header, now);
                }
            }
        }
        Ok(())
    }

    /// A large record gets another round if it was asked for, else it goes.
    fn release_large(&mut self, number: usize, now: Now) {
        let handle = Handle::new(number, 0);
        let mut header = self.log.header(handle);
        if header.referenced && !header.is_past(now) {
            header.referenced = false;
            header.encode(self.log.record_mut(handle));
            self.log.make_youngest(number);
            return;
        }
        let tag = HashedKey::new(header.key(self.log.record(handle))).tag();
        let position = self.index.position_of(tag, handle);
        self.drop_record(Found { position, handle, header });
        self.count_leaver(&header, now);
    }

    /// Moves the records that stay to the front of their segment, drops the others, and fills that segment from now on.
    fn compact(&mut self, number: usize, keep_all: bool, now: Now) {
        let (mut from, mut to) = (0, 0);
        while from < self.log.used_bytes(number) {
            let handle = Handle::new(number, from);
            let header = self.log.header(handle);
            from += header.record_bytes();
            if header.state == State::Dead {
                continue;
            }
            let tag = HashedKey::new(header.key(self.log.record(handle))).tag();
            let position = self.index.position_of(tag, handle);
            let fits = to + header.tight_bytes() <= self.log.segment_half_bytes();
            if !header.is_past(now) && (keep_all || header.referenced && fits) {
                let moved = Handle::new(number, to);
                let referenced = keep_all && header.referenced;
                self.log.move_back(handle, moved, &Header { spare_units: 0, referenced, ..header });
                self.index.relocate(position, moved);
                to += header.tight_bytes();
            } else {
                self.index.remove(position);
                self.count_leaver(&header, now);
            }
        }
        self.log.reopen(number, to);
    }

    fn count_leaver(&mut self, header: &Header, now: Now) {
        match header.is_past(now) {
            true => self.counters.expirations += 1,
            false => self.counters.evictions += 1,
        }
    }
}
