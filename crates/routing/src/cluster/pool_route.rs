//! A pool: servers that share one key space (§3.2.2 of the paper).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the one server of the pool that the key's hash picks |
//!
//! No server of a pool takes over for another: the keys of a TKO server fail until a failover route above sends them
//! to the gutter (§3.3: rehashing them onto other servers would let one hot key overload server after server).

use crate::{
    Batch, BoxFuture, Context, Destination, KeyHash, Outcomes, Route,
    cluster::{
        destination_route::DestinationRoute,
        hash_route::HashRoute,
        outstanding_limit_route::{OUTSTANDING_WAITING_MAX, OutstandingLimitRoute, parse_outstanding_max},
        rate_limit_route::{limit_rates, parse_rates},
        shadow_route::{Shadow, ShadowRoute, parse_optional_shadows},
        slow_warm_up_route::{SlowWarmUp, SlowWarmUpRoute, parse_slow_warm_up},
    },
    configuration::{
        ConfigurationError, DestinationSettings, Handle, Keys, Object, Parser, Pool, RouteConfig, RouteType,
        TreeBuilder, parse_pool_hash,
    },
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
        Self::from_routes(servers.into_iter().map(leaf).collect(), hash)
    }

    /// A pool over existing routes to its servers.
    ///
    /// # Panics
    /// As [`HashRoute::new`].
    pub fn from_routes(leaves: Vec<Arc<dyn Route>>, hash: KeyHash) -> Self {
        PoolRoute { servers: HashRoute::new(leaves, hash) }
    }
}

impl Route for PoolRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.servers.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("PoolRoute", parse).with_short_form(|node, argument, parser| {
    let Some(name) = argument else { return Ok(None) };
    Ok(Some(Handle::route(PoolRouteConfig {
        pool: parser.pool(node, name)?,
        hash: KeyHash::default(),
        shadows: Vec::new(),
        outstanding_max: None,
        slow_warm_up: None,
    })))
});

/// The arguments of a [`PoolRoute`].
#[derive(Debug, PartialEq)]
pub struct PoolRouteConfig {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The hash that picks a server.
    pub hash: KeyHash,
    shadows: Vec<Shadow>,
    /// The window of each server.
    outstanding_max: Option<u32>,
    /// The target of gets while a server is cold, and when a server is cold.
    slow_warm_up: Option<(Handle, SlowWarmUp)>,
}

const KEYS: Keys =
    Keys::known(&["type", "name", "pool", "hash", "max_outstanding", "rates", "shadows", "slow_warmup", "asynclog"])
        .ignoring(&["asynclog_name", "shadow_policy"])
        .refusing(&["bucketize", "shard_splits", "split_shard_fanout"]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let (mut pool, node) = parser.pool_of_route(object)?;
    if let Some(node) = object.get("asynclog") {
        let settings = DestinationSettings { asynclog: node.boolean()?, ..pool.settings };
        pool = Arc::new(Pool { settings, ..Pool::clone(&pool) });
    }
    let hash = parse_pool_hash(object.get("hash"), &pool, &node)?;
    let shadows = parse_optional_shadows(object, parser)?;
    let outstanding_max = object.get("max_outstanding").map(|node| parse_outstanding_max(&node)).transpose()?;
    let slow_warm_up = object.get("slow_warmup").map(|node| parse_slow_warm_up(&node, parser)).transpose()?;
    let pool_route = Handle::route(PoolRouteConfig { pool, hash, shadows, outstanding_max, slow_warm_up });
    match object.get("rates") {
        None => Ok(pool_route),
        Some(node) => Ok(limit_rates(pool_route, parse_rates(&node)?)),
    }
}

impl RouteConfig for PoolRouteConfig {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        Some(&self.pool)
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let mut servers = build_servers(&self.pool, &self.shadows, self.outstanding_max, tree);
        if let Some((failover, settings)) = &self.slow_warm_up {
            servers = SlowWarmUpRoute::around_each(servers, failover, *settings, tree);
        }
        Arc::new(PoolRoute::from_routes(servers, self.hash.clone()))
    }
}

/// Builds the servers of a pool, each with its shadows around its window.
pub(crate) fn build_servers(
    pool: &Pool,
    shadows: &[Shadow],
    outstanding_max: Option<u32>,
    tree: &mut dyn TreeBuilder,
) -> Vec<Arc<dyn Route>> {
    let targets: Vec<Arc<dyn Route>> = shadows.iter().map(|shadow| tree.build(&shadow.target)).collect();
    let servers = tree.build_servers(pool).into_iter().enumerate().map(|(at, mut server)| {
        if let Some(window) = outstanding_max {
            server = Arc::new(OutstandingLimitRoute::new(server, window, OUTSTANDING_WAITING_MAX));
        }
        let of_server = shadows.iter().zip(&targets).filter(|(shadow, _)| shadow.is_of_server(at));
        let of_server: Vec<_> = of_server.map(|(shadow, target)| (target.clone(), shadow.keys)).collect();
        if !of_server.is_empty() {
            server = Arc::new(ShadowRoute::new(server, of_server, tree.environment().background.clone()));
        }
        server
    });
    servers.collect()
}
