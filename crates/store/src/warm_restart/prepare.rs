//! Attaching a region in two steps: what can be done while another process uses it, and the rest, which ends with the
//! first write to it. A successor does the first while its predecessor still serves (§6.4 of the paper).

use super::error::RegionError;
use super::name::RegionName;
use super::outcome::{ColdStartReason, Start};
use super::region::{SharedRegion, acquire_lock, check_size_available, create, find, restore, system_error};
use super::snapshot;
use super::superblock::{self, SUPERBLOCK_BYTES, Superblock};
use crate::memory::geometry::Geometry;
use crate::memory::sysv_shm::Segment;
use crate::shared::Shared;
use crate::stripe::{self, Stripe, StripeLock};
use crate::{Now, Options, OptionsError};

/// A store without its region: the slow half of attaching.
pub struct Preparation {
    options: Options,
    name: RegionName,
    geometry: Geometry,
    stripes: Option<Box<[StripeLock]>>,
}

impl Preparation {
    /// Fails if the options contradict each other.
    pub fn new(options: Options, name: &RegionName) -> Result<Preparation, OptionsError> {
        let geometry = persistent_geometry(&options)?;
        Ok(Preparation { options, name: name.clone(), geometry, stripes: None })
    }

    /// Does the slow half now. Only if the region has the size that the options require: whether memory of another
    /// size is available is not known, and the store would be empty anyway.
    #[must_use]
    pub fn preallocate(mut self) -> Preparation {
        let segment = Segment::find(self.name.key()).ok().flatten();
        let status = segment.and_then(|segment| segment.status().ok());
        if status.is_some_and(|status| status.bytes == self.geometry.region_bytes()) {
            self.stripes = Some(stripe::create_all(&self.options, self.geometry.stripe_bits));
        }
        self
    }

    /// The parts of the store, if `is_wanted` returns `true`, which is called when all else is done; else `None`. A
    /// saved region is not written to before.
    pub(crate) fn attach_shared(
        self,
        now: Now,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<Option<(Shared, SharedRegion, Start)>, RegionError> {
        let Preparation { options, name, geometry, stripes } = self;
        let (name, memory_bytes) = (&name, options.memory_bytes_max);
        let shm_lock = acquire_lock(name)?;
        let superblock = Superblock::new(name, superblock::layout(&geometry), memory_bytes);
        let (segment, shared, start) = match find(name)? {
            None => create(&options, geometry, name, &superblock, ColdStartReason::New)?,
            Some(segment) => match restore(&options, &geometry, stripes, segment, name, &superblock, now)? {
                Ok((shared, start)) => (segment, shared, start),
                Err(why) => {
                    check_size_available(segment, geometry.region_bytes(), name, &why)?;
                    segment.remove().map_err(|error| system_error(name, "remove it", &error))?;
                    create(&options, geometry, name, &superblock, why)?
                }
            },
        };
        if !is_wanted() {
            return Ok(None);
        }
        superblock::mark_dirty(&shared.memory.pages.region);
        let region = SharedRegion { name: name.clone(), segment, memory_bytes, _lock: shm_lock };
        Ok(Some((shared, region, start)))
    }
}

/// The geometry of a store that another process can restore.
pub(super) fn persistent_geometry(options: &Options) -> Result<Geometry, OptionsError> {
    let tail_bytes = |pages, classes, stripes| {
        snapshot::area_bytes(options.memory_bytes_max, pages, classes, stripes) + SUPERBLOCK_BYTES
    };
    Geometry::new(options, |stripes| Stripe::new(options, 0, stripes).bytes(), Some(&tail_bytes))
}
