//! Which router of a cluster gets a batch of deletes. One that does not answer is hedged: the next router gets the
//! batch too, and the first answer counts.
//!
//! ```text
//! 0 ms     batch --> router 1                                    hung
//! 200 ms   batch ---------------> router 2 --> acknowledged      router 1 is suspect: later batches begin with router 2
//! ```
//!
//! | reply of a router | result |
//! |---|---|
//! | `DELETED`, `NOT_FOUND` | applied: most deletes find nothing (§4.1 of the paper: 4 % find something) |
//! | `SERVER_ERROR no route: ...` | unroutable: a key like `/api/v1/users` has an unknown routing prefix |
//! | any other reply, or none | refused: send it again |
//!
//! A delete that two routers apply, or whose reply is lost, does no harm, as deletes are idempotent. An acknowledgement
//! by either router means the same: the servers have applied the delete or, with `--spool-peers`, no router of the
//! cluster reads a server that has not (ADR 009). A router that cannot inform a hung peer refuses the delete, which is
//! then sent again. So the acknowledgement of one router never hides what another one still has to do.
//!
//! An unroutable key needs no retry, since nothing can be cached under it through that router either. But a router that
//! has no route for *deletes* only refuses the key: other operations may reach it.
//!
//! Invariants:
//! * A batch goes to each router at most once. Batches that are hedged are counted.
//! * After an answer nothing of a batch is waited for. A destination still holds the copy for a hung router until its
//!   timeout; it refuses requests beyond its own bound, and a suspect router gets no further batches while another one
//!   answers.

use super::{
    DeleteResult, Delivery, Refusal, WaitingRouter,
    router::{Router, RouterConnections, no_answer, reason},
};
use crate::observe::stats::ClusterStatistics;
use bytes::Bytes;
use futures_util::future::{join_all, select_all};
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request, text};
use lookaside_routing::{Address, Batch, BoxFuture, Failure, NO_POLICY, NO_ROUTE, Outcome, Outcomes};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
    vec,
};
use tokio::{sync::Notify, time::sleep};

/// How long a router may take to flush its cluster.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest reply to a flush.
const FLUSH_LIMITS: text::Limits = text::Limits { value_bytes_max: 0, line_bytes_max: 1024 };

/// How long a router may leave a batch unanswered until another one gets it too, unless an option says otherwise.
pub const HEDGE_DELAY: Duration = Duration::from_millis(200);

/// Delivery through the routers of a cluster.
pub struct RouterDelivery {
    routers: Vec<Router>,
    network: Arc<dyn Network>,
    statistics: Arc<ClusterStatistics>,
    hedge_delay: Duration,
    /// The router to try first among those that answer: the last one that replied to a whole batch.
    preferred: AtomicUsize,
    /// Whether a batch had no answer from any router, and no router has answered since.
    is_unanswered: AtomicBool,
    recovered: Notify,
    /// Notified when a router waits at its start gate and that is not announced.
    has_waiting: Notify,
}

impl RouterDelivery {
    /// Delivers through `routers`, at least one. `network` reaches the same addresses.
    pub fn new(
        routers: Vec<RouterConnections>,
        network: Arc<dyn Network>,
        statistics: Arc<ClusterStatistics>,
    ) -> RouterDelivery {
        assert!(!routers.is_empty(), "a cluster has a router");
        RouterDelivery {
            routers: routers.into_iter().map(Router::new).collect(),
            network,
            statistics,
            hedge_delay: HEDGE_DELAY,
            preferred: AtomicUsize::new(0),
            is_unanswered: AtomicBool::new(false),
            recovered: Notify::new(),
            has_waiting: Notify::new(),
        }
    }

    /// Sends a batch to another router too when one does not answer within `hedge_delay`.
    pub fn with_hedge_delay(self, hedge_delay: Duration) -> RouterDelivery {
        RouterDelivery { hedge_delay, ..self }
    }

    /// Every router once: those that answer before suspect ones, the preferred one first.
    fn in_order(&self) -> Vec<usize> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut order: Vec<usize> = (0..self.routers.len()).map(|step| (first + step) % self.routers.len()).collect();
        order.sort_by_key(|&at| self.routers[at].is_suspect());
        order
    }

    /// Records that a router does not answer.
    fn record_failure(&self, at: usize, why: &str) {
        self.routers[at].record_failure(why, &self.statistics);
        self.count_suspects();
    }

    /// Records that a router has answered.
    fn record_answer(&self, at: usize) {
        self.routers[at].record_answer(&self.statistics);
        self.count_suspects();
        if self.is_unanswered.swap(false, Ordering::Relaxed) {
            self.recovered.notify_one();
        }
    }

    fn count_suspects(&self) {
        self.statistics.set_routers_suspect(self.routers.iter().filter(|router| router.is_suspect()).count());
    }

    async fn flush_through(&self, router: &Address) -> Result<(), CommandError> {
        let mut connection = CommandConnection::connect(&*self.network, router, FLUSH_LIMITS, FLUSH_TIMEOUT).await?;
        connection.flush_all(None).await
    }
}

