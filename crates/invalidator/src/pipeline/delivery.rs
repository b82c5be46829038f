//! How deletes reach a cluster: through one of its routers, the next one when that fails (§4.1: batches go "to a set
//! of dedicated servers running mcrouter instances in each frontend cluster").
//!
//! | a router said | verdict |
//! |---|---|
//! | `DELETED`, `NOT_FOUND` | applied: most deletes find nothing (§4.1 of the paper: 4 % find something) |
//! | `SERVER_ERROR no route: ...` | unroutable: a key like `/api/v1/users` names a tree that the router does not have |
//! | anything else, or nothing | refused: a reason to send it again |
//!
//! That an answer got lost does no harm: deletes are idempotent. An unroutable key is done with, since nothing can be
//! cached under it through that router either. But a router that knows no way for *deletes* is refused: other
//! operations may reach the key.
//!
//! Absent on purpose: waiting and trying again. What failed at every router goes back to the pipeline.

use bytes::Bytes;
use lookaside_client::Network;
use lookaside_protocol::{ErrorReply, Operation, Reply, Request};
use lookaside_routing::{Batch, BoxFuture, Destination, NO_POLICY, NO_ROUTE, Outcome};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a router may take to flush its cluster.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest line that can answer a flush.
const FLUSH_ANSWER_BYTES_MAX: usize = 1024;

/// Why a delete, or a flush, is not known to be applied.
pub type Refusal = String;

/// What became of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The key is gone.
    Applied,
    /// The cluster's routers lead nowhere for this key, in their words: nothing to delete, and nothing to try again.
    Unroutable(String),
    /// It is not known to be applied: to be sent again.
    Refused(Refusal),
}

impl Verdict {
    /// Whether the delete need not be sent again.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Verdict::Refused(_))
    }
}

/// A way to one cluster.
pub trait Delivery: Send + Sync {
    /// Deletes `keys`: for each, in order, what became of it.
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Verdict>>;

    /// Empties the whole cluster, for when deletes have been lost. Routers do that only if they were told to.
    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// Delivery through the routers of a cluster, one at a time.
pub struct Routers {
    routers: Vec<Arc<dyn Destination>>,
    network: Arc<dyn Network>,
    /// Which router is asked first: the one that answered last.
    preferred: AtomicUsize,
}

impl Routers {
    /// Through `routers`, at least one; `network` reaches the same addresses.
    pub fn new(routers: Vec<Arc<dyn Destination>>, network: Arc<dyn Network>) -> Routers {
        assert!(!routers.is_empty(), "a cluster has a router");
        Routers { routers, network, preferred: AtomicUsize::new(0) }
    }

    /// Every router once, the preferred one first.
    fn in_turn(&self) -> impl Iterator<Item = (usize, &Arc<dyn Destination>)> {
        let first = self.preferred.load(Ordering::Relaxed);
        (0..self.routers.len()).map(move |step| (first + step) % self.routers.len()).map(|at| (at, &self.routers[at]))
    }

    async fn delete_through_any(&self, keys: Vec<Bytes>) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> = vec![Verdict::Refused("not sent".to_string()); keys.len()];
        let mut left: Vec<usize> = (0..keys.len()).collect();
        for (at, router) in self.in_turn() {
            let batch: Batch = left.iter().map(|&index| delete(keys[index].clone())).collect();
            let outcomes = router.send(batch).await;
            assert_eq!(outcomes.len(), left.len(), "a destination gives one outcome a request");
            let unanswered = outcomes.iter().filter(|outcome| outcome.is_err()).count();
            left = left
                .into_iter()
                .zip(outcomes)
                .filter_map(|(index, outcome)| {
                    verdicts[index] = verdict(outcome, router);
                    (!verdicts[index].is_settled()).then_some(index)
                })
                .collect();
            if unanswered == 0 {
                self.preferred.store(at, Ordering::Relaxed);
            }
            // A router that answers for itself speaks for its cluster: another would say the same.
            if left.is_empty() || unanswered == 0 {
                break;
            }
        }
        verdicts
    }

    async fn flush_through(&self, router: &Arc<dyn Destination>) -> io::Result<()> {
        let mut stream = self.network.connect(router.address()).await?;
        stream.write_all(b"flush_all\r\n").await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") && answer.len() < FLUSH_ANSWER_BYTES_MAX {
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        match answer.as_slice() {
            b"OK\r\n" => Ok(()),
            other => Err(io::Error::other(String::from_utf8_lossy(other).trim_end().to_string())),
        }
    }
}

impl Delivery for Routers {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Verdict>> {
        Box::pin(self.delete_through_any(keys))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move {
            let mut refusal = String::new();
            for (_, router) in self.in_turn() {
                match tokio::time::timeout(FLUSH_TIMEOUT, self.flush_through(router)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(why)) => refusal = format!("router {}: flush_all: {why}", router.address()),
                    Err(_) => refusal = format!("router {}: flush_all: no answer in time", router.address()),
                }
            }
            Err(refusal)
        })
    }
}

/// No hold-off: the routers of a cluster that is warmed up add one themselves (§4.3).
fn delete(key: Bytes) -> Request<Bytes> {
    Request { key, operation: Operation::Delete { hold_off_ms: 0 } }
}

fn verdict(outcome: Outcome, router: &Arc<dyn Destination>) -> Verdict {
    let router = router.address();
    match outcome {
        Ok(Reply::Deleted | Reply::NotFound) => Verdict::Applied,
        Ok(Reply::Error(ErrorReply::Server(why))) if leads_nowhere(&why) => {
            Verdict::Unroutable(format!("router {router} says: {}", String::from_utf8_lossy(&why)))
        }
        Ok(Reply::Error(error)) => {
            let why = match &error {
                ErrorReply::Unknown => "ERROR".into(),
                ErrorReply::Client(why) | ErrorReply::Server(why) => String::from_utf8_lossy(why),
            };
            Verdict::Refused(format!("router {router} refused: {why}"))
        }
        Ok(other) => Verdict::Refused(format!("router {router} answered a delete with {other:?}")),
        Err(failure) => Verdict::Refused(format!("router {router}: {failure}")),
    }
}

/// Whether a router's words mean that no operation reaches the key.
fn leads_nowhere(why: &[u8]) -> bool {
    why.strip_prefix(NO_ROUTE.as_bytes()).is_some_and(|why| !why.starts_with(NO_POLICY.as_bytes()))
}
