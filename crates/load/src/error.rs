//! Why a load ended before its time.

use crate::outstanding::WrongReply;
use std::io;
use thiserror::Error;

/// Why a load ended before its time.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The server cannot be connected to.
    #[error("connection {number} cannot be opened")]
    Connect {
        /// The number of the connection, from 1.
        number: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The server has closed a connection.
    #[error("the server closed a connection with {outstanding} unanswered requests")]
    Closed {
        /// Unanswered requests of this connection.
        outstanding: usize,
    },
    /// Receiving failed.
    #[error("cannot receive: {0}")]
    Receive(io::Error),
    /// Sending failed.
    #[error("cannot send: {0}")]
    Send(io::Error),
    /// The system cannot wait for connections.
    #[error("cannot wait for replies: {0}")]
    Wait(io::Error),
    /// A reply is wrong.
    #[error(transparent)]
    Wrong(#[from] WrongReply),
    /// A datagram is not a part of a reply.
    #[error("wrong datagram: {0}")]
    Datagram(String),
    /// A connection has had no reply for too long.
    #[error("no reply for {seconds:.1} s, with {outstanding} unanswered requests of this connection")]
    Silent {
        /// The time without a reply, in seconds.
        seconds: f64,
        /// Unanswered requests of this connection.
        outstanding: usize,
    },
    /// The time of measurement is over, and no request was answered in it.
    #[error("no request was answered in the measured time")]
    Nothing,
    /// The server's processor time cannot be read.
    #[error("cannot read the processor time of process {pid}")]
    Process {
        /// The process.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
}
