//! A pool whose servers stand in for one another: where a server fails, the key's next server of the same pool is asked.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server that the pool's hash picks; after a failure as `failover_route.rs`, to the next by key |
//!
//! The paper warns of this (§3.3): a hot key that felled one server goes on to fell the next, which is why it has a gutter.
//! Here a key goes on to a few servers of its own (`failover_policy.rs`), not to a neighbour that inherits all keys; still,
//! give it a `failover_limit`. What a stand-in holds when the first server is back is not deleted with the key: put a
//! `ModifyExptimeRoute` above, or keep it for data that may be old for a while.

use crate::{Batch, BoxFuture, Context, FailoverRoute, Outcomes, Route};

/// A pool that fails over within itself.
pub struct SaltedFailoverRoute {
    inner: FailoverRoute,
}

impl SaltedFailoverRoute {
    /// Over the servers of a pool, with a policy of [`crate::FailoverPolicy::within_pool`].
    pub fn over(inner: FailoverRoute) -> Self {
        SaltedFailoverRoute { inner }
    }
}

impl Route for SaltedFailoverRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}
