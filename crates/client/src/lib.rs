//! The look-aside client: destinations over sockets, their health, and the read and write paths of an application.
#![forbid(unsafe_code)]

mod connection;
mod destination;
mod driver;
mod network;
mod pipeline;

pub use connection::READ_BYTES;
pub use destination::{DestinationOptions, DestinationStatistics, TcpDestination};
pub use network::{Listener, Network, Stream, TcpNetwork};
