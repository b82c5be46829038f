//! The end of every path: one server.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server, under the key without its routing prefix |
//! | all but delete, if the batch has a time limit | the same; after that time [`Failure::TimedOut`] |
//!
//! The prefix is removed here and not at the root, because pools differ: `keep_routing_prefix` is for a "server" that
//! is a router itself, and a broadcast keeps one copy of a key for all its clusters.
//!
//! A time limit ([`Context::time_limit`]) ends here and not at the route that sets it, so that the servers of a pool
//! that reply in time do so.

use crate::{
    Batch, BoxFuture, Clock, Context, Destination, Failure, Outcomes, Route, VerbKind, key::prefix_bytes, outcome::verb,
};
use bytes::Buf;
use futures_util::future::{Either, select};
use std::{sync::Arc, time::Duration};

/// Sends batches to one [`Destination`].
pub struct DestinationRoute {
    destination: Arc<dyn Destination>,
    keep_routing_prefix: bool,
    /// `None`: time limits are ignored.
    clock: Option<Arc<dyn Clock>>,
}

impl DestinationRoute {
    /// A leaf over `destination`. With `keep_routing_prefix` keys arrive there as the client wrote them.
    pub fn new(destination: Arc<dyn Destination>, keep_routing_prefix: bool) -> Self {
        DestinationRoute { destination, keep_routing_prefix, clock: None }
    }

    /// Observes time limits by `clock`.
    pub(crate) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        DestinationRoute { clock: Some(clock), ..self }
    }

    async fn send_within(&self, batch: Batch, limit: Duration, clock: &dyn Clock) -> Outcomes {
        let requests = batch.len();
        match select(self.destination.send(batch), clock.sleep(limit)).await {
            Either::Left((outcomes, _)) => outcomes,
            // The server may still execute them.
            Either::Right(_) => vec![Err(Failure::TimedOut); requests],
        }
    }
}

impl Route for DestinationRoute {
    fn route<'a>(&'a self, mut batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if !self.keep_routing_prefix {
            for request in &mut batch {
                match prefix_bytes(request) {
                    0 => {}
                    prefix => request.key.advance(prefix),
                }
            }
        }
        match (context.time_limit, &self.clock) {
            (Some(limit), Some(clock)) if !batch.iter().any(|request| verb(request).kind() == VerbKind::Delete) => {
                Box::pin(self.send_within(batch, limit, &**clock))
            }
            _ => self.destination.send(batch),
        }
    }
}
