//! The end of every path: one server.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent to the server, under the key without its routing prefix |
//!
//! The prefix is removed here and not at the root, because pools differ: `keep_routing_prefix` is for a "server" that
//! is a router itself, and a broadcast keeps one copy of a key for all its clusters.

use crate::{Batch, BoxFuture, Context, Destination, Outcomes, Route, key::prefix_bytes};
use bytes::Buf;
use std::sync::Arc;

/// Sends batches to one [`Destination`].
pub struct DestinationRoute {
    destination: Arc<dyn Destination>,
    keep_routing_prefix: bool,
}

impl DestinationRoute {
    /// A leaf over `destination`. With `keep_routing_prefix` keys arrive there as the client wrote them.
    pub fn new(destination: Arc<dyn Destination>, keep_routing_prefix: bool) -> Self {
        DestinationRoute { destination, keep_routing_prefix }
    }
}

impl Route for DestinationRoute {
    fn route<'a>(&'a self, mut batch: Batch, _context: &'a Context) -> BoxFuture<'a, Outcomes> {
        if !self.keep_routing_prefix {
            for request in &mut batch {
                match prefix_bytes(request) {
                    0 => {}
                    prefix => request.key.advance(prefix),
                }
            }
        }
        self.destination.send(batch)
    }
}
