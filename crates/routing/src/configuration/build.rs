//! From the description to the tree. No request passes here; the tree that is built serves every verb.
//!
//! Each named handle and each server is made once and shared by all that refer to it, so that a server's connection
//! and its health are one, however many pools it is in. Pools that talk to one server with different timeouts have a
//! destination each.

use super::{Configuration, DestinationSettings, Handle, Pool, Shadow};
use crate::{
    Address, AllAsyncRoute, AllFastestRoute, AllInitialRoute, AllMajorityRoute, AllSyncRoute, BigValueRoute,
    Destination, DestinationRoute, DevNullRoute, Environment, ErrorRoute, FailoverWithExptimeRoute, HashRoute,
    HostIdRoute, KeySplitRoute, L1L2CacheRoute, LatencyInjectionRoute, LatestRoute, LoggingRoute, MigrateRoute,
    MissFailoverRoute, ModifyExptimeRoute, ModifyKeyRoute, NullRoute, OUTSTANDING_WAITING_MAX, OperationSelectorRoute,
    OriginalClientHashRoute, OutstandingLimitRoute, PoolRoute, PrefixSelectorRoute, RandomRoute, RateLimitRoute,
    RootRoute, Route, SaltedFailoverRoute, ShadowRoute, Slot, SlowWarmUp, SlowWarmUpRoute, SpareRoute, StagingRoute,
    WarmUpRoute,
};
use std::{collections::BTreeMap, sync::Arc};

/// Makes the leaves of a tree.
pub trait Destinations {
    /// The destination at `address`. Asked once for each pair of address and settings in a build; across builds an
    /// implementation may hand out the same destination again, so that connections outlive a change of configuration.
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination>;

    /// Who serves the place `at` of a pool that has spares. Asked for every use of the pool; by default nobody but the
    /// server itself ever does.
    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        let _ = (pool, at);
        Arc::default()
    }

    /// Takes note of a pool that is used, perhaps once more.
    fn pool(&mut self, pool: &Pool) {
        let _ = pool;
    }

    /// Time, background work and chance for the tree; by default [`Environment::none`], in which everything is
    /// awaited and nothing waits.
    fn environment(&mut self) -> Environment {
        Environment::none()
    }

    /// What stands in the tree for `route`, which `handle` describes: by default `route` itself. Who wants to see the
    /// way that requests take puts something around it.
    fn around(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        let _ = handle;
        route
    }
}

impl Configuration {
    /// Builds the tree.
    pub fn build(&self, destinations: &mut dyn Destinations) -> RootRoute {
        let environment = destinations.environment();
        let named = Vec::with_capacity(self.named.len());
        let mut builder = Builder { destinations, environment, chances: 0, leaves: BTreeMap::new(), named };
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
    environment: Environment,
    /// Routes that draw by chance, so that each draws its own.
    chances: u64,
    leaves: BTreeMap<(Address, DestinationSettings), Arc<dyn Destination>>,
    named: Vec<Arc<dyn Route>>,
}

impl Builder<'_> {
    fn route(&mut self, handle: &Handle) -> Arc<dyn Route> {
        match handle {
            Handle::Named(at) => self.named[*at].clone(),
            handle => {
                let route = self.bare_route(handle);
                self.destinations.around(handle, route)
            }
        }
    }

