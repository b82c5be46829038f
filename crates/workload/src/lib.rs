//! Traces and their replay (mechanism A2; §7 of the paper describes the workload it was made for).
#![forbid(unsafe_code)]

mod replay;
mod trace;

pub use replay::{KEY_BYTES, Progress, ReplayOptions, Report, key, replay};
pub use trace::{TRACE_BYTES_MAX, Trace, TraceError};
