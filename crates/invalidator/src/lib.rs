//! The invalidation daemon (§4.1 of the paper, its mcsqueal): reads what a database has committed, finds the keys
//! that the change makes stale, and deletes them in every frontend cluster.
//!
//! ```text
//! commit log -> source (commits, in order) -> gate (visible to readers?) -> batch -> router of the cluster
//!                                                                              <- acknowledged: position moves on
//! ```
//!
//! Each cluster has a pipeline of its own, from its own durable position, so a cluster that is down delays no other.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod delivery;
pub mod keys;
pub mod options;
pub mod pipeline;
pub mod positions;
pub mod reader;
pub mod source;
pub mod statistics;
pub mod stats_endpoint;
pub mod window;

pub use source::{Commit, Commits, Log, Opened, Position, Source, SourceError, Start};
