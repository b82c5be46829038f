//! The entries of a pool's `servers`: servers, and routes among them.
//!
//! ```text
//!   "servers": ["cache1:11211", {"type": "PoolRoute", "pool": "big"}, "cache2:11211"]
//! ```
//!
//! The pool's hash picks an entry. Weights, tags and failure domains count all entries; everything else of the pool is
//! about its servers.

use super::{
    handle::{Handle, TreeBuilder},
    pool::Pool,
};
use crate::Route;
use std::sync::Arc;

/// The servers of a pool and the routes among them, in the order of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolEntries {
    /// The pool.
    pub pool: Arc<Pool>,
    /// One for each of [`Pool::routes_at`].
    routes: Vec<Handle>,
}

impl PoolEntries {
    pub(super) fn new(pool: Arc<Pool>, routes: Vec<Handle>) -> PoolEntries {
        debug_assert_eq!(pool.routes_at.len(), routes.len());
        PoolEntries { pool, routes }
    }

    /// The entries as children of another route.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let server = |server| Handle::Server { pool: self.pool.clone(), server };
        let route = |(&entry, route): (&usize, &Handle)| {
            let route = Box::new(route.clone());
            Handle::PoolEntry { pool: self.pool.clone(), entry, route }
        };
        let routes = self.pool.routes_at.iter().zip(&self.routes).map(route);
        self.in_order((0..self.pool.servers.len()).map(server).collect(), routes)
    }

    pub(crate) fn build(&self, tree: &mut dyn TreeBuilder) -> Vec<Arc<dyn Route>> {
        let servers = tree.build_servers(&self.pool);
        self.in_order(servers, tree.build_all(&self.routes).into_iter())
    }

    /// Whether the pool has routes among its servers.
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    fn in_order<T>(&self, servers: Vec<T>, routes: impl Iterator<Item = T>) -> Vec<T> {
        let mut entries = servers;
        for (&at, route) in self.pool.routes_at.iter().zip(routes) {
            entries.insert(at, route);
        }
        entries
    }
}
