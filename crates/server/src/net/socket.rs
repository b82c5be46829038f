//! One non-blocking send and one non-blocking receive, with their outcomes.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

/// At most this many bytes are read from one connection in one round.
pub const READ_BYTES_MAX: usize = 16 << 10;

/// The outcome of a send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The socket took everything.
    All,
    /// It took this many bytes.
    Part(usize),
    /// The connection is closed.
    Gone,
}

/// The outcome of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes.
    Bytes(usize),
    /// No bytes have arrived.
    Nothing,
    /// The connection is closed.
    Gone,
}

/// Sends as much of `bytes` as the socket takes at once.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Sent {
    if bytes.is_empty() {
        return Sent::All;
    }
    match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) if count == bytes.len() => Sent::All,
        Ok(count) => Sent::Part(count),
        Err(Errno::AGAIN | Errno::INTR) => Sent::Part(0),
        Err(_) => Sent::Gone,
    }
}

/// Receives what has arrived into `buffer`.
pub(crate) fn receive<B: rustix::buffer::Buffer<u8>>(socket: impl AsFd, buffer: B) -> Received {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Received::Gone,
        Ok((_, count)) => Received::Bytes(count),
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Gone,
    }
}
