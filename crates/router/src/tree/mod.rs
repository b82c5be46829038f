//! A tree of routes over this thread's connections to servers.
//!
//! Each leaf of the tree is a destination. Its decorators, in the order in which a batch passes them:
//!
//! ```text
//!   DestinationRoute            (routing)   the leaf
//!     SpoolingDestination       spool       with --spool: spools failed deletes, and those for a fenced server
//!       MeasuredDestination     stats       with --metrics-address: counts requests, failures and latency
//!         WindowedDestination   (client)    with --window: waits for the thread's window over all servers (§3.1)
//!           TcpDestination      (client)    queues, pipelines, matches replies; fails at once while TKO or fenced
//! ```
//!
//! At the root, `SpoolingRoot` turns the outcome of a spooled delete into its acknowledgement, and with
//! `--wait-for-invalidator` `GatedRoot` refuses gets at first. During a change of the configuration, `CoveringRoute`
//! below them sends deletes also to the places under the other covered configurations; and after it, a
//! `FormerOwnerRoute` around a pool with `resize_warm_up_s` reads keys that have moved from their former owners.
//!
//! On a reload, a destination with the same address and the same settings moves to the new tree ([`DestinationSet`]).
//! The new tree is put in force once the other servers are connected to, or known to be down; at once if it protects a
//! server by TLS that the old one reaches plain. Destinations that it does not name end with the last batch on the old
//! tree.

pub(crate) mod active_configs;
mod covering;
pub(crate) mod explain;
mod flush;
mod former_owners;
pub(crate) mod mcrouter_names;
pub(crate) mod placement;

