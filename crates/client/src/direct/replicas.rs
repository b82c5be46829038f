//! Reads of another replica, for lookups that are late ([`Client::with_hedging`](crate::Client::with_hedging)). They
//! are sent to servers directly or not at all, and take no leases: a miss at a replica decides nothing. Where a part of
//! the configuration is read through routers, no replica is read.

use super::permission::{DirectState, Permission};
use super::tree::is_read;
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcomes, Route};
use std::sync::Arc;

/// The reason of the failure of a request while no permit is valid, and of one that does not read.
const NOT_READ: &str = "a replica is read for hedging only, while a router permits it";

pub(super) struct ReplicaReads(pub(super) Arc<DirectState>);

impl Route for ReplicaReads {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let may_read = |permission: &Permission| batch.iter().all(is_read) && !permission.tree.fills_by_router;
        match self.0.permission().filter(may_read) {
            Some(Permission { tree, .. }) => {
                self.0.settings.counters.direct_reads.add(batch.len() as u64);
                Box::pin(async move { tree.route(batch, context).await })
            }
            None => Box::pin(std::future::ready(vec![Err(Failure::NoRoute(NOT_READ.into())); batch.len()])),
        }
    }
}
