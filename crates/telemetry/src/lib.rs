//! Metrics and logs of the daemons.
//!
//! * [`Counter`] and [`Histogram`]: one thread writes, any thread reads, without a lock or a locked instruction.
//!   [`SharedCounter`]: any thread writes. [`counters!`] declares a set of either.
//! * [`Exposition`]: Prometheus's text format. [`Endpoint`]: the port where Prometheus scrapes it; a daemon has a
//!   [`MetricsThread`] for it.
//! * [`Log`]: the log. [`LogThrottle`] and [`OnChange`] keep repeated events out of it.
//!
//! Deliberately absent: the list of metrics. Each daemon has its own.
#![forbid(unsafe_code)]

mod endpoint;
mod exposition;
mod histogram;
mod log;
mod metrics_thread;
mod throttle;

pub use endpoint::{Endpoint, check_address, full_address};
pub use exposition::{Exposition, MetricKind};
pub use histogram::{BUCKETS, Histogram, HistogramSum};
pub use log::{Log, LogFormat};
pub use lookaside_sync::{Counter, SharedCounter, counters};
pub use metrics_thread::MetricsThread;
pub use throttle::{LogThrottle, OnChange};
