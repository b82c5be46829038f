//! The new process: it finds the running one, gets its ports, and, once it has prepared itself, its clients and the word that
//! the spool is free.

use super::PROGRAM;
use crate::Options;
use crate::frontend::listen::BoundListener;
use crate::frontend::session::SuspendedSession;
use lookaside_client::Stream;
use lookaside_upgrade::{ConnectionState, Handover, Inherited, Predecessor};
use socket2::{Domain, SockRef, Socket};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A client of an earlier process.
pub(crate) type Client = (OwnedFd, ConnectionState);

/// The running process, as this one finds it.
pub(crate) struct Heir {
    predecessor: Predecessor,
    stop: Stop,
}

/// Nothing interrupts the conversation: until it serves, a signal ends this process, which the other notices.
struct Stop {
    never: UnixStream,
    _other_end: UnixStream,
}

impl Heir {
    /// The router that waits at `path`, whose ports go to `inherited`; `None`: none does.
    pub(crate) fn find(path: &Path, inherited: &mut Inherited) -> Result<Option<Heir>, String> {
        let (never, other_end) = UnixStream::pair().map_err(|error| format!("the system gives no sockets: {error}"))?;
        let stop = Stop { never, _other_end: other_end };
        let found = Predecessor::find(PROGRAM, path, None, inherited, &stop.never).map_err(in_words)?;
        Ok(found.map(|predecessor| Heir { predecessor, stop }))
    }

    /// Asks it to stop serving, and waits until it has. The error: it lives, and goes on.
    pub(crate) fn inherit(&mut self) -> Result<Handover, String> {
        self.predecessor.receive(&self.stop.never).map_err(in_words)
    }

    /// Says that this process serves from now on. The error: the other goes on.
    pub(crate) fn take(&mut self) -> Result<(), String> {
        self.predecessor.confirm_takeover().map_err(in_words)
    }

    /// This process serves, and everybody has been told.
    pub(crate) fn log_pause(self) {
        self.predecessor.log_pause();
    }
}

fn in_words(error: impl std::fmt::Display) -> String {
    format!("{error:#}")
}

/// A client of the running process as one of this. Must be called inside the runtime that will serve it.
pub(crate) fn parked(socket: OwnedFd, connection_state: ConnectionState) -> io::Result<SuspendedSession> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    let stream: Box<dyn Stream> = match socket.domain()? {
        Domain::UNIX => Box::new(tokio::net::UnixStream::from_std(socket.into())?),
        _ => Box::new(tokio::net::TcpStream::from_std(socket.into())?),
    };
    Ok(SuspendedSession { stream, connection_state })
}

/// The clients of an earlier process that may go on here, for each thread: as if each had come in by the same door now.
pub(crate) fn adopt(connections: Vec<Client>, doors: &[BoundListener], options: &Options) -> Vec<Vec<Client>> {
    let (count, threads) = (connections.len(), options.threads());
    let may_go_on = |(socket, _): &Client| {
        let end = SockRef::from(socket).local_addr();
        end.is_ok_and(|end| doors.iter().any(|door| door.matches(&end)))
    };
    let mut clients: Vec<Vec<Client>> = (0..threads).map(|_| Vec::new()).collect();
    let adopted = connections.into_iter().filter(may_go_on).take(options.max_conns as usize);
    adopted.enumerate().for_each(|(number, client)| clients[number % threads].push(client));
    let closed = count - clients.iter().map(Vec::len).sum::<usize>();
    if closed > 0 {
        tracing::warn!("{closed} connections are closed that could not be made as they are here (see -l, -p, -s, -c)");
    }
    clients
}
