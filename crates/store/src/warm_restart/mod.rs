//! A store that outlives its process (§6.4 of the paper): its region is a shared segment with a name; whoever ends in
//! order writes down what it knows beside it ([`Store::save`]), and the next process of that name takes both up
//! ([`Store::attach`]). No request comes by here.
//!
//! | the region is | then the store is |
//! |---|---|
//! | not there | empty, in a new one |
//! | clean, and made alike | as it was saved |
//! | dirty: its process was killed | empty, in a new one: an item may be half written |
//! | of another size, layout or format, or damaged | empty, in a new one |
//! | held by another process | not made: an error |
//! | somebody else's memory, or open to other users | not made: an error; it is left alone |
//!
//! What lives on: items with flags, expiry, CAS unique, stale mark and use; timers; flushes ahead; hold-offs. What does not:
//! leases (every token of the earlier life is void, since its reader may have read the database before a delete that
//! this process has not seen), and counters.
//!
//! The state and the superblock have checksums; the pages of items, the index and timer blocks have none, since nothing is
//! to be read at the start but the former. They are trusted like the memory of a process that goes on: a bit that flipped
//! in them while nobody ran is found no better than one that flips in a process. Only this user's processes can reach them.
//!
//! Deletes that were sent while no process was there are not known here. Whoever sends them must send them again before
//! the store is asked.

mod error;
mod name;
mod outcome;
mod prepare;
pub(crate) mod snapshot;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;

pub use error::RegionError;
pub use name::RegionName;
pub use outcome::{ColdStartReason, RemovedRegion, Saved, Start};
pub use prepare::Preparation;

use crate::memory::Memory;
use crate::memory::geometry::Geometry;
use crate::memory::region::Region;
use crate::memory::sysv_shm::{Claim, ClaimError, Rights, Segment};
use crate::shard::Lane;
use crate::{Now, Options, Store};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use superblock::{FORMAT, Superblock, Unreadable};

/// A region that a store has, and the right to it.
pub(crate) struct Kept {
    name: RegionName,
    segment: Segment,
    memory_bytes: usize,
    /// Given back after the region is detached: a store drops its memory first.
    _claim: Claim,
}

const GET_MEMORY: &str = "get shared memory (see -m, kernel.shmmax and kernel.shmall)";

/// A clock may be set back by so little and the store is still taken up: the saved moment is then the present.
const SET_BACK_MS_MAX: u64 = 60_000;

/// How much is loosened at once: a few milliseconds, a multiple of all sizes of pages.
const LOOSENED_BYTES: usize = 64 << 20;

impl Store {
    /// A store in the region `name`: as it was saved there, or empty if it cannot be. Takes as long as it takes to read
    /// what is known of each page, and touches no item.
    pub fn attach(options: Options, name: &RegionName, now: Now) -> Result<(Store, Start), RegionError> {
        let attached = Preparation::new(options, name).map_err(RegionError::Options)?.attach(now, || true)?;
        Ok(attached.expect("it was wanted"))
    }

    /// Prepares a [`Store::save`] that is near, while others use the store: what a process has touched of a large region takes
    /// its time to be let go, and that is some of it, from byte `at` on. It is there again as soon as it is touched. Says
    /// where to go on; `None` at the end, and for a store without a region.
    pub fn loosen(&self, at: usize) -> Option<usize> {
        let region = &self.memory.region;
        let bytes = LOOSENED_BYTES.min(region.region_bytes().saturating_sub(at));
        if self.kept.is_none() || bytes == 0 {
            return None;
        }
        region.loosen(at, bytes);
        Some(at + bytes)
    }

