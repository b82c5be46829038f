//! Writes spooled deletes to disk, with group commit: appends that arrive at the same time are written and synced
//! once.
//!
//! In the daemon a dedicated thread does it, so that no client waits for the disk access of another; while it syncs,
//! the next group gathers. A simulation has no threads and writes each append in the caller.

use super::ids::RouterId;
use super::peer_fence::FenceFile;
use super::record::{Deletion, HEADER, Record, encode};
use super::recovery::{peer_fence_file, peer_fence_text};
use super::segments::{AppendTarget, TotalBytes, file_name};
use super::server_log::ServerLog;
use super::settings::Fsync;
use super::stats::SpoolCounters;
use super::storage::Disk;
use lookaside_sync::Mutex;
use lookaside_telemetry::LogThrottle;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant as WallInstant};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The most requests that are written together.
const GROUP_REQUESTS_MAX: usize = 1_024;
/// The most requests that wait for the writer's thread. A delete beyond it is not spooled and fails.
const QUEUED_REQUESTS_MAX: usize = 10_000;
/// The most bytes of deletes that wait for it.
const QUEUED_BYTES_MAX: u64 = 64 << 20;

/// Failed appends are logged at most once in this time.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(super) enum AppendError {
    /// Too many deletes wait for the writer.
    QueueFull,
    /// The writer's thread has ended.
    WriterGone,
    /// The spool has been closed: another process writes now.
    Closed,
    /// The entry is on disk, but a peer could not be asked to fence the server.
    PeerUnreachable,
    Io(Arc<io::Error>),
}

impl std::fmt::Display for AppendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AppendError::QueueFull => "too many deletes wait to be written to the spool",
            AppendError::WriterGone => "the spool's thread has ended",
            AppendError::Closed => "another process has taken over the spool",
            AppendError::PeerUnreachable => "a peer is unreachable",
            AppendError::Io(error) => return error.fmt(f),
        })
    }
}

struct WriteRequest {
    server: Arc<ServerLog>,
    entry: WriteEntry,
    reply: oneshot::Sender<Result<(), AppendError>>,
    /// Returned when this is dropped.
    _permit: QueuedBytesPermit,
}

#[derive(Clone, Debug)]
pub(super) enum WriteEntry {
    /// Deletes that the server did not answer.
    Deletes(Vec<Deletion>),
    /// A peer has a backlog for the server, and renews its fence before `until`, `duration` after its request.
    Fence { router: RouterId, sequence: u64, until: Instant, duration: Duration },
    /// The backlog of that peer is empty.
    Release { router: RouterId, sequence: u64 },
    /// That peer has been silent for too long: the server is to be flushed.
    Expire { router: RouterId },
    /// Deletes of the server are lost: it is to be flushed.
    Flush,
    /// The last entry: another process writes from now on.
    Close,
}

impl WriteEntry {
    fn deletions(&self) -> &[Deletion] {
        match self {
            WriteEntry::Deletes(deletions) => deletions,
            _ => &[],
        }
    }
}

/// A permit for bytes of deletes that wait to be written.
struct QueuedBytesPermit {
    queued_bytes: Arc<AtomicU64>,
    bytes: u64,
}

impl QueuedBytesPermit {
    /// A permit for `bytes`. `None` if the queue would hold more than `bytes_max` with them.
    fn acquire(queued_bytes: &Arc<AtomicU64>, bytes: u64, bytes_max: u64) -> Option<QueuedBytesPermit> {
        let before = queued_bytes.fetch_add(bytes, Relaxed);
        let permit = QueuedBytesPermit { queued_bytes: queued_bytes.clone(), bytes };
        (before + bytes <= bytes_max).then_some(permit)
    }
}

