//! A pool with failover within itself: if a server fails, the key's next server of the same pool is asked.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server that the pool's hash picks; after a failure as `failover_route.rs`, to the next by key |
//!
//! The paper warns of this (§3.3): a hot key that overloaded one server overloads the next. Here each key fails over to
//! a few servers of its own (`failover_policy.rs`); still, set a `failover_limit`. When the first server is back,
//! deletes no longer reach the values on other servers: put a `ModifyExptimeRoute` above, or use the route for data
//! that may be stale for a while.

use crate::{
    Batch, BoxFuture, Context, FailoverRoute, KeyHash, Outcomes, Route,
    cluster::{
        pool_route::build_servers,
        shadow_route::{Shadow, parse_optional_shadows},
        support::failover_options::{FAILOVER_KEYS, FailoverOptions, FailoverOrder},
    },
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, Pool, RouteConfig, RouteType, TreeBuilder, parse_pool_hash,
    },
};
use std::sync::Arc;

/// A pool with failover within itself.
pub struct SaltedFailoverRoute {
    inner: FailoverRoute,
}

impl SaltedFailoverRoute {
    /// Wraps a failover over the servers of a pool, with a policy of [`crate::FailoverPolicy::within_pool`].
    pub fn from_failover(inner: FailoverRoute) -> Self {
        SaltedFailoverRoute { inner }
    }
}

impl Route for SaltedFailoverRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("SaltedFailoverRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    pool: Arc<Pool>,
    hash: KeyHash,
    shadows: Vec<Shadow>,
    options: FailoverOptions,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "pool", "hash", "shadows"]).and(FAILOVER_KEYS))?;
    let (pool, node) = parser.pool_of_route(object)?;
    let hash = parse_pool_hash(object.get("hash"), &pool, &node)?;
    let mut options = FailoverOptions::parse(object, &Handle::servers_of(&pool))?;
    match &options.order {
        FailoverOrder::ByKey { .. } => {}
        FailoverOrder::InOrder if object.get("failover_policy").is_none() => {
            options.order = FailoverOrder::ByKey { hash: KeyHash::default(), domains: Vec::new() };
        }
        _ => {
            let node = object.get("failover_policy").unwrap_or_else(|| object.node.clone());
            return Err(node.error("within a pool the next server is chosen by key: expected DeterministicOrderPolicy"));
        }
    }
    let shadows = parse_optional_shadows(object, parser)?;
    Ok(Handle::route(Config { pool, hash, shadows, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        Some(&self.pool)
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let servers = build_servers(&self.pool, &self.shadows, None, tree);
        Arc::new(SaltedFailoverRoute::from_failover(FailoverRoute::with_options(
            servers,
            Some(&self.hash),
            &self.options,
            tree.environment(),
        )))
    }
}
