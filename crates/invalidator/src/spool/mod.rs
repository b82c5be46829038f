//! The spool: commits that were read from a log which cannot be read again, on disk until every cluster has them
//! (ADR 014). Serves the delete path of PostgreSQL.
//!
//! ```text
//!                                        +--> reader.rs of cluster one --> its pipeline --> its position on disk
//! log -> gate -> writer.rs -> segments --+
//!          ^         |                   +--> reader.rs of cluster two --> its pipeline --> its position on disk
//!          |         v
//!          +---- what is synced may be removed from the log
//!
//! position.rs    positions, and the losses before them        record.rs      the format of a segment
//! segments.rs    which segment a cluster needs                storage.rs     the files
//! recovery.rs    what a crash has left           marks.rs       what a standby must know
//! newest_segment.rs  how it is extended, synced and given up
//! removal.rs     which segments go, and when
//! kept.rs        segments that no cluster needs  archive.rs     reads them beside the daemon, for a replay
//! ```
//!
//! Invariants:
//! * The log is released up to what is synced, and no further. A crash loses nothing: what was written and not synced
//!   is read again.
//! * Clusters read what is written, before it is synced: a delete needs no sync. So a saved position may be beyond the
//!   end of a spool that a crash has cut off. What is before the position is skipped then.
//! * Whatever is in the spool has passed the gate.
//! * What an earlier run has left in the newest segment is taken for synced once it was written again. After a failed
//!   sync the page cache has what the disk has not, and later syncs succeed. Until then, as while the disk is full,
//!   clusters read it up to its first loss, as they read what is not synced. Of an older segment all is on disk up to
//!   where the next one begins, since that is where the last sync that succeeded ended.
//! * After a failed write or sync nothing is appended to that segment. Reading resumes from the last synced position,
//!   in a new segment, and while none can be created nothing is read. What a cluster cannot read of the former one
//!   behind the synced position is no loss.
//! * The spool has a limit. Beyond it the oldest segment is removed, and the clusters that need it have lost their
//!   position. A cluster that is down delays no other, and does not make the database keep its log.
//! * A loss is a record. Each cluster finds it, now or after a restart, and is flushed or stopped.
//! * If a standby may take over, the files are a cache. The log is then released up to what all clusters have saved,
//!   not up to what is synced; and a loss is marked where the standby finds it, before the log may go on behind it.

mod archive;
mod kept;
mod marks;
mod newest_segment;
mod position;
mod reader;
mod record;
mod recovery;
mod removal;
mod segments;
mod storage;
#[cfg(test)]
mod tests;
mod writer;

pub use archive::{ArchiveBeginning, SpoolArchive};
pub use kept::{KeepLimits, KeepingFolder};
pub use marks::{SpoolMarks, SpoolMarksState};
pub use reader::SpooledLog;
pub use storage::{SegmentFiles, SegmentFolder};
pub use writer::{SavedStart, SpoolWriter};

use crate::{CommitLog, Position, SourceError, observe::spool_stats::SpoolStatistics};
use lookaside_sync::Mutex;
use position::SpoolPosition;
use record::{Base, HEADER};
use recovery::{Recovered, UncopiedSegment};
use segments::{Place, Segments, SpoolSegment};
use std::{collections::BTreeMap, io, sync::Arc};
use tokio::sync::watch;

/// The least limit of a spool.
pub const SPOOL_BYTES_MIN: u64 = 1 << 20;
/// A segment of at least this size is closed, or of an eighth of the limit.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;

/// The commits of one log that some cluster still needs.
pub struct Spool {
    files: Arc<dyn SegmentFiles>,
    log: Arc<dyn CommitLog>,
    bytes_max: u64,
    /// `None` if all that is to be remembered is in the files.
    marks: Option<Arc<dyn SpoolMarks>>,
    state: Mutex<State>,
    /// Held while a segment is synced. The kernel reports a failed write to one of two concurrent syncs only: the other
    /// would take the segment for durable.
    syncing: Mutex<()>,
    changed: watch::Sender<()>,
    statistics: Arc<SpoolStatistics>,
}

