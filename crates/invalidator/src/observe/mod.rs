//! Statistics, the endpoints that serve them, and the log of failing deletes.

mod all_clusters;
mod cluster_statistics;
mod delivery_health;
mod distribution;
pub mod election_stats;
mod figures;
pub mod prometheus;
pub mod source_lag;
mod source_lookups;
pub mod spool_stats;
pub mod stats;
pub mod stats_endpoint;

pub(crate) use delivery_health::{DeliveryHealth, HealthLogger};

use lookaside_telemetry::LogThrottle;
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two log messages of one kind.
pub(crate) const LOG_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// Allows one message per [`LOG_INTERVAL_MIN`].
pub(crate) fn log_throttle() -> LogThrottle<Instant> {
    LogThrottle::new(1, LOG_INTERVAL_MIN)
}
