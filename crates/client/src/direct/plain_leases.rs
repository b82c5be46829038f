//! Leases for the plain requests of a direct client, where its routers take leases for plain clients
//! ([ADR 016](../../../../docs/adr/016-leases-for-plain-clients.md)). The client takes them itself, by the same route
//! as the routers, and remembers its misses: they are those of one client, whichever router or connection its requests
//! use.
//!
//! ```text
//!   get k             lease-get k   --> the server        token T, remembered here
//!   set k             lease-set k T --> any router        stored if T is the server's last token
//!   set k, no miss    set k         --> any router        by its `set_without_miss`: it knows of no miss either
//! ```
//!
//! A router that saw a plain get would remember the token with one connection. A set that came over another one, to
//! another router or after a reconnection, would be stored under the token of a later miss, although its value was read
//! before a delete.
//!
//! | what the client knows | its plain requests |
//! |---|---|
//! | a router has said within the last 10 s that it takes no leases | are sent as they are |
//! | the last router that said anything takes leases; or none has said anything lately | have leases |
//!
//! Where the configuration leases only some keys, its own `LeaseRoute`s decide which. Unless it changes keys: below a
//! `ModifyKeyRoute` a miss would be remembered under the changed key, and its set not find it. Or unless it sends reads
//! through a router itself ([`super::filling_router`]): a `LeaseRoute` below such a route is not reached. Then all keys
//! are leased here, by the application's names.
//!
//! A get whose caller has got the value elsewhere, as a hedged one from a replica, goes on in the background. No set
//! will answer its miss, so that is withdrawn, and its token returned. Otherwise a set that follows the replica's hit,
//! and so has no miss, would be stored under it: also if its value is from before a delete that came ahead of the late
//! get.
//!
//! When leases begin again, or other keys are leased, misses from before are not known, so nothing is stored under a
//! lease for as long as a miss is remembered.

use super::permission::DirectState;
use super::transport::Transport;
use super::tree::is_read;
use crate::caller::{self, Caller};
use crate::tree::environment;
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request};
use lookaside_routing::{
    Batch, ClientMisses, Context, Environment, LeaseClients, LeaseCounters, LeaseRoute, LeaseScope, LeaseSettings,
    Leasing, Outcomes, Route, UnleasedSet,
};
use std::sync::Arc;

pub(super) struct PlainLeases {
    state: Arc<DirectState>,
    /// For all keys.
    route: LeaseRoute,
    misses: Arc<ClientMisses>,
    /// Bounds what is remembered, and counts.
    clients: Arc<LeaseClients>,
}

impl PlainLeases {
    pub(super) fn new(state: Arc<DirectState>) -> PlainLeases {
        let settings = &state.settings;
        let Environment { clock, .. } =
            environment(settings.host, settings.options.seed, &settings.background_tasks, settings.failover_timeout);
        // A store without a miss is the router's to judge.
        let of_routers = settings.defaults.leases.unwrap_or_default();
        let leases = LeaseSettings { scope: LeaseScope::Process, unleased_set: UnleasedSet::Pass, ..of_routers };
        let clients = Arc::<LeaseClients>::default();
        let misses = clients.add(Leasing { scope: LeaseScope::Process, version: 0 }, None);
        let route = LeaseRoute::new(Arc::new(Transport(state.clone())), leases, clock);
        PlainLeases { state, route, misses, clients }
    }

    /// What is counted of the leases.
    pub(super) fn counters(&self) -> &LeaseCounters {
        &self.clients.counters
    }

    /// Routes a batch with leases for its plain requests.
    pub(super) async fn route(&self, batch: Batch, context: &Context) -> Outcomes {
        self.misses.advance_to(self.state.settings.leases.version());
        let context = Context { misses: Some(self.misses.clone()), ..context.clone() };
        match Caller::current() {
            Some(caller) if batch.iter().any(is_get) => {
                // What was sent for a caller that has gone is finished, its tokens included.
                caller::detach(Box::pin(self.route_for(&caller, batch, &context))).await
            }
            _ => self.send(batch, &context).await,
        }
    }

    /// Routes gets, and withdraws their misses if the caller has gone by then.
    async fn route_for(&self, caller: &Caller, batch: Batch, context: &Context) -> Outcomes {
        let keys: Vec<Option<Bytes>> =
            batch.iter().map(|request| is_get(request).then(|| request.key.clone())).collect();
        let outcomes = self.send(batch, context).await;
        if caller.is_gone() {
            let missed = keys.into_iter().zip(&outcomes);
            let missed = missed.filter(|(_, outcome)| !matches!(outcome, Ok(Reply::Value { .. })));
            let missed = missed.filter_map(|(key, _)| key).collect();
            self.route.withdraw(missed, &self.misses, context).await;
        }
        outcomes
    }

    async fn send(&self, batch: Batch, context: &Context) -> Outcomes {
        let is_only_read = batch.iter().all(is_read);
        // The configuration's own `LeaseRoute`s know which keys are leased, and how.
        match self.state.permission().filter(|permission| is_only_read && permission.tree.leases_by_client_key()) {
            Some(permission) => {
                self.state.settings.counters.direct_reads.add(batch.len() as u64);
                permission.tree.route(batch, context).await
            }
            None => self.route.route(batch, context).await,
        }
    }
}

fn is_get(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Get { .. })
}
