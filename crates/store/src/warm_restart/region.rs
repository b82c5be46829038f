//! Steps of attaching a region: its lock, its segment, and whether its contents can be restored.

use super::error::RegionError;
use super::name::RegionName;
use super::outcome::{ColdStartReason, Start};
use super::snapshot;
use super::superblock::{self, FORMAT, Superblock, Unreadable};
use crate::memory::geometry::Geometry;
use crate::memory::region::Region;
use crate::memory::sysv_shm::{Permissions, Segment, ShmLock, ShmLockError};
use crate::shared::Shared;
use crate::stripe::{self, StripeLock};
use crate::{Now, Options};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The shared region of a store, and its lock.
pub(crate) struct SharedRegion {
    pub name: RegionName,
    pub segment: Segment,
    pub memory_bytes: usize,
    /// Released after the region is detached: a store drops its memory first.
    pub _lock: ShmLock,
}

pub(super) const GET_MEMORY: &str = "get shared memory (see -m, kernel.shmmax and kernel.shmall)";

/// A store that was saved up to this long in the future is restored all the same: the clock was set back a little.
const SET_BACK_MS_MAX: u64 = 60_000;

/// Restores the store in a segment, or returns why that is not possible.
pub(super) fn restore(
    options: &Options,
    geometry: &Geometry,
    stripes: Option<Box<[StripeLock]>>,
    segment: Segment,
    name: &RegionName,
    wanted: &Superblock,
    now: Now,
) -> Result<Result<(Shared, Start), ColdStartReason>, RegionError> {
    let region = attach(segment, name)?;
    let (found, is_clean) = match Superblock::read(&region) {
        Ok(found) => found,
        Err(Unreadable::Damaged) => return Ok(Err(ColdStartReason::Damaged)),
        // A process was killed after it had created the segment and before it wrote the superblock.
        Err(Unreadable::Blank) if region.region_bytes() == geometry.region_bytes() => {
            return Ok(Err(ColdStartReason::NotShutDownCleanly));
        }
        Err(Unreadable::Blank | Unreadable::Foreign) => {
            return Err(RegionError::Foreign { name: name.clone(), segment: segment.id });
        }
    };
    check_name(name, &found)?;
    if let Some(why) = cold_start_reason(&found, is_clean, wanted, &region, geometry, now) {
        return Ok(Err(why));
    }
    let begin = snapshot::area(geometry).start;
    let words: Vec<u32> =
        (0..found.state_words as usize).map(|place| region.word(begin + place * 4).load(Relaxed)).collect();
    if checksum_of(&words) != found.state_checksum {
        return Ok(Err(ColdStartReason::Damaged));
    }
    let Some(hash_seed) = snapshot::hash_seed(&words) else {
        return Ok(Err(ColdStartReason::Damaged));
    };
    let options = Options { hash_seed, ..options.clone() };
    let stripes = stripes.unwrap_or_else(|| stripe::create_all(&options, geometry.stripe_bits));
    let shared = Shared::new(&options, geometry.clone(), stripes, region);
    if snapshot::restore(&shared, &words).is_none() {
        return Ok(Err(ColdStartReason::Damaged));
    }
    let saved_at = Now { unix_ms: found.saved_at_ms };
    Ok(Ok((shared, Start::Warm { items: found.items, saved_at })))
}

/// Fails if the system cannot give a larger region, such as after a misspelt size, so that the old one is not given up
/// for it. Not checked if the old one is large enough or worthless, since both would have to fit for a moment.
pub(super) fn check_size_available(
    old: Segment,
    bytes: usize,
    name: &RegionName,
    why: &ColdStartReason,
) -> Result<(), RegionError> {
    let old_bytes =
        old.status().map_err(|error| system_error(name, "read the status of its shared memory", &error))?.bytes;
    if old_bytes >= bytes || matches!(why, ColdStartReason::NotShutDownCleanly | ColdStartReason::Damaged) {
        return Ok(());
    }
    Segment::try_size(bytes).map_err(|error| system_error(name, GET_MEMORY, &error))
}

/// Why the contents of a region must not be used; `None` if they may.
fn cold_start_reason(
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

/// An empty store in a new segment.
pub(super) fn create(
    options: &Options,
    geometry: Geometry,
    name: &RegionName,
    superblock: &Superblock,
    why: ColdStartReason,
) -> Result<(Segment, Shared, Start), RegionError> {
    let segment =
        Segment::create(name.key(), geometry.region_bytes()).map_err(|error| system_error(name, GET_MEMORY, &error))?;
    let region = attach(segment, name)?;
    superblock::mark_dirty(&region);
    superblock.write(&region);
    let stripes = stripe::create_all(options, geometry.stripe_bits);
    Ok((segment, Shared::new(options, geometry, stripes, region), Start::Empty(why)))
}

pub(super) fn acquire_lock(name: &RegionName) -> Result<ShmLock, RegionError> {
    ShmLock::acquire(name.key()).map_err(|error| match error {
        ShmLockError::Held { pid } => RegionError::Held { name: name.clone(), pid },
        ShmLockError::ForeignOwner { id, permissions } => foreign_owner(name, format!("-s {id}"), permissions),
        ShmLockError::System(error) => system_error(name, "take its semaphore", &error),
    })
}

pub(super) fn find(name: &RegionName) -> Result<Option<Segment>, RegionError> {
    Segment::find(name.key()).map_err(|error| system_error(name, "open its shared memory", &error))
}

/// Attaches a segment that no other process maps. The caller holds its lock, which only a foreign process would ignore.
pub(super) fn attach(segment: Segment, name: &RegionName) -> Result<Region, RegionError> {
    /// The kernel detaches a killed process late while another process reads it through `/proc`.
    const ATTEMPTS_MAX: usize = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    for attempt in 1.. {
        let status =
            segment.status().map_err(|error| system_error(name, "read the status of its shared memory", &error))?;
        if !status.permissions.is_private_to_user() {
            return Err(foreign_owner(name, format!("-m {}", segment.id), status.permissions));
        }
        match status.attachments {
            0 => break,
            mappings if attempt == ATTEMPTS_MAX => {
                return Err(RegionError::Mapped { name: name.clone(), segment: segment.id, mappings });
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
    segment.attach().map(Region::shared).map_err(|error| system_error(name, "attach its shared memory", &error))
}

fn foreign_owner(name: &RegionName, what: String, permissions: Permissions) -> RegionError {
    let Permissions { owner, creator, mode } = permissions;
    RegionError::ForeignOwner { name: name.clone(), what, owner, creator, mode }
}

pub(super) fn check_name(name: &RegionName, found: &Superblock) -> Result<(), RegionError> {
    match found.name == name.as_str() {
        true => Ok(()),
        false => Err(RegionError::KeyTaken { name: name.clone(), other: found.name.clone() }),
    }
}

pub(super) fn checksum_of(words: &[u32]) -> u64 {
    superblock::checksum(words.iter().flat_map(|word| word.to_ne_bytes()))
}

pub(super) fn system_error(name: &RegionName, doing: &'static str, error: &std::io::Error) -> RegionError {
    RegionError::System { name: name.clone(), doing, reason: error.to_string() }
}
