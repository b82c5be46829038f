//! What a tree of a direct client needs besides its configuration.

use super::counters::DirectCounters;
use super::router_leases::RouterLeases;
use super::routers::Routers;
use crate::tree::{BackgroundTasks, HostInfo};
use crate::{DestinationOptions, Network, TkoTrackers, UdpOptions, UdpSockets, Window};
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
    /// Whether updates and deletes go to servers, too.
    pub(super) updates_directly: bool,
    /// `None` if gets are sent by TCP.
    pub(super) udp: Option<(Arc<UdpSockets>, UdpOptions)>,
    /// Over all that servers have outstanding; `None` if there is no bound.
    pub(super) window: Option<Arc<Window>>,
    pub(super) failover_timeout: Option<Duration>,
    pub(super) routers: Arc<Routers>,
    pub(super) leases: Arc<RouterLeases>,
    pub(super) counters: Arc<DirectCounters>,
}
