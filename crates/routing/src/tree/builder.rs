//! From the description to the tree. No request passes here; the tree that is built serves every verb.
//!
//! Each named handle and each server is built once and shared by all that refer to it: a server has one connection and
//! one health, however many pools it is in. Pools that use one server with different settings have a destination each.

use crate::{
    Address, Destination, DestinationRoute, DestinationSettings, Environment, Handle, Pool, Route, RouteConfig, Slot,
    SpareRoute, TreeBuilder, cluster::destination_route::ShadowLimit,
};
use std::{collections::BTreeMap, mem, sync::Arc};

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

    /// Called for every place in the trees of a route that stores elsewhere what a read has found, or of a named handle
    /// with such routes; not for handles that no tree refers to. `is_passed_to`: every route above these routes passes
    /// reads on ([`RouteConfig::passes_reads`](crate::RouteConfig::passes_reads)). By default does nothing.
    fn fill_on_reads(&mut self, is_passed_to: bool) {
        let _ = is_passed_to;
    }

    /// Called for every place in the trees of a route that changes keys ([`RouteConfig::changes_keys`]), also in a named
    /// handle; not for handles that no tree refers to. `above` is the number of such routes above it. By default does
    /// nothing.
    fn change_keys(&mut self, route: &Arc<dyn RouteConfig>, above: usize) {
        let _ = (route, above);
    }

    /// Called for every place in the trees of a route whose copies no delete of a client reaches
    /// ([`TreeBuilder::store_undeleted`]), also in a named handle; not for handles that no tree refers to. By default does
    /// nothing.
    fn store_undeleted(&mut self, route: &Arc<dyn Route>) {
        let _ = route;
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
    named: BTreeMap<(usize, bool), NamedRoute>,
    scope: BuildScope,
    /// See [`TreeBuilder::key_prefix`].
    key_prefix: Option<Box<[u8]>>,
}

#[derive(Clone)]
struct NamedRoute {
    route: Arc<dyn Route>,
    /// As [`BuildScope::filling`].
    filling: Option<bool>,
    /// As [`BuildScope::key_changes`].
    key_changes: Vec<(Arc<dyn RouteConfig>, usize)>,
    /// As [`BuildScope::undeleted`].
    undeleted: Vec<Arc<dyn Route>>,
}

/// Where the route is that is being built: in a tree, or in a named handle, which may have many places in the trees, or
/// none.
#[derive(Default)]
struct BuildScope {
    is_in_named: bool,
    /// The number of routes above it, in the tree or in the handle, that do not pass reads on.
    not_passing: usize,
    /// Whether every route of the named handle above those that store elsewhere what a read has found passes reads on;
    /// `None` if it has none of these.
    filling: Option<bool>,
    /// The number of routes above it, in the tree or in the handle, that change keys.
    key_changes_above: usize,
    /// The routes of the named handle that change keys, each with the largest number of such routes above it there.
    key_changes: Vec<(Arc<dyn RouteConfig>, usize)>,
    /// The routes of the named handle whose copies no delete reaches.
    undeleted: Vec<Arc<dyn Route>>,
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
            scope: BuildScope::default(),
            key_prefix: None,
        }
    }

    /// The same for stored keys that begin with `key_prefix` only.
    pub(super) fn for_keys(self, key_prefix: &[u8]) -> Self {
        Builder { key_prefix: Some(key_prefix.into()), ..self }
    }

    /// Builds all named handles, also those that no route refers to.
    pub(super) fn build_all_named(&mut self) {
        (0..self.handles.len()).for_each(|at| drop(self.named_route(at)));
    }

    fn build_named(&mut self, at: usize) -> Arc<dyn Route> {
        let NamedRoute { route, filling, key_changes, undeleted } = self.named_route(at);
        if let Some(is_passed_to) = filling {
            self.note_filling(is_passed_to);
        }
        key_changes.iter().for_each(|(config, above)| self.note_key_change(config, *above));
        undeleted.iter().for_each(|child| self.store_undeleted(child));
        route
    }

    /// The route of a named handle, which is built if it was not.
    fn named_route(&mut self, at: usize) -> NamedRoute {
        let key = (at, self.key_prefix.is_some());
        if let Some(named) = self.named.get(&key) {
            return named.clone();
        }
        let above = mem::replace(&mut self.scope, BuildScope { is_in_named: true, ..BuildScope::default() });
        let handles = self.handles;
        let route = self.build(&handles[at].1);
        let BuildScope { filling, key_changes, undeleted, .. } = mem::replace(&mut self.scope, above);
        let named = NamedRoute { route, filling, key_changes, undeleted };
        self.named.insert(key, named.clone());
        named
    }

    /// Notes a route that stores elsewhere what a read has found, or a named handle with such routes. `is_passed_to`:
    /// whether every route of the handle above these passes reads on.
    fn note_filling(&mut self, is_passed_to: bool) {
        let is_passed_to = is_passed_to && self.scope.not_passing == 0;
        match self.scope.is_in_named {
            true => self.scope.filling = Some(self.scope.filling.unwrap_or(true) && is_passed_to),
            false => self.destinations.fill_on_reads(is_passed_to),
        }
    }

    /// Notes a route that changes keys; `above` is the number of such routes above it in its handle.
    fn note_key_change(&mut self, config: &Arc<dyn RouteConfig>, above: usize) {
        let above = above + self.scope.key_changes_above;
        if !self.scope.is_in_named {
            return self.destinations.change_keys(config, above);
        }
        // A handle may refer to another one many times, and that one again.
        let recorded = &mut self.scope.key_changes;
        match recorded.iter_mut().find(|(other, _)| Arc::ptr_eq(other, config)) {
            Some((_, most)) => *most = above.max(*most),
            None => recorded.push((config.clone(), above)),
        }
    }

    fn build_route(&mut self, config: &dyn RouteConfig) -> Arc<dyn Route> {
        if config.fills_on_reads() {
            self.note_filling(true);
        }
        let not_passing = usize::from(!config.passes_reads());
        self.scope.not_passing += not_passing;
        let route = config.build(self);
        self.scope.not_passing -= not_passing;
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
            Handle::PoolEntry { route, .. } => return self.build(route),
            Handle::Route(config) if config.changes_keys() => {
                // Below it keys may begin with anything.
                let key_prefix = self.key_prefix.take();
                self.scope.key_changes_above += 1;
                let route = self.build_route(&**config);
                self.scope.key_changes_above -= 1;
                self.note_key_change(config, 0);
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

    fn store_undeleted(&mut self, child: &Arc<dyn Route>) {
        match self.scope.is_in_named {
            true if self.scope.undeleted.iter().any(|other| Arc::ptr_eq(other, child)) => {}
            true => self.scope.undeleted.push(child.clone()),
            false => self.destinations.store_undeleted(child),
        }
    }

    fn environment(&self) -> &Environment {
        &self.environment
    }

    fn next_seed(&mut self) -> u64 {
        self.seeds_given += 1;
        self.environment.seed.wrapping_add(self.seeds_given)
    }
}
