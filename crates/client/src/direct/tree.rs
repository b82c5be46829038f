//! The tree of routes of a client that reads servers directly: the same routes as in a router, over leaves that only
//! read, unless updates are sent directly, too. Routes that store what they have read elsewhere send such reads through
//! a router.

use super::filling_router::FillingRouter;
use super::permit::ServingSpare;
use super::settings::TreeSettings;
use crate::config::ConfigId;
use crate::tree::{DestinationSet, environment};
use crate::udp::UdpDestination;
use crate::{PoolTkoLimit, WindowedDestination};
use bytes::Bytes;
use lookaside_protocol::{Operation, Request};
use lookaside_routing::{
    Address, Batch, BoxFuture, Configuration, Context, Destination, DestinationSettings, Destinations, Environment,
    Failure, LeasedKeys, Outcomes, Pool, Protocol, Route, RouteConfig, Security, Serving, Slot, Verb,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The reason of the failure of other requests.
const ONLY_READS: &str = "a client that reads servers directly sends them nothing but reads";

/// The tree of one configuration.
pub(super) struct DirectTree {
    pub(super) id: ConfigId,
    /// The keys whose requests pass a `LeaseRoute`; `None` if it has none.
    pub(super) leased_keys: Option<LeasedKeys>,
    /// Whether a part of it changes keys.
    are_keys_changed: bool,
    /// Whether a part of it sends reads through a router, which stores elsewhere what it finds.
    pub(super) fills_by_router: bool,
    /// Whether a route above such a part does more with reads than to pass them on
    /// ([`RouteConfig::passes_reads`](lookaside_routing::RouteConfig::passes_reads)): they would pass it once here and
    /// once in the router, which changes a key twice, say, or takes two leases for one miss.
    pub(super) is_for_routers_only: bool,
    /// The routers that the configuration names for clients; empty if it names none.
    pub(super) routers: Vec<Address>,
    root: Arc<dyn Route>,
    pub(super) destinations: DestinationSet,
    /// The places of pools with spares, by the pool's name and the server's index.
    slots: BTreeMap<(String, usize), Arc<Slot>>,
    /// By the names of pools that have one.
    pub(super) tko_limits: BTreeMap<String, PoolTkoLimit>,
}

/// Whether it is read by a client that reads servers directly. `gat` and the like change an expiry, too.
pub(super) fn is_read(request: &Request<Bytes>) -> bool {
    match Verb::of(&request.operation) {
        Verb::Get | Verb::Gets | Verb::LeaseGet => !matches!(request.operation, Operation::Meta(_)),
        _ => false,
    }
}

/// Whether it takes a lease, or stores under one that the client holds: what routers do for plain clients does not
/// matter to it.
pub(super) fn has_own_lease(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::LeaseGet | Operation::LeaseSet { .. })
}

/// Whether it returns a lease and stores nothing.
fn is_lease_return(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::LeaseSet { exptime, .. } if exptime < 0)
}

/// Whether it can be sent to a server that only reads are sent to.
fn stores_nothing(request: &Request<Bytes>) -> bool {
    is_read(request) || is_lease_return(request)
}

impl DirectTree {
    /// The tree of the configuration in `text`, over the connections of `old` where it has them. Must be called inside
    /// the tokio runtime that will serve it. The error has line, column and reason.
    pub(super) fn build(text: &str, settings: &TreeSettings, old: Option<&DirectTree>) -> Result<DirectTree, String> {
        let configuration = Configuration::parse(text, &settings.defaults).map_err(|error| error.to_string())?;
        let check = |_: &Address, policy: &_| match settings.network.pinned(policy) {
            None if policy.security != Security::Plain => Err("the client's network has no TLS".to_owned()),
            _ => Ok(()),
        };
        configuration.check_tls_policies(check).map_err(|error| error.to_string())?;
        let mut leaves = DirectLeaves {
            settings,
            configuration: &configuration,
            old: old.map(|old| &old.destinations),
            destinations: DestinationSet::default(),
            slots: BTreeMap::new(),
            tko_limits: BTreeMap::new(),
            are_keys_changed: false,
            fills_by_router: false,
            is_for_routers_only: false,
        };
        let root: Arc<dyn Route> = Arc::new(configuration.build(&mut leaves));
        let DirectLeaves { destinations, slots, tko_limits, .. } = leaves;
        let DirectLeaves { are_keys_changed, fills_by_router, is_for_routers_only, .. } = leaves;
        Ok(DirectTree {
            id: ConfigId::of(text)?,
            is_for_routers_only,
            are_keys_changed,
            fills_by_router,
            root,
            destinations,
            slots,
            tko_limits,
            leased_keys: configuration.leased_keys.clone(),
            routers: configuration.routers.clone(),
        })
    }

