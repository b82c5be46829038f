//! Keeps deletes on disk: what many clients hand in at the same time is written, and synced, once. A delete passes here
//! when its server did not answer.
//!
//! In the daemon a thread of its own does it, so that no client waits for another's disk; while it syncs, the next
//! group gathers. A simulation has no threads, and keeps each batch as it is handed in.

use super::ids::Owner;
use super::record::{Deletion, HEADER, Record, encode};
use super::recovery::hold_name;
use super::server_log::{Place, Server, TotalBytes, file_name};
use super::stats::Counters;
use super::storage::Disk;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant as WallInstant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The most batches that are written together.
const GROUP_BATCHES_MAX: usize = 1_024;

/// What goes wrong with every delete is said this often.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(5);

/// When what is kept is safe from a crash of the machine. A crash of the router alone loses nothing, whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before it is acknowledged.
    Always,
    /// At most so much later.
    Interval(Duration),
    /// When the system likes.
    Never,
}

/// Something to be kept for one server.
pub(super) struct Job {
    pub(super) server: Arc<Server>,
    pub(super) work: Work,
    /// Whether they are kept, and if not, why.
    pub(super) reply: oneshot::Sender<Result<(), Arc<str>>>,
    /// Given back when this is dropped.
    pub(super) _room: Room,
}

/// What is to be kept.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// The server missed these.
    Deletes(Vec<Deletion>),
    /// Another router owes it something, and will say so again before `until`.
    Hold { owner: Owner, sequence: u64, until: Instant },
    /// It owes nothing more.
    Release { owner: Owner, sequence: u64 },
    /// It has been silent for too long: the server is to forget.
    Expire { owner: Owner },
    /// Nothing more: another process keeps deletes from now on.
    Close,
}

impl Work {
    pub(super) fn deletions(&self) -> &[Deletion] {
        match self {
            Work::Deletes(deletions) => deletions,
            _ => &[],
        }
    }
}

