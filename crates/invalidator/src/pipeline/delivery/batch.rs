//! One batch of deletes on its way to its cluster. A router that does not answer is hedged: the next router gets the
//! batch too, and the first answer counts. Deletes that a router refuses are rerouted: another router gets them at
//! once.
//!
//! ```text
//! 0 ms     batch --> router 1                                    hung
//! 200 ms   batch ---------------> router 2 --> acknowledged      router 1 is TKO: later batches go to the others
//!
//! 0 ms     batch --> router 1 --> 2 refused, the rest acknowledged     it does not reach a server
//! 1 ms     those 2 -------------> router 2 --> acknowledged            or refused: they are retried after a delay
//! ```
//!
//! | reply of a router | result |
//! |---|---|
//! | `DELETED`, `NOT_FOUND` | applied: most deletes find nothing (§4.1 of the paper: 4 % find something) |
//! | `SERVER_ERROR RootRoute: No rh found`, `SERVER_ERROR no route: ...` | the other routers are asked; unroutable if all of them say so |
//! | any other reply, or none | refused: send it again |
//!
//! A delete that two routers apply, or whose reply is lost, does no harm, as deletes are idempotent. An acknowledgement
//! by any router means the same: the servers have applied the delete or, with `--spool-peers`, no router of the cluster
//! reads a server that has not (ADR 009). A router that can inform neither the server nor a peer refuses the delete. It
//! may have stored the delete in its spool, and then does not read the server before it has applied it; the refusal
//! says that other routers may. So the acknowledgement of another one is all that is missing, and it never hides what
//! the first one still has to do.
//!
//! A key like `/api/v1/users` has an unknown routing prefix. It needs no retry, since nothing can be cached under it
//! through a router that has no route for it. But routers of one cluster differ while a pool or a prefix is being
//! rolled out: a value may be cached through one of them and have no route in another. So a key is unroutable when
//! every router of the cluster reports that. A router that does not answer may have a route, also for values that were
//! cached before it failed: its key is refused, and retried until that router says something, or is no longer given to
//! `--cluster`. A router that has no route for *deletes* only refuses the key: other operations may reach it.
//!
//! Invariants:
//! * A batch goes to each router at most once. Its refused deletes are rerouted at most once, and those without a route
//!   as long as a router answers that has not had them. Batches that are hedged and refused deletes that are rerouted
//!   are counted.
//! * Nothing is rerouted to a TKO router. After an answer, further ones are waited for no longer than the hedge delay.
//! * When a batch ends, nothing of it is waited for. A destination still holds the copy for a hung router until its
//!   timeout; it refuses requests beyond its own bound, and a TKO router gets no further batches while another one
//!   answers.

use super::{
    DeleteResult,
    router::{no_answer, reason},
    routers::RouterDelivery,
};
use bytes::Bytes;
use futures_util::future::select_all;
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{Address, Batch, BoxFuture, Failure, Outcome, Outcomes, is_no_route};
use tokio::time::sleep;

/// The bytes of a delete besides its key: `delete ` and the end of the line.
const DELETE_BYTES: usize = 9;

/// A batch on its way through one router, or several.
pub(super) struct RoutedBatch<'a> {
    delivery: &'a RouterDelivery,
    keys: Vec<Bytes>,
    results: Vec<DeleteResult>,
    /// How many routers report for each key that they have no route.
    without_route: Vec<usize>,
    /// Routers that do not have the batch yet, in order.
    routers: Vec<usize>,
    /// Those that have it and have not answered.
    sent: Vec<BoxFuture<'a, RouterOutcomes>>,
    /// The routers of `sent`.
    waiting_for: Vec<usize>,
    /// Those that did not answer, at all or within the hedge delay.
    late: Vec<usize>,
    /// The first router that refused deletes, and the positions of those in the batch that are not applied.
    refused: Option<(usize, Vec<usize>)>,
    is_answered: bool,
    is_rerouted: bool,
}

/// What a router made of a batch.
struct RouterOutcomes {
    router: usize,
    /// The positions of the keys in the batch.
    indices: Vec<usize>,
    outcomes: Outcomes,
}