    /// Leaves the store in its region for the next process; `None` for a store without a region. To be called once all
    /// threads that use it have ended.
    pub fn save(self, now: Now) -> Result<Option<Saved>, RegionError> {
        let Some(kept) = &self.kept else { return Ok(None) };
        if find(&kept.name)? != Some(kept.segment) {
            return Err(RegionError::Removed { name: kept.name.clone() });
        }
        let Memory { region, geometry, .. } = &self.memory;
        let words = self.memory.save(now);
        let area = snapshot::area(geometry);
        assert!(words.len() * size_of::<u32>() <= area.len(), "the area has room for every state");
        for (word, at) in words.iter().zip(area.step_by(size_of::<u32>())) {
            region.word(at).store(*word, Relaxed);
        }
        let items = self.statistics().items;
        let made = Superblock::new(&kept.name, superblock::layout(geometry), kept.memory_bytes);
        let (state_words, state_checksum) = (words.len() as u64, checksum_of(&words));
        Superblock { state_words, state_checksum, saved_at_ms: now.unix_ms, items, ..made }.write(region);
        superblock::mark_clean(region);
        Ok(Some(Saved { items, state_bytes: (words.len() * size_of::<u32>()) as u64 }))
    }
}

/// Removes the region `name`, which no process may hold; `None`: there is none.
pub fn remove_region(name: &RegionName) -> Result<Option<RemovedRegion>, RegionError> {
    let claim = claim(name)?;
    let mut forgotten = None;
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
        forgotten = Some(RemovedRegion { region_bytes: region.region_bytes() as u64, items });
        drop(region);
        segment.remove().map_err(|error| system(name, "remove it", &error))?;
    }
    claim.remove().map_err(|error| system(name, "remove its semaphore", &error))?;
    Ok(forgotten)
}

/// Takes up what a segment holds, or says why not.
fn take_up(
    options: &Options,
    geometry: &Geometry,
    stripes: Option<Box<[Lane]>>,
    segment: Segment,
    name: &RegionName,
    wanted: &Superblock,
    now: Now,
) -> Result<Result<(Memory, Start), ColdStartReason>, RegionError> {
    let region = attach(segment, name)?;
    let (found, is_clean) = match Superblock::read(&region) {
        Ok(found) => found,
        Err(Unreadable::Damaged) => return Ok(Err(ColdStartReason::Damaged)),
        // A process was killed after it had made the segment and before it could say so.
        Err(Unreadable::Blank) if region.region_bytes() == geometry.region_bytes() => {
            return Ok(Err(ColdStartReason::NotShutDownCleanly));
        }
        Err(Unreadable::Blank | Unreadable::Foreign) => {
            return Err(RegionError::Foreign { name: name.clone(), segment: segment.id });
        }
    };
    check_name(name, &found)?;
    if let Some(why) = refusal(&found, is_clean, wanted, &region, geometry, now) {
        return Ok(Err(why));
    }
    let begin = snapshot::area(geometry).start;
    let words: Vec<u32> =
        (0..found.state_words as usize).map(|place| region.word(begin + place * 4).load(Relaxed)).collect();
    if checksum_of(&words) != found.state_checksum {
        return Ok(Err(ColdStartReason::Damaged));
    }
    let stripes = stripes.unwrap_or_else(|| Store::stripes(options, geometry));
    let memory = Memory::new(options, geometry.clone(), stripes, region);
    if memory.restore(&words).is_none() {
        return Ok(Err(ColdStartReason::Damaged));
    }
    let saved_at = Now { unix_ms: found.saved_at_ms };
    Ok(Ok((memory, Start::Warm { items: found.items, saved_at })))
}

/// Nothing is given up for a size that cannot be had, such as a misspelt one. Not asked where the answer does not matter,
/// since both would have to fit for a moment: what is there makes room enough, or is of no use to anybody.
fn make_sure_of_room(old: Segment, bytes: usize, name: &RegionName, why: &ColdStartReason) -> Result<(), RegionError> {
    let old_bytes = old.status().map_err(|error| system(name, "look at its shared memory", &error))?.bytes;
    if old_bytes >= bytes || matches!(why, ColdStartReason::NotShutDownCleanly | ColdStartReason::Damaged) {
        return Ok(());
    }
    Segment::try_size(bytes).map_err(|error| system(name, GET_MEMORY, &error))
}

