//! The production code of a region under a seeded clock and network.
#![forbid(unsafe_code)]

pub mod checker;
pub mod database;
pub mod network;
mod stream;
