//! The invalidation daemon (§4.1 of the paper, its mcsqueal): reads the commit log of a database, finds the keys that
//! each change makes stale, and deletes them in every frontend cluster.
//!
//! ```text
//! commit log -> source -> gate -> pending deletes -> batches -> router of the cluster
//!                                      ^___ acknowledged ________|    safe position -> disk
//! ```
//!
//! | module | |
//! |---|---|
//! | [`source`] | databases and their logs ([`source::sqlite`], [`source::mysql`]), and the visibility gate |
//! | [`keys`] | how SQL and rows name keys |
//! | [`rules`] | keys of changed rows, by a rule file; [`rule_file`] loads it |
//! | [`spool`] | commits on disk, for clusters to read, if the log cannot be read again (PostgreSQL) |
//! | [`pipeline`] | one cluster: pending deletes, retry queue, delivery through routers, saved positions |
//! | [`election`] | which of several invalidators is active, and the positions that they share |
//! | [`replay`] | sends the deletes of a part of the log again; [`commit_time`] is how a part is named by time |
//! | [`state_file`] | files of `--state-dir` that are replaced as a whole |
//! | [`observe`] | statistics and their endpoints |
//! | [`daemon`] | assembles pipelines, sockets, files and signals; [`options`] is its command line, [`key_options`] the part that a replay has too |
//!
//! Each cluster has its own pipeline and its own durable position, so a cluster that is down delays no other.
//!
//! Guarantee: every key that a commit names is deleted in every cluster at least once after readers see the commit, or
//! the daemon logs an error.
//!
//! Not here: which server of a cluster holds a key (its routers know), and any order between keys (a delete is
//! idempotent). Only [`daemon`] and the sources' own files open sockets or read clocks, so the simulation runs this
//! code.
#![forbid(unsafe_code)]

pub mod commit_time;
pub mod daemon;
pub mod election;
pub mod key_options;
pub mod keys;
pub mod observe;
pub mod options;
pub mod pipeline;
pub mod replay;
pub mod rule_file;
pub mod rules;
pub mod source;
pub mod spool;
pub mod state_file;

pub use source::{
    Commit, CommitLog, Commits, LogDistance, LogFile, LogLookup, OpenedSource, Position, Source, SourceError, Start,
    WallClock,
};
