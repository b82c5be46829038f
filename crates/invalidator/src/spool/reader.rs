//! Reads the spool for one cluster: to its pipeline it is the log of the database.

use super::{
    Spool,
    position::SpoolPosition,
    record::{Decoded, HEADER, Record, decode},
    segments::Place,
};
use crate::{Commit, CommitLog, Commits, LogDistance, LogLookup, OpenedSource, Position, Source, SourceError, Start};
use bytes::{Buf, BytesMut};
use lookaside_routing::BoxFuture;
use lookaside_sync::Mutex;
use std::{future::ready, io, sync::Arc};

/// How much is read of a file at once, if a record is not longer.
const READ_BYTES: usize = 64 << 10;

const DAMAGED: &str = "a segment of the spool is damaged";
const UNREADABLE: &str = "what was written to it and is not synced cannot be read back";

/// The log, as one cluster reads it.
#[derive(Clone)]
pub struct SpooledLog {
    spool: Arc<Spool>,
    cluster: String,
    /// The failure of the writer that the reader of the pipeline knows of; `None` if it knows of none.
    reported: Arc<Mutex<Option<SourceError>>>,
}

impl SpooledLog {
    /// The log in `spool` for `cluster`, which is one of those the spool was made for.
    pub fn new(spool: Arc<Spool>, cluster: &str) -> SpooledLog {
        SpooledLog { spool, cluster: cluster.to_owned(), reported: Arc::default() }
    }

    /// Waits until `check` returns something. Fails once for each failure of the writer.
    async fn wait<T>(&self, check: impl FnMut(&Spool) -> Option<T>) -> Result<T, SourceError> {
        self.wait_reporting(&self.reported, check).await
    }

    /// Waits until the log was read, for a look-up of its end; returns the present epoch. Fails for each failure of the
    /// writer, however many look-ups there are, and leaves its report to the reader of the cluster, which has to act on
    /// it.
    async fn wait_for_epoch(&self) -> Result<u64, SourceError> {
        let epoch = |spool: &Spool| spool.log_identity().map(|_| spool.end().epoch);
        self.wait_reporting(&Mutex::default(), epoch).await
    }

    /// Waits until `check` returns something. Fails if there is a failure of the writer other than `reported`, and
    /// makes it that.
    async fn wait_reporting<T>(
        &self,
        reported: &Mutex<Option<SourceError>>,
        mut check: impl FnMut(&Spool) -> Option<T>,
    ) -> Result<T, SourceError> {
        let mut changed = self.spool.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if let Some(found) = check(&self.spool) {
                return Ok(found);
            }
            let failure = self.spool.state.lock().failure.clone();
            if let Some(failure) = failure.filter(|failure| reported.lock().as_ref() != Some(failure)) {
                *reported.lock() = Some(failure.clone());
                return Err(failure);
            }
            changed.changed().await.expect("the spool has the sender");
        }
    }

    /// Where reading begins, once the spool has something to read from there or the writer reads.
    fn begin(&self, spool: &Spool, start: &Start) -> Option<Result<(SpoolPosition, u64), SourceError>> {
        let mut state = spool.state.lock();
        if state.uncopied.is_some() && !matches!(start, Start::At(_)) {
            // A crash may remove what the position would be behind.
            return None;
        }
        let segments = state.segments.as_ref()?;
        let oldest = segments.list.front()?;
        let has_begun = state.held.get(&self.cluster).is_some_and(Option::is_some);
        let (from, located) = match start {
            Start::At(position) => {
                let from = SpoolPosition::parse(position);
                if !from.covers(&from, &*spool.log) {
                    let why = format!("{:?} is no position of this log", position.0);
                    return Some(Err(SourceError::Unusable { why }));
                }
                let located = segments.locate(&from, &*spool.log);
                (from, located)
            }
            // Deletes are lost for every cluster without a position: it begins where it finds the loss, once.
            Start::Now if oldest.base.is_origin && oldest.base.loss.is_some() && !has_begun => {
                (oldest.base.position.clone(), Some(oldest))
            }
            Start::Now => (segments.end.clone(), segments.list.back()),
            Start::Earliest => (oldest.base.position.clone(), Some(oldest)),
        };
        let Some(segment) = located else {
            let why = "the spool no longer has the commits after it".into();
            return Some(Err(SourceError::PositionLost { position: from.text(), why }));
        };
        let has_more = from.is_before(&segments.end, &*spool.log);
        let begin = (from, segment.number);
        if let Start::At(_) = start {
            // Also while it waits: what it has passed may have to be removed before anything can be written.
            let held = state.held.entry(self.cluster.clone()).or_default();
            held.get_or_insert_with(|| begin.0.clone());
        }
        (has_more || state.failure.is_none() || *start == Start::Now).then_some(Ok(begin))
    }
}

