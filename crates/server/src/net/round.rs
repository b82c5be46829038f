//! One round of a worker: what has been read from all ready connections is scanned, prefetched, executed and sent.
//!
//! ```text
//!   arena   | get a | get b c | set d .. | get e |      read from four connections, one recv each
//!   batch     scan, scan, scan, ... until 64 keys       every key hashed once
//!             prefetch 64 index lines, then 64 items    (Batch::execute)
//!   reply   | VALUE a .. END |                          connection by connection: execute, one send, clear
//! ```
//!
//! Invariants: connections are answered in the order they were read, so the reply buffer holds the bytes of one
//! connection at a time. What a connection can make one round do is bounded: [`READ_BYTES_MAX`] of commands,
//! [`ROUND_REPLY_BYTES_MAX`] of replies; what is left waits for the next round, after the others.

use crate::net::connection::{Connection, Sent};
use crate::observe::command_trace::Narration;
use crate::session::Scan;
use crate::session::batch::{Batch, Progress};
use crate::session::context::Service;
use crate::session::crawl::Walk;
use lookaside_store::Now;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// How many bytes are read from one connection in one round.
pub const READ_BYTES_MAX: usize = 16 << 10;

/// All that is read before anything is executed, in bytes. Small enough for the second cache.
pub const ARENA_BYTES: usize = 256 << 10;

/// How many connections one round takes at most.
pub const ROUND_CONNECTIONS_MAX: usize = 256;

/// A reply is sent once it has this many bytes, even if more commands wait; what the socket does not take is kept with
/// the connection, which is then paused. So a client that never reads costs this much and one item.
pub const REPLY_BYTES_MAX: usize = 256 << 10;

/// How much one connection is sent in one round before the others have their turn, in bytes.
pub const ROUND_REPLY_BYTES_MAX: usize = 1 << 20;

/// The buffers of a worker's rounds. Empty between rounds, but for their memory.
pub(crate) struct Round {
    arena: Vec<u8>,
    arena_used_bytes: usize,
    ready: Vec<Ready>,
    rests: Vec<Rest>,
    segments: Vec<Segment>,
    batch: Batch<'static>,
    reply: Vec<u8>,
    settled: Vec<Settled>,
}

/// A connection that has come out of a round: its interest may have changed, or it is over.
pub(crate) struct Settled {
    pub(crate) connection: usize,
    pub(crate) is_over: bool,
    /// The kinds of events that it watches from now on; it is no worker's any more.
    pub(crate) watches: Option<u8>,
}

/// A connection that has sent something.
struct Ready {
    connection: usize,
    source: Source,
}

/// Where its bytes lie.
enum Source {
    Arena(Range<usize>),
    Own(Vec<u8>),
}

/// What a round leaves of a connection's bytes.
#[derive(Clone, Debug)]
struct Rest {
    prefix: Vec<u8>,
    input_at: usize,
    needed_bytes: usize,
    replied_bytes: usize,
    end: End,
}

/// How a connection comes out of the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Waiting for more bytes.
    Open,
    /// Waiting for room in the socket.
    Paused,
    /// Over.
    Closed,
    /// Leaving its worker, to watch these kinds of events.
    Watching(u8),
}

