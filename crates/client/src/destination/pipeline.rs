//! Requests out, answers in: what one connection has sent and not yet heard back about. Serves every path; sans-I/O.
//!
//! ```text
//! batches  [get a, get b] [get c, delete d]          as callers handed them in, each with one oneshot for all of it
//! lines    get a b c\r\n        delete d\r\n         runs of the same get merged, across batches too
//! answers  VALUE b .. END\r\n   DELETED\r\n          matched to the lines in order, inside a get by key
//! ```
//!
//! Invariants:
//! * Lines are answered in the order in which they were sent; `lines` holds those that are not answered yet.
//! * The front line begins at request `done` of the front batch.
//! * A batch that timed out keeps its place: its answer is read and dropped when it comes, so that the stream stays
//!   in step. Such batches are at the front, `late` of them; the caller of this module bounds them.
//! * An outcome is an `Err` exactly as long as its request has no reply.
//!
//! A server that is asked in the meta dialect gets a line a request, as `meta` has it.
//!
//! Absent on purpose: sockets and clocks (`now` comes in).

use super::meta_translation as meta;
use bytes::Bytes;
use lookaside_protocol::{
    ErrorReply, Operation, Reply, Request,
    meta::MetaOperation,
    text::{Limits, ParsedReply, ReplyPart, compose_request, compose_retrieve, parse_reply, parse_value_of},
};
use lookaside_routing::{Batch, Failure, Outcomes, Protocol};
use std::{collections::VecDeque, mem};
use tokio::{sync::oneshot, time::Instant};

/// The most keys in one get line: enough to spread the cost of a line thin, few enough that one line does not hold
/// up a server for long.
pub(crate) const MULTIGET_KEYS_MAX: usize = 64;

/// The longest get line with more than one key. memcached looks 2,048 bytes far for a line's end before it suspects
/// anything but a plain `get`.
pub(crate) const MULTIGET_BYTES_MAX: usize = 2_000;

/// The longest beginning of a get line: `gats` and an exptime.
const RETRIEVE_VERB_BYTES_MAX: usize = 25;

/// A batch on its way to a connection.
#[derive(Debug)]
pub(crate) struct Job {
    /// Not empty.
    pub(crate) batch: Batch,
    /// Who waits for the outcomes; may have stopped waiting.
    pub(crate) reply: oneshot::Sender<Outcomes>,
    /// Gives back the room among the outstanding requests when the job is over.
    pub(crate) ticket: super::Ticket,
}

impl Job {
    /// Ends a job that was never sent.
    pub(crate) fn fail(self, failure: &Failure) {
        let outcomes = vec![Err(failure.clone()); self.batch.len()];
        drop(self.ticket);
        let _ = self.reply.send(outcomes);
    }
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The answer made no sense.
    Malformed(&'static str),
    /// The server refused a command line and may now read its data block as commands.
    OutOfStep,
}

/// How far [`Pipeline::take`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes of the block that are done with.
    pub(crate) consumed: usize,
    /// The rest is worth looking at again when it has this many bytes.
    pub(crate) needed_bytes: usize,
}

/// One batch that has been sent.
#[derive(Debug)]
struct Flight {
    batch: Batch,
    outcomes: Outcomes,
    /// How many requests at the front are answered for good.
    done: usize,
    /// `None` once the caller has been told that it timed out.
    waiter: Option<(oneshot::Sender<Outcomes>, super::Ticket)>,
    deadline: Instant,
}

/// One command line that has been sent, or is being composed.
#[derive(Clone, Copy, Debug)]
struct Line {
    requests: usize,
    kind: LineKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// Answered by items and an end.
    Retrieve,
    /// Answered by one line.
    Single,
    /// Answered by one line; a data block followed the command line.
    SingleWithData,
    /// A classic request in the words of the meta dialect; so is its answer.
    Translated,
    /// The same with a data block.
    TranslatedWithData,
}

/// A get line that more keys may join.
#[derive(Debug)]
struct OpenLine {
    /// The same for every key.
    operation: Operation<Bytes>,
    /// Where its first request is.
    flight: usize,
    request: usize,
    /// How long the line is so far, at most.
    bytes: usize,
}

/// Where the next item of the front line is expected.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    flight: usize,
    request: usize,
    /// How many requests of the line lie before.
    offset: usize,
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    flights: VecDeque<Flight>,
    lines: VecDeque<Line>,
    cursor: Cursor,
    /// The last line, while it is a get that has not been composed. No answer is taken meanwhile.
    open: Option<OpenLine>,
    late: usize,
    late_requests: usize,
    /// Requests that were sent, late ones included, and not answered.
    unanswered: usize,
    answered_batches: u64,
    late_answers: u64,
    limits: Limits,
    protocol: Protocol,
}

