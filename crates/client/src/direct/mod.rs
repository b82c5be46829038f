//! Reads of servers without a router in between (§3.1 of the paper): the client builds the tree of routes of a
//! configuration and sends `get` and `lease-get` to servers itself. Everything else passes through a router.
//!
//! ```text
//!             .-- a valid permit, only reads --> tree --> servers, gutter, spares, replicas
//!   Route ----+
//!             '-- all else -------------------> routers --> servers
//!
//!   renewal   asks a router for a permit, every 70 ms ([`permit`])
//!   window    bounds what is outstanding at all servers together ([`crate::Window`])
//!   updates   watches the configuration, and builds the tree of each new one
//! ```
//!
//! If the routers take leases for plain clients, the client takes them for its own plain requests ([`plain_leases`]).
//! Reads after which something must be stored elsewhere leave the tree through a router ([`filling_router`]).
//!
//! A client that reads servers directly must not read what its cluster has acknowledged as deleted. Its permits see to
//! that ([ADR 017](../../../../docs/adr/017-direct-clients.md)).
//!
//! Deliberately absent: former owners of keys after a change of a pool, and TLS of its own: a
//! [`Network`](crate::Network) may have it.

mod builder;
mod counters;
mod filling_router;
mod permission;
mod permit;
mod plain_leases;
mod renewal;
mod replicas;
mod router_leases;
mod routers;
mod settings;
mod transport;
mod tree;

pub use builder::{DirectError, DirectRouteBuilder};
pub use counters::DirectStatistics;
pub use permit::{PERMIT_DURATION, PERMIT_ENDS_AFTER, PERMIT_KEY, Permit, PermitReply, ServingSpare};
pub use routers::Routers;

use crate::config::Source;
use crate::{UdpStatistics, WindowStatistics};
use lookaside_routing::{
    Address, Batch, BoxFuture, Context, KeyChange, ModifyKeyRoute, Outcomes, Route, RoutingPrefix,
};
use lookaside_sync::Mutex;
use permission::DirectState;
use plain_leases::PlainLeases;
use replicas::ReplicaReads;
use std::sync::Arc;
use tokio::task::JoinSet;
use transport::Transport;
use tree::has_own_lease;

/// A route that reads servers directly while a router permits it, and sends all else through a router. Its tasks and
/// its connections end when it is dropped.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lookaside_client::config::Source;
/// use lookaside_client::{Client, DirectRoute};
/// use lookaside_routing::Address;
/// let routers = ["10.0.0.1:5000", "10.0.0.2:5000"].map(|router| Address(router.into()));
/// let route = DirectRoute::builder(Source::File("router.json".into()), routers).build().await?;
/// let client = Client::new(route.clone());
/// println!("{:?}", client.get("user:42").await?);
/// println!("{:?}", route.statistics());
/// # Ok(())
/// # }
/// ```
pub struct DirectRoute {
    state: Arc<DirectState>,
    transport: Transport,
    plain_leases: PlainLeases,
    tasks: Mutex<JoinSet<()>>,
}

impl DirectRoute {
    fn new(state: Arc<DirectState>, tasks: JoinSet<()>) -> DirectRoute {
        let (transport, plain_leases) = (Transport(state.clone()), PlainLeases::new(state.clone()));
        DirectRoute { state, transport, plain_leases, tasks: Mutex::new(tasks) }
    }

    /// A builder of a route by the configuration in `source`, which must be that of the `routers`: those of the
    /// client's cluster. Without any, they are those that the configuration names (`"routers"` at its top), and change
    /// with it.
    pub fn builder(source: Source, routers: impl IntoIterator<Item = Address>) -> DirectRouteBuilder {
        DirectRouteBuilder::new(source, routers.into_iter().collect())
    }

    /// Its routers: those that it was given, or that its configuration names.
    pub fn routers(&self) -> Arc<Routers> {
        self.state.settings.routers.clone()
    }

    /// Its counters.
    pub fn statistics(&self) -> DirectStatistics {
        let leases = self.plain_leases.counters();
        DirectStatistics {
            leased_reads: leases.lease_gets.value(),
            lease_sets_stored: leases.stored.value(),
            lease_sets_refused: leases.refused.value(),
            lease_sets_without_miss: leases.unleased_passed.value(),
            lease_misses_expired: leases.misses_expired.value(),
            lease_misses_dropped: leases.misses_dropped.value(),
            ..self.state.settings.counters.snapshot()
        }
    }

    /// The counters of gets by UDP; `None` if gets are sent by TCP.
    pub fn udp_statistics(&self) -> Option<UdpStatistics> {
        self.state.settings.udp.as_ref().map(|(sockets, _)| sockets.statistics())
    }

    /// The state of the window over all that servers have outstanding; `None` if there is no bound.
    pub fn window_statistics(&self) -> Option<WindowStatistics> {
        self.state.settings.window.as_ref().map(|window| window.statistics())
    }

    /// The routes behind another routing prefix of the configuration, for late lookups
    /// ([`Client::with_hedging`](crate::Client::with_hedging)): those of another replica, which gets every delete that
    /// this client's keys get. They only read, and fail while no permit is valid.
    ///
    /// ```no_run
    /// # async fn example(source: lookaside_client::config::Source) -> Result<(), Box<dyn std::error::Error>> {
    /// use lookaside_client::{Client, DirectRoute, HedgeSettings};
    /// use lookaside_routing::{Address, RoutingPrefix};
    /// let route = DirectRoute::builder(source, [Address("10.0.0.1:5000".into())]).build().await?;
    /// let replicas = route.replicas(RoutingPrefix::parse("/west/second/")?);
    /// let client = Client::new(route).with_hedging(replicas, HedgeSettings::default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn replicas(&self, prefix: RoutingPrefix) -> Arc<dyn Route> {
        let change = KeyChange { routing_prefix: Some(Some(prefix)), ..KeyChange::default() };
        Arc::new(ModifyKeyRoute::new(Arc::new(ReplicaReads(self.state.clone())), change))
    }

    /// Whether a read that begins now goes to servers directly.
    pub fn is_permitted(&self) -> bool {
        self.state.permission().is_some()
    }

    /// Ends its tasks and waits for their end. Reads go through a router from then on. Dropping it ends them as well,
    /// without waiting.
    pub async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }
}

impl Route for DirectRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().all(has_own_lease) || !self.state.settings.leases.are_needed() {
            true => self.transport.route(batch, context),
            false => Box::pin(self.plain_leases.route(batch, context)),
        }
    }
}

impl std::fmt::Debug for DirectRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectRoute").field("statistics", &self.statistics()).finish_non_exhaustive()
    }
}
