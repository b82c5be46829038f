//! Reads the spool of an invalidator beside it, as a log with a beginning and an end: for a replay. It takes no lock,
//! writes nothing, and needs no database.
//!
//! ```text
//!   0000000000000005.kept   0000000000000006.kept   0000000000000007.commits   0000000000000008.commits
//!   |-- the beginning                                                          being written: up to its last whole record
//! ```
//!
//! The invalidator renames, extends and removes files meanwhile. Invariants:
//! * A file is read at once, so it is read whole or not at all, whatever happens to it then.
//! * Each file must begin where the one before it ended. A file that was removed before it could be read shows as a gap
//!   between two others, and ends the replay with an error that says where the log begins now.
//! * A part of a record, or a damaged one, ends its file. If commits are missing behind it, that is such a gap, too.
//! * A file that was given up is read up to where the next one begins. If it was given up after it had been read
//!   further, the next one is read from its beginning: its commits there may be those of a promoted server.

use super::{
    kept::KEPT_SUFFIX,
    position::SpoolPosition,
    record::{Decoded, HEADER, Record, decode},
    recovery::{ScannedSegment, scan},
    storage::{SUFFIX, SegmentFolder},
};
use crate::{Commit, CommitLog, Commits, OpenedSource, Position, Source, SourceError, Start};
use lookaside_routing::BoxFuture;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

/// How often a gap between two files is looked at again: a file may have been renamed while the folder was listed.
const LISTINGS_MAX: u32 = 3;

/// A spool, as a replay reads it.
#[derive(Clone)]
pub struct SpoolArchive {
    folder: SegmentFolder,
    /// Compares positions; it is not read.
    log: Arc<dyn CommitLog>,
    losses: Arc<AtomicU64>,
}

/// Where a spool begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveBeginning {
    /// Commits after this are there.
    pub position: Position,
    /// When the first of them was committed; `None` if there are none.
    pub committed_at: Option<SystemTime>,
}

impl SpoolArchive {
    /// The spool in the `--state-dir` of an invalidator: of those below it, the one that was written last. `log` is the
    /// log that it was read from; it only compares positions.
    pub fn open(state_dir: &Path, log: Arc<dyn CommitLog>) -> Result<SpoolArchive, String> {
        let no_spool = |why: &str| format!("{} has no spool of an invalidator: {why}", state_dir.display());
        let written = spool_folders(state_dir).map_err(|error| no_spool(&error.to_string()))?;
        let newest = written.into_iter().max_by_key(|(written_at, _)| *written_at);
        let (_, folder) = newest.ok_or_else(|| no_spool("it has no segments"))?;
        Ok(SpoolArchive { folder, log, losses: Arc::default() })
    }

    /// Where it begins.
    pub fn beginning(&self) -> Result<ArchiveBeginning, SourceError> {
        let (mut after, mut position) = (0, None);
        while let Some((number, bytes, scan)) = self.next_segment(after)? {
            let position = position.get_or_insert_with(|| scan.base.position.text()).clone();
            if let Some(committed_at) = first_commit(&bytes[..scan.valid_bytes as usize]) {
                return Ok(ArchiveBeginning { position, committed_at: Some(committed_at) });
            }
            after = number + 1;
        }
        let position = position.ok_or_else(|| failed("it has no segments"))?;
        Ok(ArchiveBeginning { position, committed_at: None })
    }

    /// Whether `position`, which an operator gives, is one of this log, with its epoch if the spool has had a loss:
    /// without one it would be of the time before, although the database shows later ones in the same way.
    pub fn check_position(&self, position: &Position) -> Result<(), SourceError> {
        let unusable = |why| Err(SourceError::Unusable { why });
        let wanted = SpoolPosition::parse(position);
        if !wanted.covers(&wanted, &*self.log) {
            return unusable(format!("{:?} is no position of this log", position.0));
        }
        let epoch = self.newest()?.epoch;
        if epoch > 0 && !SpoolPosition::has_epoch(position) {
            return unusable(format!(
                "the position {0} may be before or after one that the invalidator has lost: give {epoch}:{0}, as its \
                 statistics show positions since then, or 0:{0} for one from before the first loss",
                position.0
            ));
        }
        Ok(())
    }

    /// How many losses were in what was read: between the commits before and after one, others are missing.
    pub fn losses(&self) -> u64 {
        self.losses.load(Relaxed)
    }

