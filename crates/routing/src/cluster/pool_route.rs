//! A pool: servers that share one key space (§3.2.2 of the paper).
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the one server of the pool, or the route among them, that the key's hash picks |
//!
//! No server of a pool takes over for another: the keys of a TKO server fail until a failover route above sends them
//! to the gutter (§3.3: rehashing them onto other servers would let one hot key overload server after server).

use crate::{
    Batch, BoxFuture, Context, Destination, KeyHash, Outcomes, Route,
    cluster::{
        destination_route::DestinationRoute,
        error_route::no_children,
        hash_route::{HashRoute, RouteHash},
        latest_route::{LatestOfPool, LatestOptions},
        load_balancer_route::{LoadBalancerOfPool, LoadBalancerOptions},
        null_route,
        outstanding_limit_route::{OUTSTANDING_WAITING_MAX, OutstandingLimitRoute, parse_outstanding_max},
        rate_limit_route::{limit_rates, parse_rates},
        shadow_route::{Shadow, add_shadows, parse_shadows},
        shard_split_route::split_shards,
        slow_warm_up_route::{SlowWarmUp, SlowWarmUpRoute, parse_slow_warm_up},
    },
    configuration::{
        ConfigurationError, DestinationSettings, Handle, Keys, Object, Parser, Pool, PoolEntries, RouteConfig,
        RouteType, TreeBuilder, parse_pool_hash,
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

    /// A pool over the routes of its entries.
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
    let entries = parser.pool(node, name)?;
    if let Some(empty) = of_empty_pool(&entries.pool) {
        return Ok(Some(empty));
    }
    let hash = parse_pool_hash(None, &entries.pool, node)?;
    Ok(Some(Handle::route(PoolRouteConfig::new(entries, hash))))
});

/// The route over a pool without servers and routes: an error, or an empty cache. `None` if it has some.
pub(crate) fn of_empty_pool(pool: &Pool) -> Option<Handle> {
    (pool.entry_count() == 0).then(|| match pool.error_on_empty {
        true => no_children(&pool.name),
        false => null_route::TYPE.handle_without_arguments(),
    })
}

/// The arguments of a [`PoolRoute`].
#[derive(Debug, PartialEq)]
pub struct PoolRouteConfig {
    /// The servers of the pool, and the routes among them.
    pub entries: PoolEntries,
    /// The hash that picks an entry.
    pub hash: KeyHash,
    layers: EntryLayers,
}

impl PoolRouteConfig {
    pub(crate) fn new(entries: PoolEntries, hash: KeyHash) -> Self {
        PoolRouteConfig { entries, hash, layers: EntryLayers::default() }
    }
}

/// The routes around each entry of a pool.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EntryLayers {
    shadows: Vec<Shadow>,
    /// The window of each entry.
    outstanding_max: Option<u32>,
    /// The target of gets while an entry is cold, and when one is cold.
    slow_warm_up: Option<(Handle, SlowWarmUp)>,
}

impl EntryLayers {
    fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<EntryLayers, ConfigurationError> {
        Ok(EntryLayers {
            shadows: parse_shadows(object, parser),
            outstanding_max: object.get("max_outstanding").map(|node| parse_outstanding_max(&node)).transpose()?,
            slow_warm_up: object.get("slow_warmup").map(|node| parse_slow_warm_up(&node, parser)).transpose()?,
        })
    }

    /// Builds the entries of a pool, each within its layers.
    pub(crate) fn build(&self, entries: &PoolEntries, tree: &mut dyn TreeBuilder) -> Vec<Arc<dyn Route>> {
        let routes = build_entries(entries, &self.shadows, self.outstanding_max, tree);
        match &self.slow_warm_up {
            Some((failover, settings)) => SlowWarmUpRoute::around_each(routes, failover, *settings, tree),
            None => routes,
        }
    }
}