use crate::config::router_config::RouterConfig;
use crate::spares::Spares;
use crate::spool::{ConfiguredServer, Spool, SpoolingRoot};
use crate::start_gate::{GatedRoot, StartGate};
use crate::stats::per_target::PerTargetStats;
use crate::timeouts::READY_MAX;
use active_configs::ActiveConfigs;
use covering::{CoveredPlaces, CoveringRoute};
use explain::{Explanation, Outages, explain};
use former_owners::FormerOwners;
use lookaside_client::config::ConfigId;
use lookaside_client::tree::{BackgroundTasks, DestinationSet, environment};
use lookaside_client::{
    DestinationOptions, Network, PoolTkoLimit, TcpDestination, Window, WindowStatistics, WindowedDestination,
};
use lookaside_routing::{
    Address, Context, Destination, DestinationSettings, Destinations, Environment, Handle, Leasing, Pool, Route, Slot,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A tree of routes and the servers at its leaves.
pub struct Tree {
    root: Arc<dyn Route>,
    destinations: DestinationSet,
    /// The window over all that its destinations have outstanding (§3.1); `None` without `--window`.
    window: Option<Arc<Window>>,
    target_stats: Option<PerTargetStats>,
    background_tasks: BackgroundTasks,
    /// The servers whose deletes are not spooled.
    _unspooled: Vec<ConfiguredServer>,
    /// `None` if the tree was not built from a configuration.
    source: Option<TreeSource>,
    /// Closed when the tree is dropped.
    end: watch::Sender<()>,
}

struct TreeSource {
    config: Arc<RouterConfig>,
    /// `None` if it has no identity, which is a bug.
    id: Option<ConfigId>,
    network: Arc<dyn Network>,
    /// Whether keys are read from their former owners.
    reads_former_owners: bool,
    lease_version: u64,
    /// `None` unless more than one configuration is covered.
    covered_places: Option<Arc<CoveredPlaces>>,
}

impl Tree {
    /// A tree of one route without destinations.
    pub fn from_route(route: Arc<dyn Route>) -> Tree {
        Tree {
            root: route,
            destinations: DestinationSet::default(),
            window: None,
            target_stats: None,
            background_tasks: BackgroundTasks::default(),
            _unspooled: Vec::new(),
            source: None,
            end: watch::Sender::new(()),
        }
    }

    /// The tree that `config` describes, with destinations on `network`. Destinations that `old` has too move over.
    /// Must be called inside the tokio runtime that will serve it. `seed` determines the jitter of probes.
    pub fn build(config: &Arc<RouterConfig>, network: Arc<dyn Network>, seed: u64, old: Option<&Tree>) -> Tree {
        Tree::build_active(&ActiveConfigs::single(config.clone()), network, seed, old)
    }

    /// As [`Tree::build`], with deletes that cover further configurations.
    pub fn build_active(active: &ActiveConfigs, network: Arc<dyn Network>, seed: u64, old: Option<&Tree>) -> Tree {
        let config = &active.reads;
        let window = old.and_then(|old| old.window.clone()).or_else(|| config.window().map(Window::new));
        let background_tasks = old.map_or_else(BackgroundTasks::default, |old| old.background_tasks.clone());
        let mut options = DestinationOptions { seed, ..config.destination_options().clone() };
        // A spare must replace a dead server although no request finds it: clients may read servers directly.
        options.connect_eagerly |= config.pools().values().any(|pool| !pool.spares.is_empty());
        let mut factory = DestinationFactory {
            config,
            network: network.clone(),
            seed,
            options,
            old,
            destinations: DestinationSet::default(),
            leaves: BTreeMap::new(),
            tko_limits: BTreeMap::new(),
            window: window.clone(),
            background_tasks: background_tasks.clone(),
            target_stats: config.is_measured().then(PerTargetStats::default),
            unspooled: Vec::new(),
            former_owners: None,
        };
        let covered_places = (!active.covered.is_empty()).then(|| Arc::new(CoveredPlaces::of(active)));
        let former = active.former.clone().zip(covered_places.clone());
        factory.former_owners = former.map(|(former, places)| FormerOwners::new(former, places, config));
        let mut route: Arc<dyn Route> = Arc::new(config.configuration().build(&mut factory));
        if let Some(places) = covered_places.clone() {
            factory.add_covered(active);
            let (destinations, deletes) = (std::mem::take(&mut factory.leaves), active.covering_deletes.clone());
            route = Arc::new(CoveringRoute { routed: route, places, destinations, deletes });
        }
        let route = match config.spool() {
            Some(_) => Arc::new(SpoolingRoot(route)),
            None => route,
        };
        let route = match config.start_gate() {
            Some(gate) => Arc::new(GatedRoot { gate: gate.clone(), root: route }),
            None => route,
        };
        let DestinationFactory { destinations, tko_limits, target_stats, unspooled: _unspooled, .. } = factory;
        if let Some(tko_trackers) = &config.destination_options().tko_trackers {
            tko_trackers.set_pool_limits(tko_limits);
        }
        let source = Some(TreeSource {
            config: config.clone(),
            id: ConfigId::of(config.text()).ok(),
            network,
            reads_former_owners: active.former.is_some(),
            lease_version: active.lease_version,
            covered_places,
        });
        let end = watch::Sender::new(());
        Tree { root: route, destinations, window, target_stats, background_tasks, _unspooled, source, end }
    }

    /// Resolves when nothing uses the tree any more: it is not in force, and the batches on it have ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + use<> {
        let mut end = self.end.subscribe();
        async move { while end.changed().await.is_ok() {} }
    }

    /// Its root.
    pub fn root(&self) -> &Arc<dyn Route> {
        &self.root
    }

    /// Resolves when every server is connected to or known to be down, or after `READY_MAX`. Until then requests
    /// through the tree wait for connections, so the old tree stays in force.
    pub async fn wait_until_ready(&self) {
        self.destinations.wait_until_ready(READY_MAX).await;
    }

    /// Whether it reaches a server by TLS that `old` reaches plain.
    pub(crate) fn secures_server_of(&self, old: &Tree) -> bool {
        self.destinations.secures_server_of(&old.destinations)
    }

    /// The servers at its leaves, in the order of their addresses.
    pub fn destinations(&self) -> impl Iterator<Item = &Arc<TcpDestination>> {
        self.destinations.iter()
    }

    /// The same, with their addresses and settings.
    pub(crate) fn destinations_with_settings(
        &self,
    ) -> impl Iterator<Item = (&Address, &DestinationSettings, &Arc<TcpDestination>)> {
        let settings = self.destinations.settings();
        settings.zip(self.destinations.iter()).map(|((address, settings), server)| (address, settings, server))
    }

    /// The window's state; `None` without `--window`.
    pub(crate) fn window(&self) -> Option<WindowStatistics> {
        self.window.as_ref().map(|window| window.statistics())
    }

    /// The configuration that it was built from, if any.
    pub(crate) fn config(&self) -> Option<&RouterConfig> {
        self.source.as_ref().map(|source| &*source.config)
    }

    /// What its routes need to know of clients' misses; `None` if it takes no leases for clients.
    pub(crate) fn leasing(&self) -> Option<Leasing> {
        let source = self.source.as_ref()?;
        let scope = source.config.configuration().leased_keys.as_ref()?.scope;
        Some(Leasing { scope, version: source.lease_version })
    }

    /// Whether it takes leases for clients, for every key.
    pub(crate) fn leases_all_keys(&self) -> bool {
        let leased_keys = self.config().and_then(|config| config.configuration().leased_keys.as_ref());
        leased_keys.is_some_and(|leased_keys| leased_keys.are_all())
    }

    /// The limit on the time that the further destinations of a request may take after one has timed out.
    pub(crate) fn failover_timeout(&self) -> Option<Duration> {
        self.config()?.failover_timeout()
    }

    /// The background tasks of its routes. All trees of a thread share them.
    pub(crate) fn background_tasks(&self) -> &BackgroundTasks {
        &self.background_tasks
    }

    /// The counts of its servers and pools; `None` if they are not measured.
    pub(crate) fn target_stats(&self) -> Option<&PerTargetStats> {
        self.target_stats.as_ref()
    }

    /// The spool; `None` without `--spool`.
    pub(crate) fn spool(&self) -> Option<&Arc<Spool>> {
        self.source.as_ref()?.config.spool()
    }

    /// The start gate; `None` without `--wait-for-invalidator`.
    pub(crate) fn start_gate(&self) -> Option<&Arc<StartGate>> {
        self.source.as_ref()?.config.start_gate()
    }

    /// The spares; `None` if they never serve.
    pub(crate) fn spares(&self) -> Option<&Arc<Spares>> {
        self.source.as_ref()?.config.spares()
    }

    /// The identity of its configuration, which a client with the same one may read by. The error says why it may not.
    pub(crate) fn permitted_configuration(&self) -> Result<ConfigId, &'static str> {
        let source = self.source.as_ref().ok_or("the router has no configuration")?;
        if source.config.start_gate().is_some_and(|gate| !gate.is_open()) {
            return Err("the router waits for the invalidator");
        }
        if source.reads_former_owners {
            return Err("keys that have moved are read from their former owners");
        }
        source.id.ok_or("the configuration has no identity")
    }

    /// The servers that are fenced.
    pub(crate) fn fenced(&self) -> BTreeSet<Address> {
        let source = self.source.as_ref();
        let tko_trackers = source.and_then(|source| source.config.destination_options().tko_trackers.as_ref());
        tko_trackers.map(|tko_trackers| tko_trackers.fenced()).unwrap_or_default()
    }

    /// The pools that have reached their TKO limit: their further failing servers stay in use.
    pub(crate) fn fail_open_pools(&self) -> Vec<String> {
        let source = self.source.as_ref();
        let tko_trackers = source.and_then(|source| source.config.destination_options().tko_trackers.as_ref());
        tko_trackers.map(|tko_trackers| tko_trackers.fail_open_pools()).unwrap_or_default()
    }

    /// The routes and servers that `verb` for `key` would reach; `None` if the tree was not built from a configuration.
    pub(crate) async fn explain(&self, verb: &str, key: &str, client: &Context) -> Option<Result<Explanation, String>> {
        // It must not use up the lease of a miss.
        let client = client.without_misses();
        match &self.source {
            Some(TreeSource { config, covered_places, .. }) => {
                let explanation = explain(config, verb, key, &client, &Outages::default()).await;
                Some(match covered_places {
                    Some(places) => covering::explain(places, explanation, verb, key, &client),
                    None => explanation,
                })
            }
            None => None,
        }
    }
}

