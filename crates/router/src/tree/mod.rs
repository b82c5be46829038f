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
//! On a reload, a destination with the same address and the same settings moves to the new tree with its connection and
//! its health: a reload neither brings a TKO server back nor reconnects to a healthy one. The new tree is put in force
//! once the other servers are connected to, or known to be down; at once if it protects a server by TLS that the old one
//! reaches plain. Destinations that it does not name end with the last
//! batch on the old tree.

pub(crate) mod active_configs;
mod covering;
pub(crate) mod environment;
pub(crate) mod explain;
mod former_owners;
pub(crate) mod placement;

use crate::backend::flush::flush_server;
use crate::config::router_config::RouterConfig;
use crate::spares::Spares;
use crate::spool::{ConfiguredServer, Spool, SpoolingRoot};
use crate::start_gate::{GatedRoot, StartGate};
use crate::stats::per_target::PerTargetStats;
use crate::timeouts::READY_MAX;
use active_configs::ActiveConfigs;
use covering::{CoveredPlaces, CoveringRoute};
use environment::{BackgroundTasks, environment};
use explain::{Explanation, Outages, explain};
use former_owners::FormerOwners;
use lookaside_client::{
    DestinationOptions, Network, PoolTkoLimit, TcpDestination, Window, WindowStatistics, WindowedDestination,
};
use lookaside_routing::{
    Address, Context, Destination, DestinationSettings, Destinations, Environment, Handle, LeaseScope, Pool, Route,
    Security, Slot,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// Two destinations with equal keys are the same. The last part is the name that the server's certificate must bear.
type DestinationKey = (Address, DestinationSettings, Option<Arc<str>>);

/// A tree of routes and the servers at its leaves.
pub struct Tree {
    root: Arc<dyn Route>,
    destinations: BTreeMap<DestinationKey, Arc<TcpDestination>>,
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
    network: Arc<dyn Network>,
    /// `None` unless more than one configuration is covered.
    covered_places: Option<Arc<CoveredPlaces>>,
}

impl Tree {
    /// A tree of one route without destinations.
    pub fn from_route(route: Arc<dyn Route>) -> Tree {
        Tree {
            root: route,
            destinations: BTreeMap::new(),
            window: None,
            target_stats: None,
            background_tasks: BackgroundTasks::new(),
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
        let background_tasks = old.map_or_else(BackgroundTasks::new, |old| old.background_tasks.clone());
        let mut factory = DestinationFactory {
            config,
            network: network.clone(),
            seed,
            old,
            destinations: BTreeMap::new(),
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
        let source = Some(TreeSource { config: config.clone(), network, covered_places });
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
        let all = async {
            // They connect at the same time, in tasks of their own.
            for destination in self.destinations.values() {
                destination.ready().await;
            }
        };
        let _ = timeout(READY_MAX, all).await;
    }

    /// Whether it reaches a server by TLS that `old` reaches plain.
    pub(crate) fn secures_server_of(&self, old: &Tree) -> bool {
        let servers = |tree: &Tree, is_plain: bool| -> BTreeSet<Address> {
            let keys = tree.destinations.keys();
            let keys = keys.filter(|(_, settings, _)| (settings.security == Security::Plain) == is_plain);
            keys.map(|(address, ..)| address.clone()).collect()
        };
        !servers(self, false).is_disjoint(&servers(old, true))
    }

    /// The servers at its leaves, in the order of their addresses.
    pub fn destinations(&self) -> impl Iterator<Item = &Arc<TcpDestination>> {
        self.destinations.values()
    }

    /// The window's state; `None` without `--window`.
    pub(crate) fn window(&self) -> Option<WindowStatistics> {
        self.window.as_ref().map(|window| window.statistics())
    }

    /// The configuration that it was built from, if any.
    pub(crate) fn config(&self) -> Option<&RouterConfig> {
        self.source.as_ref().map(|source| &*source.config)
    }

    /// The connections whose misses its routes need together; `None` if it takes no leases for clients.
    pub(crate) fn lease_scope(&self) -> Option<LeaseScope> {
        self.config()?.configuration().lease_scope
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

    /// The pools that have reached their TKO limit: their further failing servers stay in use.
    pub(crate) fn fail_open_pools(&self) -> Vec<String> {
        let source = self.source.as_ref();
        let tko_trackers = source.and_then(|source| source.config.destination_options().tko_trackers.as_ref());
        tko_trackers.map(|tko_trackers| tko_trackers.fail_open_pools()).unwrap_or_default()
    }

    /// The routes and servers that `verb` for `key` would reach; `None` if the tree was not built from a configuration.
    pub(crate) async fn explain(&self, verb: &str, key: &str, client: &Context) -> Option<Result<Explanation, String>> {
        match &self.source {
            Some(TreeSource { config, covered_places, .. }) => {
                let explanation = explain(config, verb, key, client, &Outages::default()).await;
                Some(match covered_places {
                    Some(places) => covering::explain(places, explanation, verb, key, client),
                    None => explanation,
                })
            }
            None => None,
        }
    }

    /// Flushes every server after `delay_s` seconds. The error names the servers that failed.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        let Some(TreeSource { network, covered_places, .. }) = &self.source else { return Ok(()) };
        // During a change a router may copy a value from a former owner that is flushed after the new one.
        let again = covered_places.is_some().then(|| second_flush_delay_s(delay_s));
        let mut failed = BTreeMap::new();
        for delay_s in [delay_s].into_iter().chain(again) {
            for destination in self.destinations.values() {
                let address = destination.address();
                if let Err(why) = flush_server(&**network, address, delay_s).await {
                    failed.insert(address, format!("{address} ({why})"));
                }
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("not flushed: {}", Vec::from_iter(failed.into_values()).join(", "))),
        }
    }
}

/// A longer delay is a Unix time.
const FLUSH_DELAY_S_MAX: i64 = 60 * 60 * 24 * 30;

/// The delay of a second flush, which must come after the first one at all servers: their clocks may differ by less than
/// a second.
fn second_flush_delay_s(delay_s: i64) -> i64 {
    match delay_s {
        FLUSH_DELAY_S_MAX | ..=0 => delay_s,
        _ => delay_s + 1,
    }
}

struct DestinationFactory<'a> {
    config: &'a RouterConfig,
    network: Arc<dyn Network>,
    seed: u64,
    old: Option<&'a Tree>,
    destinations: BTreeMap<DestinationKey, Arc<TcpDestination>>,
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
    fn connect(&self, address: &Address, settings: &DestinationSettings) -> Arc<TcpDestination> {
        let options = DestinationOptions {
            server_timeout_ms: settings.server_timeout_ms,
            connect_timeout_ms: Some(settings.connect_timeout_ms),
            protocol: settings.protocol,
            seed: self.seed ^ self.destinations.len() as u64,
            ..self.config.destination_options().clone()
        };
        let policy = self.config.configuration().tls_policies.get(address);
        let pinned = policy.and_then(|policy| self.network.pinned(policy));
        let network = pinned.unwrap_or_else(|| self.network.clone());
        Arc::new(TcpDestination::new(address.clone(), network, options))
    }

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
        let key = (address.clone(), *settings, policy.and_then(|policy| policy.certificate_name.clone()));
        let existing = self.destinations.get(&key).or_else(|| self.old?.destinations.get(&key));
        let destination = existing.cloned().unwrap_or_else(|| self.connect(address, settings));
        self.destinations.insert(key, destination.clone());
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
        environment(self.config.host(), self.seed, &self.background_tasks, self.config.failover_timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::second_flush_delay_s;

    #[test]
    fn a_second_flush_comes_a_second_later_unless_it_comes_at_once() {
        let month = super::FLUSH_DELAY_S_MAX;
        let delays = [-1, 0, 1, month - 1, month, month + 1].map(second_flush_delay_s);
        assert_eq!(delays, [-1, 0, 2, month, month, month + 2]);
    }
}