const KEYS: Keys =
    Keys::known(&["type", "name", "pool", "hash", "max_outstanding", "rates", "shadows", "slow_warmup", "asynclog"])
        .and(&["bucketize", "shard_splits", "split_shard_fanout"])
        .ignoring(&["asynclog_name", "shadow_policy"]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let (mut entries, node) = parser.pool_of_route(object)?;
    if let Some(bucketize) = object.get("bucketize")
        && bucketize.boolean()?
    {
        return Err(bucketize.error("mcrouter's \"bucketize\" is not supported"));
    }
    if let Some(empty) = of_empty_pool(&entries.pool) {
        node.warn(format!("pool {:?} has no servers", entries.pool.name));
        return Ok(empty);
    }
    if let Some(node) = object.get("asynclog") {
        let settings = DestinationSettings { asynclog: node.boolean()?, ..entries.pool.settings };
        entries.pool = Arc::new(Pool { settings, ..Pool::clone(&entries.pool) });
    }
    let hash = object.get("hash");
    let pool_route = match hash.as_ref().map_or(Ok(None), RouteHash::parse)? {
        Some(RouteHash::Latest(hash)) => {
            let options = LatestOptions::parse(&hash, &entries.handles(), parser)?;
            Handle::route(LatestOfPool { layers: EntryLayers::parse(object, parser)?, entries, options })
        }
        Some(RouteHash::LoadBalancer(hash)) => {
            let options = LoadBalancerOptions::parse(&hash)?;
            let layers = EntryLayers::parse(object, parser)?;
            match options.is_only_a_hash() {
                true => Handle::route(PoolRouteConfig { hash: options.hash(), entries, layers }),
                false => Handle::route(LoadBalancerOfPool { entries, layers, options }),
            }
        }
        None => {
            let hash = parse_pool_hash(hash, &entries.pool, &node)?;
            Handle::route(PoolRouteConfig { hash, layers: EntryLayers::parse(object, parser)?, entries })
        }
    };
    let limited = match object.get("rates") {
        None => pool_route,
        Some(node) => limit_rates(pool_route, parse_rates(&node)?),
    };
    split_shards(limited, object, parser)
}

impl RouteConfig for PoolRouteConfig {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        Some(&self.entries.pool)
    }

    fn key_hash(&self) -> Option<(&KeyHash, usize)> {
        Some((&self.hash, self.entries.pool.entry_count()))
    }

    fn passes_reads(&self) -> bool {
        self.layers == EntryLayers::default()
    }

    /// From the spool of the pool to what stands around each of its entries.
    fn mcrouter_names(&self) -> Vec<String> {
        let PoolRouteConfig { entries: PoolEntries { pool, .. }, hash, layers } = self;
        let salt = if hash.salt.is_empty() { String::new() } else { format!("|salt={}", hash.salt) };
        let asynclog = pool.settings.asynclog.then(|| format!("asynclog:{}", pool.name));
        let hash = format!("hash|{}{salt}", hash.function.name());
        let slow_warm_up = layers.slow_warm_up.as_ref().map(|_| "slow-warmup".to_owned());
        let window = layers.outstanding_max.map(|limit| format!("outstanding-limit|limit={limit}"));
        asynclog.into_iter().chain([hash]).chain(slow_warm_up).chain(window).collect()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let routes = self.layers.build(&self.entries, tree);
        Arc::new(PoolRoute::from_routes(routes, self.hash.clone()))
    }
}

/// Builds the entries of a pool, each with its shadows around its window.
pub(crate) fn build_entries(
    entries: &PoolEntries,
    shadows: &[Shadow],
    outstanding_max: Option<u32>,
    tree: &mut dyn TreeBuilder,
) -> Vec<Arc<dyn Route>> {
    let targets: Vec<Arc<dyn Route>> = shadows.iter().map(|shadow| tree.build(&shadow.target)).collect();
    let routes = entries.build(tree).into_iter().enumerate().map(|(at, mut route)| {
        if let Some(window) = outstanding_max {
            route = Arc::new(OutstandingLimitRoute::new(route, window, OUTSTANDING_WAITING_MAX));
        }
        let of_entry = shadows.iter().zip(targets.iter().cloned()).filter(|(shadow, _)| shadow.is_of_index(at));
        add_shadows(route, of_entry, tree)
    });
    routes.collect()
}
