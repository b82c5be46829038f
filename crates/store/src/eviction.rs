//! Who leaves when memory is short. Serves every store.
//!
//! The oldest record is looked at first. If it was asked for since it was written, it is written again at the young
//! end and gets another round; else it goes: CLOCK over a log. While much of the log is dead, every live record gets
//! another round, so that tidying up comes before evicting. What one store may carry over is bounded, so that it
//! waits for a few pages to be copied at most.
//!
//! A stale value never stays: it has been deleted once already.

use crate::log::Handle;
use crate::record::{Header, State};
use crate::stripe::{NoRoom, Stripe};
use crate::{HashedKey, Now};

/// The index may take one part in this many of a stripe's memory; then small items are evicted for new ones.
const INDEX_SHARE: usize = 3;
/// One store carries over no more than this many bytes for each byte that it brings, and as many pages.
const CARRY_FACTOR: usize = 3;

impl Stripe {
    /// Room for a record in the log.
    pub(crate) fn allocate(&mut self, key_bytes: usize, record_bytes: usize, now: Now) -> Result<Handle, NoRoom> {
        let mut carry_bytes = self.carry_bytes_max(record_bytes);
        // One page is left for records that are carried over: they are written before the page they leave is free.
        while !self.can_append(key_bytes, record_bytes, 1) {
            self.retire_oldest(&mut carry_bytes, now)?;
        }
        Ok(self.log.append(key_bytes, record_bytes))
    }

    /// Lets the index take one more record.
    pub(crate) fn make_index_room(&mut self, now: Now) -> Result<(), NoRoom> {
        while self.index.is_full() {
            let growth_bytes = self.index.bytes();
            let mut carry_bytes = self.carry_bytes_max(growth_bytes);
            let is_at_limit = 2 * growth_bytes > self.bytes_max / INDEX_SHARE;
            if is_at_limit || self.memory_bytes() + growth_bytes > self.bytes_max {
                self.retire_oldest(&mut carry_bytes, now)?;
                self.log.drop_spare();
            } else {
                self.index.grow();
            }
        }
        Ok(())
    }

    fn carry_bytes_max(&self, bytes: usize) -> usize {
        CARRY_FACTOR * (bytes + self.log.page_cost_bytes())
    }

    fn can_append(&self, key_bytes: usize, record_bytes: usize, pages_over: usize) -> bool {
        let cost_bytes = self.log.append_cost_bytes(key_bytes, record_bytes, pages_over);
        cost_bytes.is_some_and(|bytes| self.memory_bytes() + bytes <= self.bytes_max)
    }

    /// Carries the oldest record over to the young end, or drops it.
    fn retire_oldest(&mut self, carry_bytes: &mut usize, now: Now) -> Result<(), NoRoom> {
        let handle = self.log.oldest().ok_or(NoRoom)?;
        let header = self.log.header(handle);
        if header.state == State::Dead {
            self.log.pop();
            return Ok(());
        }
        let key = self.log.key(handle).to_vec();
        let position = self.index.position_of(HashedKey::new(&key).tag(), handle);
        let bytes = header.tight_bytes();
        let is_wanted = header.referenced || self.log.is_cluttered() && matches!(header.state, State::Live { .. });
        if is_wanted && !header.is_past(now) && bytes <= *carry_bytes {
            let value = self.log.value(handle, &header).to_vec();
            self.log.pop();
            if self.can_append(key.len(), bytes, 0) {
                *carry_bytes -= bytes;
                let moved = self.log.append(key.len(), bytes);
                self.log.write(moved, &Header { spare_units: 0, referenced: false, ..header }, &key, &value);
                self.index.relocate(position, moved);
                return Ok(());
            }
        } else {
            self.log.pop();
        }
        self.index.remove(position);
        match header.is_past(now) {
            true => self.counters.expirations += 1,
            false => self.counters.evictions += 1,
        }
        Ok(())
    }
}
