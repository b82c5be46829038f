//! What is counted while requests run, and what an operator is shown of it. Never on the path of a request, but for a
//! counter, a load, or a sample.
//!
//! | file | | uses |
//! |---|---|---|
//! | [`counters`], [`prefix_stats`], [`event_log`], [`current_connection`] | raised by the thread that serves | nothing above |
//! | [`metrics`] | samples of latencies and hot keys | nothing above |
//! | [`command_trace`] | `-vv`: commands and replies in the log | nothing above |
//! | [`watchers`] | `watch`: sends events to clients | `net` |
//! | [`stats`], [`metrics::prometheus`] | what `stats` and Prometheus show | the shared state |

pub(crate) mod command_trace;
pub(crate) mod counters;
pub(crate) mod current_connection;
pub(crate) mod event_log;
pub(crate) mod metrics;
pub(crate) mod prefix_stats;
pub(crate) mod stats;
pub(crate) mod watchers;
