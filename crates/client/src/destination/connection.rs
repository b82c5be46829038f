//! One connection to a server, while it lasts: bytes between a stream and a [`Pipeline`]. Serves every path.
//!
//! One poll does all: read what is there and hand out the answers, take what has queued up, compose it into one
//! buffer, write that buffer. Batches that queue up while a write is under way thus leave together with the next one:
//! nothing waits for company, and batching grows by itself with the load.
//!
//! ```text
//! read buffer   [ reply | reply | half an ]   split off as one block of Bytes; values are slices of it
//!                                  half an      copied to the front of the next block: each byte at most once
//! ```
//!
//! **Slow start.** A server that has just come back is not thrown at all that has gathered for it: at first
//! [`SLOW_START_REQUESTS`] may be outstanding on a connection, and one more for each that is answered, so twice as many with
//! every round trip, as long as it keeps up. The others wait in the queue, whose limits are as ever. It costs a few round
//! trips, and nothing where a server was never taken out. A batch that is larger goes as a whole when nothing is
//! outstanding, or the window is not yet full.
//!
//! Absent on purpose: connecting, and what is done about a connection that ended: `driver` does that.

use super::{
    DestinationOptions, Shared, count,
    pipeline::{Broken, Job, Pipeline},
};
use crate::{network::Stream, tko::Up};
use bytes::{Bytes, BytesMut};
use lookaside_protocol::text::Limits;
use lookaside_routing::{BoxFuture, Failure, Health, HealthChange};
use std::{
    collections::VecDeque,
    future::Future,
    io, mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    sync::mpsc,
    time::{Instant, Sleep, sleep_until},
};

/// How much is read at once from a server, in bytes: the size of the blocks whose slices are values.
pub const READ_BYTES: usize = 32 << 10;

/// Bytes that may be composed and not yet written; what is queued behind waits uncomposed.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// The most a read buffer grows in one step for a large value: its server must deliver before it gets more.
const READ_GROWTH_BYTES_MAX: usize = 1 << 20;

/// Jobs taken from the queue at once.
const JOBS_PER_TAKE: usize = 64;

/// Requests that may be outstanding at first on a connection to a server that was taken out.
pub(crate) const SLOW_START_REQUESTS: usize = 32;

/// The longest line of an answer: a key, four numbers and a verb, or an error's text.
const ANSWER_LINE_BYTES_MAX: usize = 2_048;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The destination was dropped.
    Dropped,
    /// The server, or the network, closed it.
    Closed(io::ErrorKind),
    /// What protects it failed before anything came: the server does not take us for who we must be. TLS 1.3 tells a
    /// client only here, after the handshake.
    Unproven(io::Error),
    /// We closed it: what came could not be understood, or what follows could not be.
    Broken(Broken),
    /// We closed it: more answers are late than we keep in step for.
    TooManyLate,
    /// We closed it: the server is taken out.
    Tko(HealthChange),
    /// We closed it: another destination took the server out since it was made. What came after that still waits.
    TkoByOther,
    /// We closed it: the server's name leads elsewhere, where this one leads. Nobody waits for an answer.
    Moved(Replacement),
}

/// A connection that takes the place of another.
pub(crate) struct Replacement(pub(crate) Box<dyn Stream>);

impl std::fmt::Debug for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Replacement").finish()
    }
}

/// What a connection borrows from its driver.
pub(crate) struct ConnectionContext<'a> {
    pub(crate) queue: &'a mut mpsc::UnboundedReceiver<Job>,
    /// Taken from the queue, not composed.
    pub(crate) waiting: &'a mut VecDeque<Job>,
    pub(crate) health: &'a mut Health,
    pub(crate) shared: &'a Shared,
    pub(crate) options: &'a DestinationOptions,
    /// Where `health`'s milliseconds are counted from.
    pub(crate) epoch: Instant,
}

/// The answers' limits for a destination with these options.
pub(crate) fn answer_limits(options: &DestinationOptions) -> Limits {
    Limits { value_bytes_max: options.value_bytes_max, line_bytes_max: ANSWER_LINE_BYTES_MAX }
}

