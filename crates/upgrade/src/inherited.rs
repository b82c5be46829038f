//! Listening sockets that were open before this process started: those of the process that it takes over from, and
//! those of systemd (socket activation). Code that opens a listening socket looks here first.
//!
//! A socket is identified by its address, which the kernel reports, wherever it came from. Unused sockets are closed.

use rustix::fd::{AsRawFd, OwnedFd};
use socket2::{SockAddr, Socket, Type};
use std::net::SocketAddr;
use std::os::fd::FromRawFd;
use std::path::Path;

/// The variables of socket activation (sd_listen_fds(3)).
const PID_VARIABLE: &str = "LISTEN_PID";
const COUNT_VARIABLE: &str = "LISTEN_FDS";
const FIRST_DESCRIPTOR: i32 = 3;

/// The most descriptors that are accepted; no configuration has as many.
const DESCRIPTORS_MAX: i32 = 4096;

/// Open sockets that have not been used yet.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

impl Inherited {
    /// The sockets that systemd has opened for this process.
    pub fn from_systemd() -> Inherited {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<i32>().ok());
        let mut inherited = Inherited::default();
        if number(PID_VARIABLE) != i32::try_from(std::process::id()).ok() {
            return inherited;
        }
        let count = number(COUNT_VARIABLE).unwrap_or(0).clamp(0, DESCRIPTORS_MAX);
        for descriptor in FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + count {
            inherited.extend(descriptor_from_supervisor(descriptor));
        }
        inherited
    }

    /// Adds the listening socket that the parent of this process has opened as the descriptor `number`, and returns its
    /// address. Must be called before this process opens anything. The error says what the descriptor is instead.
    pub fn adopt(&mut self, number: i32) -> Result<SockAddr, String> {
        let is_known = |socket: &Socket| socket.as_raw_fd() == number;
        if number > 2 && !self.sockets.iter().any(is_known) {
            self.extend(descriptor_from_supervisor(number));
        }
        let socket = self.sockets.iter().find(|socket| is_known(socket)).filter(|socket| is_listening(socket));
        let socket = socket.ok_or_else(|| format!("descriptor {number} is not a listening socket"))?;
        socket.local_addr().map_err(|error| format!("the socket {number} has no address: {error}"))
    }

    /// Adds descriptors that are sockets. They become non-blocking and close-on-exec.
    pub fn extend(&mut self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        for descriptor in descriptors {
            let number = descriptor.as_raw_fd();
            let socket = Socket::from(descriptor);
            let is_usable = socket.r#type().is_ok() && socket.set_nonblocking(true).is_ok();
            match is_usable && socket.set_cloexec(true).is_ok() {
                true => self.sockets.push(socket),
                false => tracing::warn!("ignoring inherited descriptor {number}: it is not a socket"),
            }
        }
    }

    /// Takes the socket that listens on this TCP address; with port 0, on any port of it.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<Socket> {
        self.take_matching(|socket, local| listens_on(socket, local, address))
    }

    /// Whether [`Inherited::take_tcp`] finds a socket.
    pub fn has_tcp(&self, address: SocketAddr) -> bool {
        self.sockets.iter().any(|socket| socket.local_addr().is_ok_and(|local| listens_on(socket, &local, address)))
    }

    /// Takes the socket that listens on this file.
    pub fn take_unix(&mut self, path: &Path) -> Option<Socket> {
        self.take_matching(|socket, local| is_listening(socket) && local.as_pathname() == Some(path))
    }

    /// Takes a socket on this UDP address. There may be several.
    pub fn take_udp(&mut self, address: SocketAddr) -> Option<Socket> {
        self.take_matching(|socket, local| {
            socket.r#type().is_ok_and(|kind| kind == Type::DGRAM) && local.as_socket() == Some(address)
        })
    }

    fn take_matching(&mut self, matches: impl Fn(&Socket, &SockAddr) -> bool) -> Option<Socket> {
        let is_match = |socket: &Socket| socket.local_addr().is_ok_and(|local| matches(socket, &local));
        let index = self.sockets.iter().position(is_match);
        index.map(|index| self.sockets.remove(index))
    }

    /// Closes the unused sockets. The process that handed them over still has them until it exits.
    pub fn close_unused(self) {
        for socket in self.sockets {
            let address = socket.local_addr().ok().map(|local| match local.as_socket() {
                Some(address) => address.to_string(),
                None => local.as_pathname().map_or_else(String::new, |path| path.display().to_string()),
            });
            tracing::warn!("{} was handed over, and no option asks for it: closed", address.unwrap_or_default());
        }
    }
}

fn listens_on(socket: &Socket, local: &SockAddr, address: SocketAddr) -> bool {
    let matches =
        |local: SocketAddr| local.ip() == address.ip() && (address.port() == 0 || local.port() == address.port());
    is_listening(socket) && local.as_socket().is_some_and(matches)
}

fn is_listening(socket: &Socket) -> bool {
    socket.is_listener().unwrap_or(false) && socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
}

/// A descriptor that this process was started with. `None` if it is not open. Must be called once for each number.
#[expect(unsafe_code, reason = "only a number says which descriptors a supervisor has opened")]
fn descriptor_from_supervisor(number: i32) -> Option<OwnedFd> {
    // SAFETY: reads a flag of a descriptor; any number is allowed.
    let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
    // SAFETY: it is open. systemd, which has named our process id, or the parent, which the command line quotes, opened
    // it for us before we started and before we opened anything, so nothing else in this program owns it; and each
    // number is taken once.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_is_found_by_its_address_and_only_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let unix = UnixListener::bind(&path).expect("a socket");
        let file = std::fs::File::open("/dev/null").expect("it exists");
        let (tcp_address, udp_address) = (tcp.local_addr().expect("bound"), udp.local_addr().expect("bound"));
        let mut inherited = Inherited::default();
        inherited.extend([OwnedFd::from(tcp), OwnedFd::from(udp), OwnedFd::from(unix), OwnedFd::from(file)]);

        assert!(inherited.take_tcp("127.0.0.2:0".parse().expect("an address")).is_none());
        assert!(inherited.take_udp(tcp_address).is_none());
        assert!(inherited.take_unix(&folder.path().join("other")).is_none());
        let any_port = SocketAddr::new(tcp_address.ip(), 0);
        let found = inherited.take_tcp(any_port).expect("it was inherited");
        assert_eq!(found.local_addr().expect("bound").as_socket(), Some(tcp_address));
        assert!(inherited.take_tcp(tcp_address).is_none(), "it is taken already");
        assert!(inherited.take_udp(udp_address).is_some() && inherited.take_udp(udp_address).is_none());
        assert!(inherited.take_unix(&path).is_some());
        inherited.close_unused();
    }
}