impl Delivery for RouterDelivery {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(HedgedBatch::new(self, keys).run())
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let mut refusal = String::new();
            for at in self.in_order() {
                let router = self.routers[at].address();
                match self.flush_through(router).await {
                    Ok(()) => return Ok(()),
                    Err(why) => refusal = format!("router {router}: flush_all: {why}"),
                }
            }
            Err(refusal)
        })
    }

    fn watch_routers(&self) -> BoxFuture<'_, ()> {
        let probes = join_all(self.routers.iter().enumerate().map(|(at, router)| {
            let on_answer = move |is_waiting| {
                self.record_answer(at);
                if is_waiting {
                    self.has_waiting.notify_one();
                }
            };
            let on_failure = move |why: &str| self.record_failure(at, why);
            router.probe_repeatedly(self.hedge_delay, on_answer, on_failure)
        }));
        Box::pin(async move {
            probes.await;
        })
    }

    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.recovered.notified())
    }

    fn waiting_router(&self) -> BoxFuture<'_, WaitingRouter> {
        Box::pin(async move {
            loop {
                let announced = |(index, router): (usize, &Router)| Some((index, router.announce_waiting()?));
                if let Some((index, token)) = self.routers.iter().enumerate().find_map(announced) {
                    return WaitingRouter { index, token };
                }
                self.has_waiting.notified().await;
            }
        })
    }

    fn report_caught_up(&self, waiting: WaitingRouter) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let router = &self.routers[waiting.index];
            let (cluster, address) = (&self.statistics.name, router.address());
            if router.open_start_gate(&waiting.token).await {
                self.statistics.start_gates_opened.add(1);
                tracing::info!(cluster, router = %address, "notified a router that its cluster is up to date");
            } else {
                router.announce_again(&waiting.token);
            }
        })
    }

    fn announce_again(&self, waiting: &WaitingRouter) {
        self.routers[waiting.index].announce_again(&waiting.token);
    }
}

/// A batch on its way through one router, or several.
struct HedgedBatch<'a> {
    delivery: &'a RouterDelivery,
    keys: Vec<Bytes>,
    results: Vec<DeleteResult>,
    /// Routers that do not have the batch yet.
    routers: vec::IntoIter<usize>,
    /// Those that have it and have not answered.
    sent: Vec<BoxFuture<'a, RouterOutcomes>>,
    /// The routers of `sent`.
    waiting_for: Vec<usize>,
    is_answered: bool,
}

/// What a router made of a batch.
struct RouterOutcomes {
    router: usize,
    /// The positions of the keys in the batch.
    indices: Vec<usize>,
    outcomes: Outcomes,
}

impl<'a> HedgedBatch<'a> {
    fn new(delivery: &'a RouterDelivery, keys: Vec<Bytes>) -> HedgedBatch<'a> {
        HedgedBatch {
            delivery,
            results: vec![DeleteResult::Refused("not sent".to_string()); keys.len()],
            keys,
            routers: delivery.in_order().into_iter(),
            sent: Vec::new(),
            waiting_for: Vec::new(),
            is_answered: false,
        }
    }

    async fn run(mut self) -> Vec<DeleteResult> {
        self.send_to_next();
        let mut is_timed = true;
        while !self.sent.is_empty() {
            tokio::select! {
                biased;
                (answer, at, _) = select_all(self.sent.iter_mut()) => {
                    drop(self.sent.swap_remove(at));
                    self.waiting_for.swap_remove(at);
                    if self.record_outcomes(answer) {
                        break;
                    }
                    self.send_to_next();
                }
                () = sleep(self.delivery.hedge_delay), if is_timed => {
                    let why = no_answer(self.delivery.hedge_delay);
                    self.waiting_for.iter().for_each(|&router| self.delivery.record_failure(router, &why));
                    is_timed = self.send_to_next();
                    self.delivery.statistics.hedged_batches.add(u64::from(is_timed));
                }
            }
        }
        if !self.is_answered {
            self.delivery.is_unanswered.store(true, Ordering::Relaxed);
        }
        self.results
    }

    /// Sends the keys that are not acknowledged to the next router. False if every router has had them.
    fn send_to_next(&mut self) -> bool {
        let Some(router) = self.routers.next() else { return false };
        let indices: Vec<usize> = (0..self.keys.len()).filter(|&index| !self.results[index].is_final()).collect();
        let batch: Batch = indices.iter().map(|&index| delete_request(self.keys[index].clone())).collect();
        let sending = self.delivery.routers[router].delete(batch);
        self.waiting_for.push(router);
        self.sent.push(Box::pin(async move {
            let outcomes = sending.await;
            assert_eq!(outcomes.len(), indices.len(), "a destination returns one outcome per request");
            RouterOutcomes { router, indices, outcomes }
        }));
        true
    }

    /// Records what a router made of the batch. True if no other router can do better.
    fn record_outcomes(&mut self, answer: RouterOutcomes) -> bool {
        let RouterOutcomes { router, indices, outcomes } = answer;
        let failure: Option<Failure> = outcomes.iter().find_map(|outcome| outcome.as_ref().err().cloned());
        if outcomes.iter().any(Result::is_ok) {
            self.is_answered = true;
            self.delivery.record_answer(router);
        }
        let address = self.delivery.routers[router].address();
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            if !self.results[index].is_final() {
                self.results[index] = delete_result(outcome, address);
            }
        }
        match &failure {
            None => self.delivery.preferred.store(router, Ordering::Relaxed),
            Some(failure) => self.delivery.record_failure(router, reason(failure)),
        }
        // An error reply comes from the cluster, so another router would give the same one.
        failure.is_none() || self.results.iter().all(DeleteResult::is_final)
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

/// Whether an error message of a router means that no operation reaches the key.
fn is_no_route(why: &[u8]) -> bool {
    why.strip_prefix(NO_ROUTE.as_bytes()).is_some_and(|why| !why.starts_with(NO_POLICY.as_bytes()))
}
