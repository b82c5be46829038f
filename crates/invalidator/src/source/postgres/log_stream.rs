//! Reads the stream of the log, and meanwhile reports to the server, which ends the stream of a silent reader.

use super::{
    STATUS_INTERVAL,
    connection::protocol_error,
    lsn::Lsn,
    options::{HEARTBEATS_MISSED_MAX, PostgresOptions},
    replication_stream::{LogMessage, ReplicationStream},
};
use crate::{SourceError, WallClock};
use tokio::time::{Instant, timeout, timeout_at};

/// The stream of the log, and when its server was last heard of.
pub(super) struct LogStream {
    pub stream: ReplicationStream,
    received_at: Instant,
    asked_at: Instant,
    status_at: Instant,
}

impl LogStream {
    pub fn new(stream: ReplicationStream) -> LogStream {
        let now = Instant::now();
        LogStream { stream, received_at: now, asked_at: now, status_at: now }
    }

    /// Waits for the next message; returns `None` if there is none at `wait_until`. Meanwhile reports what has been read
    /// and confirmed, and asks for signs of life.
    pub async fn read(
        &mut self,
        options: &PostgresOptions,
        read: Lsn,
        confirmed: Lsn,
        wall_clock: &WallClock,
        wait_until: Option<Instant>,
    ) -> Result<Option<LogMessage>, SourceError> {
        loop {
            let now = Instant::now();
            if now >= self.status_at + STATUS_INTERVAL {
                let is_reply_requested = now >= self.asked_at + options.heartbeat;
                if is_reply_requested {
                    self.asked_at = now;
                }
                self.status_at = now;
                self.stream.send_status(read, confirmed, wall_clock(), is_reply_requested).await?;
            }
            let status_due = self.status_at + STATUS_INTERVAL;
            let wake_at = wait_until.map_or(status_due, |wait_until| wait_until.min(status_due));
            if let Ok(message) = timeout_at(wake_at, self.stream.read()).await {
                self.received_at = Instant::now();
                return message.map(Some);
            }
            if wait_until.is_some_and(|wait_until| Instant::now() >= wait_until) {
                return Ok(None);
            }
            let silence = self.received_at.elapsed();
            if silence > options.heartbeat * HEARTBEATS_MISSED_MAX + STATUS_INTERVAL {
                return Err(protocol_error(&format!("the server has been silent for {silence:?}")));
            }
        }
    }

    /// Runs `gate`, and meanwhile reports as [`LogStream::read`] does: the server ends the stream of a silent reader.
    pub async fn report_during(
        &mut self,
        gate: impl Future<Output = Result<(), SourceError>>,
        read: Lsn,
        confirmed: Lsn,
        wall_clock: &WallClock,
    ) -> Result<(), SourceError> {
        tokio::pin!(gate);
        loop {
            if let Ok(passed) = timeout(STATUS_INTERVAL, &mut gate).await {
                return passed;
            }
            // If this fails, so does the next read.
            let _ = self.stream.send_status(read, confirmed, wall_clock(), false).await;
        }
    }
}
