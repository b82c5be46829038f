//! The end of connections that no other process can go on with, such as TLS: each is sent what its client is still to get,
//! is told that nothing more comes, and closed once the client has gone, or after [`FAREWELL_MS_MAX`].
//!
//! A socket that is closed while bytes lie in it unread resets its connection, and a reply that is on its way may be lost
//! with it. So the client ends first, or has been given time; what it still asks for is read and passed over. Nothing of
//! that was carried out, and no store is here to carry it out.

use crate::clock::Clock;
use crate::net::connection::{Connection, Received, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;

/// How long all of it may take, in milliseconds.
const FAREWELL_MS_MAX: u64 = 3_000;

/// How often the deadline is looked at.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often one client is read from before the others and the deadline have their turn: it may send without end.
const READS_PER_TURN: usize = 16;

struct Leaving {
    connection: Connection,
    /// It has been sent everything, and knows that nothing more comes.
    is_told: bool,
}

/// Says farewell to all of them.
pub(crate) fn farewell(connections: Vec<Connection>, clock: Clock) {
    let mut leaving: Vec<Leaving> =
        connections.into_iter().map(|connection| Leaving { connection, is_told: false }).collect();
    let deadline_ms = clock.now().unix_ms + FAREWELL_MS_MAX;
    leaving.retain_mut(Leaving::go_on);
    while !leaving.is_empty() && clock.now().unix_ms < deadline_ms {
        let interest = |one: &Leaving| if one.is_told { PollFlags::IN } else { PollFlags::OUT };
        let mut watched: Vec<PollFd<'_>> =
            leaving.iter().map(|one| PollFd::new(&one.connection.socket, interest(one))).collect();
        let _ = poll(&mut watched, Some(&TICK));
        leaving.retain_mut(Leaving::go_on);
    }
    if !leaving.is_empty() {
        tracing::info!("{} connections are closed that their clients have not ended", leaving.len());
    }
}

impl Leaving {
    /// Goes on with it; false at its end.
    fn go_on(&mut self) -> bool {
        if !self.is_told {
            match self.connection.send_kept().0 {
                Sent::Part(_) => return true,
                // All is sent, and the connection was to be closed, or its client has gone.
                Sent::Gone | Sent::All => {}
            }
            self.connection.farewell();
            if rustix::net::shutdown(&self.connection.socket, Shutdown::Write).is_err() {
                return false;
            }
            self.is_told = true;
        }
        let mut passed_over = [0; 4096];
        for _ in 0..READS_PER_TURN {
            match self.connection.receive_into(&mut passed_over) {
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
        assert!(sent > (READS_PER_TURN + 1) * 4096, "{sent} bytes");
        let mut leaving = Leaving { connection: Connection::new(server.into(), None, None), is_told: false };
        assert!(leaving.go_on());
        assert!(matches!(leaving.connection.receive_into(&mut [0; 4096]), Received::Bytes(_)));
        while let Received::Bytes(_) = leaving.connection.receive_into(&mut [0; 4096]) {}
        drop(client);
        assert!(!leaving.go_on());
    }
}