impl Pipeline {
    pub(crate) fn new(limits: Limits, protocol: Protocol) -> Pipeline {
        Pipeline {
            flights: VecDeque::new(),
            lines: VecDeque::new(),
            cursor: Cursor::default(),
            open: None,
            late: 0,
            late_requests: 0,
            unanswered: 0,
            answered_batches: 0,
            late_answers: 0,
            limits,
            protocol,
        }
    }

    /// Appends the job's lines to `out`. [`Pipeline::end_line`] must follow before the bytes are written.
    pub(crate) fn push(&mut self, job: Job, deadline: Instant, out: &mut Vec<u8>) {
        let outcomes = vec![Err(Failure::ConnectionLost); job.batch.len()];
        let waiter = Some((job.reply, job.ticket));
        let flight = self.flights.len();
        self.unanswered += job.batch.len();
        self.flights.push_back(Flight { batch: job.batch, outcomes, done: 0, waiter, deadline });
        for request in 0..self.flights[flight].batch.len() {
            if self.grow_line(flight, request) {
                continue;
            }
            self.end_line(out);
            let asked = &self.flights[flight].batch[request];
            let kind = LineKind::of(&asked.operation, self.protocol);
            if kind == LineKind::Retrieve {
                let bytes = RETRIEVE_VERB_BYTES_MAX + 1 + asked.key.len();
                self.open = Some(OpenLine { operation: asked.operation.clone(), flight, request, bytes });
            } else if kind.is_translated() {
                compose_request(&meta::translated(asked), out);
            } else {
                compose_single(asked, out);
            }
            self.lines.push_back(Line { requests: 1, kind });
        }
    }

    /// Whether the line that is open could take the request in, and did.
    fn grow_line(&mut self, flight: usize, request: usize) -> bool {
        let (Some(open), Some(line)) = (&mut self.open, self.lines.back_mut()) else { return false };
        let asked = &self.flights[flight].batch[request];
        let bytes = open.bytes + 1 + asked.key.len();
        let fits = line.requests < MULTIGET_KEYS_MAX
            && bytes <= MULTIGET_BYTES_MAX
            && LineKind::of(&asked.operation, self.protocol) == LineKind::Retrieve
            && asked.operation == open.operation;
        if fits {
            open.bytes = bytes;
            line.requests += 1;
        }
        fits
    }

    /// Composes a get line that might still have grown.
    pub(crate) fn end_line(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        let line = self.lines.back().expect("the open line is the last one");
        let first = self.flights[open.flight].batch[open.request..].iter();
        let more = self.flights.range(open.flight + 1..).flat_map(|flight| &flight.batch);
        let keys = first.chain(more).take(line.requests).map(|request| &request.key);
        compose_retrieve(&open.operation, keys, out);
    }

    /// Reads all whole answers off the front of `block`. Values become slices of it.
    pub(crate) fn take(&mut self, block: &Bytes) -> Result<Taken, Broken> {
        let mut at = 0;
        loop {
            if let Some(consumed) = self.take_expected(&block[at..], block) {
                at += consumed;
                continue;
            }
            match parse_reply(&block[at..], &self.limits) {
                ParsedReply::Incomplete { needed_bytes } => return Ok(Taken { consumed: at, needed_bytes }),
                ParsedReply::Malformed { why } => return Err(Broken::Malformed(why)),
                ParsedReply::Part { part: reply, consumed } => {
                    self.on_answer(reply, block)?;
                    at += consumed;
                }
            }
        }
    }

    /// Takes the value at the front if it is that of the next key, as most are; so its length. Reading what is expected
    /// costs a fifth of finding out what there is.
    fn take_expected(&mut self, front: &[u8], block: &Bytes) -> Option<usize> {
        let line = *self.lines.front().filter(|line| line.kind == LineKind::Retrieve)?;
        let Cursor { flight, request, .. } = self.cursor;
        let flight = &mut self.flights[flight];
        if flight.outcomes[request].is_ok() {
            return None;
        }
        let (reply, consumed) = parse_value_of(&flight.batch[request].key, front, &self.limits)?;
        flight.outcomes[request] = Ok(match flight.waiter.is_some() {
            true => reply.map(|bytes| block.slice_ref(bytes)),
            false => Reply::Miss,
        });
        self.advance_cursor(line);
        Some(consumed)
    }

