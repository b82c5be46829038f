//! Sends the reads through a router after which something is to be stored, from within the tree
//! ([`Environment::filling_router`](lookaside_routing::Environment::filling_router)): the client sends servers nothing
//! but reads. The router's own tree has the same route, which stores what it finds.
//!
//! A router that takes leases for plain clients must be shown no miss of this client ([`super::plain_leases`]). The
//! client's own `LeaseRoute` makes a `lease-get` of each plain get, but for a key whose misses are void: no token may
//! be used for that, so it is only asked for a value. Then a lease is taken here, and returned:
//!
//! ```text
//!   get k     lease-get k          --> a value: the value
//!                                  --> a lease: a miss, and the token is returned, by a lease-set that stores nothing
//! ```
//!
//! This is a leaf of the tree, so it observes the time limits of a batch as a server's leaf does, for all routers
//! together. A batch that takes leases goes on without its caller, and returns them.

use super::counters::DirectCounters;
use super::router_leases::RouterLeases;
use super::routers::Routers;
use crate::tasks;
use bytes::Bytes;
use lookaside_protocol::{LeaseToken, Operation, Reply, Request};
use lookaside_routing::{Batch, BoxFuture, Context, Failure, Outcomes, Route};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::timeout;

#[derive(Clone)]
pub(super) struct FillingRouter {
    pub(super) routers: Arc<Routers>,
    pub(super) leases: Arc<RouterLeases>,
    pub(super) counters: Arc<DirectCounters>,
}

impl FillingRouter {
    async fn send(&self, batch: Batch) -> Outcomes {
        self.count(&batch);
        self.counters.reads_filled_by_routers.add(batch.len() as u64);
        self.routers.send(batch).await
    }

    fn send_any(&self, batch: Batch) -> BoxFuture<'_, Outcomes> {
        match batch.iter().any(is_plain_get) && self.leases.are_needed() {
            true => Box::pin(self.send_with_leases_to_end(batch)),
            false => Box::pin(self.send(batch)),
        }
    }

    async fn send_within(&self, limit: Duration, batch: Batch) -> Outcomes {
        let requests = batch.len();
        timeout(limit, self.send_any(batch)).await.unwrap_or_else(|_| vec![Err(Failure::TimedOut); requests])
    }

    /// Returns the leases that it takes, even if its caller gives it up: a server would give no other client one of
    /// these keys until they expire. It ends when the routers have answered, or have had their time.
    async fn send_with_leases_to_end(&self, batch: Batch) -> Outcomes {
        let (sender, requests) = (self.clone(), batch.len());
        let sent = tasks::spawn(async move { sender.send_with_leases(batch).await }).await;
        match sent.map_err(JoinError::try_into_panic) {
            Ok(outcomes) => outcomes,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends.
            Err(Err(_)) => vec![Err(Failure::ConnectionLost); requests],
        }
    }

    async fn send_with_leases(&self, batch: Batch) -> Outcomes {
        let asked = |request: &Request<Bytes>| match is_plain_get(request) {
            true => Request { key: request.key.clone(), operation: Operation::LeaseGet },
            false => request.clone(),
        };
        let mut outcomes = self.send(batch.iter().map(asked).collect()).await;
        let mut returned = Batch::new();
        for (request, outcome) in batch.iter().zip(&mut outcomes).filter(|(request, _)| is_plain_get(request)) {
            if let Ok(Reply::Lease { token, .. }) = *outcome {
                *outcome = Ok(Reply::Miss);
                returned.extend(token.is_held().then(|| lease_return(request, token)));
            }
        }
        if !returned.is_empty() {
            self.count(&returned);
            self.routers.send(returned).await;
        }
        outcomes
    }

    fn count(&self, batch: &Batch) {
        self.counters.router_requests.add(batch.len() as u64);
    }
}

fn is_plain_get(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Get { cas: false })
}

fn lease_return(request: &Request<Bytes>, token: LeaseToken) -> Request<Bytes> {
    let operation = Operation::LeaseSet { token, flags: 0, exptime: -1, value: Bytes::new() };
    Request { key: request.key.clone(), operation }
}

impl Route for FillingRouter {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        // All are reads.
        match context.time_limit.into_iter().chain(context.read_time_limit).min() {
            Some(limit) => Box::pin(self.send_within(limit, batch)),
            None => self.send_any(batch),
        }
    }
}
