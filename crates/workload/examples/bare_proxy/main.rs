//! What a proxy in front of memcached servers costs at least: one thread that moves requests and replies between
//! sockets, in the event loop that is named. `experiments/cluster/router_floor.py` measures it beside the router.
//!
//!     bare_proxy epoll|tokio|io_uring PORT SERVER...
//!
//! | loop | waits for sockets by | moves bytes by |
//! |---|---|---|
//! | `epoll` | one level-triggered epoll for clients and servers | `recv` and `send`; what a round has for a socket leaves in one `send` |
//! | `tokio` | tokio's, as the router: a task for each client, and one for each server | the same, a task at a time |
//! | `io_uring` | one ring | receives and sends of a round are submitted by the system call that waits for the next one |
//!
//! All three do the same to the bytes ([`framing`]): find the end of a request and of a reply, and choose a server by a
//! hash of the key. Gets have one key. So what a loop costs is the floor of a proxy that is built on it.
//!
//! Absent on purpose is all else that a proxy does: parsing, routes, timeouts, failing servers, a bound on memory,
//! statistics. If a server closes its connection, the program ends.

mod epoll_loop;
mod framing;
mod io_uring_loop;
mod relay;
mod tokio_loop;

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// The router's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Connections that the kernel may hold until they are accepted.
const BACKLOG: i32 = 4_096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, port, servers @ ..] = &arguments[..] else {
        return Err("usage: bare_proxy epoll|tokio|io_uring PORT SERVER...".into());
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?))?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let servers: Vec<TcpStream> = servers.iter().map(TcpStream::connect).collect::<Result<_, _>>()?;
    for server in &servers {
        server.set_nodelay(true)?;
        server.set_nonblocking(true)?;
    }
    match name.as_str() {
        "epoll" => epoll_loop::run(listener, servers)?,
        "tokio" => tokio_loop::run(listener, servers)?,
        "io_uring" => io_uring_loop::run(&listener, servers)?,
        other => return Err(format!("{other} is none of epoll, tokio, io_uring").into()),
    }
    Ok(())
}
