//! Where clients come in: TCP ports and a unix socket, opened before anybody is served, and handed to the threads.
//!
//! ```text
//!   -l, -p, -s  (options)  ->  Door ...  (what is wanted)  ->  open()  ->  Opened  ->  Doors, one a thread
//!                                        address: names looked up          sockets     accept() over all of them
//! ```
//!
//! Of a TCP port each thread has a socket of its own (SO_REUSEPORT), so that the system spreads connections over the
//! threads. A unix socket has no such thing: all threads accept from the one, and who is idle comes first.
//!
//! Sockets that share a port would share it with another daemon of the same user too, without a word. So the port is
//! first taken alone, and let go: only a daemon that starts within that moment is not noticed.

mod acceptor;
pub(crate) mod listen_spec;
mod unix;

pub(crate) use acceptor::Doors;
pub(crate) use unix::SocketFile;

use crate::frontend::tls_accept::Greeter;
use crate::tls::Certificates;
use lookaside_upgrade::Inherited;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Door {
    pub(crate) place: Place,
    pub(crate) security: Security,
}

/// How what is said at a door is protected; the stricter the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Security {
    /// Not at all.
    #[default]
    Plain,
    /// TLS; nobody is asked for a certificate.
    Tls,
    /// TLS for clients with a certificate alone.
    MutualTls,
}

/// Where a door is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp {
        address: SocketAddr,
        /// Doors with port 0 and the same choice get the same free port.
        choice: usize,
    },
    Unix {
        path: PathBuf,
        /// Who may connect.
        mode: u32,
    },
}

/// A door that is open.
#[derive(Debug)]
pub(crate) struct OpenDoor {
    /// As the log names it.
    pub(crate) name: String,
    security: Security,
    /// One for each thread, or one for all.
    sockets: Vec<Socket>,
    /// The unix socket's, which goes away with the daemon.
    file: Option<SocketFile>,
}

/// Opens all doors, or says which cannot be opened and what to do. `backlog` connections may wait at each socket.
/// What another process had opened before is taken from `inherited`.
pub(crate) fn open(
    doors: &[Door],
    threads: usize,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<Vec<OpenDoor>, String> {
    let mut free_ports = BTreeMap::new();
    let mut opened: Vec<OpenDoor> = Vec::new();
    for door in doors {
        let open = match &door.place {
            Place::Tcp { address, choice } => {
                let mut address = *address;
                if let Some(port) = free_ports.get(choice).filter(|_| address.port() == 0) {
                    address.set_port(*port);
                }
                let sockets = match take_tcp(address, threads, backlog, inherited)? {
                    taken if taken.is_empty() => open_tcp(address, threads, backlog)?,
                    taken => taken,
                };
                let bound = sockets[0].local_addr().ok().and_then(|bound| bound.as_socket()).unwrap_or(address);
                free_ports.entry(*choice).or_insert(bound.port());
                let name = format!("{bound}{}", door.security.remark());
                OpenDoor { name, security: door.security, sockets, file: None }
            }
            Place::Unix { path, mode } => {
                let (socket, file) = unix::open(path, *mode, backlog, inherited)?;
                let name = path.display().to_string();
                OpenDoor { name, security: door.security, sockets: vec![socket], file: Some(file) }
            }
        };
        opened.push(open);
    }
    Ok(opened)
}

impl OpenDoor {
    /// This process serves from now on, and nobody else: the file, if it has one, is its own. True if its socket is another one now.
    pub(crate) fn take(&mut self, backlog: i32) -> Result<bool, String> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let anew = file.take(backlog)?;
        let is_anew = anew.is_some();
        // Who waits at the socket before it is let in too.
        self.sockets.splice(0..0, anew);
        Ok(is_anew)
    }

    /// Copies of its sockets, for the process that may take over.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        // Only the first of a file can be connected to.
        let count = if self.file.is_some() { 1 } else { self.sockets.len() };
        self.sockets.iter().take(count).map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }

    /// Whether a connection with this end of its own may have come in here, in plain.
    pub(crate) fn has_let_in(&self, end: &SockAddr) -> bool {
        let Some(here) = self.sockets.first().and_then(|socket| socket.local_addr().ok()) else { return false };
        let is_here = match (here.as_socket(), end.as_socket()) {
            (Some(here), Some(end)) => {
                let is_any = here.ip().is_unspecified() && here.is_ipv4() == end.is_ipv4();
                here.port() == end.port() && (is_any || here.ip() == end.ip())
            }
            _ => here.as_pathname().is_some() && here.as_pathname() == end.as_pathname(),
        };
        is_here && self.security == Security::Plain
    }

    /// Gives each of `threads` what it accepts from; what is left is the file to remove at the end.
    pub(crate) fn share_out(
        self,
        threads: &mut [Doors],
        certificates: &Arc<Certificates>,
    ) -> Result<Option<SocketFile>, String> {
        let lost = |error: io::Error| format!("{}: the system gives no socket for each thread: {error}", self.name);
        if self.file.is_some() {
            for doors in threads {
                for shared in &self.sockets {
                    doors.add_unix(shared.try_clone().map_err(lost)?);
                }
            }
            return Ok(self.file);
        }
        let greeter = self.security.greeter(certificates);
        let count = threads.len();
        for (at, socket) in self.sockets.into_iter().enumerate() {
            threads[at % count].add_tcp(socket, greeter.clone());
        }
        Ok(None)
    }
}

