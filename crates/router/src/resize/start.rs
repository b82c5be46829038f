//! Starts the driver of a process: from its state on disk, or from the reports of its peers. Without both this is a
//! first start.

use super::driver::{Applied, InitialCoverage, ResizeHost, Resizer, ResizerSettings};
use super::store::{CoverageStore, StoredCoverage};
use super::work::ask_peers;
use crate::config::router_config::RouterConfig;
use crate::tree::active_configs::ActiveConfigs;
use lookaside_client::Network;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// How long a router without covered configurations on disk waits for those of its peers.
const ASK_PEERS_MAX: Duration = Duration::from_secs(1);

/// Connects a driver with the threads of its process.
pub struct ResizerChannels {
    /// Sends configurations to the threads.
    pub publish: watch::Sender<Arc<ActiveConfigs>>,
    /// Receives what threads have applied.
    pub applied: mpsc::UnboundedReceiver<Applied>,
}

impl Resizer {
    /// A driver that continues from the state in `store`, before any thread serves. `config` is the newest
    /// configuration of the source, and is read at once if there is no such state. An error tells why a configuration
    /// cannot be used.
    pub async fn start(
        config: RouterConfig,
        settings: ResizerSettings,
        store: Box<dyn CoverageStore>,
        host: &dyn ResizeHost,
        network: Arc<dyn Network>,
        channels: ResizerChannels,
    ) -> Result<Resizer, String> {
        let initial = match load(&*store, host) {
            Some(initial) => initial,
            None => {
                let asked = timeout(ASK_PEERS_MAX, ask_peers(&*network, &settings.peers)).await;
                let (reports, texts) = asked.unwrap_or_default();
                let of_peers = InitialCoverage::of_peers(&reports, &texts, host)?;
                of_peers.map_or_else(|| InitialCoverage::first(config.clone()), Ok)?
            }
        };
        let status = host.status().clone();
        let mut resizer = Resizer::new(initial, settings, store, status, network, channels);
        resizer.set_newest(config, host)?;
        Ok(resizer)
    }
}

fn load(store: &dyn CoverageStore, host: &dyn ResizeHost) -> Option<InitialCoverage> {
    let stored = store.load().map_err(|error| error.to_string()).and_then(|text| {
        let Some(text) = text else { return Ok(None) };
        InitialCoverage::stored(&StoredCoverage::parse(&text)?, host).map(Some)
    });
    stored.unwrap_or_else(|why| {
        tracing::error!(
            why,
            "cannot use the saved configurations, and asks the peers instead: copies that a former configuration \
            placed may be read if no peer knows it; flush the servers if the configuration was changed"
        );
        None
    })
}
