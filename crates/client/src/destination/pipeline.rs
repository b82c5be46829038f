//! Composes requests and matches replies: the requests that one connection has sent and whose replies are outstanding.
//! Serves every path; sans-I/O.
//!
//! ```text
//! batches  [get a, get b] [get c, delete d]          as callers sent them, each with one oneshot for all its outcomes
//! lines    get a b c\r\n        delete d\r\n         runs of the same get merged, across batches too
//! replies  VALUE b .. END\r\n   DELETED\r\n          matched to the lines in order, inside a get by key
//! ```
//!
//! Invariants:
//! * Lines are answered in the order in which they were sent; `lines` holds those that are not answered yet.
//! * The front line begins at request `done` of the front batch.
//! * A batch that has timed out keeps its position: its replies are parsed and dropped when they come, so that replies
//!   stay matched to requests. Such batches are at the front, `late` of them; the caller of this module bounds them.
//! * An outcome is an `Err` exactly as long as its request has no reply.
//!
//! With the meta protocol every request has a line of its own (`meta_translation`).
//!
//! Deliberately absent: sockets and clocks (`now` is an argument).

use super::{
    cas_support::{ASK_VERSION, CasSupport, requests_cas},
    meta_translation as meta,
    results::{ResultCounters, ServerResult, UnpublishedCounts},
    sent_line::{LineKind, SentLine},
    shared::Permit,
};
use bytes::Bytes;
use lookaside_protocol::{
    ErrorReply, Operation, Reply, Request,
    meta::MetaOperation,
    text::{Limits, ParsedReply, ReplyPart, compose_request, compose_retrieve, parse_reply, parse_value_of},
};
use lookaside_routing::{Batch, Failure, Outcomes, Protocol, Verb};
use std::{collections::VecDeque, mem};
use tokio::{sync::oneshot, time::Instant};

/// The most keys in one get line: enough to make the cost of a line small, few enough that one line does not delay
/// other requests for long.
pub(super) const MULTIGET_KEYS_MAX: usize = 64;

/// The longest get line with more than one key, in bytes. memcached closes the connection if it finds no line end
/// within 2,048 bytes and the command is not a plain `get`.
pub(super) const MULTIGET_BYTES_MAX: usize = 2_000;

/// The longest beginning of a get line: `gats` and an exptime.
const RETRIEVE_VERB_BYTES_MAX: usize = 25;

#[derive(Debug)]
pub(super) struct PendingBatch {
    /// Not empty.
    pub(super) requests: Batch,
    /// The caller may have stopped waiting.
    pub(super) reply: oneshot::Sender<Outcomes>,
    pub(super) permit: Permit,
}

impl PendingBatch {
    pub(super) fn fail(self, failure: &Failure) {
        let outcomes = vec![Err(failure.clone()); self.requests.len()];
        self.permit.count_failure(failure, outcomes.len());
        drop(self.permit);
        let _ = self.reply.send(outcomes);
    }
}

/// Why a connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolError {
    /// A reply that cannot be parsed, or that does not belong to its command.
    Malformed(&'static str),
    /// The server refused a command line and may now read its data block as commands.
    Desynchronized,
}

/// How much [`Pipeline::dispatch_replies`] parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Consumed {
    pub(super) bytes: usize,
    /// The rest holds no whole reply below this length.
    pub(super) needed_bytes: usize,
}

#[derive(Debug)]
struct InFlightBatch {
    requests: Batch,
    outcomes: Outcomes,
    /// How many requests at the front have their final outcome.
    done: usize,
    /// `None` once the batch has timed out.
    waiter: Option<(oneshot::Sender<Outcomes>, Permit)>,
    deadline: Instant,
}

/// A get line to which more keys may be added.
#[derive(Debug)]
struct OpenLine {
    /// The same for every key.
    operation: Operation<Bytes>,
    /// The position of its first request.
    batch: usize,
    request: usize,
    /// The most that the line may be long so far.
    bytes: usize,
}

