//! The deletes of one connection that are in progress at the same time. Serves `delete`, in both protocols.
//!
//! A server that hangs costs a delete the whole server timeout. Deletes of other keys must not wait for that, and the
//! invalidator sends all of a cluster's deletes over one connection. Deletes commute: so while a batch of deletes waits
//! for its outcomes, the session reads on and routes the deletes that follow. The first command that is no delete ends
//! this: it stays in the input until all deletes before it have been answered.
//!
//! ```text
//!   input      delete a | delete b | get c | delete d
//!   a          routed -------------------------> answered
//!   b               routed --> done, its reply waits for that of a
//!   c, d                                           next batch
//! ```
//!
//! Most clients wait for the reply to a delete before they send the next. So the first batch is routed alone, for what
//! any other batch costs and a look at the connection; all else ([`DeletesInProgress`]) begins once more has arrived.
//!
//! Invariants: replies leave in the order of the requests. A session holds at most [`DELETES_BYTES_MAX`] for deletes
//! in progress behind the first batch, and no more than it leaves of [`TOTAL_DELETES_BYTES_MAX`] to the others; it
//! reads nothing more at that bound. So a session with few deletes finds space beside those that hold as much as they
//! can. What replies hold does not count: large values must not delay deletes. While a client does not read its
//! replies, nothing more is read, but the deletes in progress are carried on. They are also when the client has
//! disconnected, and on a handover.

use super::batch::BatchInProgress;
use super::{ParsedBatch, PendingReply, Session, SessionEnd, WRITE_BYTES_MAX, is_shutting_down};
use crate::frontend::context::SessionContext;
use crate::frontend::parse::{Accepted, BATCH_REQUESTS_MAX, parse_batch, parse_binary_batch};
use crate::shared::HeldBytesPermit;
use bytes::{Buf, BytesMut};
use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use lookaside_routing::{Batch, Context, Outcomes};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::take;
use std::pin::{Pin, pin};
use std::task::{self, Poll};

/// The most bytes that one session holds for deletes in progress behind the first batch.
pub const DELETES_BYTES_MAX: usize = 16 << 20;
/// The most bytes that the sessions of all threads hold for such deletes.
pub const TOTAL_DELETES_BYTES_MAX: usize = 64 << 20;
/// An estimate of what a batch in progress takes, in bytes, besides its requests: the futures of its routes.
const BATCH_BYTES: usize = 4 << 10;
/// An estimate of what a delete in progress takes, in bytes, besides its text, if it goes to a server and a gutter.
const DELETE_BYTES: usize = 1 << 10;
/// The shortest delete: `delete k` and a line feed.
const DELETE_TEXT_BYTES_MIN: usize = 9;

/// The batches of deletes that are in progress. `F` is the future of [`route`].
struct DeletesInProgress<F> {
    running: FuturesUnordered<F>,
    /// In the order of the requests.
    batches: VecDeque<DeleteBatch>,
    /// The number of the first of `batches`.
    first: u64,
    /// The requests of all `batches`.
    requests: usize,
    /// For all but the batch that was the first of all.
    permit: HeldBytesPermit,
}

struct DeleteBatch {
    replies: Vec<PendingReply>,
    /// `None` while it is being routed.
    outcomes: Option<Outcomes>,
    bytes: usize,
}

impl<F: Future<Output = (u64, Outcomes)>> DeletesInProgress<F> {
    fn new(permit: HeldBytesPermit) -> Self {
        DeletesInProgress { running: FuturesUnordered::new(), batches: VecDeque::new(), first: 0, requests: 0, permit }
    }

    fn next_number(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    fn push(&mut self, future: F, replies: Vec<PendingReply>, bytes: usize) {
        self.running.push(future);
        self.requests += replies.len();
        self.permit.resize(self.permit.bytes() + bytes);
        self.batches.push_back(DeleteBatch { replies, outcomes: None, bytes });
    }

    fn is_first_done(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.outcomes.is_some())
    }

    /// The first batch, if it has its outcomes.
    fn pop_done(&mut self) -> Option<(Vec<PendingReply>, Outcomes)> {
        let outcomes = self.batches.front_mut()?.outcomes.take()?;
        let batch = self.batches.pop_front()?;
        self.first += 1;
        self.requests -= batch.replies.len();
        self.permit.resize(self.permit.bytes() - batch.bytes);
        Some((batch.replies, outcomes))
    }

