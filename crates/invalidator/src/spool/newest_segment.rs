//! The newest segment of the spool: how it begins, is extended, made durable, and given up after a failure.
//!
//! ```text
//! prepare -> append -> append -> sync -> ... -> the next one, once it is large
//!    ^                             |
//!    '---- given up <-- a failure -'      what is behind the last sync is read from the log again
//! ```

use super::{
    SEGMENT_BYTES_MAX, Spool, State,
    position::SpoolPosition,
    record::{Base, HEADER, Record, encode, encode_commit},
    recovery::{self, UncopiedSegment},
    segments::SpoolSegment,
};
use crate::{Commits, Position};
use std::io;

impl Spool {
    /// Makes everything durable that can be read, and a segment that can be extended, unless the spool is empty.
    pub(super) fn prepare(&self) -> io::Result<()> {
        self.sync()?;
        let uncopied = {
            let state = self.state.lock();
            if state.segments.is_none() || state.is_open {
                return Ok(());
            }
            state.uncopied.clone()
        };
        // Before anything is written: it may be what fills the disk.
        self.remove_segments();
        match uncopied {
            Some(uncopied) => self.copy_newest(&uncopied),
            None => {
                let given_up = self.state.lock().newest().expect("the spool was created").clone();
                recovery::remove_rest(&*self.files, given_up.number, given_up.bytes);
                self.add_segment(self.next_base(self.loss()))
            }
        }
    }

    /// Writes what an earlier run has left in the newest segment again.
    fn copy_newest(&self, uncopied: &UncopiedSegment) -> io::Result<()> {
        self.create_file(uncopied.copy_number, &uncopied.bytes)?;
        let mut state = self.state.lock();
        let State { segments, is_open, uncopied: pending, copied, synced, synced_bytes, .. } = &mut *state;
        let segments = segments.as_mut().expect("there is a segment");
        *synced_bytes = uncopied.bytes.len() as u64;
        let newest = segments.list.back_mut().expect("there is a segment");
        let former = std::mem::replace(&mut newest.number, uncopied.copy_number);
        newest.bytes = *synced_bytes;
        *synced = segments.end.clone();
        (*is_open, *pending, *copied) = (true, None, Some((former, uncopied.copy_number)));
        drop(state);
        // A reader of it goes on in the copy. If this fails, the next start finds both, of which the former ends
        // where the copy begins.
        let _ = self.files.remove(former);
        self.announce();
        Ok(())
    }

    /// Marks the end of the spool as the place of a loss, durably: the log may grow beyond it before the loss can be
    /// recorded, and would then seem to continue it.
    pub(super) fn begin_loss(&self, why: &str) -> io::Result<()> {
        match self.is_orphan() {
            true => Ok(()),
            false => self.add_segment(self.next_base(Some(why.to_owned()))),
        }
    }

    /// The base of a segment that continues what is durable.
    pub(super) fn next_base(&self, loss: Option<String>) -> Base {
        let state = self.state.lock();
        let log_identity = state.segments.as_ref().expect("the spool was created").log_identity.clone();
        Base { position: state.synced.clone(), log_identity, is_origin: false, loss }
    }

    /// Appends commits that readers see, and whose position is of the present epoch.
    pub(super) fn append(&self, commits: &Commits) -> io::Result<()> {
        let mut bytes = Vec::new();
        commits.commits.iter().for_each(|commit| encode_commit(commit, &mut bytes));
        if commits.commits.last().is_none_or(|last| last.position != commits.position) {
            encode(&Record::Advance(commits.position.clone()), &mut bytes);
        }
        let epoch = self.end().epoch;
        self.append_bytes(&bytes, SpoolPosition::new(epoch, &commits.position))?;
        self.statistics.commits.add(commits.commits.len() as u64);
        Ok(())
    }

    /// Appends a loss, after which `epoch` begins at `position`. Readers see it once it is durable: a cluster that has
    /// acted on it must not find another loss with the same number later.
    pub(super) fn append_gap(&self, epoch: u64, position: &Position, why: &str) -> io::Result<()> {
        let position = SpoolPosition::new(epoch, position);
        let mut bytes = Vec::new();
        encode(&Record::Gap { position: position.clone(), why: why.into() }, &mut bytes);
        let one_at_a_time = self.syncing.lock();
        let newest = self.open_segment()?;
        let appended = self.files.append(newest.number, newest.bytes, &bytes);
        appended.and_then(|()| self.files.sync(newest.number)).inspect_err(|_| self.abandon_segment())?;
        self.publish(bytes.len() as u64, position.clone())?;
        let mut state = self.state.lock();
        state.synced = position;
        state.synced_bytes = newest.bytes + bytes.len() as u64;
        drop((state, one_at_a_time));
        self.announce();
        Ok(())
    }