    fn newest(&self) -> Result<SpoolPosition, SourceError> {
        for number in self.numbers()?.into_iter().rev() {
            let Some(bytes) = self.read(number).map_err(failed)? else { continue };
            if let Ok(Some(scan)) = scan(&bytes, None, &*self.log) {
                return Ok(scan.end);
            }
        }
        Err(failed("it has no segments"))
    }

    fn numbers(&self) -> Result<BTreeSet<u64>, SourceError> {
        // In this order: a file that is renamed in between is listed twice and not missed.
        let listed = self.folder.numbers_with(SUFFIX).and_then(|mut numbers| {
            numbers.extend(self.folder.numbers_with(KEPT_SUFFIX)?);
            Ok(numbers)
        });
        listed.map(BTreeSet::from_iter).map_err(failed)
    }

    /// The first file with a valid beginning whose number is `from` or later, up to where the next one begins.
    fn next_segment(&self, from: u64) -> Result<Option<(u64, Vec<u8>, ScannedSegment)>, SourceError> {
        let Some((number, bytes, whole)) = self.next_file(from)? else { return Ok(None) };
        // Looked for after it was read: the invalidator may have given it up meanwhile.
        let Some((_, _, next)) = self.next_file(number + 1)? else { return Ok(Some((number, bytes, whole))) };
        let scan = self.scan(&bytes, Some(&next.base.position))?;
        Ok(scan.map(|scan| (number, bytes, scan)))
    }

    /// The same, up to its end.
    fn next_file(&self, from: u64) -> Result<Option<(u64, Vec<u8>, ScannedSegment)>, SourceError> {
        for number in self.numbers()?.range(from..) {
            let Some(bytes) = self.read(*number).map_err(failed)? else { continue };
            if let Some(scan) = self.scan(&bytes, None)? {
                return Ok(Some((*number, bytes, scan)));
            }
        }
        Ok(None)
    }

    fn scan(&self, bytes: &[u8], next_base: Option<&SpoolPosition>) -> Result<Option<ScannedSegment>, SourceError> {
        let newer = |version| failed(format!("it has format {version}, written by a newer version"));
        scan(bytes, next_base, &*self.log).map_err(newer)
    }

    /// The bytes of a file; `None` if it was removed.
    fn read(&self, number: u64) -> io::Result<Option<Vec<u8>>> {
        for suffix in [SUFFIX, KEPT_SUFFIX] {
            match fs::read(self.folder.path(number, suffix)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => return read.map(Some),
            }
        }
        Ok(None)
    }
}

/// The folders of spools below a `--state-dir` that have segments, and when these were written last.
fn spool_folders(state_dir: &Path) -> io::Result<Vec<(SystemTime, SegmentFolder)>> {
    let mut paths = vec![state_dir.join("spool")];
    match fs::read_dir(state_dir.join("spool-cache")) {
        Ok(caches) => {
            paths.extend(caches.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let written_at = |path: &PathBuf| -> Option<SystemTime> {
        let files = fs::read_dir(path).ok()?;
        files.filter_map(|file| file.ok()?.metadata().ok()?.modified().ok()).max()
    };
    let written = paths.into_iter().filter_map(|path| Some((written_at(&path)?, SegmentFolder::existing(path))));
    Ok(written.collect())
}

fn failed(why: impl ToString) -> SourceError {
    SourceError::Unusable { why: format!("the spool cannot be read: {}", why.to_string()) }
}

/// When the first commit of a segment was committed.
fn first_commit(mut bytes: &[u8]) -> Option<SystemTime> {
    bytes = bytes.get(HEADER.len()..)?;
    while let Decoded::Record(record, length) = decode(bytes) {
        if let Record::Commit(commit) = record {
            return Some(commit.committed_at);
        }
        bytes = &bytes[length..];
    }
    None
}

impl CommitLog for SpoolArchive {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(async {
            let newest = self.next_segment(0)?.ok_or_else(|| failed("it has no segments"))?;
            Ok(newest.2.base.log_identity)
        })
    }

    /// [`Start::Now`] is the beginning, too: a replay has no other use for it.
    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let begins_at = SpoolPosition::parse(&self.beginning()?.position);
            let position = match start {
                Start::Earliest | Start::Now => begins_at,
                Start::At(from) => {
                    self.check_position(from)?;
                    let wanted = SpoolPosition::parse(from);
                    if wanted.is_before(&begins_at, &*self.log) {
                        let why = format!("the log begins at {}", begins_at.text().0);
                        return Err(SourceError::PositionLost { position: from.clone(), why });
                    }
                    wanted
                }
            };
            let (position_text, epoch) = (position.text(), position.epoch);
            let source = ArchiveSource {
                archive: self.clone(),
                begin: position.clone(),
                next: 0,
                bytes: Vec::new(),
                at: 0,
                epoch,
                position,
            };
            Ok(OpenedSource { source: Box::new(source), position: position_text })
        })
    }

    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async { self.newest().map(|end| end.text()) })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        SpoolPosition::parse(position).covers(&SpoolPosition::parse(other), &*self.log)
    }
}

