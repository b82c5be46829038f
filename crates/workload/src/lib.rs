//! Workloads and their replay: traces of real caches, and, generated from a seed, a trace like a real one and the
//! paper's pools and families of keys (mechanism A2; §6.3 and §7 of the paper).
//!
//! `replay` reads as applications do, with leases, many requests at a time; `strict_replay` keeps the order, for hit
//! ratios of any memcached. `key_families` and `advice` decide from a trace where keys should be cached (§4.2).
#![forbid(unsafe_code)]

mod advice;
mod csv;
mod family;
mod key_families;
mod pool;
mod population;
mod replay;
mod sizes;
mod strict_replay;
mod synthetic;
mod trace;
mod zipf;

pub use advice::{Advice, AdviceOptions, Placement, advise};
pub use csv::CsvRequest;
pub use family::{FAMILY_EXPTIME_S, LONG_LIVED_OBJECTS, family};
pub use key_families::{Family, FamilyMeter, USERS_MAX};
pub use pool::{POOLS, Pool};
pub use replay::{Progress, ReplayOptions, Report, key, replay};
pub use sizes::{Sizes, VALUE_BYTES_MAX};
pub use strict_replay::{StrictReplayOptions, StrictReplayReport, compulsory_misses, fill, replay_strictly};
pub use synthetic::{SYNTHETIC_REQUESTS_MAX, synthetic};
pub use trace::{KEY_BYTES, TRACE_BYTES_MAX, Trace, TraceError, Verb, read_csv};
pub use zipf::Zipf;