impl Security {
    /// What the log says behind such a door.
    fn remark(self) -> &'static str {
        match self {
            Security::Plain => "",
            Security::Tls => " with TLS",
            Security::MutualTls => " with TLS, for clients with a certificate",
        }
    }

    fn greeter(self, certificates: &Arc<Certificates>) -> Option<Greeter> {
        let is_mutual = self == Security::MutualTls;
        (self != Security::Plain).then(|| Greeter { certificates: certificates.clone(), is_mutual })
    }
}

/// Whether the certificates are enough for all doors.
pub(crate) fn check_certificates(doors: &[Door], certificates: &Certificates) -> Result<(), String> {
    let secured = doors.iter().filter(|door| door.security != Security::Plain);
    secured.into_iter().try_for_each(|door| certificates.check_for_clients(door.security == Security::MutualTls))
}

/// What another process has listened on here, if any did. Threads that are more than its sockets share them: a new one would
/// get clients while that process serves still.
fn take_tcp(
    address: SocketAddr,
    threads: usize,
    backlog: i32,
    inherited: &mut Inherited,
) -> Result<Vec<Socket>, String> {
    let lost = |error: io::Error| format!("{address}, which was handed over, cannot be listened on: {error}");
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

fn open_tcp(address: SocketAddr, sockets: usize, backlog: i32) -> Result<Vec<Socket>, String> {
    let in_words = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is taken by another process; choose another port with --port (0 for a free one)")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} is no address of this machine; choose another with --listen")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{address} may not be listened on by this user; choose a port above 1023 with --port")
        }
        _ => format!("{address} cannot be listened on ({error}); choose another with --listen and --port"),
    };
    drop(bind(address, false, backlog).map_err(in_words)?);
    let first = bind(address, true, backlog).map_err(in_words)?;
    let bound = first.local_addr().map_err(in_words)?.as_socket().unwrap_or(address);
    let mut listeners = vec![first];
    while listeners.len() < sockets {
        listeners.push(bind(bound, true, backlog).map_err(in_words)?);
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, shared: bool, backlog: i32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // [::] beside 0.0.0.0 on one port: each has its own kind.
        socket.set_only_v6(true)?;
    }
    // Without it a restart would have to wait for the connections of the run before to be forgotten.
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

    fn tcp(host: [u8; 4], port: u16, choice: usize) -> Door {
        let place = Place::Tcp { address: (Ipv4Addr::from(host), port).into(), choice };
        Door { place, security: Security::Plain }
    }

    fn port(socket: &Socket) -> u16 {
        socket.local_addr().expect("bound").as_socket().expect("an address").port()
    }

    #[test]
    fn all_sockets_share_one_free_port() {
        let doors = open(&[tcp([127, 0, 0, 1], 0, 0)], 3, BACKLOG, &mut Inherited::default()).expect("a free port");
        let ports: Vec<_> = doors[0].sockets.iter().map(port).collect();
        assert!(ports.len() == 3 && ports[0] != 0 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    }

    #[test]
    fn one_free_port_is_chosen_for_all_addresses_and_another_for_another_choice() {
        let wanted = [tcp([127, 0, 0, 1], 0, 0), tcp([127, 0, 0, 2], 0, 0), tcp([127, 0, 0, 1], 0, 1)];
        let doors = open(&wanted, 1, BACKLOG, &mut Inherited::default()).expect("free ports");
        let ports: Vec<_> = doors.iter().map(|door| port(&door.sockets[0])).collect();
        assert!(ports[0] == ports[1] && ports[1] != ports[2], "{ports:?}");
        assert_eq!(doors[1].name, format!("127.0.0.2:{}", ports[1]));
    }

    #[test]
    fn a_taken_port_is_noticed_even_if_it_could_be_shared() {
        let doors = open(&[tcp([127, 0, 0, 1], 0, 0)], 1, BACKLOG, &mut Inherited::default()).expect("a free port");
        let taken = port(&doors[0].sockets[0]);
        let why = open(&[tcp([127, 0, 0, 1], taken, 0)], 1, BACKLOG, &mut Inherited::default()).expect_err("taken");
        assert!(why.contains(&format!("127.0.0.1:{taken}")) && why.contains("--port"), "{why}");
    }
}