struct ArchiveSource {
    archive: SpoolArchive,
    /// Where reading began: nothing before it is returned.
    begin: SpoolPosition,
    /// The number from which on the next file is looked for.
    next: u64,
    /// The records of the present file, and how many of their bytes were decoded.
    bytes: Vec<u8>,
    at: usize,
    /// The epoch of the last record.
    epoch: u64,
    /// Everything before this was returned, or need not be.
    position: SpoolPosition,
}

impl ArchiveSource {
    /// Begins the next file; false if there is none.
    fn begin_segment(&mut self) -> Result<bool, SourceError> {
        for listing in 1.. {
            let Some((number, bytes, scan)) = self.archive.next_segment(self.next)? else { return Ok(false) };
            // What begins later lacks commits, unless it begins with a loss.
            let is_connected = self.position.covers(&scan.base.position, &*self.archive.log);
            if is_connected {
                if scan.base.position.is_before(&self.position, &*self.archive.log) {
                    let is_later = scan.base.position.covers(&self.begin, &*self.archive.log);
                    self.position = if is_later { scan.base.position.clone() } else { self.begin.clone() };
                }
                self.epoch = scan.base.position.epoch;
                (self.next, self.bytes, self.at) = (number + 1, bytes, HEADER.len());
                self.bytes.truncate(scan.valid_bytes as usize);
                return Ok(true);
            }
            if listing == LISTINGS_MAX {
                let why = format!(
                    "the log begins at {} now, as the invalidator has removed what is before",
                    scan.base.position.text().0
                );
                return Err(SourceError::PositionLost { position: self.position.text(), why });
            }
        }
        unreachable!("the number of listings has a bound")
    }

    /// Moves on to `position`. False if it is before the present one, so that its record is not needed.
    fn advance(&mut self, position: SpoolPosition) -> bool {
        let is_new = position.covers(&self.position, &*self.archive.log);
        if is_new {
            self.position = position;
        }
        is_new
    }

    /// Decodes one record. False at the end of the file, and before a loss if the read, which began at `before`, has
    /// found something: a replay that ends before a loss does not read it.
    fn decode_record(&mut self, before: &SpoolPosition, commits: &mut Vec<Commit>) -> bool {
        let Decoded::Record(record, length) = decode(&self.bytes[self.at.min(self.bytes.len())..]) else {
            return false;
        };
        if matches!(record, Record::Gap { .. }) && (!commits.is_empty() || self.position != *before) {
            return false;
        }
        self.at += length;
        match record {
            Record::Base(base) => self.epoch = base.position.epoch,
            Record::Commit(commit) => {
                let position = SpoolPosition::new(self.epoch, &commit.position);
                if self.advance(position.clone()) {
                    commits.push(Commit { position: position.text(), ..commit });
                }
            }
            Record::Advance(position) => drop(self.advance(SpoolPosition::new(self.epoch, &position))),
            Record::Gap { position, .. } => {
                self.epoch = position.epoch;
                if self.advance(position) {
                    self.archive.losses.fetch_add(1, Relaxed);
                }
            }
        }
        true
    }
}

impl Source for ArchiveSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let (before, mut commits) = (self.position.clone(), Vec::new());
            let mut keys = 0;
            while keys < keys_max.max(1) {
                if !self.decode_record(&before, &mut commits) {
                    if !commits.is_empty() || self.position != before {
                        break;
                    }
                    if !self.begin_segment()? {
                        return Err(failed("it ends before the position that was asked for"));
                    }
                }
                keys = commits.iter().map(|commit| commit.keys.len()).sum();
            }
            Ok(Commits { commits, position: self.position.text() })
        })
    }

    /// Whatever is in the spool has passed the gate.
    fn wait_until_visible<'a>(&'a mut self, _: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
