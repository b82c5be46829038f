//! Counters and events of the threads that serve. Plain types that the path of a request may use: they use nothing but
//! the clock.
//!
//! | file | |
//! |---|---|
//! | [`counters`], [`baseline`] | the counters of a thread, and their values at `stats reset` |
//! | [`prefix_stats`] | `stats detail` |
//! | [`event_log`], [`current_connection`] | events for clients that `watch` |
//! | [`metrics`] | samples of latencies and hot keys |
//! | [`command_trace`] | `-vv`: commands and replies in the log |

pub(crate) mod baseline;
pub(crate) mod command_trace;
pub(crate) mod counters;
pub(crate) mod current_connection;
pub(crate) mod event_log;
pub(crate) mod metrics;
pub(crate) mod prefix_stats;