/// The position of the request whose item is expected next.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    batch: usize,
    request: usize,
    /// How many requests of the line come before it.
    offset: usize,
}

#[derive(Debug)]
pub(super) struct Pipeline {
    batches: VecDeque<InFlightBatch>,
    lines: VecDeque<SentLine>,
    cursor: Cursor,
    /// The last line, while it is a get that has not been composed. No reply is parsed meanwhile.
    open: Option<OpenLine>,
    late: usize,
    late_requests: usize,
    /// Requests that were sent and not answered, late ones included.
    unanswered: usize,
    answered_batches: u64,
    late_batches: u64,
    counts: UnpublishedCounts,
    /// Leases among the items of the front line.
    leases: usize,
    /// When the batch that was answered last should have been at the latest; `None` if that has been read.
    answered_deadline: Option<Instant>,
    limits: Limits,
    protocol: Protocol,
    cas_support: CasSupport,
}

impl Pipeline {
    pub(super) fn new(limits: Limits, protocol: Protocol) -> Pipeline {
        Pipeline {
            batches: VecDeque::new(),
            lines: VecDeque::new(),
            cursor: Cursor::default(),
            open: None,
            late: 0,
            late_requests: 0,
            unanswered: 0,
            answered_batches: 0,
            late_batches: 0,
            counts: UnpublishedCounts::default(),
            leases: 0,
            answered_deadline: None,
            limits,
            protocol,
            cas_support: CasSupport::of_protocol(protocol),
        }
    }

    /// Whether the next batch must wait for the reply to `version`, which is sent once.
    pub(super) fn must_ask_version(&mut self, next: &PendingBatch, out: &mut Vec<u8>) -> bool {
        if self.cas_support.is_known() || !next.requests.iter().any(|request| requests_cas(&request.operation)) {
            return false;
        }
        if self.cas_support == CasSupport::Unknown {
            self.end_line(out);
            out.extend_from_slice(ASK_VERSION);
            self.lines.push_back(SentLine { requests: 0, kind: LineKind::Version });
            self.cas_support = CasSupport::Asked;
        }
        true
    }

    /// Appends the batch's lines to `out`. [`Pipeline::end_line`] must follow before the bytes are written.
    pub(super) fn push(&mut self, pending: PendingBatch, deadline: Instant, out: &mut Vec<u8>) {
        let PendingBatch { requests, reply, permit } = pending;
        let outcomes = vec![Err(Failure::ConnectionLost); requests.len()];
        let batch = self.batches.len();
        self.unanswered += requests.len();
        self.batches.push_back(InFlightBatch { requests, outcomes, done: 0, waiter: Some((reply, permit)), deadline });
        for index in 0..self.batches[batch].requests.len() {
            if self.extend_line(batch, index) {
                continue;
            }
            self.end_line(out);
            let request = &self.batches[batch].requests[index];
            let kind = match self.cas_support.needs_meta_set(&request.operation) {
                true => LineKind::TranslatedWithData,
                false => LineKind::of(&request.operation, self.protocol),
            };
            if kind == LineKind::Retrieve {
                let bytes = RETRIEVE_VERB_BYTES_MAX + 1 + request.key.len();
                self.open = Some(OpenLine { operation: request.operation.clone(), batch, request: index, bytes });
                self.lines.push_back(SentLine { requests: 1, kind });
                continue;
            }
            self.counts.add_sent(Verb::of(&request.operation), 1);
            if kind.is_translated() {
                compose_request(&meta::to_meta(request), out);
            } else {
                compose_single(request, out);
            }
            self.lines.push_back(SentLine { requests: 1, kind });
        }
    }

