//! Sends deletes to a cluster through its routers (§4.1: batches go "to a set of dedicated servers running mcrouter
//! instances in each frontend cluster").
//!
//! ```text
//! batch.rs     one batch: sent to a router, and to another one if that does not answer or refuses
//! routers.rs   the routers of a cluster, side by side: which one is asked first, and which one next
//! router.rs    one router: whether it answers, and its probes
//! demotion.rs  whether it is asked after the others, as it does not apply what they apply
//! flush.rs     flushes among the deletes
//! connect.rs   the connections to the routers
//! config_check.rs  whether the routers have the same configuration
//! ```
//!
//! Not here: delays and retries. Keys that no router has acknowledged go back to the pipeline.

mod batch;
pub mod config_check;
mod connect;
mod demotion;
mod flush;
mod router;
mod routers;

pub use connect::connect_routers;
pub use router::RouterConnections;
pub use routers::{HEDGE_DELAY, RouterDelivery};

use bytes::Bytes;
use lookaside_routing::BoxFuture;
use std::future::{pending, ready};

/// Why a delete or a flush may not have been applied.
pub type Refusal = String;

/// The result of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteResult {
    /// The key is gone.
    Applied,
    /// None of the cluster's routers has a route for this key. Carries the error message of the last one that was
    /// asked. Needs no retry.
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

/// A router that serves no gets before it knows that the cluster has no pending deletes (`--wait-for-invalidator`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRouter {
    /// Its index among the cluster's routers.
    pub(super) index: usize,
    /// Identifies its present run.
    pub(super) token: String,
}

/// Delivers deletes to one cluster.
pub trait Delivery: Send + Sync {
    /// Deletes `keys`. Returns one result per key, in order. A [`Flush`](crate::keys::Flush) may stand among them.
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>>;

    /// Flushes the whole cluster after deletes were lost. Its routers need `--enable-flush-cmd`.
    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>>;

    /// Watches the cluster's routers for as long as it is polled. Never resolves.
    fn watch_routers(&self) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }

    /// Whether any router of the cluster answers. While none does, nothing can be delivered.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Resolves when a router answers again after no router had answered a batch: refused deletes need wait no longer.
    /// May be dropped and called again; has one caller.
    fn recovered(&self) -> BoxFuture<'_, ()> {
        Box::pin(pending())
    }

    /// The next router that waits until the cluster is up to date. It is returned once, until
    /// [`Delivery::announce_again`]. May be dropped and called again; has one caller.
    fn waiting_router(&self) -> BoxFuture<'_, WaitingRouter> {
        Box::pin(pending())
    }

    /// Tells a router that everything that was committed before it began to wait has been deleted.
    fn report_caught_up(&self, router: WaitingRouter) -> BoxFuture<'_, ()> {
        let _ = router;
        Box::pin(ready(()))
    }

    /// Returns `router` from [`Delivery::waiting_router`] again, if it still waits.
    fn announce_again(&self, router: &WaitingRouter) {
        let _ = router;
    }
}