impl CommitLog for SpooledLog {
    fn identity(&self) -> BoxFuture<'_, Result<String, SourceError>> {
        Box::pin(self.wait(Spool::log_identity))
    }

    fn open<'a>(&'a self, start: &'a Start) -> BoxFuture<'a, Result<OpenedSource, SourceError>> {
        Box::pin(async move {
            let (from, segment) = self.wait(|spool| self.begin(spool, start)).await??;
            *self.reported.lock() = None;
            self.spool.hold_first(&self.cluster, &from);
            let source = SpoolSource {
                log: self.clone(),
                segment,
                at: 0,
                buffer: BytesMut::new(),
                epoch: 0,
                position: from.clone(),
            };
            Ok(OpenedSource { source: Box::new(source), position: from.text() })
        })
    }

    /// Fails while the log is not read, as after a failover to a server that has less: its position would be taken for
    /// one of the present epoch, which a loss is about to end.
    fn newest_position(&self) -> BoxFuture<'_, Result<Position, SourceError>> {
        Box::pin(async {
            let newest = self.spool.log.newest_position().await?;
            let epoch = self.wait_for_epoch().await?;
            if let Some(failure) = self.spool.state.lock().failure.clone() {
                return Err(failure);
            }
            Ok(SpoolPosition::new(epoch, &newest).text())
        })
    }

    fn look_up(&self) -> BoxFuture<'_, Result<LogLookup, SourceError>> {
        Box::pin(async {
            let lookup = self.spool.log.look_up().await?;
            let epoch = self.wait_for_epoch().await?;
            Ok(LogLookup { newest: SpoolPosition::new(epoch, &lookup.newest).text(), ..lookup })
        })
    }

    fn covers(&self, position: &Position, other: &Position) -> bool {
        SpoolPosition::parse(position).covers(&SpoolPosition::parse(other), &*self.spool.log)
    }

    /// Of positions of one epoch; unknown between two.
    fn distance(&self, from: &Position, to: &Position) -> LogDistance {
        let (from, to) = (SpoolPosition::parse(from), SpoolPosition::parse(to));
        match from.epoch == to.epoch {
            true => self.spool.log.distance(&from.position, &to.position),
            false => LogDistance::default(),
        }
    }

    /// Those of the writer are.
    fn is_logged(&self, error: &SourceError) -> bool {
        self.reported.lock().as_ref() == Some(error)
    }

    fn release(&self, position: &Position) {
        self.spool.hold(&self.cluster, SpoolPosition::parse(position));
    }
}

/// Reads the spool from a position on.
struct SpoolSource {
    log: SpooledLog,
    /// The segment that is read, and how far.
    segment: u64,
    at: u64,
    /// What was read of it and not decoded.
    buffer: BytesMut,
    /// The epoch of the last record.
    epoch: u64,
    /// Everything before this was returned, or need not be.
    position: SpoolPosition,
}

/// The result of decoding what is in the buffer.
enum DecodeStep {
    /// More bytes are needed: this many, in all.
    Read(usize),
    /// The next record cannot be read.
    Damaged,
    Lost(SourceError),
    Full,
}

impl SpoolSource {
    /// Decodes records until `commits` has `keys_max` keys. A loss is found again when the commits before it were
    /// returned.
    fn decode_records(&mut self, keys_max: usize, commits: &mut Vec<Commit>) -> DecodeStep {
        let mut keys: usize = commits.iter().map(|commit| commit.keys.len()).sum();
        while keys < keys_max {
            let (record, length) = match decode(&self.buffer) {
                Decoded::Record(record, length) => (record, length),
                Decoded::Incomplete(needed) => return DecodeStep::Read(needed),
                Decoded::Invalid if !commits.is_empty() => return DecodeStep::Full,
                Decoded::Invalid => return DecodeStep::Damaged,
            };
            match record {
                Record::Base(base) => self.epoch = base.position.epoch,
                Record::Commit(commit) => {
                    let position = SpoolPosition::new(self.epoch, &commit.position);
                    if self.advance(position.clone()) {
                        keys += commit.keys.len();
                        commits.push(Commit { position: position.text(), ..commit });
                    }
                }
                Record::Advance(position) => {
                    self.advance(SpoolPosition::new(self.epoch, &position));
                }
                Record::Gap { position, why } if position.epoch > self.position.epoch => {
                    if !commits.is_empty() {
                        return DecodeStep::Full;
                    }
                    return DecodeStep::Lost(self.lose(&why));
                }
                Record::Gap { position, .. } => self.epoch = position.epoch,
            }
            self.buffer.advance(length);
        }
        DecodeStep::Full
    }

    /// Moves on to `position`. False if it is before the present one, so that its record is not needed.
    fn advance(&mut self, position: SpoolPosition) -> bool {
        let is_new = position.covers(&self.position, &*self.log.spool.log);
        if is_new {
            self.position = position;
        }
        is_new
    }