#[derive(Debug)]
struct State {
    /// `None` until the log was read for the first time.
    segments: Option<Segments>,
    /// Whether the newest segment may be extended.
    is_open: bool,
    /// What an earlier run has left in the newest segment, of which losses and what is behind them cannot be read
    /// before it was written again; `None` since then.
    uncopied: Option<Arc<UncopiedSegment>>,
    /// The number that it had, and that of the copy; `None` before it was written again.
    copied: Option<(u64, u64)>,
    /// The file that says that a first start has begun, and nothing was delivered; `None` if there is none.
    start_mark: Option<u64>,
    next_number: u64,
    /// Everything up to here survives a crash of the machine. Means nothing while there are no segments.
    synced: SpoolPosition,
    /// How much of the newest segment does.
    synced_bytes: u64,
    /// Why nothing is read; `None` while the log is read.
    failure: Option<SourceError>,
    /// By cluster: what it has acknowledged; `None` until that is known.
    held: BTreeMap<String, Option<SpoolPosition>>,
}

impl State {
    fn newest(&self) -> Option<&SpoolSegment> {
        self.segments.as_ref()?.list.back()
    }

    /// The number of the newest segment.
    fn newest_number(&self) -> Option<u64> {
        self.newest().map(|segment| segment.number)
    }
}