    fn on_answer(&mut self, reply: ReplyPart<'_>, block: &Bytes) -> Result<(), Broken> {
        let Some(&line) = self.lines.front() else {
            return Err(Broken::Malformed("an answer to nothing that was asked"));
        };
        match (reply, line.kind) {
            (ReplyPart::Item { key, reply }, LineKind::Retrieve) => {
                self.place_item(line, key, reply.map(|bytes| block.slice_ref(bytes)))
            }
            (ReplyPart::End, LineKind::Retrieve) => {
                self.finish_line(line, &Reply::Miss);
                Ok(())
            }
            (ReplyPart::Reply(reply @ Reply::Error(_)), LineKind::Retrieve) => {
                self.finish_line(line, &reply.map(|bytes| block.slice_ref(bytes)));
                Ok(())
            }
            (
                ReplyPart::Reply(reply),
                kind @ (LineKind::Single
                | LineKind::SingleWithData
                | LineKind::Translated
                | LineKind::TranslatedWithData),
            ) => {
                let reply = reply.map(|bytes| block.slice_ref(bytes));
                let reply = if kind.is_translated() { self.in_classic(reply)? } else { reply };
                let refused = matches!(reply, Reply::Error(ErrorReply::Unknown | ErrorReply::Client(_)));
                self.finish_line(line, &reply);
                if refused && kind.has_data() { Err(Broken::OutOfStep) } else { Ok(()) }
            }
            (ReplyPart::Item { .. } | ReplyPart::End, _) => Err(Broken::Malformed("a get's answer to something else")),
            (ReplyPart::Reply(_), LineKind::Retrieve) => Err(Broken::Malformed("no get's answer to a get")),
            (ReplyPart::Stat { .. } | ReplyPart::Version(_) | ReplyPart::MetaNoop, _) => {
                Err(Broken::Malformed("the answer to a command that was not sent"))
            }
        }
    }

    /// What the front line's answer says to who asked in the classic dialect.
    fn in_classic(&self, reply: Reply<Bytes>) -> Result<Reply<Bytes>, Broken> {
        let Reply::Meta(meta) = reply else {
            return match reply {
                Reply::Error(_) => Ok(reply),
                _ => Err(Broken::Malformed("no meta answer to a meta command")),
            };
        };
        let asked = self.flights.front().map(|flight| &flight.batch[flight.done].operation);
        let classic = asked.and_then(|operation| meta::classic(operation, meta));
        classic.ok_or(Broken::Malformed("another command's meta answer"))
    }

    /// Finds the request that an item answers: the next one with this key, or, from a server that reorders keys, any
    /// other of the line that has no reply yet.
    fn place_item(&mut self, line: Line, key: &[u8], reply: Reply<Bytes>) -> Result<(), Broken> {
        for _ in 0..line.requests {
            let here = self.cursor;
            self.advance_cursor(line);
            let flight = &mut self.flights[here.flight];
            if flight.outcomes[here.request].is_err() && flight.batch[here.request].key == key {
                // Nobody waits for a late value: do not hold its memory.
                flight.outcomes[here.request] = Ok(if flight.waiter.is_some() { reply } else { Reply::Miss });
                return Ok(());
            }
        }
        Err(Broken::Malformed("a key that was not asked for"))
    }

    fn advance_cursor(&mut self, line: Line) {
        self.cursor.offset += 1;
        self.cursor.request += 1;
        if self.cursor.offset == line.requests {
            self.cursor = self.line_start();
        } else if self.cursor.request == self.flights[self.cursor.flight].batch.len() {
            self.cursor.flight += 1;
            self.cursor.request = 0;
        }
    }

    fn line_start(&self) -> Cursor {
        Cursor { flight: 0, request: self.flights.front().map_or(0, |flight| flight.done), offset: 0 }
    }

    /// The front line is answered: what of it has no reply yet gets this one. Batches that are complete go home.
    fn finish_line(&mut self, line: Line, reply: &Reply<Bytes>) {
        self.lines.pop_front();
        self.unanswered -= line.requests;
        let mut left = line.requests;
        while left > 0 {
            let flight = self.flights.front_mut().expect("every line belongs to a batch that was sent");
            let end = flight.batch.len().min(flight.done + left);
            left -= end - flight.done;
            for outcome in &mut flight.outcomes[flight.done..end] {
                if outcome.is_err() {
                    *outcome = Ok(reply.clone());
                }
            }
            flight.done = end;
            if end == flight.batch.len() {
                self.finish_flight();
            }
        }
        self.cursor = self.line_start();
    }