impl Drop for QueuedBytesPermit {
    fn drop(&mut self) {
        self.queued_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

pub(super) struct WriterHandle {
    mode: WriterMode,
    queued_bytes: Arc<AtomicU64>,
    counters: Arc<SpoolCounters>,
}

enum WriterMode {
    /// Each caller writes its own entries.
    Inline(Mutex<Writer>),
    Thread(SyncSender<WriteRequest>),
}

impl WriterHandle {
    /// The writer runs in the threads of its callers.
    pub(super) fn inline(writer: Writer) -> WriterHandle {
        let counters = writer.counters.clone();
        WriterHandle { mode: WriterMode::Inline(Mutex::new(writer)), queued_bytes: Arc::default(), counters }
    }

    /// The writer runs in a thread of its own, until the handle is dropped or closed.
    pub(super) fn spawn(writer: Writer) -> Result<WriterHandle, String> {
        let counters = writer.counters.clone();
        let (sender, requests) = sync_channel(QUEUED_REQUESTS_MAX);
        let thread = thread::Builder::new().name("spool".to_owned()).spawn(move || writer.run(&requests));
        thread.map_err(|error| format!("cannot create a thread: {error}"))?;
        Ok(WriterHandle { mode: WriterMode::Thread(sender), queued_bytes: Arc::default(), counters })
    }

    pub(super) async fn write(&self, server: &Arc<ServerLog>, entry: WriteEntry) -> Result<(), AppendError> {
        let deletes = entry.deletions().len() as u64;
        let bytes = entry.deletions().iter().map(Deletion::bytes).sum();
        let queue_full = || {
            self.counters.append_failures.add(deletes);
            Err(AppendError::QueueFull)
        };
        let permit = QueuedBytesPermit::acquire(&self.queued_bytes, bytes, QUEUED_BYTES_MAX);
        let Some(permit) = permit else { return queue_full() };
        let (reply, written) = oneshot::channel();
        let request = WriteRequest { server: server.clone(), entry, reply, _permit: permit };
        match &self.mode {
            WriterMode::Inline(writer) => writer.lock().write_group(vec![request]),
            WriterMode::Thread(requests) => match requests.try_send(request) {
                Ok(()) => {}
                Err(TrySendError::Full(_)) => return queue_full(),
                Err(TrySendError::Disconnected(_)) => return Err(AppendError::WriterGone),
            },
        }
        written.await.unwrap_or(Err(AppendError::WriterGone))
    }

    /// Writes the queue, then nothing more. `server` is not used.
    pub(super) async fn close(&self, server: Arc<ServerLog>) -> Result<(), AppendError> {
        let permit = QueuedBytesPermit::acquire(&self.queued_bytes, 0, u64::MAX).expect("0 bytes always fit");
        let (reply, closed) = oneshot::channel();
        let request = WriteRequest { server, entry: WriteEntry::Close, reply, _permit: permit };
        match &self.mode {
            WriterMode::Inline(writer) => writer.lock().write_group(vec![request]),
            // It waits for space in the queue, but not for long: no further entries arrive.
            WriterMode::Thread(requests) => requests.send(request).map_err(|_| AppendError::WriterGone)?,
        }
        closed.await.unwrap_or(Err(AppendError::WriterGone))
    }
}

/// The only writer of segments and peer fences while the router serves.
pub(super) struct Writer {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) bytes_max: u64,
    pub(super) total_bytes_max: u64,
    pub(super) total: Arc<TotalBytes>,
    pub(super) fsync: Fsync,
    pub(super) counters: Arc<SpoolCounters>,
    pub(super) replay_starts: mpsc::UnboundedSender<Arc<ServerLog>>,
    /// Files that were written and not synced.
    pub(super) unsynced: BTreeSet<(String, String)>,
    pub(super) failure_log: LogThrottle<Instant>,
    /// Whether [`WriteEntry::Close`] has been written.
    pub(super) is_closed: bool,
}

impl Writer {
    /// Writes requests in groups until the spool is closed or all senders are dropped.
    fn run(mut self, requests: &Receiver<WriteRequest>) {
        let mut sync_at = None;
        loop {
            let first = match sync_at {
                Some(at) => requests.recv_timeout(WallInstant::saturating_duration_since(&at, WallInstant::now())),
                None => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match first {
                Ok(first) => {
                    let mut group = vec![first];
                    group.extend(requests.try_iter().take(GROUP_REQUESTS_MAX - 1));
                    self.write_group(group);
                    if self.is_closed {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.sync_files(),
            }
            if sync_at.is_some_and(|at| at <= WallInstant::now()) {
                self.sync_files();
                sync_at = None;
            }
            if let (Fsync::Interval(interval), None, false) = (self.fsync, sync_at, self.unsynced.is_empty()) {
                sync_at = Some(WallInstant::now() + interval);
            }
        }
    }

    /// Writes a group of requests in order and replies to each.
    fn write_group(&mut self, mut group: Vec<WriteRequest>) {
        if !self.is_closed {
            let is_close = |request: &WriteRequest| matches!(request.entry, WriteEntry::Close);
            let before_close = group.iter().position(is_close).unwrap_or(group.len());
            let mut rest = group.split_off(before_close);
            self.write_entries(group);
            if rest.is_empty() {
                return;
            }
            self.is_closed = true;
            self.sync_files();
            let _ = rest.remove(0).reply.send(Ok(()));
            group = rest;
        }
        for request in group {
            let _ = request.reply.send(Err(AppendError::Closed));
        }
    }

    fn write_entries(&mut self, requests: Vec<WriteRequest>) {
        let (appends, others): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| matches!(request.entry, WriteEntry::Deletes(_)));
        for WriteRequest { server, entry, reply, .. } in others {
            let written = self.write_peer_entry(&server, &entry).map_err(|error| AppendError::Io(Arc::new(error)));
            let _ = reply.send(written);
        }
        let mut by_server: BTreeMap<String, Vec<WriteRequest>> = BTreeMap::new();
        for request in appends {
            by_server.entry(request.server.folder.clone()).or_default().push(request);
        }
        for requests in by_server.into_values() {
            let server = requests[0].server.clone();
            let deletions = requests.iter().flat_map(|request| request.entry.deletions());
            let new = server.without_repeats(deletions.clone());
            let repeated = (deletions.count() - new.len()) as u64;
            let written = self.append_deletes(&server, &new).map_err(|error| AppendError::Io(Arc::new(error)));
            let failed_or_repeated =
                if written.is_ok() { &self.counters.repeated } else { &self.counters.append_failures };
            failed_or_repeated.add(repeated);
            for request in requests {
                // The deletes of a caller that is gone are spooled all the same.
                let _ = request.reply.send(written.clone());
            }
        }
    }

    /// Writes a peer's request, or a flush record. The file of a peer's fence is written before the fence is raised,
    /// and removed after it was lowered: a crash in between leaves the server fenced, never unfenced.
    fn write_peer_entry(&mut self, server: &Arc<ServerLog>, entry: &WriteEntry) -> io::Result<()> {
        match *entry {
            WriteEntry::Deletes(_) => unreachable!("deletes are grouped by server"),
            WriteEntry::Close => unreachable!("nothing is written from there on"),
            WriteEntry::Fence { router, sequence, .. } if server.is_outdated(router, sequence) => {}
            WriteEntry::Fence { router, sequence, until, duration } => {
                let file = match server.peer_fence_file(router) {
                    Some(file) if duration <= file.duration => file,
                    file => self.write_fence_file(server, router, file.unwrap_or_default(), duration)?,
                };
                server.fence_for_peer(router, sequence, until, file);
            }
            WriteEntry::Release { router, sequence } => {
                if server.release_peer_fence(router, sequence) {
                    self.disk.remove(&server.folder, &peer_fence_file(router))?;
                }
            }
            WriteEntry::Flush => self.append_flush(server)?,
            WriteEntry::Expire { router } => {
                self.append_flush(server)?;
                if server.expire_peer_fence(router, Instant::now()) {
                    self.disk.remove(&server.folder, &peer_fence_file(router))?;
                }
            }
        }
        Ok(())
    }

    fn append_deletes(&mut self, server: &Arc<ServerLog>, deletions: &[Deletion]) -> io::Result<()> {
        if deletions.is_empty() {
            return Ok(());
        }
        let bytes = deletions.iter().map(Deletion::bytes).sum();
        let deletes = deletions.len() as u64;
        let target = server.begin_append(bytes, self.bytes_max, &self.total, self.total_bytes_max);
        let written = match target {
            AppendTarget::Covered => Ok((0, 0)),
            AppendTarget::Segment { number, at } => {
                let records = deletions.iter().map(|deletion| Record::Delete(deletion.clone()));
                let sync = self.fsync == Fsync::Always;
                self.write_records(server, number, at, records, sync).map(|()| (deletes, bytes))
            }
            AppendTarget::Flush { number } => self.write_flush_record(server, number),
        };
        self.count_append(server, target, deletes, &written);
        self.end_append(server, target, &written);
        if let (AppendTarget::Segment { number, .. }, Ok(_)) = (target, &written) {
            server.remember(number, deletions.iter());
        }
        written.map(drop)
    }

    /// Replaces the backlog by a flush record.
    fn append_flush(&mut self, server: &Arc<ServerLog>) -> io::Result<()> {
        let target = server.begin_flush();
        let written = match target {
            AppendTarget::Flush { number } => self.write_flush_record(server, number),
            _ => Ok((0, 0)),
        };
        self.end_append(server, target, &written);
        written.map(drop)
    }

    fn end_append(&self, server: &Arc<ServerLog>, target: AppendTarget, written: &io::Result<(u64, u64)>) {
        let mut replaced = Vec::new();
        if server.end_append_and_fence(target, written.as_ref().copied(), &self.total, &mut replaced) {
            // The receiver is dropped only when the process ends.
            let _ = self.replay_starts.send(server.clone());
        }
        server.remove_files(&*self.disk, &replaced);
    }

    /// Writes for how long the fence of `router` lasts after a restart. A longer time is appended to the file: at no
    /// moment of a crash is there a fence without its file.
    fn write_fence_file(
        &mut self,
        server: &ServerLog,
        router: RouterId,
        file: FenceFile,
        duration: Duration,
    ) -> io::Result<FenceFile> {
        let (name, text) = (peer_fence_file(router), peer_fence_text(duration));
        if file.bytes == 0 {
            self.disk.remove(&server.folder, &name)?;
        }
        self.disk.write(&server.folder, &name, file.bytes, text.as_bytes(), self.fsync != Fsync::Never)?;
        Ok(FenceFile { duration, bytes: file.bytes + text.len() as u64 })
    }

    /// A flush record replaces segments and fences that may be synced already, and their files are removed next. So it
    /// is synced first, unless no file is.
    fn write_flush_record(&mut self, server: &ServerLog, number: u64) -> io::Result<(u64, u64)> {
        let sync = self.fsync != Fsync::Never;
        let record = std::iter::once(Record::FlushAll);
        self.write_records(server, number, 0, record, sync).map(|()| (1, FLUSH_RECORD_BYTES))
    }

    fn write_records(
        &mut self,
        server: &ServerLog,
        number: u64,
        at: u64,
        records: impl Iterator<Item = Record>,
        sync: bool,
    ) -> io::Result<()> {
        let mut bytes = if at == 0 { HEADER.to_vec() } else { Vec::new() };
        records.for_each(|record| encode(&record, &mut bytes));
        let file = file_name(number);
        let written = self.disk.write(&server.folder, &file, at, &bytes, sync);
        match (&written, at) {
            (Ok(()), _) if !sync && self.fsync != Fsync::Never => {
                self.unsynced.insert((server.folder.clone(), file));
            }
            (Ok(()), _) => {}
            // After a crash the partial write would be a tail that was never acknowledged: it does no harm if this
            // fails.
            (Err(_), 0) => drop(self.disk.remove(&server.folder, &file)),
            (Err(_), _) => drop(self.disk.truncate(&server.folder, &file, at)),
        }
        written
    }

    fn count_append(
        &mut self,
        server: &ServerLog,
        target: AppendTarget,
        deletes: u64,
        written: &io::Result<(u64, u64)>,
    ) {
        match (target, written) {
            (_, Err(error)) => {
                self.counters.append_failures.add(deletes);
                if self.failure_log.allow(Instant::now()).is_some() {
                    tracing::error!(
                        server = %server.address, %error,
                        "cannot write to the spool: deletes that this server does not answer fail"
                    );
                }
            }
            (AppendTarget::Flush { .. }, Ok(_)) => {
                self.counters.spooled.add(deletes);
                self.counters.overflows.add(1);
                tracing::warn!(
                    server = %server.address,
                    "backlog too large (--spool-bytes-max, --spool-total-bytes-max): the server will be flushed before it is read"
                );
            }
            (_, Ok(_)) => self.counters.spooled.add(deletes),
        }
    }

    fn sync_files(&mut self) {
        for (folder, file) in std::mem::take(&mut self.unsynced) {
            if let Err(error) = self.disk.sync(&folder, &file) {
                tracing::error!(folder, file, %error, "cannot sync the spool: a crash of this machine may lose deletes");
            }
        }
    }
}

/// The frame and body of a flush record.
const FLUSH_RECORD_BYTES: u64 = 9;
