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
//! * A batch has outcomes up to its last request that has a reply. An outcome is an `Err` exactly as long as its
//!   request has no reply.
//!
//! With the meta protocol every request has a line of its own (`meta_translation`).
//!
//! Here is what is outstanding, and how it ends without a reply; [`compose`] has the way of the requests, [`replies`]
//! that of the replies.
//!
//! Deliberately absent: sockets and clocks (`now` is an argument).

mod compose;
mod replies;

use super::{
    cas_support::CasSupport,
    results::{ResultCounters, UnpublishedCounts},
    sent_line::SentLine,
    shared::Permit,
};
use bytes::Bytes;
use compose::OpenLine;
use lookaside_protocol::{Reply, text::Limits};
use lookaside_routing::{Batch, Failure, Outcomes, Protocol};
use replies::Cursor;
use std::{collections::VecDeque, mem};
use tokio::{sync::oneshot, time::Instant};

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
        let outcomes = vec![Err(self.permit.name_failure(failure)); self.requests.len()];
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

impl InFlightBatch {
    fn has_reply(&self, request: usize) -> bool {
        self.outcomes.get(request).is_some_and(Result::is_ok)
    }

    fn set_reply(&mut self, request: usize, reply: Reply<Bytes>) {
        if request >= self.outcomes.len() {
            self.outcomes.resize(request + 1, Err(Failure::ConnectionLost));
        }
        self.outcomes[request] = Ok(reply);
    }

    /// Gives `reply` to the requests before `end` that have none, which is then final for them. Returns their number.
    /// No request from `end` on has a reply.
    fn fill_to(&mut self, end: usize, reply: &Reply<Bytes>) -> usize {
        let missing = end - self.outcomes.len();
        let mut filled = missing;
        for outcome in self.outcomes[self.done..].iter_mut().filter(|outcome| outcome.is_err()) {
            *outcome = Ok(reply.clone());
            filled += 1;
        }
        self.outcomes.extend((0..missing).map(|_| Ok(reply.clone())));
        self.done = end;
        filled
    }

    /// Gives `failure` to the requests that have no reply. Returns their number.
    fn fail_unanswered(&mut self, failure: &Failure) -> usize {
        let missing = self.requests.len() - self.outcomes.len();
        let mut failed = missing;
        for outcome in self.outcomes.iter_mut().filter(|outcome| outcome.is_err()) {
            *outcome = Err(failure.clone());
            failed += 1;
        }
        self.outcomes.extend((0..missing).map(|_| Err(failure.clone())));
        failed
    }
}

#[derive(Debug)]
pub(super) struct Pipeline {
    batches: VecDeque<InFlightBatch>,
    lines: VecDeque<SentLine>,
    cursor: Cursor,
    /// The last line, while it is a get without an end. It is not in `lines`, and no reply is parsed meanwhile.
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

    /// Adds what has been counted since the last call.
    pub(super) fn publish_counts(&mut self, counters: &ResultCounters) {
        self.counts.publish(counters);
    }

    /// When the batch that was answered last should have been at the latest; `None` if none was since the last call.
    pub(super) fn take_answered_deadline(&mut self) -> Option<Instant> {
        self.answered_deadline.take()
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
            let named = permit.name_failure(&Failure::TimedOut);
            permit.count_failure(&Failure::TimedOut, batch.fail_unanswered(&named));
            let outcomes = mem::replace(&mut batch.outcomes, placeholders);
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
                permit.count_failure(failure, batch.fail_unanswered(&permit.name_failure(failure)));
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

#[cfg(test)]
mod tests;
