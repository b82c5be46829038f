//! A pool: servers that share one key space (§3.2.2 of the paper).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the one server of the pool that the key's hash picks |
//!
//! No server of a pool stands in for another: a dead server's keys fail until a failover route above sends them to
//! the gutter (§3.3: rehashing them onto the neighbours would let one hot key fell server after server).

use crate::{
    Batch, BoxFuture, Context, Destination, KeyHash, Outcomes, Route,
    cluster::{destination_route::DestinationRoute, hash_route::HashRoute},
};
use std::sync::Arc;

/// Spreads keys over the servers of a pool.
pub struct PoolRoute {
    servers: HashRoute,
}

impl PoolRoute {
    /// A pool of `servers` in the order of the configuration: the order is part of the hash.
    ///
    /// # Panics
    /// As [`HashRoute::new`].
    pub fn new(servers: Vec<Arc<dyn Destination>>, keep_routing_prefix: bool, hash: KeyHash) -> Self {
        let leaf = |server| Arc::new(DestinationRoute::new(server, keep_routing_prefix)) as Arc<dyn Route>;
        Self::over(servers.into_iter().map(leaf).collect(), hash)
    }

    /// A pool over leaves that exist already.
    ///
    /// # Panics
    /// As [`HashRoute::new`].
    pub fn over(leaves: Vec<Arc<dyn Route>>, hash: KeyHash) -> Self {
        PoolRoute { servers: HashRoute::new(leaves, hash) }
    }
}

impl Route for PoolRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.servers.route(batch, context)
    }
}
