//! The file in which a router keeps the configurations that it covers.

use lookaside_router::CoverageStore;
use std::{
    io,
    sync::{Arc, Mutex},
};

/// A file that survives its router. It is replaced as a whole, so a crash leaves the old or the new text.
#[derive(Clone, Default)]
pub(super) struct CoverageDisk(Arc<Mutex<Option<String>>>);

impl CoverageDisk {
    /// The file is removed.
    pub(super) fn lose(&self) {
        *self.0.lock().expect("one thread runs a simulation") = None;
    }
}

impl CoverageStore for CoverageDisk {
    fn load(&self) -> io::Result<Option<String>> {
        Ok(self.0.lock().expect("one thread runs a simulation").clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        *self.0.lock().expect("one thread runs a simulation") = Some(text.to_owned());
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}