/// Why what a region holds is not to be used.
fn refusal(
    found: &Superblock,
    is_clean: bool,
    wanted: &Superblock,
    region: &Region,
    geometry: &Geometry,
    now: Now,
) -> Option<ColdStartReason> {
    let ahead_ms = found.saved_at_ms.saturating_sub(now.unix_ms);
    if !is_clean {
        Some(ColdStartReason::NotShutDownCleanly)
    } else if found.format != FORMAT {
        Some(ColdStartReason::OtherFormat { was: found.format, now: FORMAT })
    } else if found.memory_bytes != wanted.memory_bytes {
        Some(ColdStartReason::OtherMemory { was_bytes: found.memory_bytes, now_bytes: wanted.memory_bytes })
    } else if found.layout != wanted.layout {
        Some(ColdStartReason::OtherLayout)
    } else if region.region_bytes() != geometry.region_bytes()
        || found.state_words > (snapshot::area(geometry).len() / size_of::<u32>()) as u64
    {
        Some(ColdStartReason::Damaged)
    } else if ahead_ms > SET_BACK_MS_MAX {
        Some(ColdStartReason::ClockSetBack { ahead_ms })
    } else {
        None
    }
}

/// An empty memory in a new segment.
fn create(
    options: &Options,
    geometry: Geometry,
    name: &RegionName,
    superblock: &Superblock,
    why: ColdStartReason,
) -> Result<(Segment, Memory, Start), RegionError> {
    let segment =
        Segment::create(name.key(), geometry.region_bytes()).map_err(|error| system(name, GET_MEMORY, &error))?;
    let region = attach(segment, name)?;
    superblock::mark_dirty(&region);
    superblock.write(&region);
    Ok((segment, Store::memory(options, geometry, region), Start::Empty(why)))
}

fn claim(name: &RegionName) -> Result<Claim, RegionError> {
    Claim::take(name.key()).map_err(|error| match error {
        ClaimError::Held { pid } => RegionError::Held { name: name.clone(), pid },
        ClaimError::ForeignOwner { id, rights } => not_ours(name, format!("-s {id}"), rights),
        ClaimError::System(error) => system(name, "take its semaphore", &error),
    })
}

fn find(name: &RegionName) -> Result<Option<Segment>, RegionError> {
    Segment::find(name.key()).map_err(|error| system(name, "open its shared memory", &error))
}

/// Attaches a segment that nobody else has. The caller holds the claim, so only a process that goes without one could.
fn attach(segment: Segment, name: &RegionName) -> Result<Region, RegionError> {
    /// A process that was killed may take a moment to let go while somebody looks at it (`/proc`).
    const LOOKS_MAX: usize = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    for look in 1.. {
        let status = segment.status().map_err(|error| system(name, "look at its shared memory", &error))?;
        if !status.rights.are_ours_alone() {
            return Err(not_ours(name, format!("-m {}", segment.id), status.rights));
        }
        match status.attachments {
            0 => break,
            mappings if look == LOOKS_MAX => {
                return Err(RegionError::Mapped { name: name.clone(), segment: segment.id, mappings });
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
    segment.attach().map(Region::shared).map_err(|error| system(name, "attach its shared memory", &error))
}

fn not_ours(name: &RegionName, what: String, rights: Rights) -> RegionError {
    let Rights { owner, maker, mode } = rights;
    RegionError::ForeignOwner { name: name.clone(), what, owner, maker, mode }
}

fn check_name(name: &RegionName, found: &Superblock) -> Result<(), RegionError> {
    match found.name == name.as_str() {
        true => Ok(()),
        false => Err(RegionError::KeyTaken { name: name.clone(), other: found.name.clone() }),
    }
}

fn checksum_of(words: &[u32]) -> u64 {
    superblock::checksum(words.iter().flat_map(|word| word.to_ne_bytes()))
}

fn system(name: &RegionName, doing: &'static str, error: &std::io::Error) -> RegionError {
    RegionError::System { name: name.clone(), doing, reason: error.to_string() }
}
