//! What a tree of a direct client needs besides its configuration.

use crate::tree::{BackgroundTasks, HostInfo};
use crate::{DestinationOptions, Network, TkoTrackers};
use lookaside_routing::Defaults;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct TreeSettings {
    pub(super) network: Arc<dyn Network>,
    pub(super) defaults: Defaults,
    /// With `tko_trackers`.
    pub(super) options: DestinationOptions,
    pub(super) tko_trackers: Arc<TkoTrackers>,
    pub(super) host: HostInfo,
    pub(super) background_tasks: BackgroundTasks,
    pub(super) failover_timeout: Option<Duration>,
}
