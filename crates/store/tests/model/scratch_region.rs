//! A region for one test, removed when the test ends, also when it fails.

use lookaside_store::{Now, Options, RegionName, Start, Store, remove_region};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A name that no other test has. To be dropped after the store.
pub struct ScratchRegion(pub RegionName);

impl ScratchRegion {
    pub fn new() -> ScratchRegion {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("lookaside test {} {number}", std::process::id());
        ScratchRegion(RegionName::new(name).expect("it is a name"))
    }

    /// The store in this region.
    pub fn attach(&self, options: &Options, now: Now) -> (Store, Start) {
        Store::attach(options.clone(), &self.0, now).expect("no other process holds it")
    }
}

impl Drop for ScratchRegion {
    fn drop(&mut self) {
        if let Err(error) = remove_region(&self.0) {
            eprintln!("region not removed: {error}");
        }
    }
}