struct DestinationFactory<'a> {
    config: &'a RouterConfig,
    network: Arc<dyn Network>,
    seed: u64,
    /// Of all destinations.
    options: DestinationOptions,
    old: Option<&'a Tree>,
    destinations: DestinationSet,
    /// One for each server, spooling if any does.
    leaves: BTreeMap<Address, Arc<dyn Destination>>,
    /// By pool name, of the pools that have one.
    tko_limits: BTreeMap<String, PoolTkoLimit>,
    window: Option<Arc<Window>>,
    target_stats: Option<PerTargetStats>,
    background_tasks: BackgroundTasks,
    unspooled: Vec<ConfiguredServer>,
    /// `None` if no former owners are read.
    former_owners: Option<Arc<FormerOwners>>,
}

impl DestinationFactory<'_> {
    /// Adds destinations for the servers that only covered configurations name.
    fn add_covered(&mut self, active: &ActiveConfigs) {
        for covered in &active.covered {
            for (address, settings) in covered.config.leaves() {
                if !self.leaves.contains_key(&address) && !covered.departed.contains(&address) {
                    self.build_leaf(&covered.config, &address, &settings);
                }
            }
        }
    }

    fn build_leaf(
        &mut self,
        config: &RouterConfig,
        address: &Address,
        settings: &DestinationSettings,
    ) -> Arc<dyn Destination> {
        let policy = config.configuration().tls_policies.get(address);
        let certificate_name = policy.and_then(|policy| policy.certificate_name.clone());
        // Not that of the configuration in force, which may not name the server: it would be connected to in plain.
        let network = || policy.and_then(|policy| self.network.pinned(policy)).unwrap_or_else(|| self.network.clone());
        let (options, old) = (&self.options, self.old.map(|old| &old.destinations));
        let destination = self.destinations.add(address, settings, certificate_name, options, network, old);
        let destination: Arc<dyn Destination> = match &self.window {
            Some(window) => Arc::new(WindowedDestination::new(destination, window.clone())),
            None => destination,
        };
        let destination = match &mut self.target_stats {
            Some(stats) => stats.wrap_destination(destination, settings, self.old.and_then(Tree::target_stats)),
            None => destination,
        };
        let destination = match self.config.spool() {
            Some(spool) if settings.asynclog => spool.wrap_destination(destination),
            Some(spool) => {
                // It may have a backlog from an earlier configuration, or be fenced by a peer.
                self.unspooled.push(spool.configure(address));
                destination
            }
            None => destination,
        };
        if settings.asynclog || !self.leaves.contains_key(address) {
            self.leaves.insert(address.clone(), destination.clone());
        }
        destination
    }
}

impl Destinations for DestinationFactory<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        self.build_leaf(self.config, address, settings)
    }

    fn wrap_route(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        let route = match (&mut self.target_stats, handle.pool()) {
            (Some(stats), Some(pool)) if !matches!(handle, Handle::Server { .. }) => {
                stats.wrap_pool(&pool.name, &pool.servers, route, self.old.and_then(Tree::target_stats))
            }
            _ => route,
        };
        match self.former_owners.clone() {
            Some(former_owners) => former_owners.wrap(handle, route, self),
            None => route,
        }
    }

    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        self.config.spares().map(|spares| spares.slot(pool, at)).unwrap_or_default()
    }

    fn use_pool(&mut self, pool: &Pool) {
        if let Some(limit) = pool.tko_limit {
            let limit = PoolTkoLimit { servers: pool.servers.clone(), enter: limit.enter, exit: limit.exit };
            self.tko_limits.insert(pool.name.clone(), limit);
        }
    }

    fn environment(&mut self) -> Environment {
        let environment =
            environment(self.config.host(), self.seed, &self.background_tasks, self.config.failover_timeout());
        Environment { shadows: self.config.shadow_settings().clone(), ..environment }
    }
}

#[cfg(test)]
mod tests;
