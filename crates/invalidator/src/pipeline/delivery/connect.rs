//! The connections to the routers of a cluster.

use super::{RouterConnections, RouterDelivery};
use crate::observe::stats::ClusterStatistics;
use lookaside_client::{DestinationOptions, DestinationRole, Network, TcpDestination, TkoTrackers};
use lookaside_routing::{Address, Destination, HealthSettings};
use std::sync::Arc;

/// The first and the longest delay before the next attempt to connect to a failed router, before jitter. Both are
/// short, as deletes wait for it; an attempt costs one packet each way.
const PROBE_MS_MIN: u64 = 20;
const PROBE_MS_MAX: u64 = 100;
/// How long a router may take to answer a probe. Three that time out in a row end its connections: one that a partition
/// has cut off may stay silent for long after it, while a new one is answered at once.
const PROBE_TIMEOUT_MS: u64 = 1_000;
/// How long connecting to a router may take. The system sends a lost first packet again only after a second; a new
/// attempt is sooner.
const CONNECT_TIMEOUT_MS: u64 = 500;

/// Delivery through the routers at these addresses, which must reply to a batch within `router_timeout_ms`. Connects
/// when it is used. `seed` decides the jitter of attempts to connect.
pub fn connect_routers(
    routers: &[String],
    router_timeout_ms: u64,
    network: &Arc<dyn Network>,
    statistics: &Arc<ClusterStatistics>,
    seed: u64,
) -> RouterDelivery {
    let mut seeds = fastrand::Rng::with_seed(seed);
    let mut connect = |router: &String, timeout_ms: u64, tko_trackers: &Arc<TkoTrackers>| {
        let settings = DestinationOptions {
            server_timeout_ms: timeout_ms,
            connect_timeout_ms: Some(timeout_ms.min(CONNECT_TIMEOUT_MS)),
            tko_trackers: Some(tko_trackers.clone()),
            health: HealthSettings {
                probe_initial_ms: PROBE_MS_MIN,
                probe_max_ms: PROBE_MS_MAX,
                ..HealthSettings::default()
            },
            seed: seeds.u64(..),
            role: DestinationRole::Router,
            ..DestinationOptions::default()
        };
        Arc::new(TcpDestination::new(Address(router.as_str().into()), network.clone(), settings))
            as Arc<dyn Destination>
    };
    let connections = |router: &String| {
        // Shared by both, so that a router that answers a probe is used at once.
        let tko_trackers = TkoTrackers::new();
        RouterConnections {
            deletes: connect(router, router_timeout_ms, &tko_trackers),
            probes: connect(router, router_timeout_ms.min(PROBE_TIMEOUT_MS), &tko_trackers),
        }
    };
    RouterDelivery::new(routers.iter().map(connections).collect(), network.clone(), statistics.clone())
}
