//! The I/O of one connection: moves bytes between a stream and a [`Pipeline`]. Serves every path.
//!
//! One poll dispatches replies, takes the queued batches, composes them into one buffer and writes it. Batches queued
//! during a write leave together with the next one: none waits for others, and batches grow with the load.
//!
//! ```text
//! read buffer   [ reply | reply | half a re ]   split off as one block of Bytes; values are slices of it
//!                                 half a re     copied to the front of the next block: each byte at most once
//! ```
//!
//! **Slow start.** A recovered server does not get the whole queue at once: at first [`SLOW_START_REQUESTS`] may be
//! outstanding, and one more for each that is answered, so that the limit doubles with every round trip. This costs a
//! few round trips, and nothing if the server was never TKO. A larger batch is sent as a whole when nothing is
//! outstanding or the limit is not yet reached.
//!
//! Deliberately absent: making connections, and handling their end (`driver`).

use super::{
    connect::OpenStream,
    options::DestinationOptions,
    pipeline::{PendingBatch, Pipeline, ProtocolError},
    shared::DestinationShared,
    timer::Timer,
};
use crate::tko::TkoEpoch;
use bytes::{Bytes, BytesMut};
use lookaside_routing::{Address, BoxFuture, Failure, Health, HealthChange, TkoReason};
use std::{
    collections::VecDeque,
    future::Future,
    io, mem,
    pin::{Pin, pin},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, ready},
};
use tokio::{io::AsyncReadExt, sync::mpsc, time::Instant};

/// Bytes read at once from a server: the size of the blocks whose slices are values.
pub const READ_BYTES: usize = 32 << 10;

/// Bytes that may be composed and not yet written; further batches wait uncomposed.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The most that a read buffer grows in one step for a large value: the server must send bytes before it gets more.
const READ_GROWTH_BYTES_MAX: usize = 1 << 20;

/// A read buffer with less space is replaced before a read. A get line's replies fit, if its values are as small as
/// most (64 keys with 135 bytes each take 11 KiB): a read that fills its space is followed by another.
const READ_SPACE_BYTES_MIN: usize = READ_BYTES / 2;

const BATCHES_PER_RECV: usize = 64;

/// The clock is read for the latency after one of this many reads.
const READS_PER_SAMPLE: u32 = 16;

/// Requests that may be outstanding at first on a connection to a server that was TKO.
pub(super) const SLOW_START_REQUESTS: usize = 32;

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum End {
    HandleDropped,
    /// The server or the network closed it.
    Closed(io::ErrorKind),
    /// TLS failed before the first byte: the server rejects our certificate. With TLS 1.3 a client learns this only
    /// here, after the handshake.
    TlsRejected(io::Error),
    /// We closed it: a reply could not be parsed, or the replies after it cannot be.
    ProtocolError(ProtocolError),
    /// We closed it: too many requests have timed out and are unanswered.
    TooManyLateReplies,
    /// We closed it: the server is TKO.
    Tko(HealthChange),
    /// We closed it: another destination has marked the server TKO since it was made. Batches queued after that still
    /// wait.
    TkoByOther,
    /// We closed it: nothing was sent for some time.
    Idle,
    /// We closed it: the server's name leads to another address, where this stream is connected. No batch waits for a
    /// reply on the old connection.
    Relocated(Replacement),
}

pub(super) struct Replacement(pub(super) OpenStream);

impl std::fmt::Debug for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Replacement").finish()
    }
}

/// State that a connection borrows from its driver.
pub(super) struct ConnectionContext<'a> {
    pub(super) queue: &'a mut mpsc::UnboundedReceiver<PendingBatch>,
    /// Not composed yet.
    pub(super) waiting: &'a mut VecDeque<PendingBatch>,
    pub(super) address: &'a Address,
    pub(super) health: &'a mut Health,
    pub(super) shared: &'a DestinationShared,
    pub(super) options: &'a DestinationOptions,
    /// The origin of the milliseconds in `health`.
    pub(super) started: Instant,
}

