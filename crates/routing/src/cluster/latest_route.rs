//! Failover over a few of many children, in an order that depends on the host, so that not all hosts fail over to the
//! same child.
//!
//! | verb | effect |
//! |---|---|
//! | all | as `failover_route.rs`, over the `failover_count` children that come first for this host |
//!
//! Children are ordered by a hash of host, salt and the child's index (rendezvous), so adding a child does not change
//! the order of any other two. It is not mcrouter's order.

use crate::{
    Batch, BoxFuture, Context, FailoverErrors, Outcomes, Route, SERVERS_MAX,
    cluster::{failover_route::FailoverRoute, support::failover_errors::parse_failover_errors},
    configuration::{
        ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder, parse_salt,
    },
    hash::murmur64a,
};
use std::{cmp::Reverse, sync::Arc};

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
        children: Vec<Arc<dyn Route>>,
        failover_count: usize,
        host_id: u32,
        salt: &str,
        errors: FailoverErrors,
    ) -> Self {
        assert!(failover_count > 0, "no child to ask");
        let mut ranked: Vec<usize> = (0..children.len()).collect();
        ranked.sort_by_cached_key(|index| Reverse(murmur64a(format!("{host_id}:{index}{salt}").as_bytes())));
        let mut chosen = ranked.into_iter().take(failover_count).map(|index| children[index].clone());
        let first = chosen.next().expect("at least one child");
        LatestRoute { inner: FailoverRoute::new(first, chosen.collect(), errors) }
    }
}

impl Route for LatestRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        self.inner.route(batch, context)
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("LatestRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    children: Vec<Handle>,
    failover_count: usize,
    salt: String,
    errors: FailoverErrors,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(
        &Keys::known(&["type", "name", "children", "failover_count", "salt", "failover_errors"])
            .ignoring(&["failover_tag", "thread_local_failover"])
            .refusing(&["weights"]),
    )?;
    let count = object.get("failover_count");
    let count = count.map(|node| node.integer("children", 1, SERVERS_MAX as i64)).transpose()?;
    Ok(Handle::route(Config {
        children: parser.children(object, "children")?,
        failover_count: count.map_or(LATEST_FAILOVER_COUNT, |count| count as usize),
        salt: parse_salt(object)?,
        errors: parse_failover_errors(object)?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let children = tree.build_all(&self.children);
        let host_id = tree.environment().host_id;
        Arc::new(LatestRoute::new(children, self.failover_count, host_id, &self.salt, self.errors))
    }
}
