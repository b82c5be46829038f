//! A session's reads and writes, and how long they may wait for the client.
//!
//! | waits for | at most |
//! |---|---|
//! | the next command | the idle timeout, if there is one |
//! | the next bytes of a large command | [`WRITE_STALL_MAX`] |
//! | the client to read some of its replies | the client timeout, if there is one |
//! | the whole of a large command; the client to read all of its replies | that, and a second for each [`TRANSFER_BYTES_PER_S_MIN`] bytes |

use super::{
    READ_BYTES_MAX, READ_BYTES_MIN, Session, SessionBuffers, SessionEnd, TRANSFER_BYTES_PER_S_MIN, WRITE_BYTES_KEPT,
    WRITE_STALL_MAX, shutdown_requested,
};
use crate::frontend::flow_control::{
    TOTAL_INPUT_BYTES_MAX, TOTAL_OUTPUT_BYTES_MAX, UNCOUNTED_INPUT_BYTES, UNCOUNTED_OUTPUT_BYTES,
};
use crate::shared::{HeldBytesPermit, SharedState};
use bytes::{Buf, BufMut};
use futures_util::FutureExt;
use lookaside_upgrade::CONNECTION_STATE_BYTES_MAX;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{self, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout_at};

impl Session<'_> {
    pub(super) async fn read(&mut self, mut stopped: Pin<&mut impl Future<Output = ()>>) -> Result<(), SessionEnd> {
        self.reserve_input();
        self.count_input()?;
        let is_large_command = self.input_permit.is_some() && !self.input.is_empty();
        let deadline = self.read_deadline(is_large_command);
        let read = poll_fn(|waiter| match self.poll_read(waiter) {
            Poll::Ready(read) => Poll::Ready(self.count_read(read)),
            Poll::Pending => self.poll_stopped(stopped.as_mut(), waiter).map(|()| Err(SessionEnd::Shutdown)),
        });
        let bytes = match deadline {
            None => read.await?,
            Some(deadline) => match timeout_at(deadline, read).await {
                Ok(bytes) => bytes?,
                Err(_) if is_large_command => return Err(self.end_stalled()),
                Err(_) => {
                    self.context.counters.idle_kicks.add(1);
                    return Err(SessionEnd::Idle);
                }
            },
        };
        if bytes == self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
        Ok(())
    }

    /// The session waits for its client. A command of which a part has arrived is in progress for as long as it may
    /// take: the connection is not closed for another client meanwhile.
    pub(super) fn begin_waiting(&mut self) {
        if self.input.is_empty() && self.swallow_bytes == 0 {
            self.part_since = None;
            return self.activity.begin_waiting(0);
        }
        let now = Instant::now();
        let since = *self.part_since.get_or_insert(now);
        let rest_bytes = self.needed_bytes.max(self.swallow_bytes);
        let until = (since + transfer_time_max(rest_bytes, WRITE_STALL_MAX)).min(now + WRITE_STALL_MAX);
        self.activity.begin_waiting(self.context.uses.ms_at(until));
    }

    /// Until when the next bytes must have come; `None` for no limit.
    fn read_deadline(&mut self, is_large_command: bool) -> Option<Instant> {
        if !is_large_command {
            return self.context.settings.idle_timeout.map(|timeout| Instant::now() + timeout);
        }
        let now = Instant::now();
        let of_command =
            *self.input_deadline.get_or_insert_with(|| now + transfer_time_max(self.needed_bytes, WRITE_STALL_MAX));
        Some(of_command.min(now + WRITE_STALL_MAX))
    }

    fn end_stalled(&mut self) -> SessionEnd {
        self.context.counters.stalled_connections.add(1);
        SessionEnd::Stalled
    }

    /// Ready once the shutdown has begun. `stopped` keeps the waker from one read to the next, and is polled only if
    /// that may have been used, or is another.
    fn poll_stopped(
        &mut self,
        stopped: Pin<&mut impl Future<Output = ()>>,
        waiter: &mut task::Context<'_>,
    ) -> Poll<()> {
        let will_wake = self.stop_waker.as_ref().is_some_and(|waker| waker.will_wake(waiter.waker()));
        if will_wake && !self.stop.has_changed().unwrap_or(true) {
            return Poll::Pending;
        }
        // Constrained, a task without budget would not leave its waker.
        let stopped = pin!(unconstrained(stopped)).poll(waiter);
        self.stop_waker = stopped.is_pending().then(|| waiter.waker().clone());
        stopped
    }

    fn count_read(&mut self, read: io::Result<usize>) -> Result<usize, SessionEnd> {
        match read {
            Ok(0) | Err(_) => Err(SessionEnd::Gone),
            Ok(bytes) => {
                self.context.counters.bytes_read.add(bytes as u64);
                Ok(bytes)
            }
        }
    }

    /// Reads while a batch is being routed, into the space behind it: its requests still share the buffer, so that
    /// more space would be an allocation.
    pub(super) fn poll_read_in_batch(&mut self, waiter: &mut task::Context<'_>) -> Poll<Result<(), SessionEnd>> {
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(waiter);
        read.map(|read| self.count_read(read).map(drop))
    }

    /// Makes space for a read.
    fn reserve_input(&mut self) {
        if !self.has_buffers {
            SessionBuffers { input: self.input, out: self.out } = self.context.buffers.acquire();
            self.has_buffers = true;
        }
        self.input.reserve(self.read_bytes);
    }

    /// Counts the input buffer if it is large. An error if all clients together would hold too much.
    fn count_input(&mut self) -> Result<(), SessionEnd> {
        let bytes = self.input.capacity();
        if bytes <= UNCOUNTED_INPUT_BYTES {
            self.input_permit = None;
            return Ok(());
        }
        let permit = self.input_permit.get_or_insert_with(|| self.context.shared.input_permit());
        if permit.try_resize(bytes, TOTAL_INPUT_BYTES_MAX) {
            return Ok(());
        }
        self.context.counters.closed_input_bound.add(1);
        Err(SessionEnd::InputBound)
    }

    /// A session that has to wait returns its buffers to the pool if they are empty.
    fn poll_read(&mut self, waiter: &mut task::Context<'_>) -> Poll<io::Result<usize>> {
        // Otherwise `read` has made space.
        if !self.has_buffers {
            self.reserve_input();
        }
        let mut input = (&mut self.input).limit(self.read_bytes);
        let read = pin!(self.stream.read_buf(&mut input)).poll(waiter);
        if read.is_pending() && self.input.is_empty() && self.out.is_empty() {
            let (input, out) = (std::mem::take(&mut self.input), std::mem::take(&mut self.out));
            self.context.buffers.release(SessionBuffers { input, out });
            self.has_buffers = false;
            self.input_permit = None;
        }
        read
    }

    /// Drops the bytes of a data block that was refused.
    pub(super) fn swallow(&mut self) {
        let dropped_bytes = self.swallow_bytes.min(self.input.len());
        self.input.advance(dropped_bytes);
        self.swallow_bytes -= dropped_bytes;
        if dropped_bytes > 0 && self.swallow_bytes == 0 {
            self.part_since = None;
        }
    }

    /// Writes all replies. During a handover it writes only as many as the client takes without waiting.
    ///
    /// Most writes do not wait. What does is a future of its own on the heap, so that the future of an idle session has
    /// no space for it; so are all that few sessions ever wait for.
    pub(super) async fn write(&mut self) -> Result<(), SessionEnd> {
        let mut written_bytes = self.write_now(0)?;
        if written_bytes < self.out.len() {
            written_bytes = Box::pin(self.write_rest(written_bytes)).await?;
        }
        match written_bytes == self.out.len() {
            true => self.out.clear(),
            false => drop(self.out.drain(..written_bytes)),
        }
        self.out.shrink_to(WRITE_BYTES_KEPT);
        self.flush().await
    }

    /// Writes the replies from `written_bytes` on, as many as the client takes without waiting, and returns to where.
    fn write_now(&mut self, mut written_bytes: usize) -> Result<usize, SessionEnd> {
        while written_bytes < self.out.len()
            && let Some(written) = self.stream.write(&self.out[written_bytes..]).now_or_never()
        {
            written_bytes += self.count_written(written)?;
        }
        Ok(written_bytes)
    }

    /// The same with waiting, which is counted and has a limit.
    async fn write_rest(&mut self, mut written_bytes: usize) -> Result<usize, SessionEnd> {
        let timeout = self.context.settings.client_timeout.unwrap_or(NEVER);
        let _permit = self.count_output()?;
        let deadline = Instant::now() + transfer_time_max(self.out.len(), timeout);
        while written_bytes < self.out.len() {
            let rest = &self.out[written_bytes..];
            let written = tokio::select! {
                biased;
                written = timeout_at(deadline.min(Instant::now() + timeout), self.stream.write(rest)) => written,
                () = handover_requested(self.stop.clone(), &self.context.shared) => {
                    match rest.len() <= CONNECTION_STATE_BYTES_MAX {
                        true => break,
                        false => return Err(SessionEnd::TooSlowForHandover),
                    }
                }
            };
            let Ok(written) = written else { return Err(self.end_stalled()) };
            written_bytes += self.count_written(written)?;
            written_bytes = self.write_now(written_bytes)?;
        }
        Ok(written_bytes)
    }

    fn count_written(&mut self, written: io::Result<usize>) -> Result<usize, SessionEnd> {
        match written {
            Ok(0) | Err(_) => Err(SessionEnd::Gone),
            Ok(bytes) => {
                self.context.counters.bytes_written.add(bytes as u64);
                Ok(bytes)
            }
        }
    }

    /// Flushes the stream. A TLS stream may hold written bytes; a plain one never does, and is flushed without reading
    /// the clock.
    pub(super) async fn flush(&mut self) -> Result<(), SessionEnd> {
        match self.stream.flush().now_or_never() {
            Some(flushed) => flushed.map_err(|_| SessionEnd::Gone),
            None => Box::pin(self.flush_rest()).await,
        }
    }

    async fn flush_rest(&mut self) -> Result<(), SessionEnd> {
        let timeout = self.context.settings.client_timeout.unwrap_or(NEVER);
        tokio::select! {
            biased;
            flushed = tokio::time::timeout(timeout, self.stream.flush()) => match flushed {
                Ok(flushed) => flushed.map_err(|_| SessionEnd::Gone),
                Err(_) => Err(self.end_stalled()),
            },
            // Remaining output is sent during graceful close.
            () = handover_requested(self.stop.clone(), &self.context.shared) => Ok(()),
        }
    }

    /// Counts the replies if they are large. An error if all clients together would hold too much.
    fn count_output(&mut self) -> Result<Option<HeldBytesPermit>, SessionEnd> {
        let bytes = self.out.capacity();
        if bytes <= UNCOUNTED_OUTPUT_BYTES {
            return Ok(None);
        }
        let mut permit = self.context.shared.output_permit();
        if permit.try_resize(bytes, TOTAL_OUTPUT_BYTES_MAX) {
            return Ok(Some(permit));
        }
        self.context.counters.closed_output_bound.add(1);
        Err(SessionEnd::OutputBound)
    }
}

/// As good as no timeout.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// The most time that a client may take to send or read `bytes`, if it must not stand still for `stall_max`.
fn transfer_time_max(bytes: usize, stall_max: Duration) -> Duration {
    stall_max + Duration::from_secs((bytes / TRANSFER_BYTES_PER_S_MIN) as u64)
}

/// Resolves when this process hands its clients over to another.
async fn handover_requested(mut stop: watch::Receiver<bool>, shared: &SharedState) {
    shutdown_requested(&mut stop).await;
    if !shared.is_handing_over() {
        std::future::pending().await
    }
}
