//! Counters, the `stats` command, and Prometheus metrics.

pub(crate) mod by_verb;
pub(crate) mod counters;
pub(crate) mod metrics_endpoint;
pub(crate) mod per_target;
pub(crate) mod prometheus;
mod stats_command;
