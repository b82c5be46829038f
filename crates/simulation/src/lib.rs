//! Runs the production code of a region, or of several, under a seeded clock and network.
//!
//! A run is one thread with tokio's paused clock and random numbers from one seed: the same seed gives the same run.
//! Only the environment of our processes is simulated: sockets ([`network`]), the database ([`database`]) and the disk.
//! A [`checker`] reports violated guarantees.
//!
//! There are no models of our own components: if the router or the store is wrong, the production code fails here.
#![forbid(unsafe_code)]

pub mod checker;
pub mod database;
pub mod fault_log;
pub mod item_log;
mod link;
pub mod network;
pub mod process;
pub mod region;
pub mod regions;
mod stream;
mod value;