/// Bytes of deletes that wait to be written.
pub(super) struct Room {
    waiting_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl Room {
    /// Room for `bytes` more, unless there are `bytes_max` with them.
    pub(super) fn take(waiting_bytes: &Arc<AtomicU64>, bytes: u64, bytes_max: u64) -> Option<Room> {
        let before = waiting_bytes.fetch_add(bytes, Relaxed);
        let room = Room { waiting_bytes: waiting_bytes.clone(), bytes };
        (before + bytes <= bytes_max).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.waiting_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Writes what is owed.
pub(super) struct Ledger {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) bytes_max: u64,
    pub(super) total_bytes_max: u64,
    pub(super) total: Arc<TotalBytes>,
    pub(super) fsync: Fsync,
    pub(super) counters: Arc<Counters>,
    /// Told of servers whose debts nobody works off yet.
    pub(super) begin: mpsc::UnboundedSender<Arc<Server>>,
    /// Written and not synced.
    pub(super) unsynced: BTreeSet<(String, String)>,
    /// When it was last said that nothing can be kept.
    pub(super) complained_at: Option<Instant>,
    /// Nothing is kept here any more.
    pub(super) is_closed: bool,
}

impl Ledger {
    /// Keeps all `jobs`, in order, and tells each what became of it.
    pub(super) fn keep(&mut self, mut jobs: Vec<Job>) {
        if !self.is_closed {
            let before_close = jobs.iter().position(|job| matches!(job.work, Work::Close)).unwrap_or(jobs.len());
            let mut too_late = jobs.split_off(before_close);
            self.keep_all(jobs);
            if too_late.is_empty() {
                return;
            }
            self.is_closed = true;
            self.sync();
            let _ = too_late.remove(0).reply.send(Ok(()));
            jobs = too_late;
        }
        for job in jobs {
            let _ = job.reply.send(Err(Arc::from("another process keeps deletes now")));
        }
    }

    fn keep_all(&mut self, jobs: Vec<Job>) {
        let (deletes, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| matches!(job.work, Work::Deletes(_)));
        for job in others {
            let done = self.keep_hold(&job.server, &job.work).map_err(|error| Arc::from(error.to_string()));
            let _ = job.reply.send(done);
        }
        let mut by_server: BTreeMap<String, Vec<Job>> = BTreeMap::new();
        for job in deletes {
            by_server.entry(job.server.folder.clone()).or_default().push(job);
        }
        for jobs in by_server.into_values() {
            let server = jobs[0].server.clone();
            let deletions = jobs.iter().flat_map(|job| job.work.deletions());
            let kept = self.keep_for(&server, deletions).map_err(|error| Arc::from(error.to_string()));
            for job in jobs {
                // Whoever has hung up has his delete kept all the same.
                let _ = job.reply.send(kept.clone());
            }
        }
    }

    /// Keeps what another router said of a server. The file comes before the fence, and goes after it: a crash in between
    /// errs towards a server that is held.
    fn keep_hold(&mut self, server: &Arc<Server>, work: &Work) -> io::Result<()> {
        match *work {
            Work::Deletes(_) => unreachable!("kept with those of the same server"),
            Work::Close => unreachable!("nothing is kept from there on"),
            Work::Hold { owner, sequence, .. } if server.is_outdated(owner, sequence) => {}
            Work::Hold { owner, sequence, until } => {
                if !server.is_held_for(owner) {
                    let file = hold_name(owner);
                    self.disk.remove(&server.folder, &file)?;
                    self.disk.write(&server.folder, &file, 0, b"held\n", self.fsync != Fsync::Never)?;
                }
                server.hold(owner, sequence, until);
            }
            Work::Release { owner, sequence } => {
                if server.release(owner, sequence) {
                    self.disk.remove(&server.folder, &hold_name(owner))?;
                }
            }
            Work::Expire { owner } => {
                let place = server.begin_forget();
                let written = match place {
                    Place::Forget { number } => {
                        self.write(server, number, 0, std::iter::once(Record::Forget)).map(|()| (1, FORGET_BYTES))
                    }
                    _ => Ok((0, 0)),
                };
                self.end(server, place, &written);
                written?;
                if server.expire(owner, Instant::now()) {
                    self.disk.remove(&server.folder, &hold_name(owner))?;
                }
            }
        }
        Ok(())
    }

    fn keep_for<'a>(
        &mut self,
        server: &Arc<Server>,
        deletions: impl Iterator<Item = &'a Deletion> + Clone,
    ) -> io::Result<()> {
        let bytes = deletions.clone().map(Deletion::bytes).sum();
        let records = deletions.clone().count() as u64;
        let place = server.begin(bytes, self.bytes_max, &self.total, self.total_bytes_max);
        let written = match place {
            Place::Covered => Ok((0, 0)),
            Place::Segment { number, at } => {
                let records_of = deletions.map(|deletion| Record::Delete(deletion.clone()));
                self.write(server, number, at, records_of).map(|()| (records, bytes))
            }
            Place::Forget { number } => {
                let written = self.write(server, number, 0, std::iter::once(Record::Forget));
                written.map(|()| (1, FORGET_BYTES))
            }
        };
        self.count(server, place, records, &written);
        self.end(server, place, &written);
        written.map(drop)
    }

    fn end(&self, server: &Arc<Server>, place: Place, written: &io::Result<(u64, u64)>) {
        let mut dropped = Vec::new();
        if server.end(place, written.as_ref().copied(), &self.total, &mut dropped) {
            // The receiver goes only when the process ends.
            let _ = self.begin.send(server.clone());
        }
        server.remove(&*self.disk, &dropped);
    }

    fn write(
        &mut self,
        server: &Server,
        number: u64,
        at: u64,
        records: impl Iterator<Item = Record>,
    ) -> io::Result<()> {
        let mut bytes = if at == 0 { HEADER.to_vec() } else { Vec::new() };
        records.for_each(|record| encode(&record, &mut bytes));
        let file = file_name(number);
        let written = self.disk.write(&server.folder, &file, at, &bytes, self.fsync == Fsync::Always);
        match (&written, at) {
            (Ok(()), _) if matches!(self.fsync, Fsync::Interval(_)) => {
                self.unsynced.insert((server.folder.clone(), file));
            }
            (Ok(()), _) => {}
            // A crash now would leave a tail that was never acknowledged. That it cannot be cut off is survivable.
            (Err(_), 0) => drop(self.disk.remove(&server.folder, &file)),
            (Err(_), _) => drop(self.disk.truncate(&server.folder, &file, at)),
        }
        written
    }

    fn count(&mut self, server: &Server, place: Place, records: u64, written: &io::Result<(u64, u64)>) {
        match (place, written) {
            (_, Err(error)) => {
                self.counters.append_failures.fetch_add(records, Relaxed);
                if self.complained_at.is_none_or(|at| at.elapsed() >= COMPLAINT_INTERVAL) {
                    self.complained_at = Some(Instant::now());
                    tracing::error!(server = %server.address, %error, "deletes cannot be kept: they fail");
                }
            }
            (Place::Forget { .. }, Ok(_)) => {
                self.counters.spooled.fetch_add(records, Relaxed);
                self.counters.overflows.fetch_add(1, Relaxed);
                tracing::warn!(
                    server = %server.address,
                    "more deletes than the spool may hold: the server will forget everything before it is read"
                );
            }
            (_, Ok(_)) => drop(self.counters.spooled.fetch_add(records, Relaxed)),
        }
    }

    /// Syncs what was only written.
    fn sync(&mut self) {
        for (folder, file) in std::mem::take(&mut self.unsynced) {
            if let Err(error) = self.disk.sync(&folder, &file) {
                tracing::error!(folder, file, %error, "the spool is not safe from a crash of this machine");
            }
        }
    }

    /// Keeps what is handed in, until nobody is left to hand anything in.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        let mut sync_at = None;
        loop {
            let first = match sync_at {
                Some(at) => jobs.recv_timeout(WallInstant::saturating_duration_since(&at, WallInstant::now())),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match first {
                Ok(first) => {
                    let mut group = vec![first];
                    group.extend(jobs.try_iter().take(GROUP_BATCHES_MAX - 1));
                    self.keep(group);
                    if self.is_closed {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.sync(),
            }
            if sync_at.is_some_and(|at| at <= WallInstant::now()) {
                self.sync();
                sync_at = None;
            }
            if let (Fsync::Interval(interval), None, false) = (self.fsync, sync_at, self.unsynced.is_empty()) {
                sync_at = Some(WallInstant::now() + interval);
            }
        }
    }
}

/// A forget's frame and body.
const FORGET_BYTES: u64 = 9;