pub(super) struct Connection<'a> {
    stream: OpenStream,
    /// The server's TKO epoch when the connection was made.
    epoch: TkoEpoch,
    context: ConnectionContext<'a>,
    /// Resolves with a stream to the server's new address, if its name ever leads to one.
    relocation: BoxFuture<'a, OpenStream>,
    /// `Some`: no more batches are taken from the queue.
    replacement: Option<OpenStream>,
    /// Requests that may be outstanding.
    window: usize,
    pipeline: Pipeline,
    /// The deadlines of `context.waiting`, in its order.
    deadlines: VecDeque<Instant>,
    received: Vec<PendingBatch>,
    read_buffer: BytesMut,
    has_received: bool,
    /// `read_buffer` holds no whole reply below this length.
    needed_bytes: usize,
    write_buffer: Vec<u8>,
    written_bytes: usize,
    needs_flush: bool,
    timer: Timer,
    /// Reads that answered a batch.
    answering_reads: u32,
    /// When the timer fires; `None` if it is not set.
    timer_at: Option<Instant>,
    /// When it is checked whether anything was sent since `was_used` was reset; `None` if that is never checked.
    idle_check_at: Option<Instant>,
    was_used: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: OpenStream,
        epoch: TkoEpoch,
        context: ConnectionContext<'a>,
        relocation: BoxFuture<'a, OpenStream>,
    ) -> Connection<'a> {
        let limits = context.options.reply_limits();
        let protocol = context.options.protocol;
        let now = Instant::now();
        let deadline = now + context.options.server_timeout();
        let inflight_max = context.options.inflight_requests_max;
        let idle_check_at = context.options.idle_interval().map(|interval| now + interval);
        Connection {
            stream,
            epoch,
            deadlines: context.waiting.iter().map(|_| deadline).collect(),
            context,
            relocation,
            replacement: None,
            window: if epoch.was_tko() { SLOW_START_REQUESTS.min(inflight_max) } else { inflight_max },
            pipeline: Pipeline::new(limits, protocol),
            received: Vec::with_capacity(BATCHES_PER_RECV),
            read_buffer: BytesMut::new(),
            has_received: false,
            needed_bytes: 1,
            write_buffer: Vec::new(),
            written_bytes: 0,
            needs_flush: false,
            timer: Timer::new(now),
            answering_reads: 0,
            timer_at: None,
            idle_check_at,
            was_used: true,
        }
    }

    /// Serves the queue until the connection ends. Then every batch that was sent has its outcomes, and
    /// `context.waiting` holds only batches that another connection may send ([`End::TkoByOther`]).
    pub(super) async fn run(mut self) -> End {
        let end = std::future::poll_fn(|cx| self.poll(cx)).await;
        let counters = &self.context.shared.counters;
        if !self.pipeline.is_empty() && !matches!(end, End::Relocated(_)) {
            counters.connections_lost.add(1);
        }
        let failure = match end {
            End::ProtocolError(ProtocolError::Malformed(_)) => {
                counters.malformed.add(1);
                Failure::Malformed
            }
            End::Closed(kind) if kind != io::ErrorKind::UnexpectedEof => {
                Failure::ReadFailed(self.context.address.clone())
            }
            _ => Failure::ConnectionLost,
        };
        self.pipeline.fail(&failure);
        self.publish_counts();
        if !matches!(end, End::TkoByOther) {
            self.fail_waiting(&Failure::ConnectFailed);
        }
        end
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for batch in self.context.waiting.drain(..) {
            batch.fail(failure);
        }
    }

    fn fail_waiting_as_tko(&mut self) {
        let reason = self.context.shared.tracker.reason();
        self.fail_waiting(&Failure::Tko(reason.unwrap_or(TkoReason::ConnectFailed)));
    }

    fn is_tko_by_other(&self) -> bool {
        !self.context.shared.tracker.is_current(self.epoch)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(end) = self.poll_replies(cx) {
            return Poll::Ready(end);
        }
        if self.replacement.is_none()
            && let Poll::Ready(stream) = self.relocation.as_mut().poll(cx)
        {
            self.replacement = Some(stream);
        }
        if self.replacement.is_none()
            && let Poll::Ready(end) = self.poll_queue(cx)
        {
            return Poll::Ready(end);
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(self.classify_error(error));
        }
        if self.context.waiting.is_empty()
            && self.pipeline.has_no_waiters()
            && let Some(stream) = self.replacement.take()
        {
            return Poll::Ready(End::Relocated(Replacement(stream)));
        }
        self.poll_deadlines(cx)
    }

    /// Reads until no bytes are left; ready when the connection has ended.
    fn poll_replies(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            self.reserve_read_buffer();
            let read = pin!(self.stream.stream.read_buf(&mut self.read_buffer)).poll(cx);
            match ready!(read) {
                Ok(0) => return Poll::Ready(End::Closed(io::ErrorKind::UnexpectedEof)),
                Ok(_) => self.has_received = true,
                Err(error) => return Poll::Ready(self.classify_error(error)),
            }
            if self.read_buffer.len() >= self.needed_bytes
                && let Err(error) = self.process_received()
            {
                return Poll::Ready(End::ProtocolError(error));
            }
        }
    }

    /// The end that an error of the stream means. Only TLS reports invalid data.
    fn classify_error(&self, error: io::Error) -> End {
        match error.kind() {
            io::ErrorKind::InvalidData if !self.has_received => End::TlsRejected(error),
            kind => End::Closed(kind),
        }
    }

    fn reserve_read_buffer(&mut self) {
        let missing = self.needed_bytes.saturating_sub(self.read_buffer.len());
        let spare = self.read_buffer.capacity() - self.read_buffer.len();
        if spare < missing.clamp(READ_SPACE_BYTES_MIN, READ_GROWTH_BYTES_MAX) {
            self.read_buffer.reserve(missing.clamp(READ_BYTES, READ_GROWTH_BYTES_MAX));
        }
    }

    fn process_received(&mut self) -> Result<(), ProtocolError> {
        let block: Bytes = self.read_buffer.split().freeze();
        let answered_batches_before = self.pipeline.answered_batches();
        let late_batches_before = self.pipeline.late_batches();
        let unanswered_before = self.pipeline.unanswered();
        let parsed = self.pipeline.dispatch_replies(&block);
        let answered = unanswered_before - self.pipeline.unanswered();
        self.window = self.window.saturating_add(answered).min(self.context.options.inflight_requests_max);
        let answered_batches = self.pipeline.answered_batches() - answered_batches_before;
        let counters = &self.context.shared.counters;
        let late_batches = self.pipeline.late_batches() - late_batches_before;
        if late_batches > 0 {
            counters.late_batches.add(late_batches);
        }
        if answered_batches > 0 {
            counters.answered_batches.add(answered_batches);
            self.context.health.on_reply();
            self.context.shared.end_failures_in_a_row();
            self.sample_latency();
        }
        self.publish_counts();
        let consumed = parsed?;
        self.needed_bytes = consumed.needed_bytes.max(block.len() - consumed.bytes + 1);
        self.read_buffer.extend_from_slice(&block[consumed.bytes..]);
        Ok(())
    }

    /// Takes the queued batches; ready when the handle was dropped, or this connection must not be used any more.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let count = ready!(self.context.queue.poll_recv_many(cx, &mut self.received, BATCHES_PER_RECV));
            if count == 0 {
                return Poll::Ready(End::HandleDropped);
            }
            if self.is_tko_by_other() {
                self.fail_waiting_as_tko();
                self.context.waiting.extend(self.received.drain(..));
                return Poll::Ready(End::TkoByOther);
            }
            let deadline = Instant::now() + self.context.options.server_timeout();
            self.context.waiting.extend(self.received.drain(..));
            self.deadlines.extend((0..count).map(|_| deadline));
        }
    }

    /// Composes and writes the waiting batches; ready when all is written, or with an error.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written_bytes == self.write_buffer.len() {
                self.write_buffer.clear();
                self.written_bytes = 0;
                if self.write_buffer.capacity() > WRITE_BYTES_MAX {
                    self.write_buffer = Vec::new();
                }
                self.compose();
            }
            if self.write_buffer.is_empty() {
                break;
            }
            let stream = Pin::new(&mut *self.stream.stream);
            match ready!(stream.poll_write(cx, &self.write_buffer[self.written_bytes..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.written_bytes += bytes,
            }
            self.context.shared.counters.writes.add(1);
            self.needs_flush = true;
        }
        if mem::take(&mut self.needs_flush) {
            let flush = Pin::new(&mut *self.stream.stream).poll_flush(cx);
            self.needs_flush = flush.is_pending();
            return flush;
        }
        Poll::Ready(Ok(()))
    }

    fn compose(&mut self) {
        while self.write_buffer.len() < WRITE_BYTES_MAX
            && self.pipeline.unanswered() < self.window
            && let Some(next) = self.context.waiting.front()
            && self.pipeline.unanswered() + next.requests.len() <= self.context.options.inflight_requests_max
            && !self.pipeline.must_ask_version(next, &mut self.write_buffer)
            && let Some(batch) = self.context.waiting.pop_front()
        {
            let deadline = self.deadlines.pop_front().expect("every waiting batch has a deadline");
            self.pipeline.push(batch, deadline, &mut self.write_buffer);
            self.was_used = true;
        }
        self.pipeline.end_line(&mut self.write_buffer);
        self.publish_counts();
    }

    fn publish_counts(&mut self) {
        let shared = self.context.shared;
        self.pipeline.publish_counts(&shared.results);
        shared.in_flight.store(self.pipeline.unanswered(), Relaxed);
    }

    /// Records how long the last batch has waited for its replies, after one of [`READS_PER_SAMPLE`] reads. The time at
    /// which it came is known from its deadline.
    fn sample_latency(&mut self) {
        let deadline = self.pipeline.take_answered_deadline();
        self.answering_reads = self.answering_reads.wrapping_add(1);
        if self.answering_reads % READS_PER_SAMPLE == 1
            && let Some(deadline) = deadline
        {
            let left = deadline.saturating_duration_since(Instant::now());
            let took = self.context.options.server_timeout().saturating_sub(left);
            self.context.shared.latency_us.record(took.as_micros() as f64);
        }
    }

    /// The timer is reset only when it fires, or was set for a later time: a reply in time costs nothing.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let deadline = self.next_deadline().or(self.idle_check_at);
            if let Some(deadline) = deadline.filter(|deadline| self.timer_at.is_none_or(|at| *deadline < at)) {
                self.timer.reset(deadline);
                self.timer_at = Some(deadline);
            }
            if self.timer_at.is_none() {
                return Poll::Pending;
            }
            ready!(self.timer.poll_elapsed(cx));
            self.timer_at = None;
            let now = Instant::now();
            if let Some(end) = self.expire(now) {
                return Poll::Ready(end);
            }
            if self.idle_check_at.is_some_and(|check_at| check_at <= now) && self.is_idle(now) {
                return Poll::Ready(End::Idle);
            }
        }
    }

    /// Whether nothing was sent since the last check, and nothing is outstanding.
    fn is_idle(&mut self, now: Instant) -> bool {
        self.idle_check_at = self.context.options.idle_interval().map(|interval| now + interval);
        let was_used = mem::take(&mut self.was_used);
        !was_used && self.pipeline.is_empty() && self.context.waiting.is_empty()
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Waiting batches are younger than those that were sent.
        self.pipeline.next_deadline().or_else(|| self.deadlines.front().copied())
    }

    fn expire(&mut self, now: Instant) -> Option<End> {
        let mut timed_out = self.pipeline.expire(now);
        while self.deadlines.front().is_some_and(|&deadline| deadline <= now) {
            self.deadlines.pop_front();
            let batch = self.context.waiting.pop_front().expect("every deadline has a waiting batch");
            batch.fail(&Failure::QueueTimedOut);
            timed_out += 1;
        }
        self.context.shared.counters.timed_out_batches.add(timed_out as u64);
        if timed_out > 0 && self.is_tko_by_other() {
            self.fail_waiting_as_tko();
            return Some(End::TkoByOther);
        }
        let now_ms = millis_since(self.context.started);
        let mut changes =
            (0..timed_out).filter_map(|_| self.context.health.on_outcome(&Err(Failure::TimedOut), now_ms));
        if let Some(change) = changes.next() {
            return Some(End::Tko(change));
        }
        (self.pipeline.late_requests() > self.context.options.late_requests_max).then_some(End::TooManyLateReplies)
    }
}

/// The clock of [`Health`].
pub(super) fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}
