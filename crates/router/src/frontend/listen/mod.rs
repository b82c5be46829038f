//! The listeners for clients: TCP ports and a unix socket, bound before any client is served, and distributed to the
//! threads.
//!
//! ```text
//!   -l, -p, -s  (cli)  ->  ListenAddress ...  ->  bind_all()  ->  BoundListener  ->  AcceptorSockets, one per thread
//!                          names resolved                         sockets            accept() over all of them
//! ```
//!
//! Each thread has its own socket for a TCP port (SO_REUSEPORT), so that the kernel distributes connections over the
//! threads. All threads accept from the one unix socket.
//!
//! SO_REUSEPORT would silently share the port with another daemon of the same user. So the port is first bound
//! exclusively and released: only a daemon that starts within that moment is not noticed.

mod acceptor;
mod unix;

pub(crate) use acceptor::AcceptorSockets;
pub(crate) use unix::SocketFile;

use crate::frontend::tls_accept::ClientTls;
use crate::tls::Certificates;
use lookaside_net::{TlsMode, is_accepted_at};
use lookaside_upgrade::Inherited;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress {
    pub(crate) endpoint: Endpoint,
    pub(crate) tls_mode: TlsMode,
}

/// A TCP or unix endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp {
        address: SocketAddr,
        /// Endpoints with port 0 and the same choice get the same free port.
        choice: usize,
    },
    Unix {
        path: PathBuf,
        /// The file's access mode: the users that may connect.
        mode: u32,
    },
}

#[derive(Debug)]
pub(crate) struct BoundListener {
    /// The name in the log.
    pub(crate) name: String,
    tls_mode: TlsMode,
    /// One for each thread, or one for all.
    sockets: Vec<Socket>,
    /// The unix socket's file, which is removed with the daemon; `None` for TCP.
    file: Option<SocketFile>,
}

/// Fails if another process has one of the TCP addresses. A daemon that binds late, after it has asked its peers, thus
/// says so before it does anything else.
pub(crate) fn check_free(listeners: &[ListenAddress], inherited: &Inherited) -> Result<(), String> {
    for listener in listeners {
        if let Endpoint::Tcp { address, .. } = listener.endpoint
            && !inherited.has_tcp(address)
        {
            drop(bind_socket(address, false, 1).map_err(|error| cannot_bind(address, &error))?);
        }
    }
    Ok(())
}

/// Binds all listeners. `backlog` connections may wait at each socket. Sockets of another process are taken from
/// `inherited`. The error names the address and the option to change.
pub(crate) fn bind_all(
    listeners: &[ListenAddress],
    threads: usize,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<Vec<BoundListener>, String> {
    let mut free_ports = BTreeMap::new();
    let mut opened: Vec<BoundListener> = Vec::new();
    for listener in listeners {
        let open = match &listener.endpoint {
            Endpoint::Tcp { address, choice } => {
                let mut address = *address;
                if let Some(port) = free_ports.get(choice).filter(|_| address.port() == 0) {
                    address.set_port(*port);
                }
                let sockets = match take_inherited(address, threads, backlog, inherited)? {
                    taken if taken.is_empty() => bind_tcp(address, threads, backlog)?,
                    taken => taken,
                };
                let bound = sockets[0].local_addr().ok().and_then(|bound| bound.as_socket()).unwrap_or(address);
                free_ports.entry(*choice).or_insert(bound.port());
                let name = format!("{bound}{}", log_suffix(listener.tls_mode));
                BoundListener { name, tls_mode: listener.tls_mode, sockets, file: None }
            }
            Endpoint::Unix { path, mode } => {
                let (socket, file) = unix::open(path, *mode, backlog, inherited)?;
                let name = path.display().to_string();
                BoundListener { name, tls_mode: listener.tls_mode, sockets: vec![socket], file: Some(file) }
            }
        };
        opened.push(open);
    }
    Ok(opened)
}

impl BoundListener {
    /// Takes ownership of the unix socket's file, if there is one, when this process alone serves. Returns whether the
    /// socket had to be bound again.
    pub(crate) fn take_ownership(&mut self, backlog: i32) -> Result<bool, String> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let new_socket = file.take_ownership(backlog)?;
        let is_new = new_socket.is_some();
        // Clients in the queue of the old socket are still accepted.
        self.sockets.splice(0..0, new_socket);
        Ok(is_new)
    }

    /// Copies of its sockets, for the process that may take over.
    pub(crate) fn duplicate_fds(&self) -> io::Result<Vec<OwnedFd>> {
        // Clients can connect only to the first socket of a file.
        let count = if self.file.is_some() { 1 } else { self.sockets.len() };
        self.sockets.iter().take(count).map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// Whether a connection with the local address `local` may have been accepted here, without TLS.
    pub(crate) fn matches(&self, local: &SockAddr) -> bool {
        let Some(here) = self.sockets.first().and_then(|socket| socket.local_addr().ok()) else { return false };
        self.tls_mode == TlsMode::Plain && is_accepted_at(local, &here)
    }

    /// Distributes the sockets to the threads. Returns the file to remove at the end.
    pub(crate) fn distribute(
        self,
        threads: &mut [AcceptorSockets],
        certificates: &Arc<Certificates>,
    ) -> Result<Option<SocketFile>, String> {
        let lost = |error: io::Error| format!("{}: cannot duplicate the socket for each thread: {error}", self.name);
        if self.file.is_some() {
            for listeners in threads {
                for shared in &self.sockets {
                    listeners.add_unix(shared.try_clone().map_err(lost)?);
                }
            }
            return Ok(self.file);
        }
        let tls = client_tls(self.tls_mode, certificates);
        let count = threads.len();
        for (at, socket) in self.sockets.into_iter().enumerate() {
            threads[at % count].add_tcp(socket, tls.clone());
        }
        Ok(None)
    }
}

/// The suffix of the listener's name in the log.
fn log_suffix(tls_mode: TlsMode) -> &'static str {
    match tls_mode {
        TlsMode::Plain => "",
        TlsMode::Tls => " with TLS",
        TlsMode::MutualTls => " with TLS, for clients with a certificate",
    }
}

