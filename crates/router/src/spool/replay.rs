//! Replays the backlog of a server: one task for each server, however many threads the router has. Deletes are sent in
//! the order in which they were spooled, pipelined. When the last one is acknowledged the server is unfenced.
//!
//! The first attempt is immediate, because a single lost delete is no outage. Further ones wait ever longer, with
//! jitter. The task is independent of the probes of destinations: a server is read when it is neither fenced nor TKO.

use super::record::{Condition, Deletion, Record, scan};
use super::replay_connection::{ReplayConnection, ReplayResult};
use super::segments::{ReplayAction, file_name};
use super::server_log::ServerLog;
use super::shared::SpoolShared;
use super::writer::{WriteEntry, WriterHandle};
use lookaside_client::{CommandError, Network};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The most deletes that are sent at once.
const BATCH_DELETES: usize = 500;
/// The wait after the first failed attempt. Each further one is half as long again, plus 5 to 50 percent of jitter.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// How long an unreadable file is retried: the process may lack file descriptors, or the disk may hang. Then its
/// deletes count as lost.
const READ_RETRY_MAX: Duration = Duration::from_secs(60);

pub(super) struct Replayer {
    shared: Arc<SpoolShared>,
    writer: Arc<WriterHandle>,
    server: Arc<ServerLog>,
    network: Arc<dyn Network>,
    random: fastrand::Rng,
    started_at: Instant,
    /// Deletes that the server has applied or rejected.
    deletes: u64,
    connection: Option<ReplayConnection>,
    cursor: Option<SegmentCursor>,
    wait: Duration,
    /// The last failure. `None` if no attempt has failed.
    last_error: Option<String>,
    /// Its flush record could not be written: the next attempt to flush the server does not wait for it.
    is_flush_unrecorded: bool,
    is_record_failure_logged: bool,
    /// Since when a file has been unreadable. `None` if the last read succeeded.
    unreadable_since: Option<Instant>,
}

/// A segment that is being sent.
struct SegmentCursor {
    number: u64,
    deletions: Vec<Deletion>,
    /// The number of deletions that the server has acknowledged.
    next: usize,
}

#[derive(Debug)]
enum ReplayError {
    Connection(CommandError),
    /// The server cannot apply a delete now.
    Retry(String),
    FlushRefused(String),
    /// A segment file cannot be read at present.
    Unreadable(io::Error),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Connection(error) => error.fmt(f),
            ReplayError::Retry(reply) => write!(f, "the server replied {reply:?} to a delete"),
            ReplayError::FlushRefused(reply) => {
                write!(f, "the server refuses flush_all ({reply}); restart it, or allow flush_all")
            }
            ReplayError::Unreadable(error) => write!(f, "cannot read a spool file: {error}"),
        }
    }
}

impl Replayer {
    pub(super) fn new(
        shared: Arc<SpoolShared>,
        writer: Arc<WriterHandle>,
        server: Arc<ServerLog>,
        network: Arc<dyn Network>,
        random: fastrand::Rng,
    ) -> Replayer {
        Replayer {
            shared,
            writer,
            server,
            network,
            random,
            started_at: Instant::now(),
            deletes: 0,
            connection: None,
            cursor: None,
            wait: WAIT_MIN,
            last_error: None,
            is_flush_unrecorded: false,
            is_record_failure_logged: false,
            unreadable_since: None,
        }
    }

    /// Returns when the backlog is empty, or when no configuration names the server.
    pub(super) async fn run(mut self) {
        while let Some(action) = self.server.next_replay_or_unfence() {
            let replayed = match action {
                ReplayAction::Wait => {
                    self.server.wait_for_append_end().await;
                    continue;
                }
                ReplayAction::Flush { number, is_durable: false } if !self.is_flush_unrecorded => {
                    self.record_flush(number).await;
                    continue;
                }
                ReplayAction::Flush { number, .. } => self.flush(number).await,
                ReplayAction::SendDeletes { number, bytes } => self.replay_next(number, bytes).await,
            };
            match replayed {
                Ok(()) => self.wait = WAIT_MIN,
                Err(error) => self.back_off(&error).await,
            }
        }
        self.shared.peers.request_sync();
        self.log_end();
    }

    fn log_end(&self) {
        let server = &self.server.address;
        if !self.server.backlog().is_empty() {
            return tracing::debug!(%server, "the configuration no longer names the server: its backlog stays");
        }
        let (deletes, seconds) = (self.deletes, self.started_at.elapsed().as_secs_f64());
        // If no attempt has failed, no outage was logged that has ended now.
        match self.last_error {
            None => tracing::debug!(%server, deletes, "backlog replayed in {seconds:.3} s"),
            Some(_) => tracing::info!(%server, deletes, "backlog replayed in {seconds:.3} s; server unfenced"),
        }
    }

    /// Sends the next batch of a segment. After the last one, drops the segment.
    async fn replay_next(&mut self, number: u64, bytes: u64) -> Result<(), ReplayError> {
        let mut cursor = match self.cursor.take().filter(|cursor| cursor.number == number) {
            Some(cursor) => cursor,
            None => match self.read_segment(number, bytes)? {
                Some(deletions) => SegmentCursor { number, deletions, next: 0 },
                None => {
                    self.server.mark_lost(number);
                    return Ok(());
                }
            },
        };
        let batch = &cursor.deletions[cursor.next..];
        if batch.is_empty() {
            self.mark_replayed(number);
            return Ok(());
        }
        let results = match self.delete(&batch[..batch.len().min(BATCH_DELETES)]).await {
            Ok(results) => results,
            Err(error) => {
                self.cursor = Some(cursor);
                return Err(ReplayError::Connection(error));
            }
        };
        let mut outcome = Ok(());
        for result in results {
            match result {
                ReplayResult::Applied => self.shared.counters.replayed.add(1),
                ReplayResult::Rejected(reply) => {
                    self.shared.counters.refused.add(1);
                    tracing::debug!(server = %self.server.address, reply, "spooled delete rejected permanently");
                }
                ReplayResult::Retry(reply) => {
                    outcome = Err(ReplayError::Retry(reply));
                    break;
                }
            }
            cursor.next += 1;
            self.deletes += 1;
        }
        self.cursor = Some(cursor);
        outcome
    }

