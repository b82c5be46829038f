//! A tree of routes over this thread's connections.
//!
//! When the configuration changes, a destination that the new one names with the same address and the same settings
//! is taken over with its connection and its health: a server that was taken out does not come back by a reload, and
//! one that is fine is not connected to again. The new tree is put in force once the others are connected to, or known to be
//! dead; those that it does not name end when the last batch on the old tree has its outcomes.

use crate::backend::flush;
use crate::spool::SpoolingRoot;
use crate::stats::per_target::Measures;
pub(crate) mod environment;
pub(crate) mod explain;

use crate::{Outages, Plan, Spares, Spool, Trace};
use environment::{Backyard, environment};
use explain::trace;
use lookaside_client::{
    DestinationOptions, Network, PoolTkoLimit, TcpDestination, Window, WindowStatistics, WindowedDestination,
};
use lookaside_routing::{
    Address, Context, Destination, DestinationSettings, Destinations, Environment, Handle, Pool, Route, Slot,
};
use std::collections::BTreeMap;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// How long a new tree may keep a router from serving, or from putting it in force, while it connects.
pub const SETTLE_MAX: Duration = Duration::from_secs(2);

/// What makes two destinations the same; the name that the server's certificate must bear is part of it.
type Identity = (Address, DestinationSettings, Option<Arc<str>>);

/// A tree of routes and the servers at its leaves.
pub struct Tree {
    route: Arc<dyn Route>,
    destinations: BTreeMap<Identity, Arc<TcpDestination>>,
    /// Over all that its destinations have outstanding together (§3.1).
    window: Option<Arc<Window>>,
    /// Around its servers and pools, where they are measured.
    measures: Option<Measures>,
    backyard: Backyard,
    source: Option<Source>,
}

/// What a tree was built from.
struct Source {
    plan: Arc<Plan>,
    network: Arc<dyn Network>,
}

impl Tree {
    /// A tree that was put together elsewhere; it shows no destinations in `stats`.
    pub fn of(route: Arc<dyn Route>) -> Tree {
        Tree {
            route,
            destinations: BTreeMap::new(),
            window: None,
            measures: None,
            backyard: Backyard::new(),
            source: None,
        }
    }

    /// The tree that `plan` describes, with destinations on `network`, taken over from `old` where they are the same.
    /// Must be called inside the tokio runtime that will serve it. `seed` is what the jitter of probes is drawn from.
    pub fn build(plan: &Arc<Plan>, network: Arc<dyn Network>, seed: u64, old: Option<&Tree>) -> Tree {
        let window = old.and_then(|old| old.window.clone()).or_else(|| plan.window().map(Window::new));
        let backyard = old.map_or_else(Backyard::new, |old| old.backyard.clone());
        let mut leaves = Leaves {
            plan,
            network: network.clone(),
            seed,
            old,
            destinations: BTreeMap::new(),
            bounds: BTreeMap::new(),
            window: window.clone(),
            backyard: backyard.clone(),
            measures: plan.is_measured().then(Measures::default),
        };
        let route: Arc<dyn Route> = Arc::new(plan.configuration().build(&mut leaves));
        let route = match plan.spool() {
            Some(_) => Arc::new(SpoolingRoot(route)),
            None => route,
        };
        let Leaves { destinations, bounds, measures, .. } = leaves;
        if let Some(tko_trackers) = &plan.destination_options().tko_trackers {
            tko_trackers.bound(bounds);
        }
        Tree { route, destinations, window, measures, backyard, source: Some(Source { plan: plan.clone(), network }) }
    }

    /// Its root.
    pub fn route(&self) -> &Arc<dyn Route> {
        &self.route
    }

    /// Resolves when there is a connection to every server, or it is known that there is none, or after [`SETTLE_MAX`]. Until
    /// then the tree is slow to answer, so another one goes on meanwhile, if there is one.
    pub async fn settled(&self) {
        let all = async {
            // They connect at the same time, in tasks of their own.
            for destination in self.destinations.values() {
                destination.ready().await;
            }
        };
        let _ = timeout(SETTLE_MAX, all).await;
    }

    /// The servers at its leaves, in the order of their addresses.
    pub fn destinations(&self) -> impl Iterator<Item = &Arc<TcpDestination>> {
        self.destinations.values()
    }

    /// How much is outstanding at all servers together, if that is bounded.
    pub(crate) fn window(&self) -> Option<WindowStatistics> {
        self.window.as_ref().map(|window| window.statistics())
    }

    /// What it was built from, if that is known.
    pub(crate) fn plan(&self) -> Option<&Plan> {
        self.source.as_ref().map(|source| &*source.plan)
    }

    /// Where it leaves what nobody waits for; the same one for all trees of a thread.
    pub(crate) fn backyard(&self) -> &Backyard {
        &self.backyard
    }