impl Spool {
    /// Reads what an earlier run has left in `files`; blocks. `clusters` are all that will read the spool. At most
    /// about `bytes_max` bytes are kept.
    pub fn recover<'a>(
        files: Arc<dyn SegmentFiles>,
        log: Arc<dyn CommitLog>,
        bytes_max: u64,
        clusters: impl IntoIterator<Item = &'a str>,
        statistics: Arc<SpoolStatistics>,
    ) -> Result<Arc<Spool>, String> {
        let recovered = recovery::recover(&*files, &*log)?;
        Ok(Spool::from_recovered(recovered, files, log, bytes_max, clusters, statistics, None))
    }

    /// A spool whose files, of which there are none yet, are a cache: another invalidator will begin at the positions
    /// of the clusters and at `marks`.
    pub fn cache<'a>(
        files: Arc<dyn SegmentFiles>,
        log: Arc<dyn CommitLog>,
        bytes_max: u64,
        clusters: impl IntoIterator<Item = &'a str>,
        statistics: Arc<SpoolStatistics>,
        marks: Arc<dyn SpoolMarks>,
    ) -> Arc<Spool> {
        let recovered = Recovered { segments: None, uncopied: None, start_mark: None, next_number: 1 };
        Spool::from_recovered(recovered, files, log, bytes_max, clusters, statistics, Some(marks))
    }

    fn from_recovered<'a>(
        recovered: Recovered,
        files: Arc<dyn SegmentFiles>,
        log: Arc<dyn CommitLog>,
        bytes_max: u64,
        clusters: impl IntoIterator<Item = &'a str>,
        statistics: Arc<SpoolStatistics>,
        marks: Option<Arc<dyn SpoolMarks>>,
    ) -> Arc<Spool> {
        let newest = recovered.segments.as_ref().and_then(|segments| segments.list.back());
        let synced = newest.map(|newest| newest.base.position.clone());
        let state = State {
            segments: recovered.segments,
            is_open: false,
            uncopied: recovered.uncopied,
            copied: None,
            start_mark: recovered.start_mark,
            next_number: recovered.next_number,
            synced: synced.unwrap_or_else(|| SpoolPosition::new(0, &Position(String::new()))),
            synced_bytes: 0,
            failure: None,
            held: clusters.into_iter().map(|cluster| (cluster.to_owned(), None)).collect(),
        };
        let (state, syncing, changed) = (Mutex::new(state), Mutex::default(), watch::Sender::new(()));
        let spool = Spool { files, log, bytes_max, marks, state, syncing, changed, statistics };
        spool.report();
        Arc::new(spool)
    }

    /// Records that a first start is about to begin: until there are segments, nothing will have been delivered.
    fn begin_start(&self) -> io::Result<()> {
        if self.state.lock().start_mark.is_none() {
            let number = self.take_number();
            self.create_file(number, &HEADER)?;
            self.state.lock().start_mark = Some(number);
        }
        Ok(())
    }

    /// Begins the spool. With a `loss` deletes before `position` are lost, for that reason.
    fn create(&self, log_identity: &str, position: SpoolPosition, loss: Option<String>) -> io::Result<()> {
        let base = Base { position: position.clone(), log_identity: log_identity.into(), is_origin: true, loss };
        let segment = self.create_segment(base)?;
        let mut state = self.state.lock();
        state.synced_bytes = segment.bytes;
        state.segments =
            Some(Segments { log_identity: log_identity.into(), list: [segment].into(), end: position.clone() });
        state.synced = position;
        state.is_open = true;
        let start_mark = state.start_mark.take();
        drop(state);
        if let Some(number) = start_mark {
            // If this fails, the next start removes it.
            let _ = self.files.remove(number);
        }
        self.announce();
        Ok(())
    }

    /// `cluster` begins to read at `position`. What it has read before stays until it has saved a later position.
    fn hold_first(&self, cluster: &str, position: &SpoolPosition) {
        let mut state = self.state.lock();
        state.held.entry(cluster.to_owned()).or_default().get_or_insert_with(|| position.clone());
    }

    /// `cluster` will not read before `position` again.
    fn hold(&self, cluster: &str, position: SpoolPosition) {
        self.state.lock().held.insert(cluster.to_owned(), Some(position));
        if let Some(acknowledged) = self.acknowledged() {
            self.log.acknowledge(&acknowledged.position);
        }
        if self.marks.is_some() {
            self.release_log();
        }
    }

    /// What every cluster has saved; `None` if one has not yet acted on the last loss.
    fn acknowledged(&self) -> Option<SpoolPosition> {
        let state = self.state.lock();
        state.segments.as_ref().and_then(|segments| segments.acknowledged(&state.held, &*self.log))
    }

    /// Lets the log end before what will not be read again. With a standby that is nothing while a loss is being
    /// recorded: what clusters have acknowledged is from before it, and the log may have those positions again.
    fn release_log(&self) {
        if self.marks.is_some() && self.is_orphan() {
            return;
        }
        let released = match &self.marks {
            None => Some(self.state.lock().synced.clone()),
            Some(_) => self.acknowledged(),
        };
        if let Some(released) = released {
            self.log.release(&released.position);
        }
    }

    fn set_failure(&self, failure: Option<SourceError>) {
        self.state.lock().failure = failure;
        self.changed.send_replace(());
    }

    fn announce(&self) {
        self.changed.send_replace(());
        self.report();
    }

    fn report(&self) {
        let state = self.state.lock();
        if let Some(segments) = &state.segments {
            self.statistics.set(
                segments.list.len() as u64,
                segments.bytes(),
                &segments.end.text(),
                &state.synced.text(),
            );
        }
    }

    fn take_number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_number += 1;
        state.next_number - 1
    }

    fn end(&self) -> SpoolPosition {
        self.state.lock().segments.as_ref().expect("the spool was created").end.clone()
    }

    /// `None` until the log was read for the first time.
    fn log_identity(&self) -> Option<String> {
        self.state.lock().segments.as_ref().map(|segments| segments.log_identity.clone())
    }

    /// Whether deletes before the end are lost, and the record of that is missing.
    fn is_orphan(&self) -> bool {
        self.loss().is_some()
    }

    /// Why deletes before the end are lost, if the record of that is missing; `None` if it is not.
    fn loss(&self) -> Option<String> {
        let state = self.state.lock();
        let segments = state.segments.as_ref()?;
        let mut bases = segments.list.iter().map(|segment| &segment.base);
        bases.find_map(|base| base.loss.clone().filter(|_| base.position.epoch == segments.end.epoch))
    }

    /// Whether what is at this place and behind it was never synced, so that it will be in the next segment, too, if it
    /// is not synced yet.
    fn is_unsynced(&self, number: u64, at: u64) -> bool {
        let state = self.state.lock();
        let Some(segments) = &state.segments else { return false };
        let newest = segments.list.back().filter(|newest| newest.number == number).map(|_| state.synced_bytes);
        let segment = segments.list.iter().find(|segment| segment.number == number);
        newest.or(segment.map(|segment| segment.bytes)).is_some_and(|synced| at >= synced)
    }

    /// The segment that has the same bytes as segment `number` of an earlier run; `None` if there is none.
    fn copy_of(&self, number: u64) -> Option<u64> {
        self.state.lock().copied.filter(|(former, _)| *former == number).map(|(_, copy)| copy)
    }

    fn look(&self, number: u64, at: u64) -> Place {
        self.state.lock().segments.as_ref().map_or(Place::Removed, |segments| segments.look(number, at))
    }
}
