//! What a daemon shows of itself, the same way in each: numbers that cost a request next to nothing, the port where
//! Prometheus reads them, and the log.
//!
//! * [`Counter`] and [`Histogram`]: one thread raises them, any thread reads; no locked instruction, no lock.
//! * [`Exposition`]: the text that Prometheus reads.
//! * [`Endpoint`]: the port.
//! * [`Log`]: the log.
//!
//! Absent on purpose: which numbers there are. Each daemon knows its own.
#![forbid(unsafe_code)]

mod counter;
mod endpoint;
mod exposition;
mod histogram;
mod log;

pub use counter::Counter;
pub use endpoint::{Endpoint, check_address, full_address};
pub use exposition::{Exposition, Kind};
pub use histogram::{BUCKETS, Histogram, HistogramSum};
pub use log::{Log, LogFormat};
