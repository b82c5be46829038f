//! The child with the least load, where servers report their load; memcached's protocols have no place for that.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the child that Ch3 picks for the key and the salt: as in mcrouter while no load is known |
//!
//! With a `failover_count` above 1 as many children are asked for a key until one replies, in an order that depends on
//! the key (`failover_policy.rs`).
//!
//! `"hash_func": "LoadBalancer"` of a pool or a `HashRoute` is this route over their servers or children.

use crate::{
    Batch, BoxFuture, Context, Environment, FailoverErrors, FailoverPolicy, FailoverRoute, FirstChoice, HashRoute,
    KeyHash, Outcomes, Route, SERVERS_MAX,
    cluster::pool_route::EntryLayers,
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, Pool, PoolEntries, RouteConfig, RouteType, TreeBuilder,
        parse_salt,
    },
};
use std::sync::Arc;

/// A child by hash, and others of the same after failures.
pub(crate) struct LoadBalancerRoute {
    inner: FailoverRoute,
}

impl LoadBalancerRoute {
    /// The route over `children`.
    fn build(
        children: Vec<Arc<dyn Route>>,
        options: &LoadBalancerOptions,
        environment: &Environment,
    ) -> Arc<dyn Route> {
        if options.is_only_a_hash() {
            return Arc::new(HashRoute::new(children, options.hash()));
        }
        let count = children.len();
        let over = |children| options.hash().picker_for(children).expect("Ch3 fits any number of children");
        let first = Arc::new(HashRoute::new(children.clone(), options.hash())) as Arc<dyn Route>;
        let all = std::iter::once(first).chain(children).collect();
        let choice = FirstChoice { picker: Some(over(count)), ..FirstChoice::default() };
        let policy = FailoverPolicy::by_key(over(count + 1), choice, Vec::new()).with_children(options.failover_count);
        let inner = FailoverRoute::by_policy(all, FailoverErrors::default(), policy);
        Arc::new(LoadBalancerRoute { inner: inner.with_timeout_of(environment) })
    }
}

impl Route for LoadBalancerRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("LoadBalancerRoute", parse);

/// The name of the same as a hash.
pub(crate) const HASH: &str = "LoadBalancer";

/// The arguments besides the children.
#[derive(Debug, PartialEq)]
pub(crate) struct LoadBalancerOptions {
    salt: String,
    /// The children that are asked for a key at most.
    failover_count: u32,
}

const KEYS: Keys = Keys::known(&["type", "name", "children", "hash_func", "error_on_empty", "salt", "failover_count"])
    .and(&["algorithm", "load_ttl_ms", "default_server_load_percent"])
    .ignoring(&["weights", "tags"]);

const ALGORITHMS: [&str; 2] = ["weighted-hashing", "two-random-choices"];

impl LoadBalancerOptions {
    /// Parses the arguments of a route or a hash.
    pub(crate) fn parse(object: &Object<'_>) -> Result<LoadBalancerOptions, ConfigurationError> {
        object.check(&KEYS)?;
        if let Some(node) = object.get("algorithm")
            && !ALGORITHMS.contains(&node.string("the name of an algorithm")?)
        {
            return Err(node.error(format!("expected {:?} or {:?}", ALGORITHMS[0], ALGORITHMS[1])));
        }
        object.integer_or("load_ttl_ms", "milliseconds", i64::from(u32::MAX), 100)?;
        object.integer_or("default_server_load_percent", "percent", 100, 100)?;
        let count = object.get("failover_count");
        let count = count.map_or(Ok(1), |node| node.integer("children", 1, SERVERS_MAX as i64))?;
        object.node.warn("memcached's servers do not report their load: children are chosen by Ch3");
        Ok(LoadBalancerOptions { salt: parse_salt(object)?, failover_count: count as u32 })
    }

    /// The hash that picks the first child.
    pub(crate) fn hash(&self) -> KeyHash {
        KeyHash { salt: self.salt.clone(), ..KeyHash::default() }
    }

    /// Whether one child is asked, whatever it replies.
    pub(crate) fn is_only_a_hash(&self) -> bool {
        self.failover_count == 1
    }
}

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    options: LoadBalancerOptions,
}

/// A route over children.
pub(crate) fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    let options = LoadBalancerOptions::parse(object)?;
    Ok(Handle::route(Config { children: parser.children(object, "children")?, options }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "loadbalancer".to_owned()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        LoadBalancerRoute::build(children, &self.options, tree.environment())
    }
}

/// The route over the entries of a pool.
#[derive(Debug, PartialEq)]
pub(crate) struct LoadBalancerOfPool {
    pub(crate) entries: PoolEntries,
    pub(crate) layers: EntryLayers,
    pub(crate) options: LoadBalancerOptions,
}

impl RouteConfig for LoadBalancerOfPool {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "loadbalancer".to_owned()
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        Some(&self.entries.pool)
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let routes = self.layers.build(&self.entries, tree);
        LoadBalancerRoute::build(routes, &self.options, tree.environment())
    }
}