/// The steps of one connection in a batch.
struct Segment {
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
            rests: Vec::new(),
            segments: Vec::new(),
            batch: Batch::default(),
            reply: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Whether there is room for one more connection.
    pub(crate) fn has_room(&self) -> bool {
        self.ready.len() < ROUND_CONNECTIONS_MAX && self.arena_used_bytes + READ_BYTES_MAX <= ARENA_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Where the next connection's bytes are to be read.
    pub(crate) fn free_space(&mut self) -> &mut [u8] {
        &mut self.arena[self.arena_used_bytes..][..READ_BYTES_MAX]
    }

    /// `count` bytes of the free space came from `connection`.
    pub(crate) fn add_received(&mut self, connection: usize, count: usize) {
        let range = self.arena_used_bytes..self.arena_used_bytes + count;
        self.arena_used_bytes = range.end;
        self.ready.push(Ready { connection, source: Source::Arena(range) });
    }

    /// `connection` has these bytes to be looked at.
    pub(crate) fn add_kept(&mut self, connection: usize, input: Vec<u8>) {
        self.ready.push(Ready { connection, source: Source::Own(input) });
    }

    /// Answers all that was added; [`Round::pop_settled`] then tells how each connection came out.
    pub(crate) fn serve(&mut self, connections: &mut [Option<Connection>], service: &Service<'_>, now: Now) {
        self.answer_all(connections, service, now);
        for (ready, rest) in self.ready.drain(..).zip(self.rests.drain(..)) {
            let Some(connection) = connections[ready.connection].as_mut() else { continue };
            let is_over = rest.end == End::Closed;
            if !is_over {
                let input = ready.source.into_rest(&self.arena, rest.input_at, rest.prefix);
                connection.keep_input(input, rest.needed_bytes);
            }
            let watches = if let End::Watching(kinds) = rest.end { Some(kinds) } else { None };
            self.settled.push(Settled { connection: ready.connection, is_over, watches });
        }
        self.arena_used_bytes = 0;
    }

    pub(crate) fn pop_settled(&mut self) -> Option<Settled> {
        self.settled.pop()
    }

    fn answer_all(&mut self, connections: &mut [Option<Connection>], service: &Service<'_>, now: Now) {
        let Round { arena, ready, rests, segments, batch: idle_batch, reply, .. } = self;
        let (arena, ready) = (&*arena, &*ready);
        let mut batch = std::mem::take(idle_batch).recycle();
        rests.clear();
        rests.resize(ready.len(), Rest::default());
        let (mut cursor, mut input_at) = (0, 0);
        while cursor < ready.len() {
            batch.clear();
            segments.clear();
            while cursor < ready.len() && !batch.is_full() {
                let connection = connections[ready[cursor].connection].as_mut();
                let (Some(connection), End::Open) = (connection, rests[cursor].end) else {
                    (cursor, input_at) = (cursor + 1, 0);
                    continue;
                };
                if service.asks_who() {
                    // Passwords are looked at while scanning: who is refused should be known by his connection.
                    service.attention.turn_to(Some(connection.socket.as_raw_fd()));
                }
                let input = ready[cursor].source.bytes(arena);
                let scan = connection.session.scan(input, input_at, service, now, &mut batch);
                segments.push(Segment { ready: cursor, steps_end: batch.steps_count(), scan });
                if let Scan::Full { input_at: next } = scan {
                    input_at = next;
                    break;
                }
                (cursor, input_at) = (cursor + 1, 0);
            }
            for segment in segments.iter() {
                let Ready { connection, source } = &ready[segment.ready];
                let connection = connections[*connection].as_mut().expect("a scanned connection is there");
                let input = source.bytes(arena);
                answer(connection, segment, input, &mut rests[segment.ready], &mut batch, service, now, reply);
            }
        }
        *idle_batch = batch.recycle();
    }
}

/// Executes one connection's steps and sends the reply, in several pieces if it is large.
#[expect(clippy::too_many_arguments, reason = "they are the round's parts, borrowed one by one")]
fn answer(
    connection: &mut Connection,
    segment: &Segment,
    input: &[u8],
    rest: &mut Rest,
    batch: &mut Batch<'_>,
    service: &Service<'_>,
    now: Now,
    reply: &mut Vec<u8>,
) {
    service.attention.turn_to(Some(connection.socket.as_raw_fd()));
    let mut timed = service.measure.filter(|measure| measure.is_turn()).map(|measure| (measure, batch.next_class()));
    let narration = Narration::of(connection.socket.as_raw_fd());
    if let Some(narration) = &narration {
        narration.hear(batch, segment.steps_end, input, service.text_users.is_some());
    }
    loop {
        let reply_at = reply.len();
        let progress = batch.execute(service, now, segment.steps_end, REPLY_BYTES_MAX, reply);
        if let Some(narration) = &narration {
            narration.say(&reply[reply_at..]);
        }
        if let (Progress::Done, Scan::Full { .. }) = (progress, segment.scan) {
            return; // The same connection goes on with the next batch; its reply is not complete.
        }
        let sent = connection.send(reply);
        if let Some((measure, class)) = timed.take() {
            measure.replied(class);
        }
        let sent_bytes = match sent {
            Sent::All => reply.len(),
            Sent::Part(bytes) => bytes,
            Sent::Gone => 0,
        };
        service.counters.bytes_written.add(sent_bytes as u64);
        rest.replied_bytes += sent_bytes;
        let all_sent = sent == Sent::All;
        let has_turn = all_sent && rest.replied_bytes < ROUND_REPLY_BYTES_MAX;
        if progress == Progress::Full && has_turn {
            reply.clear();
            continue;
        }
        let remainder = batch.remainder(segment.steps_end, input);
        let walk = remainder.as_ref().and_then(|_| batch.take_walk());
        rest.settle(segment, remainder, walk, &mut connection.session);
        rest.end = match (progress, sent) {
            (_, Sent::Gone) => End::Closed,
            (Progress::Close, Sent::All) => service.attention.take_wanted().map_or(End::Closed, End::Watching),
            (Progress::Done, Sent::All) => End::Open,
            _ => End::Paused,
        };
        if rest.end == End::Paused {
            connection.pause(&reply[sent_bytes..], progress == Progress::Close);
        }
        batch.skip(segment.steps_end);
        reply.clear();
        shrink(reply);
        return;
    }
}

/// A reply of one huge item should not hold its memory for ever.
fn shrink(reply: &mut Vec<u8>) {
    if reply.capacity() > 4 * REPLY_BYTES_MAX {
        reply.shrink_to(REPLY_BYTES_MAX);
    }
}

impl Rest {
    /// Notes where the bytes that are left begin: at the first step not executed, or where scanning ended.
    fn settle(
        &mut self,
        segment: &Segment,
        remainder: Option<crate::session::batch::Remainder>,
        walk: Option<Box<Walk>>,
        session: &mut crate::session::Session,
    ) {
        match (remainder, segment.scan) {
            (Some(remainder), _) => {
                session.rewind_to(walk);
                (self.prefix, self.input_at) = (remainder.prefix, remainder.input_at);
                self.needed_bytes = 0;
            }
            (None, Scan::Full { input_at }) => (self.input_at, self.needed_bytes) = (input_at, 0),
            (None, Scan::Finished { input_at, needed_bytes }) => {
                (self.input_at, self.needed_bytes) = (input_at, needed_bytes);
            }
        }
    }
}

impl Default for Rest {
    fn default() -> Self {
        Rest { prefix: Vec::new(), input_at: 0, needed_bytes: 0, replied_bytes: 0, end: End::Open }
    }
}

impl Source {
    fn bytes<'a>(&'a self, arena: &'a [u8]) -> &'a [u8] {
        match self {
            Source::Arena(range) => &arena[range.clone()],
            Source::Own(input) => input,
        }
    }

    /// The bytes from `input_at` on, with `prefix` in front. Allocates only if there are any.
    fn into_rest(self, arena: &[u8], input_at: usize, prefix: Vec<u8>) -> Vec<u8> {
        match self {
            Source::Own(mut input) if input_at < input.len() => {
                input.splice(..input_at, prefix);
                if input.capacity() > 2 * input.len() + READ_BYTES_MAX {
                    input.shrink_to_fit();
                }
                input
            }
            Source::Arena(range) if input_at < range.len() => {
                let mut rest = prefix;
                rest.extend_from_slice(&arena[range.start + input_at..range.end]);
                rest
            }
            _ => Vec::new(),
        }
    }
}
