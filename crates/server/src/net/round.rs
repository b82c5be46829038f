//! One round of a worker: the input of all ready connections is scanned, prefetched, executed and answered.
//!
//! | step | of | by |
//! |---|---|---|
//! | 1 read | every ready connection, one `recv` each | [`Worker`](crate::net::worker::Worker), [`Round::add_received`] |
//! | 2 scan | connections in turn, until the batch has 64 keys; every key hashed once | [`Session::scan`] |
//! | 3 prefetch | 64 index lines, then 64 items | [`Batch::execute`] |
//! | 4 execute | one connection's steps, into the reply buffer | [`Batch::execute`] |
//! | 5 send | that connection's reply, one `send`; then 4 and 5 for the next connection | [`Connection::send`] |
//! | 6 finish | what is left of each connection's input; its next state | [`Round::serve`], [`Round::pop_finished`] |
//!
//! Steps 2 to 5 repeat until all that was read is scanned.
//!
//! ```text
//!   arena   | get a | get b c | set d .. | get e |      the bytes of four connections
//!   batch     scan, scan, scan, ... until 64 keys
//!             prefetch 64 index lines, then 64 items
//!   reply   | VALUE a .. END |                          connection by connection: execute, one send, clear
//! ```
//!
//! Invariants: connections are answered in the order in which they were read, so the reply buffer holds the bytes of
//! one connection at a time. The work of one round for one connection is bounded: [`READ_BYTES_MAX`] of commands,
//! [`ROUND_REPLY_BYTES_MAX`] of replies. The rest waits for the next round, behind the other connections.

use crate::net::connection::Connection;
use crate::net::socket::{READ_BYTES_MAX, Sent};
use crate::observe::command_trace::CommandTrace;
use crate::session::batch::{Batch, BatchProgress, Unexecuted};
use crate::session::context::SessionContext;
use crate::session::crawl::CrawlCommand;
use crate::session::{Scan, Session};
use lookaside_store::Now;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Bytes that are read before anything is executed. Small enough for the L2 cache.
pub const ARENA_BYTES: usize = 256 << 10;

/// At most this many connections take part in one round.
pub const ROUND_CONNECTIONS_MAX: usize = 256;

/// A reply is sent once it has this many bytes, even if more commands wait. The rest that the socket does not take is
/// stored in the connection, which is then paused: a client that never reads costs at most this much and one item.
pub const REPLY_BYTES_MAX: usize = 256 << 10;

/// At most this many bytes are sent to one connection in one round.
pub const ROUND_REPLY_BYTES_MAX: usize = 1 << 20;

/// The buffers of a worker's rounds. Between rounds they are empty, and keep their memory.
pub(crate) struct Round {
    arena: Vec<u8>,
    arena_used_bytes: usize,
    ready: Vec<Ready>,
    leftovers: Vec<Leftover>,
    step_ranges: Vec<StepRange>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    finished: Vec<FinishedConnection>,
}

/// A connection that a round has finished with.
pub(crate) struct FinishedConnection {
    pub(crate) connection: usize,
    pub(crate) is_closed: bool,
    /// The kinds of events that it watches; `None` if it stays with its worker.
    pub(crate) watches: Option<u8>,
}

struct Ready {
    connection: usize,
    source: InputSource,
}

/// Where its input is.
enum InputSource {
    Arena(Range<usize>),
    Own(Vec<u8>),
}

