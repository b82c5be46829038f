//! A load generator for servers that speak memcached's text protocol, to compare them on one machine.
//!
//! It checks every byte of every reply, measures the processor time of the server's process per request, and needs
//! little time of its own, so that one core of load can saturate one core of a server.
//!
//! ```text
//! requests -> load (epoll: stream, datagrams) -> outstanding (checks replies) -> tally -> report
//! ```
#![forbid(unsafe_code)]

mod datagrams;
mod error;
mod items;
mod load;
mod outstanding;
mod process;
mod report;
mod requests;
mod server_address;
mod stream;
mod tally;

pub use error::LoadError;
pub use items::{Items, KEY_BYTES};
pub use load::{LoadLimits, LoadOptions, Pace, run};
pub use outstanding::WrongReply;
pub use process::MeasuredProcess;
pub use report::Report;
pub use requests::{KeyOrder, Mix};
pub use server_address::ServerAddress;
pub use tally::Tally;
