//! Statistics, the endpoint that serves them, and what is logged of failing deletes.

mod delivery_health;
mod log_throttle;
pub mod stats;
pub mod stats_endpoint;

pub(crate) use delivery_health::{DeliveryHealth, HealthLogger};
pub(crate) use log_throttle::LogThrottle;
