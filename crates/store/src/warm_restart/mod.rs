//! A store that outlives its process (§6.4 of the paper): its region is a shared segment with a name. A process that
//! ends in order saves the state beside it ([`crate::Store::save`]), and the next process of that name restores both
//! ([`crate::Store::attach`]). Serves no request.
//!
//! | the region | the store |
//! |---|---|
//! | does not exist | empty, in a new one |
//! | is clean, with the same layout | as it was saved |
//! | is dirty: its process was killed | empty, in a new one: an item may be half written |
//! | has another size, layout or format, or is damaged | empty, in a new one |
//! | is held by another process | fails: an error |
//! | belongs to another user, or is open to other users | fails: an error; the region is left alone |
//!
//! Saved: the seed of the hash; items with flags, expiry, CAS unique, stale mark and usage; timers; scheduled flushes;
//! hold-offs. Not saved: leases (every token of the earlier process is void, since its reader may have read the
//! database before a delete that this process has not seen), and counters.
//!
//! The state and the superblock have checksums. The lists of free chunks and of timer blocks, whose links lie in the
//! pages, are followed and compared with the state. Items, the index, and the entries of timer blocks are not read at
//! the start, which would take seconds with many items: they are trusted like the memory of a running process, and
//! flipped bits are not detected. Only this user's processes can reach them.
//!
//! Deletes that were sent while no process ran are unknown: their sender must repeat them before the store is used.

mod error;
mod name;
mod outcome;
mod prepare;
mod region;
mod snapshot;
mod superblock;
#[cfg(test)]
mod tests;

pub use error::RegionError;
pub use name::RegionName;
pub use outcome::{ColdStartReason, RemovedRegion, Saved, Start};
pub use prepare::Preparation;
pub(crate) use region::SharedRegion;

use crate::Now;
use crate::memory::region::Region;
use crate::shared::Shared;
use region::{acquire_lock, attach, check_name, checksum_of, find, system_error};
use std::sync::atomic::Ordering::Relaxed;
use superblock::{Superblock, Unreadable};

/// The bytes that one [`drop_page_tables`] drops: takes a few milliseconds; a multiple of all page sizes.
const DROPPED_BYTES: usize = 64 << 20;

/// Drops the page tables of part of the region, from byte `at` on; returns the byte to continue from, `None` at the
/// end.
pub(crate) fn drop_page_tables(region: &Region, at: usize) -> Option<usize> {
    let bytes = DROPPED_BYTES.min(region.region_bytes().saturating_sub(at));
    if bytes == 0 {
        return None;
    }
    region.drop_page_tables(at, bytes);
    Some(at + bytes)
}

/// Saves a store of `items` items in its region. No other thread uses it.
pub(crate) fn save(shared: &Shared, shared_region: &SharedRegion, items: u64, now: Now) -> Result<Saved, RegionError> {
    if find(&shared_region.name)? != Some(shared_region.segment) {
        return Err(RegionError::Removed { name: shared_region.name.clone() });
    }
    let (region, geometry) = (&shared.memory.pages.region, &shared.memory.pages.geometry);
    let words = snapshot::save(shared, now);
    let area = snapshot::area(geometry);
    assert!(words.len() * size_of::<u32>() <= area.len(), "every state fits the area");
    for (word, at) in words.iter().zip(area.step_by(size_of::<u32>())) {
        region.word(at).store(*word, Relaxed);
    }
    let new = Superblock::new(&shared_region.name, superblock::layout(geometry), shared_region.memory_bytes);
    let (state_words, state_checksum) = (words.len() as u64, checksum_of(&words));
    Superblock { state_words, state_checksum, saved_at_ms: now.unix_ms, items, ..new }.write(region);
    superblock::mark_clean(region);
    Ok(Saved { items, state_bytes: (words.len() * size_of::<u32>()) as u64 })
}

/// Removes the region `name`, which no process may hold; `None` if it does not exist.
pub fn remove_region(name: &RegionName) -> Result<Option<RemovedRegion>, RegionError> {
    let shm_lock = acquire_lock(name)?;
    let mut removed = None;
    if let Some(segment) = find(name)? {
        let region = attach(segment, name)?;
        let items = match Superblock::read(&region) {
            Ok((superblock, is_clean)) => {
                check_name(name, &superblock)?;
                is_clean.then_some(superblock.items)
            }
            Err(Unreadable::Foreign) => return Err(RegionError::Foreign { name: name.clone(), segment: segment.id }),
            Err(Unreadable::Blank | Unreadable::Damaged) => None,
        };
        removed = Some(RemovedRegion { region_bytes: region.region_bytes() as u64, items });
        drop(region);
        segment.remove().map_err(|error| system_error(name, "remove it", &error))?;
    }
    shm_lock.remove().map_err(|error| system_error(name, "remove its semaphore", &error))?;
    Ok(removed)
}
