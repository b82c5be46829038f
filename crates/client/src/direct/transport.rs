//! Sends the requests of a direct client as they are: reads to servers while a router permits it, all else through a
//! router. With updates sent directly, those too, unless routers take leases for plain clients: then their rules for
//! plain stores and deletes hold for all clients, and only a `lease-set`, which has its own lease, goes past them.

use super::permission::{DirectState, Permission};
use super::tree::{has_own_lease, is_read};
use lookaside_routing::{Batch, BoxFuture, Context, Outcomes, Route};
use std::sync::Arc;

pub(super) struct Transport(pub(super) Arc<DirectState>);

impl Route for Transport {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        let (state, requests) = (&*self.0, batch.len() as u64);
        let counters = &state.settings.counters;
        let is_only_read = batch.iter().all(is_read);
        let may_be_direct = || {
            is_only_read
                || state.settings.updates_directly
                    && (batch.iter().all(has_own_lease) || !state.settings.leases.are_needed())
        };
        match state.permission() {
            Some(Permission { tree, .. }) if may_be_direct() => {
                if is_only_read { &counters.direct_reads } else { &counters.direct_updates }.add(requests);
                Box::pin(async move { tree.route(batch, context).await })
            }
            _ => {
                counters.router_requests.add(requests);
                if is_only_read {
                    counters.unpermitted_reads.add(requests);
                }
                Box::pin(state.settings.routers.send(batch))
            }
        }
    }
}