pub(crate) struct Connection<'a> {
    stream: Box<dyn Stream>,
    /// What the server's standing was when the connection was made.
    up: Up,
    around: ConnectionContext<'a>,
    /// Has a connection to where the server has moved, if it ever does.
    moved: BoxFuture<'a, Box<dyn Stream>>,
    /// It has: nothing more is taken from the queue.
    replacement: Option<Box<dyn Stream>>,
    /// Requests that may be outstanding.
    window: usize,
    pipeline: Pipeline,
    /// Deadlines of `around.waiting`, in its order.
    deadlines: VecDeque<Instant>,
    taken: Vec<Job>,
    read: BytesMut,
    /// Something has come from the server.
    is_heard: bool,
    /// `read` holds no whole answer below this length.
    needed_bytes: usize,
    write: Vec<u8>,
    written: usize,
    needs_flush: bool,
    timer: Pin<Box<Sleep>>,
    is_timer_set: bool,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        up: Up,
        around: ConnectionContext<'a>,
        moved: BoxFuture<'a, Box<dyn Stream>>,
    ) -> Connection<'a> {
        let limits = answer_limits(around.options);
        let protocol = around.options.protocol;
        let now = Instant::now();
        let deadline = now + Duration::from_millis(around.options.server_timeout_ms);
        Connection {
            stream,
            up,
            deadlines: around.waiting.iter().map(|_| deadline).collect(),
            around,
            moved,
            replacement: None,
            window: if up.is_after_removal() { SLOW_START_REQUESTS } else { usize::MAX },
            pipeline: Pipeline::new(limits, protocol),
            taken: Vec::with_capacity(JOBS_PER_TAKE),
            read: BytesMut::new(),
            is_heard: false,
            needed_bytes: 1,
            write: Vec::new(),
            written: 0,
            needs_flush: false,
            timer: Box::pin(sleep_until(now)),
            is_timer_set: false,
        }
    }

    /// Serves the queue until the connection ends; then every batch that was sent has its outcomes, and
    /// `around.waiting` is empty but for what may still be sent elsewhere ([`End::TkoByOther`]).
    pub(crate) async fn run(mut self) -> End {
        let end = std::future::poll_fn(|cx| self.poll(cx)).await;
        let counters = &self.around.shared.counters;
        if !self.pipeline.is_empty() && !matches!(end, End::Moved(_)) {
            count(&counters.connections_lost, 1);
        }
        let failure = if let End::Broken(Broken::Malformed(_)) = end {
            count(&counters.malformed, 1);
            Failure::Malformed
        } else {
            Failure::ConnectionLost
        };
        self.pipeline.fail(&failure);
        if !matches!(end, End::TkoByOther) {
            self.fail_waiting(&Failure::ConnectFailed);
        }
        end
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for job in self.around.waiting.drain(..) {
            job.fail(failure);
        }
    }

    fn is_taken_out_elsewhere(&self) -> bool {
        !self.around.shared.standing.is_still(self.up)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(end) = self.poll_answers(cx) {
            return Poll::Ready(end);
        }
        if self.replacement.is_none()
            && let Poll::Ready(stream) = self.moved.as_mut().poll(cx)
        {
            self.replacement = Some(stream);
        }
        if self.replacement.is_none()
            && let Poll::Ready(end) = self.poll_queue(cx)
        {
            return Poll::Ready(end);
        }
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(self.ended_by(error));
        }
        if self.around.waiting.is_empty()
            && self.pipeline.is_settled()
            && let Some(stream) = self.replacement.take()
        {
            return Poll::Ready(End::Moved(Replacement(stream)));
        }
        self.poll_deadlines(cx)
    }

    /// Reads until nothing more is there; ready when the connection has ended.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            self.make_room();
            let read = pin!(self.stream.read_buf(&mut self.read)).poll(cx);
            match ready!(read) {
                Ok(0) => return Poll::Ready(End::Closed(io::ErrorKind::UnexpectedEof)),
                Ok(_) => self.is_heard = true,
                Err(error) => return Poll::Ready(self.ended_by(error)),
            }
            if self.read.len() >= self.needed_bytes
                && let Err(broken) = self.hand_out_answers()
            {
                return Poll::Ready(End::Broken(broken));
            }
        }
    }

    /// What an error of the stream means. Only TLS calls bytes invalid.
    fn ended_by(&self, error: io::Error) -> End {
        match error.kind() {
            io::ErrorKind::InvalidData if !self.is_heard => End::Unproven(error),
            kind => End::Closed(kind),
        }
    }

    fn make_room(&mut self) {
        let missing = self.needed_bytes.saturating_sub(self.read.len());
        let spare = self.read.capacity() - self.read.len();
        if spare < missing.clamp(READ_BYTES / 4, READ_GROWTH_BYTES_MAX) {
            self.read.reserve(missing.clamp(READ_BYTES, READ_GROWTH_BYTES_MAX));
        }
    }

    fn hand_out_answers(&mut self) -> Result<(), Broken> {
        let block: Bytes = self.read.split().freeze();
        let answered_before = self.pipeline.answered_batches();
        let late_before = self.pipeline.late_answers();
        let unanswered_before = self.pipeline.unanswered();
        let taken = self.pipeline.take(&block);
        self.window = self.window.saturating_add(unanswered_before - self.pipeline.unanswered());
        let answered = self.pipeline.answered_batches() - answered_before;
        let counters = &self.around.shared.counters;
        count(&counters.late_answers, self.pipeline.late_answers() - late_before);
        if answered > 0 {
            count(&counters.answered_batches, answered);
            let now_ms = millis_since(self.around.epoch);
            self.around.health.on_outcome(&Ok(lookaside_protocol::Reply::Ok), now_ms);
        }
        let taken = taken?;
        self.needed_bytes = taken.needed_bytes.max(block.len() - taken.consumed + 1);
        self.read.extend_from_slice(&block[taken.consumed..]);
        Ok(())
    }

    /// Takes what has queued up; ready when the destination was dropped, or this connection must not be used for it.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let taken = ready!(self.around.queue.poll_recv_many(cx, &mut self.taken, JOBS_PER_TAKE));
            if taken == 0 {
                return Poll::Ready(End::Dropped);
            }
            if self.is_taken_out_elsewhere() {
                self.fail_waiting(&Failure::Tko);
                self.around.waiting.extend(self.taken.drain(..));
                return Poll::Ready(End::TkoByOther);
            }
            let deadline = Instant::now() + Duration::from_millis(self.around.options.server_timeout_ms);
            self.around.waiting.extend(self.taken.drain(..));
            self.deadlines.extend((0..taken).map(|_| deadline));
        }
    }

    /// Composes and writes until nothing waits; ready when all is written, or with an error.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.write.len() {
                self.write.clear();
                self.written = 0;
                if self.write.capacity() > WRITE_BYTES_MAX {
                    self.write = Vec::new();
                }
                self.compose();
            }
            if self.write.is_empty() {
                break;
            }
            let stream = Pin::new(&mut *self.stream);
            match ready!(stream.poll_write(cx, &self.write[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.written += bytes,
            }
            count(&self.around.shared.counters.writes, 1);
            self.needs_flush = true;
        }
        if mem::take(&mut self.needs_flush) {
            let flush = Pin::new(&mut *self.stream).poll_flush(cx);
            self.needs_flush = flush.is_pending();
            return flush;
        }
        Poll::Ready(Ok(()))
    }

    fn compose(&mut self) {
        while self.write.len() < WRITE_BYTES_MAX
            && self.pipeline.unanswered() < self.window
            && let Some(job) = self.around.waiting.pop_front()
        {
            let deadline = self.deadlines.pop_front().expect("every waiting job has a deadline");
            self.pipeline.push(job, deadline, &mut self.write);
        }
        self.pipeline.end_line(&mut self.write);
    }

    /// Tells those whose time is over. The timer is only moved when it fires: an answer in time costs it nothing.
    fn poll_deadlines(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if !self.is_timer_set {
                let Some(deadline) = self.next_deadline() else { return Poll::Pending };
                self.timer.as_mut().reset(deadline);
                self.is_timer_set = true;
            }
            ready!(self.timer.as_mut().poll(cx));
            self.is_timer_set = false;
            if let Some(end) = self.expire(Instant::now()) {
                return Poll::Ready(end);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        // What waits was handed in after what was sent.
        self.pipeline.next_deadline().or_else(|| self.deadlines.front().copied())
    }

    fn expire(&mut self, now: Instant) -> Option<End> {
        let mut timed_out = self.pipeline.expire(now);
        while self.deadlines.front().is_some_and(|&deadline| deadline <= now) {
            self.deadlines.pop_front();
            let job = self.around.waiting.pop_front().expect("every deadline has a waiting job");
            job.fail(&Failure::TimedOut);
            timed_out += 1;
        }
        count(&self.around.shared.counters.timed_out_batches, timed_out as u64);
        if timed_out > 0 && self.is_taken_out_elsewhere() {
            self.fail_waiting(&Failure::Tko);
            return Some(End::TkoByOther);
        }
        let now_ms = millis_since(self.around.epoch);
        let mut changes = (0..timed_out).filter_map(|_| self.around.health.on_outcome(&Err(Failure::TimedOut), now_ms));
        if let Some(change) = changes.next() {
            return Some(End::Tko(change));
        }
        (self.pipeline.late_requests() > self.around.options.late_requests_max).then_some(End::TooManyLate)
    }
}

/// Health's clock.
pub(crate) fn millis_since(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
}
