//! What is counted while requests run, and what an operator is shown of it.

pub(crate) mod command_trace;
pub(crate) mod counters;
pub(crate) mod event_log;
pub(crate) mod metrics;
pub(crate) mod stats;
pub(crate) mod watchers;