    /// False if it does not fit.
    fn extend_line(&mut self, batch: usize, index: usize) -> bool {
        let (Some(open), Some(line)) = (&mut self.open, self.lines.back_mut()) else { return false };
        let request = &self.batches[batch].requests[index];
        let bytes = open.bytes + 1 + request.key.len();
        let fits = line.requests < MULTIGET_KEYS_MAX
            && bytes <= MULTIGET_BYTES_MAX
            && LineKind::of(&request.operation, self.protocol) == LineKind::Retrieve
            && request.operation == open.operation;
        if fits {
            open.bytes = bytes;
            line.requests += 1;
        }
        fits
    }

    pub(super) fn end_line(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        let line = self.lines.back().expect("the open line is the last one");
        let first = self.batches[open.batch].requests[open.request..].iter();
        let more = self.batches.range(open.batch + 1..).flat_map(|batch| &batch.requests);
        let keys = first.chain(more).take(line.requests).map(|request| &request.key);
        self.counts.add_sent(Verb::of(&open.operation), line.requests);
        compose_retrieve(&open.operation, keys, out);
    }

    /// Parses all whole replies at the front of `block` and gives each to its request. Values become slices of it.
    pub(super) fn dispatch_replies(&mut self, block: &Bytes) -> Result<Consumed, ProtocolError> {
        let mut at = 0;
        loop {
            if let Some(consumed) = self.parse_expected_value(&block[at..], block) {
                at += consumed;
                continue;
            }
            match parse_reply(&block[at..], &self.limits) {
                ParsedReply::Incomplete { needed_bytes } => return Ok(Consumed { bytes: at, needed_bytes }),
                ParsedReply::Malformed { why } => return Err(ProtocolError::Malformed(why)),
                ParsedReply::Part { part, consumed } => {
                    self.match_reply(part, block)?;
                    at += consumed;
                }
            }
        }
    }

    /// Parses the reply at the front if it is the value of the next key, as most replies are; returns its length.
    /// Parsing the expected value costs a fifth of parsing any reply.
    fn parse_expected_value(&mut self, front: &[u8], block: &Bytes) -> Option<usize> {
        let line = *self.lines.front().filter(|line| line.kind == LineKind::Retrieve)?;
        let Cursor { batch, request, .. } = self.cursor;
        let batch = &mut self.batches[batch];
        if batch.outcomes[request].is_ok() {
            return None;
        }
        let (reply, consumed) = parse_value_of(&batch.requests[request].key, front, &self.limits)?;
        batch.outcomes[request] = Ok(match batch.waiter.is_some() {
            true => reply.map(|bytes| block.slice_ref(bytes)),
            false => Reply::Miss,
        });
        self.advance_cursor(line);
        Some(consumed)
    }

    fn match_reply(&mut self, part: ReplyPart<'_>, block: &Bytes) -> Result<(), ProtocolError> {
        let Some(&line) = self.lines.front() else {
            return Err(ProtocolError::Malformed("a reply without a request"));
        };
        match (part, line.kind) {
            (ReplyPart::Item { key, reply }, LineKind::Retrieve) => {
                self.assign_item(line, key, reply.map(|bytes| block.slice_ref(bytes)))
            }
            (ReplyPart::End, LineKind::Retrieve) => {
                self.complete_line(line, &Reply::Miss);
                Ok(())
            }
            (ReplyPart::Reply(reply @ Reply::Error(_)), LineKind::Retrieve) => {
                self.complete_line(line, &reply.map(|bytes| block.slice_ref(bytes)));
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
                let reply = if kind.is_translated() { self.to_classic_reply(reply)? } else { reply };
                let refused = matches!(reply, Reply::Error(ErrorReply::Unknown | ErrorReply::Client(_)));
                self.complete_line(line, &reply);
                if refused && kind.has_data() { Err(ProtocolError::Desynchronized) } else { Ok(()) }
            }
            (ReplyPart::Version(version), LineKind::Version) => {
                self.cas_support = CasSupport::of_version(version);
                self.lines.pop_front();
                Ok(())
            }
            (ReplyPart::Reply(Reply::Error(_)), LineKind::Version) => {
                self.cas_support = CasSupport::Known { has_meta_set: false };
                self.lines.pop_front();
                Ok(())
            }
            (ReplyPart::Item { .. } | ReplyPart::End, _) => {
                Err(ProtocolError::Malformed("an item, or END, in reply to a command that is not a get"))
            }
            (ReplyPart::Reply(_), LineKind::Retrieve) => {
                Err(ProtocolError::Malformed("neither an item nor END in reply to a get"))
            }
            (ReplyPart::Stat { .. } | ReplyPart::Version(_) | ReplyPart::MetaNoop, _)
            | (ReplyPart::Reply(_), LineKind::Version) => {
                Err(ProtocolError::Malformed("the reply of a command that was not sent"))
            }
        }
    }

