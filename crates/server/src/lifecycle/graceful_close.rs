//! The end of connections that no other process can go on with, such as TLS: each is sent what its client is still to get,
//! is told that nothing more comes, and closed once the client has gone, or after [`GRACE_MS`].
//!
//! A socket that is closed while bytes lie in it unread resets its connection, and a reply that is on its way may be lost
//! with it. So the client ends first, or has been given time; what it still asks for is read and passed over. Nothing of
//! that was carried out, and no store is here to carry it out.

use crate::clock::Clock;
use crate::net::connection::{Connection, Received, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;

/// How long all of it may take, in milliseconds.
const GRACE_MS: u64 = 3_000;

/// How often the deadline is looked at.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often one client is read from before the others and the deadline have their turn: it may send without end.
const READS_PER_PASS: usize = 16;

struct ClosingConnection {
    connection: Connection,
    /// It has been sent everything, and knows that nothing more comes.
    is_write_shut: bool,
}

/// Says farewell to all of them.
pub(crate) fn close_gracefully(connections: Vec<Connection>, clock: Clock) {
    let mut closing: Vec<ClosingConnection> =
        connections.into_iter().map(|connection| ClosingConnection { connection, is_write_shut: false }).collect();
    let deadline_ms = clock.now().unix_ms + GRACE_MS;
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
        tracing::info!("{} connections are closed that their clients have not ended", closing.len());
    }
}

impl ClosingConnection {
    /// Goes on with it; false at its end.
    fn advance(&mut self) -> bool {
        if !self.is_write_shut {
            match self.connection.send_unsent().0 {
                Sent::Part(_) => return true,
                // All is sent, and the connection was to be closed, or its client has gone.
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
            match self.connection.receive_into(&mut discarded) {
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

    /// A client that sent faster than it was read kept the others waiting, and the old process from its end.
    #[test]
    fn a_client_that_sends_without_end_is_left_in_turn() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        client.set_nonblocking(true).expect("it can be set");
        let sent = std::iter::from_fn(|| client.write(&[b'x'; 4096]).ok()).sum::<usize>();
        assert!(sent > (READS_PER_PASS + 1) * 4096, "{sent} bytes");
        let mut closing =
            ClosingConnection { connection: Connection::new(server.into(), None, None), is_write_shut: false };
        assert!(closing.advance());
        assert!(matches!(closing.connection.receive_into(&mut [0; 4096]), Received::Bytes(_)));
        while let Received::Bytes(_) = closing.connection.receive_into(&mut [0; 4096]) {}
        drop(client);
        assert!(!closing.advance());
    }
}
