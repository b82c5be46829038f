//! The addresses of a connection, looked up by its descriptor alone: `stats conns` shows the connections of other
//! threads.
//!
//! The kernel is asked when the addresses are needed, so that no connection has to store them.
#![expect(unsafe_code, reason = "socket2 and rustix want a descriptor that is owned or borrowed")]

use socket2::SockAddr;
use std::os::fd::RawFd;

/// The peer's and the local address of a connection, as memcached prints them. `None` if the connection is closed.
pub(crate) fn endpoints(descriptor: RawFd) -> Option<(String, String)> {
    let local = socket_address(descriptor, libc::getsockname)?;
    let peer = socket_address(descriptor, libc::getpeername)?;
    // A client of a Unix socket has no address: the socket's path is shown for both.
    let peer = if peer.is_unix() { &local } else { &peer };
    Some((format_address(peer, "tcp"), format_address(&local, "tcp")))
}

/// The address of a listening socket, behind the name of its transport.
pub(crate) fn listening_address(descriptor: RawFd, transport: &str) -> Option<String> {
    Some(format_address(&socket_address(descriptor, libc::getsockname)?, transport))
}

type SockNameFn = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn socket_address(descriptor: RawFd, get_name: SockNameFn) -> Option<SockAddr> {
    // SAFETY: the kernel writes at most as many bytes as the length says into the storage, and sets the length. A
    // number that is no descriptor, or another's by now, is an error or that one's addresses: no memory depends on it.
    let result = unsafe {
        SockAddr::try_init(|storage, length| match get_name(descriptor, storage.cast(), length) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    result.ok().map(|((), address)| address)
}

fn format_address(address: &SockAddr, transport: &str) -> String {
    match address.as_socket() {
        Some(socket) if socket.is_ipv6() => format!("{transport}6:{socket}"),
        Some(socket) => format!("{transport}:{socket}"),
        None => format!("unix:{}", address.as_pathname().map_or("".into(), |path| path.display().to_string())),
    }
}
