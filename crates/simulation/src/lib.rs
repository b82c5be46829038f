//! The production code of a region under a seeded clock and network (style: simulation first, as TigerBeetle does it).
//!
//! A run is one thread, tokio's paused clock, and numbers drawn from one seed: the same seed gives the same run. What is
//! played is what lies outside our processes: sockets ([`network`]), the database ([`database`]), the disk. A
//! [`checker`] sees every commit, every acknowledgement and every read, and says what must not be.
//!
//! Absent on purpose: models of our own parts. If a rule of the router or the store is wrong, it is the production code
//! that fails here.
#![forbid(unsafe_code)]

pub mod checker;
pub mod database;
pub mod network;
pub mod region;
mod stream;