    fn append_bytes(&self, bytes: &[u8], end: SpoolPosition) -> io::Result<()> {
        if self.open_segment()?.bytes >= SEGMENT_BYTES_MAX.min(self.bytes_max / 8) {
            self.sync()?;
            // A sync that failed meanwhile has given the segment up, and its end is no longer ours.
            self.open_segment()?;
            self.add_segment(self.next_base(None))?;
        }
        let newest = self.open_segment()?;
        self.files.append(newest.number, newest.bytes, bytes).inspect_err(|_| self.abandon_segment())?;
        self.publish(bytes.len() as u64, end)?;
        self.announce();
        Ok(())
    }

    /// Lets readers see `bytes` more of the newest segment. Fails if it was given up meanwhile.
    fn publish(&self, bytes: u64, end: SpoolPosition) -> io::Result<()> {
        let mut state = self.state.lock();
        if !state.is_open {
            return Err(given_up());
        }
        let segments = state.segments.as_mut().expect("the spool was created");
        segments.list.back_mut().expect("there is a segment").bytes += bytes;
        // Before a cluster has it; it is not on disk yet.
        self.log.note_delivered(&end.position);
        segments.end = end;
        Ok(())
    }

    /// Makes durable what can be read, and returns its position. If that fails, the segment is given up.
    pub(super) fn sync(&self) -> io::Result<SpoolPosition> {
        let _one_at_a_time = self.syncing.lock();
        let open = {
            let state = self.state.lock();
            let open = state.segments.as_ref().filter(|_| state.is_open);
            open.and_then(|segments| {
                Some((segments.list.back()?.number, segments.end.clone(), segments.newest_bytes()))
            })
        };
        if let Some((number, end, bytes)) = open {
            self.files.sync(number).inspect_err(|_| self.abandon_segment())?;
            let mut state = self.state.lock();
            // Given up meanwhile, because an append failed, it is read up to what was synced before: the next segment
            // must begin there. If the next one is there already, `synced_bytes` is that one's.
            if state.is_open && state.newest_number() == Some(number) {
                (state.synced, state.synced_bytes) = (end, bytes);
            }
        }
        Ok(self.state.lock().synced.clone())
    }

    /// Appends nothing more to the newest segment, of which an unknown part is on disk. What it holds beyond the synced
    /// position will be read again, and is not read here: the kernel may drop what it could not write.
    pub(super) fn abandon_segment(&self) {
        let mut state = self.state.lock();
        let State { segments, is_open, synced, synced_bytes, .. } = &mut *state;
        *is_open = false;
        if let Some(segments) = segments {
            segments.end = synced.clone();
            segments.list.back_mut().expect("there is a segment").bytes = *synced_bytes;
        }
    }

    pub(super) fn add_segment(&self, base: Base) -> io::Result<()> {
        self.state.lock().is_open = false;
        let segment = self.create_segment(base)?;
        let mut state = self.state.lock();
        state.synced_bytes = segment.bytes;
        let segments = state.segments.as_mut().expect("the spool was created");
        segments.end = segment.base.position.clone();
        segments.list.push_back(segment);
        state.is_open = true;
        drop(state);
        self.announce();
        Ok(())
    }

    pub(super) fn create_segment(&self, base: Base) -> io::Result<SpoolSegment> {
        let number = self.take_number();
        let mut bytes = HEADER.to_vec();
        encode(&Record::Base(base.clone()), &mut bytes);
        self.create_file(number, &bytes)?;
        Ok(SpoolSegment { number, base, bytes: bytes.len() as u64 })
    }

    pub(super) fn create_file(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.create(number, bytes).inspect_err(|_| {
            // If this fails, too, the next start removes it.
            let _ = self.files.remove(number);
        })
    }

    /// The newest segment, if it may be extended.
    fn open_segment(&self) -> io::Result<SpoolSegment> {
        let state = self.state.lock();
        let segments = state.segments.as_ref().expect("the spool was created");
        match state.is_open {
            true => Ok(segments.list.back().expect("there is a segment").clone()),
            false => Err(given_up()),
        }
    }

    pub(super) fn has_unsynced(&self) -> bool {
        let state = self.state.lock();
        state.is_open && state.segments.as_ref().is_some_and(|segments| segments.end != state.synced)
    }
}

fn given_up() -> io::Error {
    io::Error::other("the newest segment could not be synced and was given up")
}
