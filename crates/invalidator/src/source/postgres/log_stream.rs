//! The stream of the log in time: reports while nothing arrives and while the gate is asked, and a server that is
//! silent.

use super::{
    connection::{QueryError, protocol_error},
    lsn::Lsn,
    options::{HEARTBEATS_MISSED_MAX, PostgresOptions},
    replication_stream::{LogMessage, ReplicationStream},
};
use crate::{SourceError, WallClock};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How often the confirmed position is sent, and how often a position without commits is returned.
pub(super) const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The stream of the log, and when its server was last heard of.
pub(super) struct LogStream {
    stream: ReplicationStream,
    received_at: Instant,
    asked_at: Instant,
    status_at: Instant,
}

impl LogStream {
    /// A stream that has just begun.
    pub fn new(stream: ReplicationStream) -> LogStream {
        let now = Instant::now();
        LogStream { stream, received_at: now, asked_at: now, status_at: now }
    }

    /// The next message, if it has arrived.
    pub fn read_ready(&mut self) -> Result<Option<LogMessage>, QueryError> {
        self.stream.read_ready()
    }

    /// Reports what has been read and confirmed.
    pub async fn send_status(&mut self, read: Lsn, confirmed: Lsn, wall_clock: &WallClock) -> Result<(), SourceError> {
        self.stream.send_status(read, confirmed, wall_clock(), false).await
    }

    /// Waits for the next message; returns `None` if there is none at `wait_until`. Meanwhile reports what has been
    /// read and confirmed, and asks for signs of life.
    pub async fn read(
        &mut self,
        options: &PostgresOptions,
        read: Lsn,
        confirmed: Lsn,
        wall_clock: &WallClock,
        wait_until: Option<Instant>,
    ) -> Result<Option<LogMessage>, QueryError> {
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
                return Err(protocol_error(&format!("the server has been silent for {silence:?}")).into());
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