    fn to_classic_reply(&self, reply: Reply<Bytes>) -> Result<Reply<Bytes>, ProtocolError> {
        let Reply::Meta(meta) = reply else {
            return match reply {
                Reply::Error(_) => Ok(reply),
                _ => Err(ProtocolError::Malformed("not a meta reply to a meta command")),
            };
        };
        let operation = self.batches.front().map(|batch| &batch.requests[batch.done].operation);
        let classic = operation.and_then(|operation| meta::to_classic(operation, meta));
        classic.ok_or(ProtocolError::Malformed("the meta reply of another command"))
    }

    /// Assigns an item to its request: the next one with this key, or, if the server reorders keys, any other of the
    /// line that has no reply yet.
    fn assign_item(&mut self, line: SentLine, key: &[u8], reply: Reply<Bytes>) -> Result<(), ProtocolError> {
        for _ in 0..line.requests {
            let here = self.cursor;
            self.advance_cursor(line);
            let batch = &mut self.batches[here.batch];
            if batch.outcomes[here.request].is_err() && batch.requests[here.request].key == key {
                self.leases += usize::from(matches!(reply, Reply::Lease { .. }) && batch.waiter.is_some());
                // The value of a late request is dropped, so that it keeps no memory.
                batch.outcomes[here.request] = Ok(if batch.waiter.is_some() { reply } else { Reply::Miss });
                return Ok(());
            }
        }
        Err(ProtocolError::Malformed("a key that was not requested"))
    }

    fn advance_cursor(&mut self, line: SentLine) {
        self.cursor.offset += 1;
        self.cursor.request += 1;
        if self.cursor.offset == line.requests {
            self.cursor = self.line_start();
        } else if self.cursor.request == self.batches[self.cursor.batch].requests.len() {
            self.cursor.batch += 1;
            self.cursor.request = 0;
        }
    }

    fn line_start(&self) -> Cursor {
        Cursor { batch: 0, request: self.batches.front().map_or(0, |batch| batch.done), offset: 0 }
    }

    /// Gives this reply to the line's requests that have none yet, and completes each batch that has all outcomes.
    fn complete_line(&mut self, line: SentLine, reply: &Reply<Bytes>) {
        self.lines.pop_front();
        self.unanswered -= line.requests;
        let (mut left, mut answered, mut others) = (line.requests, 0, 0);
        while left > 0 {
            let batch = self.batches.front_mut().expect("every line belongs to a batch that was sent");
            let end = batch.requests.len().min(batch.done + left);
            left -= end - batch.done;
            let is_awaited = batch.waiter.is_some();
            answered += if is_awaited { end - batch.done } else { 0 };
            for outcome in &mut batch.outcomes[batch.done..end] {
                if outcome.is_err() {
                    *outcome = Ok(reply.clone());
                    others += usize::from(is_awaited);
                }
            }
            batch.done = end;
            if end == batch.requests.len() {
                self.complete_batch();
            }
        }
        self.cursor = self.line_start();
        self.count_results(answered, others, reply);
    }

