//! The connections of a tree of routes to its servers: one for each server and each of its settings.
//!
//! When a tree replaces another, a server with the same address and the same settings moves over with its connection
//! and its health: a reload neither brings a TKO server back nor reconnects to a healthy one. Connections that the new
//! set does not take over end with the last batch on the old tree.

use crate::{DestinationOptions, Network, TcpDestination};
use lookaside_routing::{Address, DestinationSettings, Security};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Two destinations with equal keys are the same. The last part is the name that the server's certificate must bear.
type DestinationKey = (Address, DestinationSettings, Option<Arc<str>>);

/// The connections of one tree.
#[derive(Debug, Default)]
pub struct DestinationSet(BTreeMap<DestinationKey, Arc<TcpDestination>>);

impl DestinationSet {
    /// The destination of a server: one that this set has, or else that of `old`, or else a new one on `network()`. Its
    /// settings override `options`. Must be called inside the tokio runtime that will serve it.
    pub fn add(
        &mut self,
        address: &Address,
        settings: &DestinationSettings,
        certificate_name: Option<Arc<str>>,
        options: &DestinationOptions,
        network: impl FnOnce() -> Arc<dyn Network>,
        old: Option<&DestinationSet>,
    ) -> Arc<TcpDestination> {
        let key = (address.clone(), *settings, certificate_name);
        let existing = self.0.get(&key).or_else(|| old?.0.get(&key));
        let destination = existing.cloned().unwrap_or_else(|| {
            let options = DestinationOptions {
                server_timeout_ms: settings.server_timeout_ms.min(options.timeout_ms_max),
                connect_timeout_ms: Some(settings.connect_timeout_ms.min(options.timeout_ms_max)),
                protocol: settings.protocol,
                seed: options.seed ^ self.0.len() as u64,
                ..options.clone()
            };
            Arc::new(TcpDestination::new(address.clone(), network(), options))
        });
        self.0.insert(key, destination.clone());
        destination
    }

    /// All of them, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<TcpDestination>> {
        self.0.values()
    }

    /// The address and the settings of each, in the same order.
    pub fn settings(&self) -> impl Iterator<Item = (&Address, &DestinationSettings)> {
        self.0.keys().map(|(address, settings, _)| (address, settings))
    }

    /// Resolves when every server is connected to or known to be down, or after `limit`.
    pub async fn wait_until_ready(&self, limit: Duration) {
        let all = async {
            // They connect at the same time, in tasks of their own.
            for destination in self.0.values() {
                destination.ready().await;
            }
        };
        let _ = timeout(limit, all).await;
    }

    /// Whether it reaches a server by TLS that `old` reaches plain.
    pub fn secures_server_of(&self, old: &DestinationSet) -> bool {
        let servers = |set: &DestinationSet, is_plain: bool| -> BTreeSet<Address> {
            let chosen = set.settings().filter(|(_, settings)| (settings.security == Security::Plain) == is_plain);
            chosen.map(|(address, _)| address.clone()).collect()
        };
        !servers(self, false).is_disjoint(&servers(old, true))
    }
}