    /// How its servers and pools fare, if they are measured.
    pub(crate) fn measures(&self) -> Option<&Measures> {
        self.measures.as_ref()
    }

    /// Where deletes that fail are kept, if they are.
    pub(crate) fn spool(&self) -> Option<&Arc<Spool>> {
        self.source.as_ref()?.plan.spool()
    }

    /// The spares, if they ever serve.
    pub(crate) fn spares(&self) -> Option<&Arc<Spares>> {
        self.source.as_ref()?.plan.spares()
    }

    /// The pools of which so many servers are taken out that no more are.
    pub(crate) fn fail_open_pools(&self) -> Vec<String> {
        let source = self.source.as_ref();
        let tko_trackers = source.and_then(|source| source.plan.destination_options().tko_trackers.as_ref());
        tko_trackers.map(|tko_trackers| tko_trackers.fail_open_pools()).unwrap_or_default()
    }

    /// The way of `verb` for `key`; `None` where it is not known.
    pub(crate) async fn trace(&self, verb: &str, key: &str, context: &Context) -> Option<Result<Trace, String>> {
        match &self.source {
            Some(Source { plan, .. }) => Some(trace(plan, verb, key, context, &Outages::default()).await),
            None => None,
        }
    }

    /// Tells every server to forget everything after `delay_s` seconds. The error names the servers that did not.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        let Some(Source { network, .. }) = &self.source else { return Ok(()) };
        let mut failed = Vec::new();
        for destination in self.destinations.values() {
            let address = destination.address();
            if let Err(why) = flush::ask(&**network, address, delay_s).await {
                failed.push(format!("{address} ({why})"));
            }
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("not flushed: {}", failed.join(", "))),
        }
    }
}

/// Makes the destinations of one tree.
struct Leaves<'a> {
    plan: &'a Plan,
    network: Arc<dyn Network>,
    seed: u64,
    old: Option<&'a Tree>,
    destinations: BTreeMap<Identity, Arc<TcpDestination>>,
    /// Of the pools that have one, by their names.
    bounds: BTreeMap<String, PoolTkoLimit>,
    window: Option<Arc<Window>>,
    measures: Option<Measures>,
    backyard: Backyard,
}

impl Leaves<'_> {
    fn connect(&self, address: &Address, settings: &DestinationSettings) -> Arc<TcpDestination> {
        let options = DestinationOptions {
            server_timeout_ms: settings.server_timeout_ms,
            connect_timeout_ms: Some(settings.connect_timeout_ms),
            protocol: settings.protocol,
            seed: self.seed ^ self.destinations.len() as u64,
            ..self.plan.destination_options().clone()
        };
        Arc::new(TcpDestination::new(address.clone(), self.network.clone(), options))
    }
}

impl Destinations for Leaves<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        let protection = self.plan.configuration().protections.get(address);
        let identity = (address.clone(), *settings, protection.and_then(|protection| protection.identity.clone()));
        let kept = self.destinations.get(&identity).or_else(|| self.old?.destinations.get(&identity));
        let destination = kept.cloned().unwrap_or_else(|| self.connect(address, settings));
        self.destinations.insert(identity, destination.clone());
        let destination: Arc<dyn Destination> = match &self.window {
            Some(window) => Arc::new(WindowedDestination::new(destination, window.clone())),
            None => destination,
        };
        let destination = match &mut self.measures {
            Some(measures) => measures.around_server(destination, settings, self.old.and_then(Tree::measures)),
            None => destination,
        };
        match self.plan.spool() {
            Some(spool) if settings.asynclog => spool.wrap(destination),
            Some(spool) => {
                // It may owe deletes all the same: from before, or to another router.
                spool.configure(address);
                destination
            }
            None => destination,
        }
    }

    fn around(&mut self, handle: &Handle, route: Arc<dyn Route>) -> Arc<dyn Route> {
        match (&mut self.measures, handle) {
            (Some(measures), Handle::Pool { pool, .. } | Handle::SaltedFailover { pool, .. }) => {
                measures.around_pool(&pool.name, &pool.servers, route, self.old.and_then(Tree::measures))
            }
            _ => route,
        }
    }

    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        self.plan.spares().map(|spares| spares.slot(pool, at)).unwrap_or_default()
    }

    fn pool(&mut self, pool: &Pool) {
        if let Some(bound) = pool.out_bound {
            let bound = PoolTkoLimit { servers: pool.servers.clone(), enter: bound.enter, exit: bound.exit };
            self.bounds.insert(pool.name.clone(), bound);
        }
    }

    fn environment(&mut self) -> Environment {
        environment(self.plan.host(), self.seed, &self.backyard)
    }
}