    /// Counts the results of a line: `others` of the `answered` requests have this reply, all before them an item.
    fn count_results(&mut self, answered: usize, others: usize, reply: &Reply<Bytes>) {
        let leases = mem::take(&mut self.leases);
        if others > 0 {
            self.counts.add_result(ServerResult::of(reply), others);
        }
        if leases > 0 {
            self.counts.add_result(ServerResult::NotFound, leases);
        }
        if answered > others + leases {
            self.counts.add_result(ServerResult::Found, answered - others - leases);
        }
    }

    /// Adds what has been counted since the last call.
    pub(super) fn publish_counts(&mut self, counters: &ResultCounters) {
        self.counts.publish(counters);
    }

    /// When the batch that was answered last should have been at the latest; `None` if none was since the last call.
    pub(super) fn take_answered_deadline(&mut self) -> Option<Instant> {
        self.answered_deadline.take()
    }

    fn complete_batch(&mut self) {
        let batch = self.batches.pop_front().expect("the caller has used the front batch");
        match batch.waiter {
            Some((waiter, permit)) => {
                self.answered_batches += 1;
                self.answered_deadline = Some(batch.deadline);
                drop(permit);
                let _ = waiter.send(batch.outcomes);
            }
            None => {
                self.late -= 1;
                self.late_requests -= batch.requests.len();
                self.late_batches += 1;
            }
        }
    }

    /// Times out the batches whose deadline has passed, and returns their number. Requests that were answered in time
    /// keep their replies.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let already_late = self.late;
        while let Some(batch) = self.batches.get_mut(self.late)
            && batch.deadline <= now
        {
            let (waiter, permit) = batch.waiter.take().expect("batches behind the late ones have a waiter");
            let placeholders = batch.outcomes.iter().map(|outcome| match outcome {
                Ok(_) => Ok(Reply::Miss),
                Err(_) => Err(Failure::TimedOut),
            });
            let placeholders = placeholders.collect();
            let mut outcomes = mem::replace(&mut batch.outcomes, placeholders);
            permit.count_failure(&Failure::TimedOut, count_failed(&outcomes));
            replace_failures(&mut outcomes, &Failure::TimedOut);
            self.late += 1;
            self.late_requests += batch.requests.len();
            drop(permit);
            let _ = waiter.send(outcomes);
        }
        self.late - already_late
    }

    pub(super) fn fail(&mut self, failure: &Failure) {
        for mut batch in self.batches.drain(..) {
            if let Some((waiter, permit)) = batch.waiter.take() {
                permit.count_failure(failure, count_failed(&batch.outcomes));
                replace_failures(&mut batch.outcomes, failure);
                drop(permit);
                let _ = waiter.send(batch.outcomes);
            }
        }
        self.lines.clear();
        self.open = None;
        self.late = 0;
        self.late_requests = 0;
        self.unanswered = 0;
        self.cursor = Cursor::default();
    }

    /// The deadline of the first batch that has not timed out.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.batches.get(self.late).map(|batch| batch.deadline)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether every outstanding batch has timed out.
    pub(super) fn has_no_waiters(&self) -> bool {
        self.late == self.batches.len()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Requests that timed out and whose replies may still come.
    pub(super) fn late_requests(&self) -> usize {
        self.late_requests
    }

    pub(super) fn answered_batches(&self) -> u64 {
        self.answered_batches
    }

    pub(super) fn late_batches(&self) -> u64 {
        self.late_batches
    }
}

fn count_failed(outcomes: &Outcomes) -> usize {
    outcomes.iter().filter(|outcome| outcome.is_err()).count()
}

fn replace_failures(outcomes: &mut Outcomes, failure: &Failure) {
    for outcome in outcomes {
        if outcome.is_err() {
            *outcome = Err(failure.clone());
        }
    }
}

/// A quiet meta command is sent without its `q`: a reply that may or may not come could not be matched. The caller that
/// got the quiet command suppresses the reply itself.
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
