//! The state that the threads of one store share.

use crate::memory::Memory;
use crate::memory::geometry::Geometry;
use crate::memory::region::Region;
use crate::options::Options;
use crate::reclaim::Reclaimer;
use crate::stripe::StripeLock;

/// The memory, what frees it, and the options that verbs need.
pub(crate) struct Shared {
    pub memory: Memory,
    pub reclaimer: Reclaimer,
    pub item_bytes_max: usize,
    pub stale_ms: u64,
    /// The seed of the hash of keys.
    pub hash_seed: u64,
}

impl Shared {
    /// An empty store in a region that has the geometry's size.
    pub fn new(options: &Options, geometry: Geometry, stripes: Box<[StripeLock]>, region: Region) -> Shared {
        Shared {
            memory: Memory::new(options, geometry, stripes, region),
            reclaimer: Reclaimer::new(options),
            item_bytes_max: options.item_bytes_max,
            stale_ms: options.stale_ms.into(),
            hash_seed: options.hash_seed,
        }
    }
}
