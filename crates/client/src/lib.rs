//! The look-aside client: destinations over sockets, their health, and the read and write paths of an application.
#![forbid(unsafe_code)]

mod network;

pub use network::{Listener, Network, Stream, TcpNetwork};