fn client_tls(tls_mode: TlsMode, certificates: &Arc<Certificates>) -> Option<ClientTls> {
    let is_mutual = tls_mode == TlsMode::MutualTls;
    (tls_mode != TlsMode::Plain).then(|| ClientTls { certificates: certificates.clone(), is_mutual })
}

/// Fails if the certificates are not sufficient for all listeners.
pub(crate) fn check_certificates(listeners: &[ListenAddress], certificates: &Certificates) -> Result<(), String> {
    let secured = listeners.iter().filter(|listener| listener.tls_mode != TlsMode::Plain);
    secured.into_iter().try_for_each(|listener| certificates.check_for_clients(listener.tls_mode == TlsMode::MutualTls))
}

/// The inherited sockets of `address`. If there are more threads than sockets, threads share them: a new socket would
/// get clients while the other process still serves.
fn take_inherited(
    address: SocketAddr,
    threads: usize,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<Vec<Socket>, String> {
    let lost = |error: io::Error| format!("cannot listen on {address}, which was handed over: {error}");
    let mut sockets: Vec<Socket> = Vec::new();
    let mut address = address;
    while let Some(socket) = inherited.take_tcp(address) {
        socket.listen(backlog).map_err(lost)?;
        address = socket.local_addr().map_err(lost)?.as_socket().unwrap_or(address);
        sockets.push(socket);
    }
    let own = sockets.len();
    if own > 0 {
        for number in own..threads {
            sockets.push(sockets[number % own].try_clone().map_err(lost)?);
        }
    }
    Ok(sockets)
}

fn bind_tcp(address: SocketAddr, sockets: usize, backlog: i32) -> Result<Vec<Socket>, String> {
    let describe = |error| cannot_bind(address, &error);
    drop(bind_socket(address, false, backlog).map_err(describe)?);
    let first = bind_socket(address, true, backlog).map_err(describe)?;
    let bound = first.local_addr().map_err(describe)?.as_socket().unwrap_or(address);
    let mut listeners = vec![first];
    while listeners.len() < sockets {
        listeners.push(bind_socket(bound, true, backlog).map_err(describe)?);
    }
    Ok(listeners)
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is taken by another process; choose another port with --port (0 for a free one)")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is no address of this machine; choose another with --listen")
        }
        io::ErrorKind::PermissionDenied => {
            format!("this user may not listen on {address}; choose a port above 1023 with --port")
        }
        _ => format!("cannot listen on {address} ({error}); choose another with --listen and --port"),
    }
}

fn bind_socket(address: SocketAddr, shared: bool, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Allows [::] and 0.0.0.0 on one port.
        socket.set_only_v6(true)?;
    }
    // Without it a restart would have to wait for connections of the last run in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const BACKLOG: i32 = 16;

    fn tcp(host: [u8; 4], port: u16, choice: usize) -> ListenAddress {
        let endpoint = Endpoint::Tcp { address: (Ipv4Addr::from(host), port).into(), choice };
        ListenAddress { endpoint, tls_mode: TlsMode::Plain }
    }

    fn port(socket: &Socket) -> u16 {
        socket.local_addr().expect("bound").as_socket().expect("an address").port()
    }

    #[test]
    fn sockets_of_a_listener_share_a_free_port() {
        let listeners =
            bind_all(&[tcp([127, 0, 0, 1], 0, 0)], 3, BACKLOG, &mut Inherited::default()).expect("a free port");
        let ports: Vec<_> = listeners[0].sockets.iter().map(port).collect();
        assert!(ports.len() == 3 && ports[0] != 0 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    }

    #[test]
    fn addresses_with_one_choice_share_a_free_port() {
        let wanted = [tcp([127, 0, 0, 1], 0, 0), tcp([127, 0, 0, 2], 0, 0), tcp([127, 0, 0, 1], 0, 1)];
        let listeners = bind_all(&wanted, 1, BACKLOG, &mut Inherited::default()).expect("free ports");
        let ports: Vec<_> = listeners.iter().map(|listener| port(&listener.sockets[0])).collect();
        assert!(ports[0] == ports[1] && ports[1] != ports[2], "{ports:?}");
        assert_eq!(listeners[1].name, format!("127.0.0.2:{}", ports[1]));
    }

    #[test]
    fn used_port_is_noticed_even_if_it_could_be_shared() {
        let listeners =
            bind_all(&[tcp([127, 0, 0, 1], 0, 0)], 1, BACKLOG, &mut Inherited::default()).expect("a free port");
        let taken = port(&listeners[0].sockets[0]);
        let why = bind_all(&[tcp([127, 0, 0, 1], taken, 0)], 1, BACKLOG, &mut Inherited::default()).expect_err("taken");
        assert!(why.contains(&format!("127.0.0.1:{taken}")) && why.contains("--port"), "{why}");
    }
}
