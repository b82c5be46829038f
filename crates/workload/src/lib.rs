//! Workloads and their replay: traces of real caches, the paper's pools and families of keys made up from a seed
//! (mechanism A2; §6.3 and §7 of the paper describe them).
//!
//! * `trace`: what a workload is, and traces in files; `pool`: one of Tables 2 and 3 (`sizes`: its values); `family`:
//!   short-lived keys among long-lived ones.
//! * `replay`: as applications read, under leases, many at a time; `plain`: get, and set on a miss, in strict order
//!   and at the trace's own speed, for hit ratios of any memcached.
#![forbid(unsafe_code)]

mod family;
mod plain;
mod pool;
mod replay;
mod sizes;
mod trace;

pub use family::{FAMILY_EXPTIME_S, LASTING, family};
pub use plain::{PlainOptions, PlainReport, fill, replay_plain, unavoidable};
pub use pool::{POOLS, Pool};
pub use replay::{KEY_BYTES, Progress, ReplayOptions, Report, key, replay};
pub use sizes::{Sizes, VALUE_BYTES_MAX};
pub use trace::{TRACE_BYTES_MAX, Trace, TraceError, Verb};
