//! From the description to the tree. No request passes here; the tree that is built serves every verb.
//!
//! Each named handle and each server is made once and shared by all that refer to it, so that a server's connection
//! and its health are one, however many pools it is in. Pools that talk to one server with different timeouts have a
//! destination each.

use super::{Configuration, DestinationSettings, Handle, Pool};
use crate::{
    Address, AllSyncRoute, Destination, DestinationRoute, ErrorRoute, FailoverRoute, FailoverWithExptimeRoute,
    HashRoute, ModifyExptimeRoute, NullRoute, OperationSelectorRoute, PoolRoute, PrefixSelectorRoute, RootRoute, Route,
};
use std::{collections::BTreeMap, sync::Arc};

/// Makes the leaves of a tree.
pub trait Destinations {
    /// The destination at `address`. Asked once for each pair of address and settings in a build; across builds an
    /// implementation may hand out the same destination again, so that connections outlive a change of configuration.
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination>;
}

impl Configuration {
    /// Builds the tree.
    pub fn build(&self, destinations: &mut dyn Destinations) -> RootRoute {
        let mut builder =
            Builder { destinations, leaves: BTreeMap::new(), named: Vec::with_capacity(self.named.len()) };
        for (_, handle) in &self.named {
            let route = builder.route(handle);
            builder.named.push(route);
        }
        let trees = self.trees.iter().map(|(names, handle)| (names.clone(), builder.route(handle))).collect();
        RootRoute::new(self.default_prefix.clone(), trees).expect("reading has seen to a default tree")
    }
}

struct Builder<'a> {
    destinations: &'a mut dyn Destinations,
    leaves: BTreeMap<(Address, DestinationSettings), Arc<dyn Destination>>,
    named: Vec<Arc<dyn Route>>,
}

impl Builder<'_> {
    fn route(&mut self, handle: &Handle) -> Arc<dyn Route> {
        match handle {
            Handle::Named(at) => self.named[*at].clone(),
            Handle::Null => Arc::new(NullRoute),
            Handle::Error { response } => Arc::new(ErrorRoute::new(response)),
            Handle::Server { pool, server } => self.leaf(pool, &pool.servers[*server]),
            Handle::Pool { pool, hash } => {
                let leaves = pool.servers.iter().map(|server| self.leaf(pool, server)).collect();
                Arc::new(PoolRoute::over(leaves, hash.clone()))
            }
            Handle::Hash { children, hash } => Arc::new(HashRoute::new(self.routes(children), hash.clone())),
            Handle::AllSync { children } => Arc::new(AllSyncRoute::new(self.routes(children))),
            Handle::Failover { children, errors } => {
                let mut children = self.routes(children);
                let first = children.remove(0); // Reading refuses an empty list.
                Arc::new(FailoverRoute::new(first, children, *errors))
            }
            Handle::FailoverWithExptime { normal, failover, exptime_s, errors } => {
                let (normal, failover) = (self.route(normal), self.routes(failover));
                Arc::new(FailoverWithExptimeRoute::new(normal, failover, *exptime_s, *errors))
            }
            Handle::PrefixSelector { policies, wildcard } => {
                let policies = policies.iter().map(|(prefix, handle)| (prefix.clone(), self.route(handle))).collect();
                Arc::new(PrefixSelectorRoute::new(policies, self.optional(wildcard)))
            }
            Handle::OperationSelector { default_policy, operation_policies } => {
                let default = self.optional(default_policy);
                let policies = operation_policies.iter().map(|(verb, handle)| (*verb, self.route(handle)));
                Arc::new(OperationSelectorRoute::new(default, policies))
            }
            Handle::ModifyExptime { target, exptime_s, action } => {
                Arc::new(ModifyExptimeRoute::new(self.route(target), *exptime_s, *action))
            }
        }
    }

    fn routes(&mut self, handles: &[Handle]) -> Vec<Arc<dyn Route>> {
        handles.iter().map(|handle| self.route(handle)).collect()
    }

    fn optional(&mut self, handle: &Option<Box<Handle>>) -> Option<Arc<dyn Route>> {
        handle.as_ref().map(|handle| self.route(handle))
    }

    fn leaf(&mut self, pool: &Pool, server: &Address) -> Arc<dyn Route> {
        let made = self.leaves.entry((server.clone(), pool.settings));
        let destination = made.or_insert_with(|| self.destinations.destination(server, &pool.settings));
        Arc::new(DestinationRoute::new(destination.clone(), pool.keep_routing_prefix))
    }
}
