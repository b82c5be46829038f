//! Ports that were open before this process: those of the server that it takes over from, and those of a supervisor
//! (systemd's socket activation). Whoever opens a port looks here first.
//!
//! A port is known by its address, which the kernel tells; who sent it is not asked. What nobody takes is closed.

use rustix::fd::{AsRawFd, OwnedFd};
use socket2::{SockAddr, Socket, Type};
use std::net::SocketAddr;
use std::os::fd::FromRawFd;
use std::path::Path;

/// How a supervisor says which descriptors are for whom (sd_listen_fds(3)).
const FOR_WHOM_VARIABLE: &str = "LISTEN_PID";
const COUNT_VARIABLE: &str = "LISTEN_FDS";
const FIRST_DESCRIPTOR: i32 = 3;

/// More descriptors than any configuration has.
const DESCRIPTORS_MAX: i32 = 4096;

/// Open ports that wait for somebody to take them.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Socket>,
}

impl Inherited {
    /// What a supervisor has opened for this process.
    pub fn from_supervisor() -> Inherited {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<i32>().ok());
        let mut inherited = Inherited::default();
        if number(FOR_WHOM_VARIABLE) != i32::try_from(std::process::id()).ok() {
            return inherited;
        }
        let count = number(COUNT_VARIABLE).unwrap_or(0).clamp(0, DESCRIPTORS_MAX);
        for descriptor in FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + count {
            inherited.extend(descriptor_from_supervisor(descriptor));
        }
        inherited
    }

    /// Adds what is a socket. They never block, and no program that this one starts has them.
    pub fn extend(&mut self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        for descriptor in descriptors {
            let number = descriptor.as_raw_fd();
            let socket = Socket::from(descriptor);
            let is_usable = socket.r#type().is_ok() && socket.set_nonblocking(true).is_ok();
            match is_usable && socket.set_cloexec(true).is_ok() {
                true => self.sockets.push(socket),
                false => tracing::warn!("descriptor {number} is handed over, but no socket"),
            }
        }
    }

    /// The socket that listens on this TCP address; with port 0, on any port there.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<Socket> {
        let is_it =
            |local: SocketAddr| local.ip() == address.ip() && (address.port() == 0 || local.port() == address.port());
        self.take(|socket, local| is_listening(socket) && local.as_socket().is_some_and(is_it))
    }

    /// The socket that listens on this file.
    pub fn take_unix(&mut self, path: &Path) -> Option<Socket> {
        self.take(|socket, local| is_listening(socket) && local.as_pathname() == Some(path))
    }

    /// A socket on this UDP address. There may be more.
    pub fn take_udp(&mut self, address: SocketAddr) -> Option<Socket> {
        self.take(|socket, local| {
            socket.r#type().is_ok_and(|kind| kind == Type::DGRAM) && local.as_socket() == Some(address)
        })
    }

    fn take(&mut self, is_it: impl Fn(&Socket, &SockAddr) -> bool) -> Option<Socket> {
        let place = self.sockets.iter().position(|socket| socket.local_addr().is_ok_and(|local| is_it(socket, &local)));
        place.map(|place| self.sockets.remove(place))
    }

    /// Closes what nobody has taken. The server that it is from has it until it ends.
    pub fn close_rest(self) {
        for socket in self.sockets {
            let place = socket.local_addr().ok().map(|local| match local.as_socket() {
                Some(address) => address.to_string(),
                None => local.as_pathname().map_or_else(String::new, |path| path.display().to_string()),
            });
            tracing::warn!("{} was handed over, and no option asks for it: closed", place.unwrap_or_default());
        }
    }
}

fn is_listening(socket: &Socket) -> bool {
    socket.is_listener().unwrap_or(false) && socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
}

/// A descriptor that this process was started with, if it is one. Called once for each number.
#[allow(unsafe_code)]
fn descriptor_from_supervisor(number: i32) -> Option<OwnedFd> {
    // SAFETY: asks for a number.
    let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } != -1;
    // SAFETY: it is open, and the supervisor, which knows our process id, says that it opened it for us before we started:
    // nothing else in this program has it. Each number is taken once.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_port_is_found_by_its_address_and_only_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let unix = UnixListener::bind(&path).expect("a socket");
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let (tcp_address, udp_address) = (tcp.local_addr().expect("bound"), udp.local_addr().expect("bound"));
        let mut inherited = Inherited::default();
        inherited.extend([OwnedFd::from(tcp), OwnedFd::from(udp), OwnedFd::from(unix), OwnedFd::from(file)]);

        assert!(inherited.take_tcp("127.0.0.2:0".parse().expect("an address")).is_none());
        assert!(inherited.take_udp(tcp_address).is_none());
        assert!(inherited.take_unix(&folder.path().join("other")).is_none());
        let any_port = SocketAddr::new(tcp_address.ip(), 0);
        let found = inherited.take_tcp(any_port).expect("it is there");
        assert_eq!(found.local_addr().expect("bound").as_socket(), Some(tcp_address));
        assert!(inherited.take_tcp(tcp_address).is_none(), "it has been taken");
        assert!(inherited.take_udp(udp_address).is_some() && inherited.take_udp(udp_address).is_none());
        assert!(inherited.take_unix(&path).is_some());
        inherited.close_rest();
    }
}
