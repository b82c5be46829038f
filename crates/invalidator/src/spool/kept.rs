//! Segments that the spool needs no more, kept for a replay ([`super::archive`]): for a bounded time, and up to a
//! bounded size. They get another name, so that the spool never reads them again.
//!
//! ```text
//!   0000000000000007.commits    of the spool (storage.rs)
//!   0000000000000006.kept       every cluster has passed it, or the spool was full
//! ```
//!
//! Invariants:
//! * The oldest is removed first: what is kept, and the spool behind it, have no gap.
//! * While anything is kept no write fails because the disk is full: all of it is removed, since positions and other
//!   programs need space as well, and the write is repeated.

use super::storage::{SegmentFiles, SegmentFolder};
use crate::{WallClock, observe::spool_stats::SpoolStatistics};
use lookaside_sync::Mutex;
use std::{
    collections::VecDeque,
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

pub(super) const KEPT_SUFFIX: &str = ".kept";

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepLimits {
    /// A segment that was last written to longer ago is removed.
    pub age_max: Duration,
    /// The most bytes of all; 0 to keep nothing.
    pub bytes_max: u64,
}

/// The files of a spool, with those that it needs no more.
pub struct KeepingFolder {
    folder: SegmentFolder,
    limits: KeepLimits,
    wall_clock: WallClock,
    statistics: Arc<SpoolStatistics>,
    kept: Mutex<KeptSegments>,
}

#[derive(Default)]
struct KeptSegments {
    /// The oldest first.
    list: VecDeque<KeptSegment>,
    /// Of all of them.
    bytes: u64,
}

struct KeptSegment {
    number: u64,
    bytes: u64,
    written_at: SystemTime,
}

impl KeepingFolder {
    /// Keeps segments of `folder`, and those that an earlier run has kept there.
    pub fn new(
        folder: SegmentFolder,
        limits: KeepLimits,
        wall_clock: WallClock,
        statistics: Arc<SpoolStatistics>,
    ) -> io::Result<KeepingFolder> {
        let mut kept = KeptSegments::default();
        for number in folder.numbers_with(KEPT_SUFFIX)? {
            kept.push(KeptSegment::of(number, &fs::metadata(folder.path(number, KEPT_SUFFIX))?)?);
        }
        let folder = KeepingFolder { folder, limits, wall_clock, statistics, kept: Mutex::new(kept) };
        if folder.numbers()?.is_empty() {
            // They belong to a spool that is gone: numbers will begin at 1 again.
            folder.remove_retired()?;
        }
        folder.remove_excess()?;
        Ok(folder)
    }

    fn kept_path(&self, number: u64) -> PathBuf {
        self.folder.path(number, KEPT_SUFFIX)
    }

    /// Removes what is beyond the limits.
    fn remove_excess(&self) -> io::Result<()> {
        let now = (self.wall_clock)();
        let is_excess = |kept: &KeptSegments| {
            let age = kept.list.front().map(|oldest| now.duration_since(oldest.written_at).unwrap_or_default());
            kept.bytes > self.limits.bytes_max || age.is_some_and(|age| age > self.limits.age_max)
        };
        while is_excess(&self.kept.lock()) && self.remove_oldest()? {}
        self.report();
        Ok(())
    }

    fn report(&self) {
        let kept = self.kept.lock();
        self.statistics.set_kept(kept.list.len() as u64, kept.bytes);
    }

    /// Removes the oldest kept segment; false if there is none.
    fn remove_oldest(&self) -> io::Result<bool> {
        let mut kept = self.kept.lock();
        let Some(&KeptSegment { number, bytes, .. }) = kept.list.front() else { return Ok(false) };
        self.folder.remove_file(&self.kept_path(number))?;
        kept.list.pop_front();
        kept.bytes -= bytes;
        Ok(true)
    }

    /// Removes all that is kept; false if there is nothing.
    fn free_disk(&self) -> bool {
        let mut is_freed = false;
        while self.remove_oldest().unwrap_or(false) {
            self.statistics.kept_discarded.add(1);
            is_freed = true;
        }
        self.report();
        is_freed
    }

    /// Repeats `write` if the disk is full and something is kept.
    pub(super) fn with_space(&self, mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(error) if is_full(&error) && self.free_disk() => write(),
            done => done,
        }
    }
}

impl KeptSegments {
    fn push(&mut self, segment: KeptSegment) {
        self.bytes += segment.bytes;
        self.list.push_back(segment);
    }
}

impl KeptSegment {
    fn of(number: u64, file: &fs::Metadata) -> io::Result<KeptSegment> {
        Ok(KeptSegment { number, bytes: file.len(), written_at: file.modified()? })
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl SegmentFiles for KeepingFolder {
    fn numbers(&self) -> io::Result<Vec<u64>> {
        self.folder.numbers()
    }

    fn create(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_space(|| self.folder.create(number, bytes))
    }

    fn append(&self, number: u64, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.with_space(|| self.folder.append(number, at, bytes))
    }

    fn sync(&self, number: u64) -> io::Result<()> {
        self.folder.sync(number).inspect_err(|error| {
            // Which bytes are on disk is unknown, so it is not repeated; the next segment needs space.
            if is_full(error) {
                self.free_disk();
            }
        })?;
        // What has become too old is removed although no segment is retired. If this fails, it is repeated.
        let _ = self.remove_excess();
        Ok(())
    }

    fn truncate(&self, number: u64, bytes: u64) -> io::Result<()> {
        self.folder.truncate(number, bytes)
    }

    fn read(&self, number: u64, at: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.folder.read(number, at, bytes_max)
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.folder.remove(number)
    }

    fn retire(&self, number: u64) -> io::Result<()> {
        let path = self.folder.path(number, super::storage::SUFFIX);
        let segment = fs::metadata(&path).and_then(|file| KeptSegment::of(number, &file));
        match segment.and_then(|segment| fs::rename(path, self.kept_path(number)).map(|()| segment)) {
            Ok(segment) => self.kept.lock().push(segment),
            // An operator has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.remove_excess()
    }

    fn remove_retired(&self) -> io::Result<()> {
        while self.remove_oldest()? {}
        self.report();
        Ok(())
    }
}