    /// Goes on behind a record that cannot be read, if nothing is missing there: what the kernel cannot write it may
    /// drop, before the sync that reports this, and the next segment will have it again.
    fn pass_damage(&mut self, why: &str) -> Result<(), SourceError> {
        let record_at = self.at - self.buffer.len() as u64;
        match self.log.spool.look(self.segment, self.at) {
            Place::Removed => self.relocate(),
            _ if !self.log.spool.is_unsynced(self.segment, record_at) => Err(self.lose(why)),
            Place::Next(number) => {
                self.begin_segment(number);
                Ok(())
            }
            Place::Bytes(_) | Place::End => Err(SourceError::SpoolFailed { why: UNREADABLE.into() }),
        }
    }

    fn lose(&self, why: &str) -> SourceError {
        SourceError::PositionLost { position: self.position.text(), why: why.into() }
    }

    /// Reads until the buffer has `needed` bytes. False if nothing can be read now.
    async fn fill(&mut self, needed: usize) -> Result<bool, SourceError> {
        while self.buffer.len() < needed {
            match self.log.spool.look(self.segment, self.at) {
                // Only whole records can be read, so a part of one has a damaged length.
                Place::End | Place::Next(_) if !self.buffer.is_empty() => {
                    self.pass_damage(DAMAGED)?;
                    return Ok(true);
                }
                Place::End => return Ok(false),
                Place::Bytes(bytes) => {
                    let wanted =
                        (needed - self.buffer.len()).max(READ_BYTES).min(usize::try_from(bytes).unwrap_or(usize::MAX));
                    if !self.read(wanted).await? {
                        self.relocate()?;
                    }
                }
                Place::Next(number) => {
                    self.begin_segment(number);
                    return Ok(true);
                }
                Place::Removed => self.relocate()?,
            }
        }
        Ok(true)
    }

    /// Reads `wanted` bytes; false if the file was removed.
    async fn read(&mut self, wanted: usize) -> Result<bool, SourceError> {
        let (files, number, at) = (self.log.spool.files.clone(), self.segment, self.at);
        let read = tokio::task::spawn_blocking(move || files.read(number, at, wanted)).await;
        match read.expect("reading a file does not panic") {
            Ok(bytes) if bytes.is_empty() => self.pass_damage("a segment of the spool was cut off").map(|()| true),
            Ok(mut bytes) => {
                self.at += bytes.len() as u64;
                if at == 0 {
                    bytes.drain(..HEADER.len().min(bytes.len()));
                }
                self.buffer.extend_from_slice(&bytes);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(SourceError::SpoolFailed { why: format!("it cannot be read: {error}") }),
        }
    }

    fn begin_segment(&mut self, number: u64) {
        self.segment = number;
        self.at = 0;
        self.buffer.clear();
    }

    /// The segment was removed: because it has a copy, because this cluster has all of it, or because the spool was
    /// full.
    fn relocate(&mut self) -> Result<(), SourceError> {
        let spool = &self.log.spool;
        if let Some(copy) = spool.copy_of(self.segment) {
            // What was not decoded may be what the disk could not write of the former one.
            self.at -= self.buffer.len() as u64;
            self.buffer.clear();
            self.segment = copy;
            return Ok(());
        }
        let located = {
            let state = spool.state.lock();
            let segments = state.segments.as_ref();
            segments.and_then(|segments| segments.locate(&self.position, &*spool.log)).map(|segment| segment.number)
        };
        match located {
            Some(number) if number != self.segment => {
                self.begin_segment(number);
                Ok(())
            }
            _ => Err(self.lose("the spool was full, and its oldest commits were removed")),
        }
    }
}

impl Source for SpoolSource {
    fn next(&mut self, keys_max: usize) -> BoxFuture<'_, Result<Commits, SourceError>> {
        Box::pin(async move {
            let (before, mut commits) = (self.position.clone(), Vec::new());
            loop {
                let needed = match self.decode_records(keys_max.max(1), &mut commits) {
                    DecodeStep::Lost(error) => return Err(error),
                    DecodeStep::Damaged => match self.pass_damage(DAMAGED) {
                        Ok(()) => continue,
                        // Found again when what was read before is returned.
                        Err(_) if self.position != before => break,
                        Err(error) => return Err(error),
                    },
                    DecodeStep::Full => break,
                    DecodeStep::Read(needed) => needed,
                };
                match self.fill(needed).await {
                    Ok(true) => continue,
                    _ if !commits.is_empty() || self.position != before => break,
                    Ok(false) => {}
                    Err(error) => return Err(error),
                }
                let (segment, at) = (self.segment, self.at);
                self.log.wait(|spool| (spool.look(segment, at) != Place::End).then_some(())).await?;
            }
            Ok(Commits { commits, position: self.position.text() })
        })
    }

    /// Whatever is in the spool has passed the gate.
    fn wait_until_visible<'a>(&'a mut self, _: &'a Position) -> BoxFuture<'a, Result<(), SourceError>> {
        Box::pin(ready(Ok(())))
    }
}