    /// Carries on all batches, until the first one has its outcomes.
    async fn wait_for_first(&mut self) {
        while !self.is_first_done() && self.advance().await {}
    }

    /// Carries on all batches. Returns when all have their outcomes.
    async fn wait_for_all(&mut self) {
        while self.advance().await {}
    }

    /// Waits for the outcomes of any batch. False if all have them.
    async fn advance(&mut self) -> bool {
        let Some((number, outcomes)) = self.running.next().await else { return false };
        let batch = &mut self.batches[(number - self.first) as usize];
        assert!(batch.outcomes.is_none(), "a batch is routed once");
        batch.outcomes = Some(outcomes);
        true
    }
}

/// What a batch of deletes in progress takes, roughly, whose text shares a block of `text_bytes`.
fn batch_bytes(text_bytes: usize, deletes: usize) -> usize {
    BATCH_BYTES + text_bytes + deletes * DELETE_BYTES
}

async fn route(context: &SessionContext, client: Context, number: u64, batch: Batch) -> (u64, Outcomes) {
    let requests = batch.len();
    let outcomes = context.tree().root().route(batch, &client).await;
    assert_eq!(outcomes.len(), requests, "a route gives exactly one outcome per request");
    (number, outcomes)
}

impl Session<'_> {
    /// Routes a batch that has only deletes. Returns its outcomes, or `None` if further input has arrived meanwhile:
    /// then all replies have been written, also those to the deletes of that input.
    pub(super) async fn route_deletes(
        &mut self,
        parsed: &mut ParsedBatch,
        stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Option<Outcomes>, SessionEnd> {
        let batch = take(&mut parsed.batch);
        self.count_batch(&batch);
        let may_read_on = batch.len() < self.context.settings.requests_max;
        let mut first = pin!(route(self.context, self.client.clone(), 0, batch));
        let routed_or_read = poll_fn(|waiter| match first.as_mut().poll(waiter) {
            Poll::Ready((_, outcomes)) => Poll::Ready(Either::Left(outcomes)),
            Poll::Pending if may_read_on => self.poll_further_input(waiter).map(Either::Right),
            Poll::Pending => Poll::Pending,
        });
        match routed_or_read.await {
            Either::Left(outcomes) => Ok(Some(outcomes)),
            Either::Right(read) => {
                let replies = take(&mut parsed.replies);
                // Boxed, so that a session that waits for its client does not have the space for it.
                Box::pin(self.route_overlapping(first, replies, read, stopped)).await?;
                Ok(None)
            }
        }
    }

    /// Resolves when there may be further deletes to route, or the client or the router ends the connection.
    fn poll_further_input(&mut self, waiter: &mut task::Context<'_>) -> Poll<Result<(), SessionEnd>> {
        if self.is_closing || !self.may_hold_further_deletes(0) {
            return Poll::Pending;
        }
        // A shutdown does not wake the session, but nothing is read after it.
        match !self.is_incomplete() || self.stop.has_changed().unwrap_or(true) {
            true => Poll::Ready(Ok(())),
            false => self.poll_read_in_batch(waiter),
        }
    }

    /// Carries on the first batch, and routes the deletes that arrive meanwhile. Returns when all are answered. `read`
    /// is the result of the last read.
    async fn route_overlapping(
        &mut self,
        first: Pin<&mut impl Future<Output = (u64, Outcomes)>>,
        replies: Vec<PendingReply>,
        read: Result<(), SessionEnd>,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), SessionEnd> {
        let mut deletes = DeletesInProgress::new(self.context.shared.delete_permit());
        deletes.push(Either::Left(first), replies, 0);
        self.swallow();
        let mut read_end = read.err();
        let mut is_blocked = self.is_closing;
        loop {
            if let Err(end) = self.reply_to_deletes(&mut deletes).await {
                deletes.wait_for_all().await;
                return Err(end);
            }
            if self.is_stopping() {
                read_end = Some(SessionEnd::Shutdown);
            }
            is_blocked |= read_end == Some(SessionEnd::Shutdown);
            while !is_blocked && !self.is_incomplete() && self.may_add_deletes(&deletes) {
                let (added, bytes) = self.parse_deletes(self.context.settings.requests_max - deletes.requests);
                is_blocked = added.is_full();
                if added.batch.is_empty() {
                    break;
                }
                self.count_batch(&added.batch);
                self.context.counters.overlapped_batches.add(1);
                let future = route(self.context, self.client.clone(), deletes.next_number(), added.batch);
                deletes.push(Either::Right(future), added.replies, bytes);
            }
            if deletes.batches.is_empty() {
                break;
            }
            let may_read = !is_blocked && read_end.is_none() && self.is_incomplete() && self.may_add_deletes(&deletes);
            tokio::select! {
                biased;
                () = deletes.wait_for_first() => {}
                read = self.read(stopped.as_mut()), if may_read => match read {
                    Ok(()) => self.swallow(),
                    Err(end) => read_end = Some(end),
                }
            }
        }
        read_end.map_or(Ok(()), Err)
    }

    /// Whether the shutdown has begun.
    fn is_stopping(&mut self) -> bool {
        // If something else has changed, nothing but the waker would tell.
        self.stop_waker = None;
        is_shutting_down(&mut self.stop)
    }

    /// Writes the replies to the deletes that are done, in order. The others are carried on meanwhile.
    async fn reply_to_deletes<F: Future<Output = (u64, Outcomes)>>(
        &mut self,
        deletes: &mut DeletesInProgress<F>,
    ) -> Result<(), SessionEnd> {
        // Each turn composes the replies of a batch: a write during a handover may leave all of them.
        while let Some((replies, outcomes)) = deletes.pop_done() {
            // It must not write: the other deletes would not be carried on while the client does not read.
            self.compose_replies(replies, &mut BatchInProgress::of_outcomes(outcomes), usize::MAX).await?;
            if self.out.len() >= WRITE_BYTES_MAX || !deletes.is_first_done() {
                self.write_while(deletes).await?;
            }
        }
        Ok(())
    }

    async fn write_while<F: Future<Output = (u64, Outcomes)>>(
        &mut self,
        deletes: &mut DeletesInProgress<F>,
    ) -> Result<(), SessionEnd> {
        let mut write = pin!(self.write());
        tokio::select! {
            biased;
            written = write.as_mut() => written,
            () = deletes.wait_for_all() => write.await,
        }
    }

    /// Whether further deletes may be routed. The first batch always may.
    fn may_add_deletes<F>(&self, deletes: &DeletesInProgress<F>) -> bool {
        let is_below_max = deletes.requests < self.context.settings.requests_max;
        deletes.batches.is_empty() || is_below_max && self.may_hold_further_deletes(deletes.permit.bytes())
    }

    /// Whether this session, which holds `bytes`, may hold the deletes of its input, too.
    fn may_hold_further_deletes(&self, bytes: usize) -> bool {
        let input_bytes = self.input.len();
        let deletes_max = (input_bytes / DELETE_TEXT_BYTES_MIN).min(BATCH_REQUESTS_MAX);
        let added_bytes = batch_bytes(input_bytes, deletes_max);
        let left_bytes = TOTAL_DELETES_BYTES_MAX.saturating_sub(self.context.shared.delete_bytes() + added_bytes);
        bytes + added_bytes <= DELETES_BYTES_MAX.min(left_bytes)
    }

    /// The deletes at the front of the input, and the bytes that they take. They do not share the memory of the input,
    /// of which a few deletes would keep a large block.
    fn parse_deletes(&mut self, requests_max: usize) -> (ParsedBatch, usize) {
        let mut text = BytesMut::from(&self.input[..]);
        let text_bytes = text.len();
        let limits = &self.context.settings.limits;
        let parsed = match self.is_binary {
            Some(true) => parse_binary_batch(&mut text, limits, requests_max, Accepted::Deletes),
            // No capacity beyond the deletes there are: it would not be counted.
            _ => parse_batch(&mut text, limits, 0, requests_max, Accepted::Deletes),
        };
        self.input.advance(text_bytes - text.len());
        self.needed_bytes = parsed.needed_bytes;
        let bytes = batch_bytes(text_bytes, parsed.batch.len());
        (parsed, bytes)
    }
}
