//! Failover over a few of many children, in an order that depends on the host, so that not all hosts fail over to the
//! same child.
//!
//! | verb | effect |
//! |---|---|
//! | all | as `failover_route.rs`, over the `failover_count` children that come first for this host |
//!
//! Children are ordered by a hash of host, salt and the child's index (weighted rendezvous), so adding a child does not
//! change the order of any other two. It is not mcrouter's order.
//!
//! `"hash_func": "Latest"` of a pool or a `HashRoute` is this route over their servers or children.

use crate::{
    Batch, BoxFuture, Context, Environment, FailoverErrors, Outcomes, Route, SERVERS_MAX,
    cluster::{
        failover_route::FailoverRoute,
        pool_route::EntryLayers,
        support::failover_options::{FAILOVER_KEYS, FailoverOptions},
    },
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, Pool, PoolEntries, RouteConfig, RouteType, TreeBuilder,
        parse_salt, parse_weights,
    },
    hash::{murmur64a, weigh},
};
use std::sync::Arc;

/// mcrouter's default for `failover_count`.
pub const LATEST_FAILOVER_COUNT: usize = 5;

/// Failover over some children, chosen by host.
pub struct LatestRoute {
    inner: FailoverRoute,
}

impl LatestRoute {
    /// Fails over among `failover_count` of `children`.
    ///
    /// # Panics
    /// Without a child, or with a count of 0.
    pub fn new(
        children: &[Arc<dyn Route>],
        failover_count: usize,
        host_id: u32,
        salt: &str,
        errors: FailoverErrors,
    ) -> Self {
        let failover = FailoverOptions { errors, ..FailoverOptions::default() };
        let options = LatestOptions { failover_count, salt: salt.to_owned(), weights: Vec::new(), failover };
        Self::with_options(children, &options, &Environment { host_id, ..Environment::none() })
    }

    fn with_options(children: &[Arc<dyn Route>], options: &LatestOptions, environment: &Environment) -> Self {
        let order = options.order(environment.host_id, children.len());
        let chosen = order.into_iter().take(options.failover_count).map(|at| children[at].clone()).collect();
        LatestRoute { inner: FailoverRoute::with_options(chosen, &options.failover, environment) }
    }
}

impl Route for LatestRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("LatestRoute", parse);

/// The name of the same as a hash.
pub(crate) const HASH: &str = "Latest";

/// The arguments besides the children.
#[derive(Debug, PartialEq)]
pub(crate) struct LatestOptions {
    failover_count: usize,
    salt: String,
    /// 1 where there is none.
    weights: Vec<f64>,
    failover: FailoverOptions,
}

/// The keys of [`LatestOptions`] but for the failover's.
const KEYS: Keys =
    Keys::known(&["type", "name", "children", "hash_func", "error_on_empty", "failover_count", "salt", "weights"])
        .and(FAILOVER_KEYS)
        .ignoring(&["thread_local_failover", "tags"]);

impl LatestOptions {
    /// Parses the arguments of a route, or of a hash, over `children` children.
    pub(crate) fn parse(
        object: &Object<'_>,
        children: &[Handle],
        parser: &Parser<'_>,
    ) -> Result<LatestOptions, ConfigurationError> {
        object.check(&KEYS)?;
        let count = object.get("failover_count");
        let count = count.map(|node| node.integer("children", 1, SERVERS_MAX as i64)).transpose()?;
        let failover_count = count.map_or(LATEST_FAILOVER_COUNT, |count| count as usize);
        let chosen = &children[..children.len().min(failover_count)];
        Ok(LatestOptions {
            failover_count,
            salt: parse_salt(object)?,
            weights: object.get("weights").map_or(Ok(Vec::new()), |node| parse_weights(&node))?,
            failover: FailoverOptions::parse(object, chosen, parser)?.of_unknown_children(object)?,
        })
    }

    /// The children by their scores for a host.
    fn order(&self, host_id: u32, children: usize) -> Vec<usize> {
        let score = |at: usize| {
            let hash = murmur64a(format!("{host_id}:{at}{}", self.salt).as_bytes());
            // The upper bits: without weights the order is that of the hashes.
            weigh(hash >> 11, self.weights.get(at).copied().unwrap_or(1.0))
        };
        let mut order: Vec<(f64, usize)> = (0..children).map(|at| (score(at), at)).collect();
        order.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        order.into_iter().map(|(_, at)| at).collect()
    }
}

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    options: LatestOptions,
}

/// A route over children.
pub(crate) fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    let children = parser.children(object, "children")?;
    let options = LatestOptions::parse(object, &children, parser)?;
    Ok(Handle::route(Config { children, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "failover".to_owned()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        Arc::new(LatestRoute::with_options(&children, &self.options, tree.environment()))
    }
}

/// The route over the entries of a pool.
#[derive(Debug, PartialEq)]
pub(crate) struct LatestOfPool {
    pub(crate) entries: PoolEntries,
    pub(crate) layers: EntryLayers,
    pub(crate) options: LatestOptions,
}

impl RouteConfig for LatestOfPool {
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
        let routes = self.layers.build(&self.entries, tree);
        Arc::new(LatestRoute::with_options(&routes, &self.options, tree.environment()))
    }
}
