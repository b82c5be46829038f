//! Sends deletes to a cluster through one of its routers, and through the next one when that fails (§4.1: batches go
//! "to a set of dedicated servers running mcrouter instances in each frontend cluster").
//!
//! | reply of a router | result |
//! |---|---|
//! | `DELETED`, `NOT_FOUND` | applied: most deletes find nothing (§4.1 of the paper: 4 % find something) |
//! | `SERVER_ERROR no route: ...` | unroutable: a key like `/api/v1/users` has an unknown routing prefix |
//! | any other reply, or none | refused: send it again |
//!
//! A lost reply does no harm, as deletes are idempotent. An unroutable key needs no retry, since nothing can be cached
//! under it through that router either. But a router that has no route for *deletes* only refuses the key: other
//! operations may reach it.
//!
//! Not here: delays and retries. Keys that failed at every router go back to the pipeline.

use bytes::Bytes;
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::{ErrorReply, Operation, Reply, Request, text};
use lookaside_routing::{Batch, BoxFuture, Destination, NO_POLICY, NO_ROUTE, Outcome};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// How long a router may take to flush its cluster.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest reply to a flush.
const FLUSH_LIMITS: text::Limits = text::Limits { value_bytes_max: 0, line_bytes_max: 1024 };

/// Why a delete or a flush may not have been applied.
pub type Refusal = String;

/// The result of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteResult {
    /// The key is gone.
    Applied,
    /// The cluster's routers have no route for this key. Carries their error message. Needs no retry.
    Unroutable(String),
    /// It may not have been applied: send it again.
    Refused(Refusal),
}

impl DeleteResult {
    /// Whether the delete needs no retry.
    pub fn is_final(&self) -> bool {
        !matches!(self, DeleteResult::Refused(_))
    }
}

/// Delivers deletes to one cluster.
pub trait Delivery: Send + Sync {
    /// Deletes `keys`. Returns one result per key, in order.
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>>;

    /// Flushes the whole cluster after deletes were lost. Its routers need `--enable-flush-cmd`.
    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// Delivery through the routers of a cluster, one at a time.
pub struct RouterDelivery {
    routers: Vec<Arc<dyn Destination>>,
    network: Arc<dyn Network>,
    /// The router to try first: the last one that replied to a whole batch.
    preferred: AtomicUsize,
}

impl RouterDelivery {
    /// Delivers through `routers`, at least one. `network` reaches the same addresses.
    pub fn new(routers: Vec<Arc<dyn Destination>>, network: Arc<dyn Network>) -> RouterDelivery {
        assert!(!routers.is_empty(), "a cluster has a router");
        RouterDelivery { routers, network, preferred: AtomicUsize::new(0) }
    }

    /// Every router once, the preferred one first.
    fn preferred_first(&self) -> impl Iterator<Item = (usize, &Arc<dyn Destination>)> {
        let first = self.preferred.load(Ordering::Relaxed);
        (0..self.routers.len()).map(move |step| (first + step) % self.routers.len()).map(|at| (at, &self.routers[at]))
    }

    async fn flush_through(&self, router: &Arc<dyn Destination>) -> Result<(), CommandError> {
        let mut connection =
            CommandConnection::connect(&*self.network, router.address(), FLUSH_LIMITS, FLUSH_TIMEOUT).await?;
        connection.flush_all(None).await
    }
}

impl Delivery for RouterDelivery {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(async move {
            let mut results: Vec<DeleteResult> = vec![DeleteResult::Refused("not sent".to_string()); keys.len()];
            let mut unacknowledged: Vec<usize> = (0..keys.len()).collect();
            for (at, router) in self.preferred_first() {
                let batch: Batch = unacknowledged.iter().map(|&index| delete_request(keys[index].clone())).collect();
                let outcomes = router.send(batch).await;
                assert_eq!(outcomes.len(), unacknowledged.len(), "a destination returns one outcome per request");
                let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
                unacknowledged = unacknowledged
                    .into_iter()
                    .zip(outcomes)
                    .filter_map(|(index, outcome)| {
                        results[index] = delete_result(outcome, router);
                        (!results[index].is_final()).then_some(index)
                    })
                    .collect();
                if failed == 0 {
                    self.preferred.store(at, Ordering::Relaxed);
                }
                // An error reply comes from the cluster, so another router would give the same one.
                if unacknowledged.is_empty() || failed == 0 {
                    break;
                }
            }
            results
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let mut refusal = String::new();
            for (_, router) in self.preferred_first() {
                match self.flush_through(router).await {
                    Ok(()) => return Ok(()),
                    Err(why) => refusal = format!("router {}: flush_all: {why}", router.address()),
                }
            }
            Err(refusal)
        })
    }
}

/// Without a hold-off: the routers of a cluster that warms up add one themselves (§4.3).
fn delete_request(key: Bytes) -> Request<Bytes> {
    Request { key, operation: Operation::Delete { hold_off_ms: 0 } }
}

fn delete_result(outcome: Outcome, router: &Arc<dyn Destination>) -> DeleteResult {
    let router = router.address();
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => DeleteResult::Applied,
        Ok(Reply::Error(ErrorReply::Server(why))) if is_no_route(&why) => {
            DeleteResult::Unroutable(format!("router {router}: {}", String::from_utf8_lossy(&why)))
        }
        Ok(Reply::Error(error)) => DeleteResult::Refused(format!("router {router} refused: {error}")),
        Ok(other) => DeleteResult::Refused(format!("router {router}: unexpected reply to a delete: {other:?}")),
        Err(failure) => DeleteResult::Refused(format!("router {router}: {failure}")),
    }
}

/// Whether an error message of a router means that no operation reaches the key.
fn is_no_route(why: &[u8]) -> bool {
    why.strip_prefix(NO_ROUTE.as_bytes()).is_some_and(|why| !why.starts_with(NO_POLICY.as_bytes()))
}