    fn bare_route(&mut self, handle: &Handle) -> Arc<dyn Route> {
        match handle {
            Handle::Null => Arc::new(NullRoute),
            Handle::Error { response } => Arc::new(ErrorRoute::new(response)),
            Handle::Server { pool, server } => {
                self.destinations.pool(pool);
                self.place(pool, *server)
            }
            Handle::Pool { pool, hash, shadows, outstanding_max, slow_warm_up } => {
                let mut leaves = self.pool(pool, shadows, *outstanding_max);
                if let Some((failover, settings)) = slow_warm_up.as_deref() {
                    leaves = self.slowly_warmed(leaves, failover, *settings);
                }
                Arc::new(PoolRoute::over(leaves, hash.clone()))
            }
            Handle::Hash { children, hash } => Arc::new(HashRoute::new(self.routes(children), hash.clone())),
            Handle::AllSync { children } => Arc::new(AllSyncRoute::new(self.routes(children))),
            Handle::Failover { children, errors, options } => {
                let children = self.routes(children);
                Arc::new(options.route(children, None, *errors, &self.environment.clock))
            }
            Handle::FailoverWithExptime { normal, failover, exptime_s, errors, options } => {
                let (normal, failover) = (self.route(normal), self.routes(failover));
                let children = FailoverWithExptimeRoute::short_lived(normal, failover, *exptime_s);
                let inner = options.route(children, None, *errors, &self.environment.clock);
                Arc::new(FailoverWithExptimeRoute::over(inner))
            }
            Handle::SaltedFailover { pool, hash, shadows, errors, options } => {
                let servers = self.pool(pool, shadows, None);
                let inner = options.route(servers, Some(hash), *errors, &self.environment.clock);
                Arc::new(SaltedFailoverRoute::over(inner))
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
            other => self.route_in_surroundings(other),
        }
    }

    /// Routes that need time, chance or a background, or that stand before other caches.
    fn route_in_surroundings(&mut self, handle: &Handle) -> Arc<dyn Route> {
        let Environment { clock, background, log, seed, host_id } = self.environment.clone();
        match handle {
            Handle::AllAsync { children } => Arc::new(AllAsyncRoute::new(self.routes(children), background)),
            Handle::AllFastest { children } => Arc::new(AllFastestRoute::new(self.routes(children), background)),
            Handle::AllInitial { children } => Arc::new(AllInitialRoute::new(self.routes(children), background)),
            Handle::AllMajority { children } => Arc::new(AllMajorityRoute::new(self.routes(children), background)),
            Handle::MissFailover { children, return_best_on_error } => {
                Arc::new(MissFailoverRoute::new(self.routes(children), *return_best_on_error))
            }
            Handle::Random { children } => {
                self.chances += 1;
                let seed = seed.wrapping_add(self.chances);
                Arc::new(RandomRoute::new(self.routes(children), seed))
            }
            Handle::HostId { children, salt } => Arc::new(HostIdRoute::new(self.routes(children), host_id, salt)),
            Handle::OriginalClientHash { children, salt, offset } => {
                Arc::new(OriginalClientHashRoute::new(self.routes(children), salt, *offset))
            }
            Handle::Latest { children, failover_count, salt, errors } => {
                Arc::new(LatestRoute::new(self.routes(children), *failover_count, host_id, salt, *errors))
            }
            Handle::ModifyKey { target, change } => Arc::new(ModifyKeyRoute::new(self.route(target), change.clone())),
            Handle::KeySplit { destination, copies, all_sync, first_hit } => {
                Arc::new(KeySplitRoute::new(self.route(destination), *copies, host_id, *all_sync, *first_hit))
            }
            Handle::L1L2Cache { l1, l2, settings } => {
                Arc::new(L1L2CacheRoute::new(self.route(l1), self.route(l2), *settings, background))
            }
            Handle::Migrate { from, to, start_unix_s, interval_s } => {
                Arc::new(MigrateRoute::new(self.route(from), self.route(to), *start_unix_s, *interval_s, clock))
            }
            Handle::WarmUp { cold, warm, exptime_s, hold_off_ms, end } => {
                let route = WarmUpRoute::new(self.route(cold), self.route(warm), *exptime_s, *hold_off_ms);
                Arc::new(match end {
                    Some((when, progress)) => route.ending(*when, progress.0.clone(), clock, log),
                    None => route,
                })
            }
            Handle::Shadowed { normal, shadows } => {
                let targets = shadows.iter().map(|shadow| (self.route(&shadow.target), shadow.keys)).collect();
                Arc::new(ShadowRoute::new(self.route(normal), targets, background))
            }
            Handle::OutstandingLimit { target, outstanding_max } => {
                Arc::new(OutstandingLimitRoute::new(self.route(target), *outstanding_max, OUTSTANDING_WAITING_MAX))
            }
            Handle::RateLimit { target, fallback, rates } => {
                Arc::new(RateLimitRoute::new(self.route(target), self.optional(fallback), *rates, clock))
            }
            Handle::LatencyInjection { child, latency } => {
                Arc::new(LatencyInjectionRoute::new(self.route(child), *latency, clock))
            }
            Handle::Logging { target } => Arc::new(LoggingRoute::new(self.optional(target), log)),
            Handle::BigValue { target, split_threshold_bytes } => {
                Arc::new(BigValueRoute::new(self.route(target), *split_threshold_bytes))
            }
            Handle::Staging { warm, staging, hold_off_ms } => {
                Arc::new(StagingRoute::new(self.route(warm), self.route(staging), *hold_off_ms, background))
            }
            Handle::DevNull => Arc::new(DevNullRoute::default()),
            other => unreachable!("{other:?} needs no surroundings"),
        }
    }

    fn routes(&mut self, handles: &[Handle]) -> Vec<Arc<dyn Route>> {
        handles.iter().map(|handle| self.route(handle)).collect()
    }

    fn optional(&mut self, handle: &Option<Box<Handle>>) -> Option<Arc<dyn Route>> {
        handle.as_ref().map(|handle| self.route(handle))
    }

    /// The servers of a pool, each behind its window and with its shadows.
    fn pool(&mut self, pool: &Pool, shadows: &[Shadow], outstanding_max: Option<u32>) -> Vec<Arc<dyn Route>> {
        let targets: Vec<Arc<dyn Route>> = shadows.iter().map(|shadow| self.route(&shadow.target)).collect();
        let mut leaves = Vec::with_capacity(pool.servers.len());
        self.destinations.pool(pool);
        for at in 0..pool.servers.len() {
            let mut leaf = self.place(pool, at);
            if let Some(window) = outstanding_max {
                leaf = Arc::new(OutstandingLimitRoute::new(leaf, window, OUTSTANDING_WAITING_MAX));
            }
            let its_own =
                shadows.iter().zip(&targets).filter(|(shadow, _)| (shadow.servers.0..=shadow.servers.1).contains(&at));
            let its_own: Vec<_> = its_own.map(|(shadow, target)| (target.clone(), shadow.keys)).collect();
            if !its_own.is_empty() {
                leaf = Arc::new(ShadowRoute::new(leaf, its_own, self.environment.background.clone()));
            }
            leaves.push(leaf);
        }
        leaves
    }

    /// Servers that are spared while they are cold.
    fn slowly_warmed(
        &mut self,
        servers: Vec<Arc<dyn Route>>,
        failover: &Handle,
        settings: SlowWarmUp,
    ) -> Vec<Arc<dyn Route>> {
        let failover = self.route(failover);
        let spared = |server| {
            self.chances += 1;
            let seed = self.environment.seed.wrapping_add(self.chances);
            Arc::new(SlowWarmUpRoute::new(server, failover.clone(), settings, seed)) as Arc<dyn Route>
        };
        servers.into_iter().map(spared).collect()
    }

    /// A server, with its pool's spares in reserve if there are any.
    fn place(&mut self, pool: &Pool, at: usize) -> Arc<dyn Route> {
        let server = self.leaf(pool, at);
        if pool.spares.is_empty() {
            return server;
        }
        let spares = (0..pool.spares.len()).map(|spare| self.leaf(pool, pool.servers.len() + spare)).collect();
        Arc::new(SpareRoute::new(server, spares, self.destinations.slot(pool, at)))
    }

    /// Number `at` of a pool's members.
    fn leaf(&mut self, pool: &Pool, at: usize) -> Arc<dyn Route> {
        let (server, settings) = (pool.member(at), pool.settings_of(at));
        let made = self.leaves.entry((server.clone(), settings));
        let destination = made.or_insert_with(|| self.destinations.destination(server, &settings));
        Arc::new(DestinationRoute::new(destination.clone(), pool.keep_routing_prefix))
    }
}
