//! The way to a region, in two steps: what can be done while another process has it, and the rest, which ends with the first
//! write to it. A process that is to go on for another does the first while that one serves (§6.4 of the paper).

use super::{Kept, claim, create, find, make_sure_of_room, system, take_up};
use crate::memory::geometry::Geometry;
use crate::memory::sysv_shm::Segment;
use crate::shard::Lane;
use crate::warm_restart::superblock::{self, Superblock};
use crate::{ColdStartReason, Now, Options, OptionsError, RegionError, RegionName, Start, Store};

/// A store without its region: what takes most of the time of taking one up, done while somebody else still has it.
pub struct Preparation {
    options: Options,
    name: RegionName,
    geometry: Geometry,
    stripes: Option<Box<[Lane]>>,
}

impl Preparation {
    /// Fails if the options contradict each other.
    pub fn new(options: Options, name: &RegionName) -> Result<Preparation, OptionsError> {
        let geometry = Store::geometry(&options, true)?;
        Ok(Preparation { options, name: name.clone(), geometry, stripes: None })
    }

    /// Does what can be done before the region is there. Only for one that is as large as the options say: whether memory of
    /// another size can be had is not known, and it would begin empty anyway.
    #[must_use]
    pub fn ahead(mut self) -> Preparation {
        let segment = Segment::find(self.name.key()).ok().flatten();
        let status = segment.and_then(|segment| segment.status().ok());
        if status.is_some_and(|status| status.bytes == self.geometry.region_bytes()) {
            self.stripes = Some(Store::stripes(&self.options, &self.geometry));
        }
        self
    }

    /// As [`Store::attach`], if `is_wanted` says so, which is asked when all else is done; `None`: it does not. Nothing has
    /// been written to what can be taken up until then: whoever asks next finds it as it was saved.
    pub fn attach(self, now: Now, is_wanted: impl FnOnce() -> bool) -> Result<Option<(Store, Start)>, RegionError> {
        let Preparation { options, name, geometry, stripes } = self;
        let (name, memory_bytes) = (&name, options.memory_bytes_max);
        let claim = claim(name)?;
        let superblock = Superblock::new(name, superblock::layout(&geometry), memory_bytes);
        let (segment, memory, start) = match find(name)? {
            None => create(&options, geometry, name, &superblock, ColdStartReason::New)?,
            Some(segment) => match take_up(&options, &geometry, stripes, segment, name, &superblock, now)? {
                Ok((memory, start)) => (segment, memory, start),
                Err(why) => {
                    make_sure_of_room(segment, geometry.region_bytes(), name, &why)?;
                    segment.remove().map_err(|error| system(name, "remove it", &error))?;
                    create(&options, geometry, name, &superblock, why)?
                }
            },
        };
        if !is_wanted() {
            return Ok(None);
        }
        superblock::mark_dirty(&memory.region);
        let kept = Kept { name: name.clone(), segment, memory_bytes, _claim: claim };
        Ok(Some((Store { memory, kept: Some(kept) }, start)))
    }
}
