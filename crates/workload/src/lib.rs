//! Traces and their replay (mechanism A2; §7 of the paper describes the workload it was made for).
#![forbid(unsafe_code)]

mod trace;

pub use trace::{TRACE_BYTES_MAX, Trace, TraceError};