impl<'a> RoutedBatch<'a> {
    pub fn new(delivery: &'a RouterDelivery, keys: Vec<Bytes>) -> RoutedBatch<'a> {
        RoutedBatch {
            delivery,
            results: vec![DeleteResult::Refused("not sent".to_string()); keys.len()],
            without_route: vec![0; keys.len()],
            keys,
            routers: delivery.in_order(),
            sent: Vec::new(),
            waiting_for: Vec::new(),
            late: Vec::new(),
            refused: None,
            is_answered: false,
            is_rerouted: false,
        }
    }

    pub async fn run(mut self) -> Vec<DeleteResult> {
        self.send_to_next();
        let mut is_timed = true;
        while !self.sent.is_empty() {
            tokio::select! {
                biased;
                (answer, at, _) = select_all(self.sent.iter_mut()) => {
                    drop(self.sent.swap_remove(at));
                    self.waiting_for.swap_remove(at);
                    self.record_outcomes(answer);
                    if self.results.iter().all(DeleteResult::is_final) {
                        break;
                    }
                    is_timed = true;
                }
                () = sleep(self.delivery.hedge_delay), if is_timed => {
                    let why = no_answer(self.delivery.hedge_delay);
                    self.waiting_for.iter().for_each(|&router| self.delivery.record_failure(router, &why));
                    self.late.extend(&self.waiting_for);
                    is_timed = self.send_to_next();
                    self.delivery.statistics.hedged_batches.add(u64::from(is_timed));
                    if self.is_answered && !is_timed {
                        break;
                    }
                }
            }
        }
        if !self.is_answered {
            self.delivery.record_unanswered();
        }
        self.results
    }

    /// Sends the keys that are not acknowledged to the next router. False if every router has had them.
    fn send_to_next(&mut self) -> bool {
        let has_next = !self.routers.is_empty();
        if has_next {
            self.send_to(0, self.unfinished());
        }
        has_next
    }

    /// The positions of the keys that are not acknowledged.
    fn unfinished(&self) -> Vec<usize> {
        (0..self.keys.len()).filter(|&index| !self.results[index].is_final()).collect()
    }

    /// Sends the keys at `indices` to the router at that position of `routers`.
    fn send_to(&mut self, position: usize, indices: Vec<usize>) {
        let router = self.routers.remove(position);
        let batch: Batch = indices.iter().map(|&index| delete_request(self.keys[index].clone())).collect();
        let bytes = batch.iter().map(|delete| delete.key.len() + DELETE_BYTES).sum();
        self.delivery.statistics.record_sent(batch.len(), bytes);
        let unanswered = self.delivery.router(router).count_unanswered();
        let sending = self.delivery.router(router).delete(batch);
        self.waiting_for.push(router);
        self.sent.push(Box::pin(async move {
            let outcomes = sending.await;
            drop(unanswered);
            assert_eq!(outcomes.len(), indices.len(), "a destination returns one outcome per request");
            RouterOutcomes { router, indices, outcomes }
        }));
    }

    /// Records what a router made of the batch, and sends the rest to another one.
    fn record_outcomes(&mut self, answer: RouterOutcomes) {
        let RouterOutcomes { router, indices, outcomes } = answer;
        let failure: Option<Failure> = outcomes.iter().find_map(|outcome| outcome.as_ref().err().cloned());
        if outcomes.iter().any(Result::is_ok) {
            self.is_answered = true;
            self.delivery.record_answer(router);
        }
        let address = self.delivery.router(router).address();
        let (mut refused, mut has_unrouted) = (Vec::new(), false);
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            if self.results[index].is_final() {
                continue;
            }
            let is_reply = outcome.is_ok();
            self.results[index] = match delete_result(outcome, address) {
                DeleteResult::Unroutable(why) => {
                    self.without_route[index] += 1;
                    match self.without_route[index] == self.delivery.router_count() {
                        true => DeleteResult::Unroutable(why),
                        false => {
                            has_unrouted = true;
                            DeleteResult::Refused(format!("{why}; another router of the cluster may have one"))
                        }
                    }
                }
                refusal @ DeleteResult::Refused(_) => {
                    refused.extend(is_reply.then_some(index));
                    refusal
                }
                DeleteResult::Applied => DeleteResult::Applied,
            };
        }
        self.record_refusals(router);
        match failure {
            Some(failure) => {
                self.delivery.record_failure(router, reason(&failure));
                self.late.push(router);
                self.send_to_next();
            }
            None => {
                if refused.is_empty() {
                    self.record_late(router);
                }
                if has_unrouted || !refused.is_empty() {
                    self.reroute(refused.len());
                }
            }
        }
        if !refused.is_empty() {
            self.refused.get_or_insert((router, refused));
        }
    }

    /// Records what another router refused and `router` has applied.
    fn record_refusals(&mut self, router: usize) {
        let Some((refusing, refused)) = &mut self.refused else { return };
        let before = refused.len();
        refused.retain(|&index| self.results[index] != DeleteResult::Applied);
        let applied = before - refused.len();
        if applied > 0 {
            self.delivery.record_refusals(*refusing, router, applied.try_into().unwrap_or(u32::MAX));
        }
    }

    /// Records that `router` answered the batch and others did not, unless it is late, too: then a server hangs.
    fn record_late(&self, router: usize) {
        if !self.late.contains(&router) {
            self.late.iter().for_each(|&late| self.delivery.record_late(late, router));
        }
    }

    /// Sends keys to another router that answers, unless one has them already: those without a route, and, once, those
    /// that were refused, which are `refused` in number.
    fn reroute(&mut self, refused: usize) {
        if !self.sent.is_empty() {
            return;
        }
        let mut indices = self.unfinished();
        if self.is_rerouted {
            indices.retain(|&index| self.without_route[index] > 0);
        }
        if indices.is_empty() {
            return;
        }
        if let Some(position) = self.delivery.next_for_reroute(&self.routers) {
            if refused > 0 && !self.is_rerouted {
                self.is_rerouted = true;
                self.delivery.statistics.rerouted.add(refused as u64);
            }
            self.send_to(position, indices);
        }
    }
}

/// Without a hold-off: the routers of a cluster that warms up add one themselves (§4.3).
fn delete_request(key: Bytes) -> Request<Bytes> {
    Request { key, operation: Operation::Delete { hold_off_ms: 0 } }
}

fn delete_result(outcome: Outcome, router: &Address) -> DeleteResult {
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => DeleteResult::Applied,
        Ok(Reply::Error(ErrorReply::Server(why))) if is_no_route(&why) => {
            DeleteResult::Unroutable(format!("router {router}: {}", String::from_utf8_lossy(&why)))
        }
        Ok(Reply::Error(error)) => DeleteResult::Refused(format!("router {router} refused: {error}")),
        Ok(other) => DeleteResult::Refused(format!("router {router}: unexpected reply to a delete: {other:?}")),
        Err(failure) => DeleteResult::Refused(format!("router {router}: {}", reason(&failure))),
    }
}