    fn mark_replayed(&self, number: u64) {
        self.server.remove_files(&*self.shared.disk, &[number]);
        self.server.mark_replayed(number, &self.shared.total);
    }

    /// Deletes at the server. If it cannot be reached, through a peer that can reach it.
    async fn delete(&mut self, batch: &[Deletion]) -> Result<Vec<ReplayResult>, CommandError> {
        let deleted = match self.connect().await {
            Ok(connection) => connection.delete(batch).await,
            Err(error) => Err(error),
        };
        if deleted.is_ok() {
            return deleted;
        }
        self.connection = None;
        match self.shared.peers.forward(&self.server.address, batch).await {
            true => {
                self.shared.counters.forwarded.add(batch.len() as u64);
                Ok(vec![ReplayResult::Applied; batch.len()])
            }
            false => deleted,
        }
    }

    /// The deletes of a segment. `None` if they are lost.
    fn read_segment(&mut self, number: u64, bytes: u64) -> Result<Option<Vec<Deletion>>, ReplayError> {
        let content = self.shared.disk.read(&self.server.folder, &file_name(number));
        let since = self.unreadable_since.get_or_insert_with(Instant::now);
        let mut content = match content {
            Ok(content) => content,
            Err(error) if error.kind() != io::ErrorKind::NotFound && since.elapsed() < READ_RETRY_MAX => {
                return Err(ReplayError::Unreadable(error));
            }
            Err(error) => {
                self.unreadable_since = None;
                tracing::error!(
                    server = %self.server.address, %error,
                    "cannot read a spool file: the server will be flushed before it is read"
                );
                return Ok(None);
            }
        };
        self.unreadable_since = None;
        // Bytes behind the valid ones may be from an append that is in progress, or has failed.
        content.truncate(bytes as usize);
        let scan = scan(&content);
        // A flush record is never in a segment of deletes: something else has written this file.
        let has_flush = scan.records.contains(&Record::FlushAll);
        if scan.condition != Condition::Intact || scan.valid_bytes != bytes || has_flush {
            tracing::error!(
                server = %self.server.address,
                "spool file damaged, deletes are lost: the server will be flushed before it is read"
            );
            return Ok(None);
        }
        let deletions = scan.records.into_iter().filter_map(|record| match record {
            Record::Delete(deletion) => Some(deletion),
            Record::FlushAll => None,
        });
        Ok(Some(deletions.collect()))
    }

    /// Writes a flush record in place of deletes that are lost. Without it a router that is killed before the server is
    /// flushed would take the backlog for empty, if the file is gone.
    async fn record_flush(&mut self, number: u64) {
        let written = self.writer.write(&self.server, WriteEntry::Flush).await;
        self.is_flush_unrecorded = written.is_err();
        let Err(error) = written else { return };
        // The server may be flushed all the same.
        self.server.flush_failed(number);
        if !std::mem::replace(&mut self.is_record_failure_logged, true) {
            tracing::error!(
                server = %self.server.address, %error,
                "cannot note in the spool that the server must be flushed: if this router is killed before that, flush \
                 the server; is the disk full?"
            );
        }
    }

    async fn flush(&mut self, number: u64) -> Result<(), ReplayError> {
        let flushed = match self.connect().await {
            Ok(connection) => connection.flush().await,
            Err(error) => Err(error),
        };
        let outcome = match flushed {
            Ok(ReplayResult::Applied) => Ok(()),
            Ok(ReplayResult::Rejected(reply) | ReplayResult::Retry(reply)) => Err(ReplayError::FlushRefused(reply)),
            Err(error) => {
                self.connection = None;
                match self.shared.peers.forward_flush(&self.server.address).await {
                    true => Ok(()),
                    false => Err(ReplayError::Connection(error)),
                }
            }
        };
        match outcome {
            Ok(()) => {
                self.shared.counters.flushes.add(1);
                tracing::warn!(server = %self.server.address, "server flushed in place of its undelivered deletes");
                self.mark_replayed(number);
            }
            Err(_) => self.server.flush_failed(number),
        }
        self.is_flush_unrecorded = false;
        outcome
    }

    /// The connection, opened if there is none.
    async fn connect(&mut self) -> Result<&mut ReplayConnection, CommandError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let timeout = self.shared.settings.timeout;
                ReplayConnection::open(&*self.network, &self.server.address, timeout).await?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Waits after a failed attempt. Logs the error if it differs from the last one.
    async fn back_off(&mut self, error: &ReplayError) {
        self.shared.counters.replay_failures.add(1);
        let error = error.to_string();
        if self.last_error.as_ref() != Some(&error) {
            let backlog = self.server.backlog();
            tracing::warn!(
                server = %self.server.address, deletes = backlog.deletes, bytes = backlog.bytes,
                flush_pending = backlog.flush_pending, error,
                "server fenced: it has not applied its spooled deletes yet"
            );
            self.last_error = Some(error);
        }
        let longest = self.shared.settings.wait_max;
        let wait = self.wait.min(longest);
        self.wait = (self.wait + self.wait / 2).min(longest);
        let jitter = wait.mul_f64(0.05 + 0.45 * self.random.f64());
        tokio::select! {
            biased;
            () = self.server.wait_for_retry_request() => {}
            () = sleep(wait + jitter) => {}
        }
    }
}
