//! Counters and events of the threads that serve. Plain types that the path of a request may use: they use nothing but
//! the clock.

pub(crate) mod baseline;
pub(crate) mod command_trace;
pub(crate) mod counters;
pub(crate) mod current_connection;
pub(crate) mod event_log;
pub(crate) mod metrics;
pub(crate) mod prefix_stats;