    fn finish_flight(&mut self) {
        let flight = self.flights.pop_front().expect("the front batch has just been looked at");
        match flight.waiter {
            Some((waiter, ticket)) => {
                self.answered_batches += 1;
                drop(ticket);
                let _ = waiter.send(flight.outcomes);
            }
            None => {
                self.late -= 1;
                self.late_requests -= flight.batch.len();
                self.late_answers += 1;
            }
        }
    }

    /// Tells the callers whose time is over, and says how many. What was answered in time they get.
    pub(crate) fn expire(&mut self, now: Instant) -> usize {
        let already_late = self.late;
        while let Some(flight) = self.flights.get_mut(self.late)
            && flight.deadline <= now
        {
            let (waiter, ticket) = flight.waiter.take().expect("batches behind the late ones have a waiter");
            let forgotten = flight.outcomes.iter().map(|outcome| match outcome {
                Ok(_) => Ok(Reply::Miss),
                Err(_) => Err(Failure::TimedOut),
            });
            let forgotten = forgotten.collect();
            let mut outcomes = mem::replace(&mut flight.outcomes, forgotten);
            replace_failures(&mut outcomes, &Failure::TimedOut);
            self.late += 1;
            self.late_requests += flight.batch.len();
            drop(ticket);
            let _ = waiter.send(outcomes);
        }
        self.late - already_late
    }

    /// Ends all that is outstanding, as the connection has ended.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        for mut flight in self.flights.drain(..) {
            if let Some((waiter, ticket)) = flight.waiter.take() {
                replace_failures(&mut flight.outcomes, failure);
                drop(ticket);
                let _ = waiter.send(flight.outcomes);
            }
        }
        self.lines.clear();
        self.open = None;
        self.late = 0;
        self.late_requests = 0;
        self.unanswered = 0;
        self.cursor = Cursor::default();
    }

    /// When the first batch that still has a waiter times out.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.flights.get(self.late).map(|flight| flight.deadline)
    }

    /// Whether any answer is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether nobody waits for an answer.
    pub(crate) fn is_settled(&self) -> bool {
        self.late == self.flights.len()
    }

    /// Requests that were sent, late ones included, and not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Requests that timed out and whose answers may still come.
    pub(crate) fn late_requests(&self) -> usize {
        self.late_requests
    }

    /// Batches that were answered in time, ever.
    pub(crate) fn answered_batches(&self) -> u64 {
        self.answered_batches
    }

    /// Batches that were answered too late, ever.
    pub(crate) fn late_answers(&self) -> u64 {
        self.late_answers
    }
}

fn replace_failures(outcomes: &mut Outcomes, failure: &Failure) {
    for outcome in outcomes {
        if outcome.is_err() {
            *outcome = Err(failure.clone());
        }
    }
}

impl LineKind {
    fn of(operation: &Operation<Bytes>, protocol: Protocol) -> LineKind {
        match operation {
            Operation::Store { .. } if protocol == Protocol::Meta => LineKind::TranslatedWithData,
            other if protocol == Protocol::Meta && meta::is_translated(other) => LineKind::Translated,
            Operation::Get { .. } | Operation::GetAndTouch { .. } | Operation::LeaseGet => LineKind::Retrieve,
            Operation::Store { .. } | Operation::LeaseSet { .. } => LineKind::SingleWithData,
            Operation::Meta(meta) if meta.value.is_some() => LineKind::SingleWithData,
            _ => LineKind::Single,
        }
    }

    fn is_translated(self) -> bool {
        matches!(self, LineKind::Translated | LineKind::TranslatedWithData)
    }

    fn has_data(self) -> bool {
        matches!(self, LineKind::SingleWithData | LineKind::TranslatedWithData)
    }
}

/// Composes a request that has a line of its own. A quiet meta command is sent without its `q`: an answer that may or
/// may not come would leave the stream out of step. Whoever was asked quietly keeps quiet himself.
fn compose_single(request: &Request<Bytes>, out: &mut Vec<u8>) {
    let is_quiet = |flag: &&[u8]| flag.first() == Some(&b'q');
    match &request.operation {
        Operation::Meta(meta) if meta.flags.split(|&byte| byte == b' ').any(|flag| is_quiet(&flag)) => {
            let loud: Vec<&[u8]> = meta.flags.split(|&byte| byte == b' ').filter(|flag| !is_quiet(flag)).collect();
            let meta = MetaOperation { flags: loud.join(&b' ').into(), ..meta.clone() };
            compose_request(&Request { key: request.key.clone(), operation: Operation::Meta(meta) }, out);
        }
        _ => compose_request(request, out),
    }
}
