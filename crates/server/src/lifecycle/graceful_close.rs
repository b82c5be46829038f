//! Closes the connections that cannot be handed over, such as those with TLS: each is sent the rest of its replies and
//! the end of the stream, and is closed once its client has closed it, or after [`GRACE_PERIOD`].
//!
//! A socket that is closed with unread input resets its connection, which may lose a reply that is still in flight. So
//! the client gets time to close first, and its further input is read and discarded. No command in it is executed: the
//! store is gone.

use crate::clock::Clock;
use crate::net::connection::Connection;
use crate::net::socket::{Received, Sent, receive};
use lookaside_upgrade::{GRACE_PERIOD, log_unclosed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;

/// How often the deadline is checked.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// At most this many reads from one client before the others and the deadline: a client may send without end.
const READS_PER_PASS: usize = 16;

struct ClosingConnection {
    connection: Connection,
    /// All replies and the end of the stream have been sent.
    is_write_shut: bool,
}

pub(crate) fn close_gracefully(connections: Vec<Connection>, clock: Clock) {
    let mut closing: Vec<ClosingConnection> =
        connections.into_iter().map(|connection| ClosingConnection { connection, is_write_shut: false }).collect();
    let deadline_ms = clock.now().unix_ms + GRACE_PERIOD.as_millis() as u64;
    closing.retain_mut(ClosingConnection::advance);
    while !closing.is_empty() && clock.now().unix_ms < deadline_ms {
        let interest = |closing_connection: &ClosingConnection| {
            if closing_connection.is_write_shut { PollFlags::IN } else { PollFlags::OUT }
        };
        let mut watched: Vec<PollFd<'_>> = closing
            .iter()
            .map(|closing_connection| PollFd::new(&closing_connection.connection.socket, interest(closing_connection)))
            .collect();
        let _ = poll(&mut watched, Some(&TICK));
        closing.retain_mut(ClosingConnection::advance);
    }
    if !closing.is_empty() {
        log_unclosed(closing.len());
    }
}

impl ClosingConnection {
    /// Sends and reads what is possible; false once the connection is closed.
    fn advance(&mut self) -> bool {
        if !self.is_write_shut {
            match self.connection.send_unsent().0 {
                Sent::Part(_) => return true,
                // Everything is sent, or the client has disconnected.
                Sent::Gone | Sent::All => {}
            }
            self.connection.send_close_notify();
            if rustix::net::shutdown(&self.connection.socket, Shutdown::Write).is_err() {
                return false;
            }
            self.is_write_shut = true;
        }
        let mut discarded = [0; 4096];
        for _ in 0..READS_PER_PASS {
            match receive(&self.connection.socket, &mut discarded) {
                Received::Bytes(_) => {}
                Received::Nothing => return true,
                Received::Gone => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// A client that sent faster than it was read delayed the other clients, and the end of the old process.
    #[test]
    fn a_client_that_sends_without_end_does_not_delay_the_others() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        client.set_nonblocking(true).expect("it can be set");
        let sent = std::iter::from_fn(|| client.write(&[b'x'; 4096]).ok()).sum::<usize>();
        assert!(sent > (READS_PER_PASS + 1) * 4096, "{sent} bytes");
        let mut closing =
            ClosingConnection { connection: Connection::new(server.into(), None, None), is_write_shut: false };
        assert!(closing.advance());
        assert!(matches!(receive(&closing.connection.socket, &mut [0; 4096]), Received::Bytes(_)));
        while let Received::Bytes(_) = receive(&closing.connection.socket, &mut [0; 4096]) {}
        drop(client);
        assert!(!closing.advance());
    }
}
