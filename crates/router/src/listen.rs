//! Sockets for clients: one per thread, all on one port, so that the system spreads connections over the threads.

use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted, for each thread.
const BACKLOG: i32 = 1024;

/// Opens `sockets` listeners on one address. Port 0 takes a free port, the same for all.
///
/// Sockets that share a port (SO_REUSEPORT) would share it with another daemon of the same user too, without a word.
/// So the port is first taken alone, and let go: only a daemon that starts within that moment is not noticed.
pub fn open(address: SocketAddr, sockets: usize) -> Result<Vec<TcpListener>, String> {
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
    drop(bind(address, false).map_err(in_words)?);
    let first = bind(address, true).map_err(in_words)?;
    let address = first.local_addr().map_err(in_words)?;
    let mut listeners = vec![first];
    while listeners.len() < sockets {
        listeners.push(bind(address, true).map_err(in_words)?);
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Without it a restart would have to wait for the connections of the run before to be forgotten.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn all_sockets_share_one_free_port() {
        let listeners = open((Ipv4Addr::LOCALHOST, 0).into(), 3).expect("a free port");
        let ports: Vec<_> = listeners.iter().map(|socket| socket.local_addr().expect("bound").port()).collect();
        assert!(ports[0] != 0 && ports.iter().all(|port| *port == ports[0]), "{ports:?}");
    }

    #[test]
    fn a_taken_port_is_noticed_even_if_it_could_be_shared() {
        let listeners = open((Ipv4Addr::LOCALHOST, 0).into(), 1).expect("a free port");
        let taken = listeners[0].local_addr().expect("bound");
        let why = open(taken, 1).expect_err("taken");
        assert!(why.contains(&taken.to_string()) && why.contains("--port"), "{why}");
    }
}
