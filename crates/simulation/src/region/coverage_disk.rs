//! The file in which a router keeps the configurations that it covers.

use lookaside_router::{CoverageDigest, CoverageStore};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

/// A file that survives its router. It is replaced as a whole, so a crash leaves the old or the new text.
#[derive(Clone, Default)]
pub(super) struct CoverageDisk(Arc<Mutex<CoverageTexts>>);

/// `None` if there was no file.
#[derive(Default)]
struct CoverageTexts {
    newest: Option<String>,
    /// The first one of the process that uses the file.
    first: Option<String>,
}

impl CoverageDisk {
    /// A process starts that will use the file.
    pub(super) fn begin_process(&self) {
        let mut texts = self.texts();
        texts.first = texts.newest.clone();
    }

    /// The same, where all that the former process has changed is undone.
    pub(super) fn begin_outdated_process(&self) {
        let mut texts = self.texts();
        texts.newest = texts.first.clone();
    }

    /// What a process hands over that has the file.
    pub(super) fn digest(&self) -> CoverageDigest {
        CoverageDigest::of(self.texts().newest.as_deref().unwrap_or_default())
    }

    /// The file is removed.
    pub(super) fn lose(&self) {
        self.texts().newest = None;
    }

    fn texts(&self) -> MutexGuard<'_, CoverageTexts> {
        self.0.lock().expect("one thread runs a simulation")
    }
}

impl CoverageStore for CoverageDisk {
    fn load(&self) -> io::Result<Option<String>> {
        Ok(self.texts().newest.clone())
    }

    fn save(&self, text: &str) -> io::Result<()> {
        let mut texts = self.texts();
        texts.newest = Some(text.to_owned());
        texts.first.get_or_insert_with(|| text.to_owned());
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}
