//! Statistics, the endpoint that serves them, and the limit on repeated log messages.

mod log_throttle;
pub mod stats;
pub mod stats_endpoint;

pub(crate) use log_throttle::{Condition, Herald, Pace};