/// The part of a connection's input that a round leaves.
#[derive(Clone, Debug)]
struct Leftover {
    prefix: Vec<u8>,
    input_at: usize,
    needed_bytes: usize,
    replied_bytes: usize,
    next_state: NextState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextState {
    /// Waiting for more bytes.
    Open,
    /// Waiting for space in the socket.
    Paused,
    Closed,
    /// To be moved to the watchers' thread; it watches these kinds of events.
    Watching(u8),
}

struct StepRange {
    ready: usize,
    steps_end: usize,
    scan: Scan,
}

impl Round {
    pub(crate) fn new() -> Self {
        Round {
            arena: vec![0; ARENA_BYTES],
            arena_used_bytes: 0,
            ready: Vec::new(),
            leftovers: Vec::new(),
            step_ranges: Vec::new(),
            batch: Batch::default(),
            reply: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Whether another connection fits into the round.
    pub(crate) fn has_space(&self) -> bool {
        self.ready.len() < ROUND_CONNECTIONS_MAX && self.arena_used_bytes + READ_BYTES_MAX <= ARENA_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// The buffer for the next connection's input.
    pub(crate) fn free_space(&mut self) -> &mut [u8] {
        &mut self.arena[self.arena_used_bytes..][..READ_BYTES_MAX]
    }

    /// Adds the first `count` bytes of the free space as the input of `connection`.
    pub(crate) fn add_received(&mut self, connection: usize, count: usize) {
        let range = self.arena_used_bytes..self.arena_used_bytes + count;
        self.arena_used_bytes = range.end;
        self.ready.push(Ready { connection, source: InputSource::Arena(range) });
    }

    /// Adds input that was stored in `connection`.
    pub(crate) fn add_partial(&mut self, connection: usize, input: Vec<u8>) {
        self.ready.push(Ready { connection, source: InputSource::Own(input) });
    }

    /// Answers all input that was added. [`Round::pop_finished`] then returns the connections with their states.
    pub(crate) fn serve(&mut self, connections: &mut [Option<Connection>], context: &SessionContext<'_>, now: Now) {
        self.scan_execute_and_send(connections, context, now);
        for (ready, leftover) in self.ready.drain(..).zip(self.leftovers.drain(..)) {
            let Some(connection) = connections[ready.connection].as_mut() else { continue };
            let is_closed = leftover.next_state == NextState::Closed;
            if !is_closed {
                let input = ready.source.into_leftover(&self.arena, leftover.input_at, leftover.prefix);
                connection.keep_input(input, leftover.needed_bytes);
            }
            let watches = if let NextState::Watching(kinds) = leftover.next_state { Some(kinds) } else { None };
            self.finished.push(FinishedConnection { connection: ready.connection, is_closed, watches });
        }
        self.arena_used_bytes = 0;
    }

    pub(crate) fn pop_finished(&mut self) -> Option<FinishedConnection> {
        self.finished.pop()
    }

    fn scan_execute_and_send(
        &mut self,
        connections: &mut [Option<Connection>],
        context: &SessionContext<'_>,
        now: Now,
    ) {
        let Round { arena, ready, leftovers, step_ranges, batch: idle_batch, reply, .. } = self;
        let (arena, ready) = (&*arena, &*ready);
        let mut batch = std::mem::take(idle_batch).recycle();
        leftovers.clear();
        leftovers.resize(ready.len(), Leftover::default());
        let (mut cursor, mut input_at) = (0, 0);
        while cursor < ready.len() {
            batch.clear();
            step_ranges.clear();
            while cursor < ready.len() && !batch.is_full() {
                let connection = connections[ready[cursor].connection].as_mut();
                let (Some(connection), NextState::Open) = (connection, leftovers[cursor].next_state) else {
                    (cursor, input_at) = (cursor + 1, 0);
                    continue;
                };
                if context.requires_auth() {
                    // Passwords are checked while scanning: the log of refused logins needs the connection.
                    context.events.connection.set(Some(connection.socket.as_raw_fd()));
                }
                let input = ready[cursor].source.bytes(arena);
                let scan = connection.session.scan(input, input_at, context, now, &mut batch);
                step_ranges.push(StepRange { ready: cursor, steps_end: batch.steps_count(), scan });
                if let Scan::Full { input_at: next } = scan {
                    input_at = next;
                    break;
                }
                (cursor, input_at) = (cursor + 1, 0);
            }
            for steps in step_ranges.iter() {
                let Ready { connection, source } = &ready[steps.ready];
                let connection = connections[*connection].as_mut().expect("a connection that was scanned is open");
                let input = source.bytes(arena);
                execute_and_send(
                    connection,
                    steps,
                    input,
                    &mut leftovers[steps.ready],
                    &mut batch,
                    context,
                    now,
                    reply,
                );
            }
        }
        *idle_batch = batch.recycle();
    }
}

/// Executes one connection's steps and sends the reply, in several pieces if it is large.
#[expect(clippy::too_many_arguments, reason = "the parts of the round are borrowed separately")]
fn execute_and_send(
    connection: &mut Connection,
    steps: &StepRange,
    input: &[u8],
    leftover: &mut Leftover,
    batch: &mut Batch<'_>,
    context: &SessionContext<'_>,
    now: Now,
    reply: &mut Vec<u8>,
) {
    context.events.connection.set(Some(connection.socket.as_raw_fd()));
    let mut timer = context
        .sampler
        .filter(|sampler| sampler.should_time_reply())
        .map(|sampler| (sampler, batch.next_latency_class()));
    let trace = CommandTrace::if_enabled(connection.socket.as_raw_fd());
    if let Some(trace) = &trace {
        trace.log_commands(batch.command_offsets(steps.steps_end), input, context.text_users.is_some());
    }
    loop {
        let reply_at = reply.len();
        let progress = batch.execute(context, now, steps.steps_end, REPLY_BYTES_MAX, reply);
        if let Some(trace) = &trace {
            trace.log_reply(&reply[reply_at..]);
        }
        if let (BatchProgress::Done, Scan::Full { .. }) = (progress, steps.scan) {
            return; // The connection's commands continue in the next batch; its reply is not complete.
        }
        let (sent, sent_bytes) = send_reply(connection, reply, context);
        if let Some((sampler, class)) = timer.take() {
            sampler.record_reply(class);
        }
        leftover.replied_bytes += sent_bytes;
        let all_sent = sent == Sent::All;
        let may_continue = all_sent && leftover.replied_bytes < ROUND_REPLY_BYTES_MAX;
        if progress == BatchProgress::Full && may_continue {
            reply.clear();
            continue;
        }
        let unexecuted = batch.unexecuted(steps.steps_end, input);
        if unexecuted.is_some() {
            context.counters.conn_yields.add(1);
        }
        let crawl = unexecuted.as_ref().and_then(|_| batch.take_crawl());
        leftover.set_start(steps, unexecuted, crawl, &mut connection.session);
        leftover.next_state = match (progress, sent) {
            (_, Sent::Gone) => NextState::Closed,
            (BatchProgress::Close, Sent::All) => {
                context.events.connection.take_watch_request().map_or(NextState::Closed, NextState::Watching)
            }
            (BatchProgress::Done, Sent::All) => NextState::Open,
            _ => NextState::Paused,
        };
        if leftover.next_state == NextState::Paused {
            connection.pause(&reply[sent_bytes..], progress == BatchProgress::Close);
        }
        batch.skip(steps.steps_end);
        reply.clear();
        shrink(reply);
        return;
    }
}

/// Sends `reply`, and counts the bytes that the socket took.
#[inline]
fn send_reply(connection: &mut Connection, reply: &[u8], context: &SessionContext<'_>) -> (Sent, usize) {
    let sent = connection.send(reply);
    let sent_bytes = match sent {
        Sent::All => reply.len(),
        Sent::Part(bytes) => bytes,
        Sent::Gone => 0,
    };
    context.counters.bytes_written.add(sent_bytes as u64);
    (sent, sent_bytes)
}

/// Releases the memory of the reply buffer after a reply with a huge item.
fn shrink(reply: &mut Vec<u8>) {
    if reply.capacity() > 4 * REPLY_BYTES_MAX {
        reply.shrink_to(REPLY_BYTES_MAX);
    }
}

impl Leftover {
    /// Sets where the leftover input begins: at the first step that was not executed, or where scanning ended.
    fn set_start(
        &mut self,
        steps: &StepRange,
        unexecuted: Option<Unexecuted>,
        crawl: Option<Box<CrawlCommand>>,
        session: &mut Session,
    ) {
        match (unexecuted, steps.scan) {
            (Some(unexecuted), _) => {
                session.rewind_to(crawl);
                (self.prefix, self.input_at) = (unexecuted.prefix, unexecuted.input_at);
                self.needed_bytes = 0;
            }
            (None, Scan::Full { input_at }) => (self.input_at, self.needed_bytes) = (input_at, 0),
            (None, Scan::Finished { input_at, needed_bytes }) => {
                (self.input_at, self.needed_bytes) = (input_at, needed_bytes);
            }
        }
    }
}

impl Default for Leftover {
    fn default() -> Self {
        Leftover { prefix: Vec::new(), input_at: 0, needed_bytes: 0, replied_bytes: 0, next_state: NextState::Open }
    }
}

impl InputSource {
    fn bytes<'a>(&'a self, arena: &'a [u8]) -> &'a [u8] {
        match self {
            InputSource::Arena(range) => &arena[range.clone()],
            InputSource::Own(input) => input,
        }
    }

    /// The input from `input_at` on, with `prefix` in front. Allocates only if there is any.
    fn into_leftover(self, arena: &[u8], input_at: usize, prefix: Vec<u8>) -> Vec<u8> {
        match self {
            InputSource::Own(mut input) if input_at < input.len() => {
                input.splice(..input_at, prefix);
                if input.capacity() > 2 * input.len() + READ_BYTES_MAX {
                    input.shrink_to_fit();
                }
                input
            }
            InputSource::Arena(range) if input_at < range.len() => {
                let mut leftover = prefix;
                leftover.extend_from_slice(&arena[range.start + input_at..range.end]);
                leftover
            }
            _ => Vec::new(),
        }
    }
}
