//! A tree of routes over this thread's connections.
//!
//! When the configuration changes, a destination that the new one names with the same address and the same settings
//! is taken over with its connection and its health: a server that was taken out does not come back by a reload, and
//! one that is fine is not connected to again. All others end when the last batch on the old tree has its outcomes.

use crate::flush;
use lookaside_client::{Network, TcpDestination};
use lookaside_routing::{Destination as _, Route};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tree of routes and the servers at its leaves.
pub struct Tree {
    route: Arc<dyn Route>,
    destinations: BTreeMap<String, Arc<TcpDestination>>,
    network: Option<Arc<dyn Network>>,
}

impl Tree {
    /// A tree that was put together elsewhere; it shows no destinations in `stats`.
    pub fn of(route: Arc<dyn Route>) -> Tree {
        Tree { route, destinations: BTreeMap::new(), network: None }
    }

    /// Its root.
    pub fn route(&self) -> &Arc<dyn Route> {
        &self.route
    }

    /// The servers at its leaves, in the order of their addresses.
    pub fn destinations(&self) -> impl Iterator<Item = &Arc<TcpDestination>> {
        self.destinations.values()
    }

    /// Tells every server to forget everything after `delay_s` seconds. The error names the servers that did not.
    pub(crate) async fn flush_all(&self, delay_s: i64) -> Result<(), String> {
        let Some(network) = &self.network else { return Ok(()) };
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
