//! The configurations of a router's process: what the daemon's main thread does with a new one.

use super::coverage_disk::CoverageDisk;
use crate::checker::Checker;
use lookaside_client::{DestinationOptions, Network};
use lookaside_router::{
    ActiveConfigs, ResizeHost, ResizeStatus, Resizer, ResizerChannels, ResizerSettings, RouterConfig, SharedState,
    Spares, Spool,
};
use lookaside_routing::Defaults;
use std::{future::pending, sync::Arc, time::Duration};
use tokio::sync::watch;

/// What a process adds to each configuration.
pub(super) struct RouterHost {
    pub(super) options: DestinationOptions,
    /// `None` in runs without a spool.
    pub(super) spool: Option<Arc<Spool>>,
    pub(super) spares: Arc<Spares>,
    pub(super) shared: Arc<SharedState>,
    /// `None` if values of former owners are copied under leases.
    pub(super) unleased_copies_after: Option<Duration>,
    pub(super) checker: Checker,
}

impl RouterHost {
    pub(super) fn config(&self, text: &str) -> RouterConfig {
        self.parse(text).expect("the configuration is valid")
    }
}

impl ResizeHost for RouterHost {
    fn status(&self) -> &Arc<ResizeStatus> {
        self.shared.resize()
    }

    fn parse(&self, text: &str) -> Result<RouterConfig, String> {
        let config =
            RouterConfig::parse(text, &Defaults::default(), &self.options).map_err(|error| error.to_string())?;
        let config = config.with_unleased_copies(self.unleased_copies_after);
        Ok(config.with_spool(self.spool.clone()).with_spares(self.spares.clone()))
    }

    fn prepare(&self, active: &ActiveConfigs) {
        self.spares.configure(active.reads().pools());
    }

    fn record_in_force(&self, _: &RouterConfig) {
        self.checker.count(|tally| tally.config_changes += 1);
    }
}

/// The configurations in force.
pub(super) enum RouterConfigs {
    /// A new one goes through the steps of a change.
    Covering(Box<Resizer>),
    /// A new one is read at once, and the former one is forgotten.
    AtOnce(watch::Sender<Arc<ActiveConfigs>>),
}

impl RouterConfigs {
    /// Continues from `disk`; `text` is the newest configuration. An error tells why the process must be started again.
    pub(super) async fn covering(
        text: &str,
        settings: ResizerSettings,
        disk: CoverageDisk,
        channels: ResizerChannels,
        network: Arc<dyn Network>,
        host: &RouterHost,
    ) -> Result<RouterConfigs, String> {
        let resizer = Resizer::start(host.config(text), settings, Box::new(disk), host, network, channels).await;
        Ok(RouterConfigs::Covering(Box::new(resizer?)))
    }

    pub(super) fn at_once(text: &str, publish: watch::Sender<Arc<ActiveConfigs>>, host: &RouterHost) -> RouterConfigs {
        let mut configs = RouterConfigs::AtOnce(publish);
        configs.set_newest(text, host);
        configs
    }

    pub(super) fn active(&self) -> Arc<ActiveConfigs> {
        match self {
            RouterConfigs::Covering(resizer) => resizer.active(),
            RouterConfigs::AtOnce(publish) => publish.borrow().clone(),
        }
    }

    pub(super) fn set_newest(&mut self, text: &str, host: &RouterHost) {
        let config = host.config(text);
        match self {
            RouterConfigs::Covering(resizer) => {
                resizer.set_newest(config, host).expect("a valid configuration has an identity");
            }
            RouterConfigs::AtOnce(publish) => {
                let active = ActiveConfigs::single(Arc::new(config));
                host.prepare(&active);
                publish.send_replace(Arc::new(active));
            }
        }
    }

    /// Takes the next steps. Cancel safe.
    pub(super) async fn step(&mut self, host: &RouterHost) {
        match self {
            RouterConfigs::Covering(resizer) => resizer.step(host).await,
            RouterConfigs::AtOnce(_) => pending().await,
        }
    }
}
