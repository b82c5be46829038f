//! The new process's side: it finds the running process, receives its listening sockets and, once it is ready, its
//! clients and the right to open the spool.

use super::PROGRAM;
use crate::cli::Options;
use crate::frontend::listen::BoundListener;
use crate::frontend::session::ClientSession;
use lookaside_client::Stream;
use lookaside_upgrade::{ConnectionState, Handover, Inherited, Predecessor};
use socket2::{Domain, SockRef, Socket};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A client of an earlier process.
pub(crate) type InheritedClient = (OwnedFd, ConnectionState);

pub(crate) struct Takeover {
    predecessor: Predecessor,
    stop: NeverStopped,
}

/// A stop channel that is never used: until this process serves, a signal ends it, which the other process detects.
struct NeverStopped {
    receiver: UnixStream,
    _sender: UnixStream,
}

impl Takeover {
    /// Connects to the router that listens at `path` and adds its listening sockets to `inherited`. `None` if no
    /// process listens there.
    pub(crate) fn find(path: &Path, inherited: &mut Inherited) -> Result<Option<Takeover>, String> {
        let (receiver, sender) = UnixStream::pair().map_err(|error| format!("cannot create a socket pair: {error}"))?;
        let stop = NeverStopped { receiver, _sender: sender };
        let found = Predecessor::find(PROGRAM, path, None, inherited, &stop.receiver).map_err(to_message)?;
        Ok(found.map(|predecessor| Takeover { predecessor, stop }))
    }

    /// Asks the other process to stop serving, and waits until it has. On error it is alive and keeps serving.
    pub(crate) fn receive(&mut self) -> Result<Handover, String> {
        self.predecessor.receive(&self.stop.receiver).map_err(to_message)
    }

    /// Takes over: this process serves from now on. On error the other process keeps serving.
    pub(crate) fn confirm(&mut self) -> Result<(), String> {
        self.predecessor.confirm_takeover().map_err(to_message)
    }

    /// Logs how long no process served. This process must serve by now.
    pub(crate) fn log_pause(self) {
        self.predecessor.log_pause();
    }
}

fn to_message(error: impl std::fmt::Display) -> String {
    format!("{error:#}")
}

/// A client of an earlier process, ready to be served here. Must be called inside the runtime that will serve it.
pub(crate) fn restore_client(socket: OwnedFd, connection_state: ConnectionState) -> io::Result<ClientSession> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    let stream: Box<dyn Stream> = match socket.domain()? {
        Domain::UNIX => Box::new(tokio::net::UnixStream::from_std(socket.into())?),
        _ => Box::new(tokio::net::TcpStream::from_std(socket.into())?),
    };
    Ok(ClientSession { stream, connection_state })
}

/// Assigns the clients of an earlier process to threads. Closes those that no listener of this process would have
/// accepted, and those beyond `--max-conns`.
pub(crate) fn assign_clients(
    connections: Vec<InheritedClient>,
    listeners: &[BoundListener],
    options: &Options,
) -> Vec<Vec<InheritedClient>> {
    let (count, threads) = (connections.len(), options.threads());
    let is_accepted = |(socket, _): &InheritedClient| {
        let local = SockRef::from(socket).local_addr();
        local.is_ok_and(|local| listeners.iter().any(|listener| listener.matches(&local)))
    };
    let mut clients: Vec<Vec<InheritedClient>> = (0..threads).map(|_| Vec::new()).collect();
    let accepted = connections.into_iter().filter(is_accepted).take(options.connections_max());
    accepted.enumerate().for_each(|(number, client)| clients[number % threads].push(client));
    let closed = count - clients.iter().map(Vec::len).sum::<usize>();
    if closed > 0 {
        tracing::warn!(
            "closing {closed} inherited connections that this process's options cannot serve (check -l, -p, -s, -c)"
        );
    }
    clients
}
