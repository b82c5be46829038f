//! From the description to the tree. No request passes here; the tree that is built serves every verb.
//!
//! Each named handle and each server is built once and shared by all that refer to it: a server has one connection and
//! one health, however many pools it is in. Pools that use one server with different settings have a destination each.

use crate::{
    Address, Destination, DestinationRoute, DestinationSettings, Environment, Handle, Pool, Route, RouteConfig, Slot,
    SpareRoute, TreeBuilder, cluster::destination_route::ShadowLimit,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Makes the leaves of a tree.
pub trait Destinations {
    /// The destination at `address`, called once for each pair of address and settings in a build. Several builds may
    /// get the same destination, so that connections outlive a change of the configuration.
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination>;

    /// The slot of the server at index `at` of a pool that has spares, called for every use of the pool; by default
    /// always served by the server itself.
    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        let _ = (pool, at);
        Arc::default()
    }

    /// Called for every use of a pool; by default does nothing.
    fn use_pool(&mut self, pool: &Pool) {
        let _ = pool;
    }

    /// Clock, background work and log for the tree; by default [`Environment::none`].
    fn environment(&mut self) -> Environment {
        Environment::none()
    }

    /// Called for every place of a route that stores elsewhere what a read has found. `is_passed_to`: every route above
    /// it passes reads on ([`RouteConfig::passes_reads`](crate::RouteConfig::passes_reads)). By default does nothing.
    fn fill_on_reads(&mut self, is_passed_to: bool) {
        let _ = is_passed_to;
    }

    /// The route in place of `route`, which `handle` describes: by default `route` itself; a wrapper to trace or
    /// measure requests.
    fn wrap_route(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        let _ = handle;
        route
    }
}

/// Builds one tree over the leaves of a [`Destinations`].
pub(super) struct Builder<'a> {
    destinations: &'a mut dyn Destinations,
    environment: Environment,
    seeds_given: u64,
    leaves: BTreeMap<(Address, DestinationSettings), (Arc<dyn Destination>, ShadowLimit)>,
    handles: &'a [(String, Handle)],
    /// By the index of the handle, and whether it was built for a prefix only.
    named: BTreeMap<(usize, bool), Arc<dyn Route>>,
    /// The named handles with a route that stores elsewhere what a read has found.
    filling: BTreeSet<usize>,
    /// Whether the handle that is being built has one.
    is_filling: bool,
    /// The number of routes above the one that is being built that do not pass reads on.
    not_passing: usize,
    /// See [`TreeBuilder::key_prefix`].
    key_prefix: Option<Box<[u8]>>,
}

impl<'a> Builder<'a> {
    /// A builder of a tree that may refer to the named handles `handles`.
    pub(super) fn new(destinations: &'a mut dyn Destinations, handles: &'a [(String, Handle)]) -> Self {
        let environment = destinations.environment();
        Builder {
            destinations,
            environment,
            seeds_given: 0,
            leaves: BTreeMap::new(),
            handles,
            named: BTreeMap::new(),
            filling: BTreeSet::new(),
            is_filling: false,
            not_passing: 0,
            key_prefix: None,
        }
    }

    /// The same for stored keys that begin with `key_prefix` only.
    pub(super) fn for_keys(self, key_prefix: &[u8]) -> Self {
        Builder { key_prefix: Some(key_prefix.into()), ..self }
    }

    fn build_named(&mut self, at: usize) -> Arc<dyn Route> {
        let key = (at, self.key_prefix.is_some());
        if let Some(route) = self.named.get(&key).cloned() {
            if self.filling.contains(&at) {
                self.note_filling();
            }
            return route;
        }
        let (handles, was_filling) = (self.handles, std::mem::take(&mut self.is_filling));
        let route = self.build(&handles[at].1);
        if self.is_filling {
            self.filling.insert(at);
        }
        self.is_filling |= was_filling;
        self.named.insert(key, route.clone());
        route
    }

    fn note_filling(&mut self) {
        self.is_filling = true;
        self.destinations.fill_on_reads(self.not_passing == 0);
    }

    fn build_route(&mut self, config: &dyn RouteConfig) -> Arc<dyn Route> {
        if config.fills_on_reads() {
            self.note_filling();
        }
        let not_passing = usize::from(!config.passes_reads());
        self.not_passing += not_passing;
        let route = config.build(self);
        self.not_passing -= not_passing;
        route
    }

    /// The server at index `at` of a pool, with the pool's spares if there are any.
    fn build_server(&mut self, pool: &Pool, at: usize) -> Arc<dyn Route> {
        let server = self.build_leaf(pool, at);
        if pool.spares.is_empty() {
            return server;
        }
        let spares = (0..pool.spares.len()).map(|spare| self.build_leaf(pool, pool.servers.len() + spare)).collect();
        Arc::new(SpareRoute::new(server, spares, self.destinations.slot(pool, at)))
    }

    /// The leaf for the member at index `at` of a pool.
    fn build_leaf(&mut self, pool: &Pool, at: usize) -> Arc<dyn Route> {
        let (server, settings) = (pool.member(at), pool.settings_of(at));
        let leaf = self.leaves.entry((server.clone(), settings));
        let (destination, shadow_limit) = leaf
            .or_insert_with(|| (self.destinations.destination(server, &settings), ShadowLimit::of(&self.environment)));
        let leaf = DestinationRoute::new(destination.clone(), pool.keep_routing_prefix);
        Arc::new(leaf.with_clock(self.environment.clock.clone()).with_shadow_limit(shadow_limit.clone()))
    }
}

impl TreeBuilder for Builder<'_> {
    fn build(&mut self, handle: &Handle) -> Arc<dyn Route> {
        let route = match handle {
            Handle::Named(at) => return self.build_named(*at),
            // Below it keys may begin with anything.
            Handle::Route(config) if config.changes_keys() => {
                let key_prefix = self.key_prefix.take();
                let route = self.build_route(&**config);
                self.key_prefix = key_prefix;
                route
            }
            Handle::Route(config) => self.build_route(&**config),
            Handle::Server { pool, server } => {
                self.destinations.use_pool(pool);
                self.build_server(pool, *server)
            }
        };
        self.destinations.wrap_route(handle, route)
    }

    fn build_servers(&mut self, pool: &Pool) -> Vec<Arc<dyn Route>> {
        self.destinations.use_pool(pool);
        (0..pool.servers.len()).map(|at| self.build_server(pool, at)).collect()
    }

    fn key_prefix(&self) -> Option<&[u8]> {
        self.key_prefix.as_deref()
    }

    fn environment(&self) -> &Environment {
        &self.environment
    }

    fn next_seed(&mut self) -> u64 {
        self.seeds_given += 1;
        self.environment.seed.wrapping_add(self.seeds_given)
    }
}
