//! A pool with failover within itself: if a server fails, the key's next server of the same pool is asked.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server that the pool's hash picks; after a failure as `failover_route.rs`, to the next by key |
//!
//! It is a `FailoverRoute` over the pool and, behind it, each of the pool's servers.
//!
//! The paper warns of this (§3.3): a hot key that overloaded one server overloads the next. Here each key fails over to
//! a few servers of its own (`failover_policy.rs`); still, set a `failover_limit`. When the first server is back,
//! deletes no longer reach the values on other servers: put a `ModifyExptimeRoute` above, or use the route for data
//! that may be stale for a while.

use crate::{
    FailoverRoute, KeyHash, Route,
    cluster::{
        pool_route::{PoolRoute, PoolRouteConfig, build_entries, of_empty_pool},
        shadow_route::{Shadow, parse_shadows},
        support::failover_options::{FAILOVER_KEYS, FailoverOptions, FailoverOrder},
    },
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, Pool, PoolEntries, RouteConfig, RouteType, TreeBuilder,
        parse_pool_hash,
    },
};
use std::sync::Arc;

pub(crate) const TYPE: RouteType = RouteType::new("SaltedFailoverRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    entries: PoolEntries,
    hash: KeyHash,
    shadows: Vec<Shadow>,
    options: FailoverOptions,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "pool", "hash", "shadows"]).and(FAILOVER_KEYS))?;
    let (entries, node) = parser.pool_of_route(object)?;
    if let Some(empty) = of_empty_pool(&entries.pool) {
        node.warn(format!("pool {:?} has no servers", entries.pool.name));
        return Ok(empty);
    }
    let hash = parse_pool_hash(object.get("hash"), &entries.pool, &node)?;
    let mut children = vec![Handle::route(PoolRouteConfig::new(entries.clone(), hash.clone()))];
    children.extend(entries.handles());
    let mut options = FailoverOptions::parse(object, &children, parser)?;
    match (&options.order, object.get("failover_policy")) {
        (FailoverOrder::ByKey { .. } | FailoverOrder::Rendezvous { .. }, _) => {}
        (_, None) => {
            let FailoverOptions { order, children_max, .. } = FailoverOptions::within_pool(&children[0]);
            options = FailoverOptions { order, children_max, ..options };
        }
        (_, Some(node)) => {
            return Err(node.error(
                "within a pool the next server is chosen by key: expected DeterministicOrderPolicy or RendezvousPolicy",
            ));
        }
    }
    let shadows = parse_shadows(object, parser);
    Ok(Handle::route(Config { entries, hash, shadows, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "failover".to_owned()
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        Some(&self.entries.pool)
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let routes = build_entries(&self.entries, &self.shadows, None, tree);
        let pool = Arc::new(PoolRoute::from_routes(routes.clone(), self.hash.clone())) as Arc<dyn Route>;
        let children = std::iter::once(pool).chain(routes).collect();
        Arc::new(FailoverRoute::with_options(children, &self.options, tree.environment()))
    }
}
