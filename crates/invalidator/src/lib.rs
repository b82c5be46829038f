//! The invalidation daemon (§4.1 of the paper, its mcsqueal): reads what a database has committed, finds the keys
//! that the change makes stale, and deletes them in every frontend cluster.
//!
//! ```text
//! commit log -> source (commits, in order) -> gate (visible to readers?) -> batch -> router of the cluster
//!                                                                              <- acknowledged: position moves on
//! ```
//!
//! Each cluster has a pipeline of its own, from its own durable position, so a cluster that is down delays no other.
//!
//! * [`source`]: databases and their logs ([`source::sqlite`], [`source::mysql`]); [`keys`]: what in a log is a key.
//! * [`reader`]: opens, reads, gates, and opens again. [`window`]: what is owed, and when (`failing`: what was refused, `trouble`: how
//!   that is told). [`delivery`]: through which router. [`positions`]: what a restart goes on from. [`pipeline`] is all of these for one cluster.
//! * [`daemon`] puts pipelines, sockets, files and signals together; [`options`] is its command line,
//!   [`stats_endpoint`] what observers ask, [`statistics`] what they are told.
//!
//! The promise: every key that a commit names is deleted in every cluster at least once after readers see the commit,
//! or the daemon says loudly that it could not.
//!
//! Absent on purpose: which server of a cluster holds a key (its routers know), and any order between keys (a delete
//! is idempotent). But for [`daemon`] and the sources' own files, nothing here opens a socket or reads a clock: the
//! simulation runs this very code.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod keys;
pub mod observe;
pub mod options;
pub mod pipeline;
pub mod source;

pub use source::{Commit, Commits, Log, Opened, Position, Source, SourceError, Start};