    pub(super) async fn route(&self, batch: Batch, context: &Context) -> Outcomes {
        self.root.route(batch, context).await
    }

    /// Whether requests for the keys that it leases pass a `LeaseRoute`, which sees the key of the application.
    pub(super) fn leases_by_client_key(&self) -> bool {
        let may_miss_their_route = self.are_keys_changed || self.fills_by_router;
        self.leased_keys.as_ref().is_some_and(|keys| keys.are_all() || !may_miss_their_route)
    }

    /// Lets these spares serve, and no others.
    pub(super) fn serve_spares(&self, spares: &BTreeSet<ServingSpare>) {
        for ((pool, server), slot) in &self.slots {
            let serving = spares.iter().find(|spare| spare.pool == *pool && spare.server == *server);
            slot.serve(serving.map_or(Serving::Own, |spare| Serving::Spare(spare.spare)));
        }
    }
}

struct DirectLeaves<'a> {
    settings: &'a TreeSettings,
    configuration: &'a Configuration,
    old: Option<&'a DestinationSet>,
    destinations: DestinationSet,
    slots: BTreeMap<(String, usize), Arc<Slot>>,
    tko_limits: BTreeMap<String, PoolTkoLimit>,
    are_keys_changed: bool,
    fills_by_router: bool,
    is_for_routers_only: bool,
}

impl Destinations for DirectLeaves<'_> {
    fn destination(&mut self, address: &Address, settings: &DestinationSettings) -> Arc<dyn Destination> {
        let TreeSettings { network, options, window, .. } = self.settings;
        let policy = self.configuration.tls_policies.get(address);
        let certificate_name = policy.and_then(|policy| policy.certificate_name.clone());
        let pinned = || policy.and_then(|policy| network.pinned(policy)).unwrap_or_else(|| network.clone());
        let server = self.destinations.add(address, settings, certificate_name, options, pinned, self.old);
        let is_plain_text = settings.security == Security::Plain && settings.protocol == Protocol::Text;
        let leaf: Arc<dyn Destination> = match &self.settings.udp {
            // Datagrams are not encrypted, and servers that are sent meta commands may not know the text protocol.
            Some((sockets, udp)) if is_plain_text => {
                Arc::new(UdpDestination::new(server, sockets.clone(), *udp, window.clone()))
            }
            _ => server,
        };
        let leaf = match window {
            Some(window) => Arc::new(WindowedDestination::new(leaf, window.clone())),
            None => leaf,
        };
        match self.settings.updates_directly {
            true => leaf,
            false => Arc::new(ReadingDestination(leaf)),
        }
    }

    fn slot(&mut self, pool: &Pool, at: usize) -> Arc<Slot> {
        self.slots.entry((pool.name.clone(), at)).or_default().clone()
    }

    fn use_pool(&mut self, pool: &Pool) {
        if let Some(limit) = pool.tko_limit {
            let limit = PoolTkoLimit { servers: pool.servers.clone(), enter: limit.enter, exit: limit.exit };
            self.tko_limits.insert(pool.name.clone(), limit);
        }
    }

    fn fill_on_reads(&mut self, is_passed_to: bool) {
        self.fills_by_router = true;
        self.is_for_routers_only |= !is_passed_to;
    }

    fn change_keys(&mut self, _: &Arc<dyn RouteConfig>, _: usize) {
        self.are_keys_changed = true;
    }

    fn environment(&mut self) -> Environment {
        let TreeSettings { host, options, background_tasks, failover_timeout, .. } = self.settings;
        let TreeSettings { routers, leases, counters, .. } = self.settings;
        let (routers, leases, counters) = (routers.clone(), leases.clone(), counters.clone());
        let filling_router: Arc<dyn Route> = Arc::new(FillingRouter { routers, leases, counters });
        let environment = environment(*host, options.seed, background_tasks, *failover_timeout);
        Environment { filling_router: Some(filling_router), ..environment }
    }
}

/// A server to which nothing but reads, and returned leases, are sent.
struct ReadingDestination(Arc<dyn Destination>);

impl ReadingDestination {
    async fn send_reads(&self, batch: Batch) -> Outcomes {
        let mut outcomes: Outcomes = vec![Err(Failure::NoRoute(ONLY_READS.into())); batch.len()];
        let reads = batch.into_iter().enumerate().filter(|(_, request)| stores_nothing(request));
        let (indexes, reads): (Vec<usize>, Batch) = reads.unzip();
        for (at, outcome) in indexes.into_iter().zip(self.0.send(reads).await) {
            outcomes[at] = outcome;
        }
        outcomes
    }
}

impl Destination for ReadingDestination {
    fn send(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match batch.iter().all(stores_nothing) {
            true => self.0.send(batch),
            false => Box::pin(self.send_reads(batch)),
        }
    }

    fn address(&self) -> &Address {
        self.0.address()
    }
}
