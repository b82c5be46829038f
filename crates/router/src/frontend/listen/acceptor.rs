//! One thread's listener over all doors. No request passes here, only connections.

use crate::frontend::tls_accept::Greeter;
use lookaside_client::{Listener, Stream};
use lookaside_routing::BoxFuture;
use socket2::Socket;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// What one thread accepts from. Made anywhere; [`Doors::watched`] needs the thread's runtime.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    tcp: Vec<(Socket, Option<Greeter>)>,
    unix: Vec<Socket>,
}

/// Doors in a runtime. Whoever was accepted from last is asked last, so that a busy door leaves the others their turn.
struct Watched {
    doors: Vec<Door>,
    next: usize,
}

enum Door {
    Tcp(TcpListener),
    Tls(TcpListener, Greeter),
    Unix(UnixListener),
}

impl Doors {
    /// No door yet.
    pub(crate) fn none() -> Doors {
        Doors::default()
    }

    /// Clients of this one are greeted, if somebody stands there.
    pub(super) fn add_tcp(&mut self, socket: Socket, greeter: Option<Greeter>) {
        self.tcp.push((socket, greeter));
    }

    pub(super) fn add_unix(&mut self, socket: Socket) {
        self.unix.push(socket);
    }

    /// The listener over them.
    pub(crate) fn watched(self) -> io::Result<Box<dyn Listener>> {
        let tcp = self.tcp.into_iter().map(|(socket, greeter)| {
            let listener = TcpListener::from_std(socket.into())?;
            Ok(match greeter {
                Some(greeter) => Door::Tls(listener, greeter),
                None => Door::Tcp(listener),
            })
        });
        let unix = self.unix.into_iter().map(|socket| UnixListener::from_std(socket.into()).map(Door::Unix));
        let doors = tcp.chain(unix).collect::<io::Result<Vec<_>>>()?;
        Ok(Box::new(Watched { doors, next: 0 }))
    }
}

impl Watched {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Stream>>> {
        for _ in 0..self.doors.len() {
            let door = &self.doors[self.next];
            self.next = (self.next + 1) % self.doors.len();
            if let Poll::Ready(accepted) = door.poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }
}

impl Door {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Stream>>> {
        match self {
            Door::Tcp(listener) => poll_tcp(listener, cx).map_ok(|stream| Box::new(stream) as Box<dyn Stream>),
            Door::Tls(listener, greeter) => {
                poll_tcp(listener, cx).map_ok(|stream| Box::new(greeter.greet(stream)) as Box<dyn Stream>)
            }
            Door::Unix(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| Box::new(stream) as Box<dyn Stream>),
        }
    }
}

fn poll_tcp(listener: &TcpListener, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
    listener.poll_accept(cx).map_ok(|(stream, _)| {
        // A client that has gone meanwhile shows at the first read.
        let _ = stream.set_nodelay(true);
        stream
    })
}

impl Listener for Watched {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(poll_fn(|cx| self.poll_accept(cx)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream};
    use std::time::Duration;

    /// A socket on a free port, and a client that waits at it.
    fn door_with_clients(clients: usize) -> (Socket, u16, Vec<StdTcpStream>) {
        let listener = StdTcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let clients = (0..clients).map(|_| StdTcpStream::connect(address).expect("room in the queue")).collect();
        (listener.into(), address.port(), clients)
    }

    #[tokio::test]
    async fn a_busy_door_leaves_the_others_their_turn() {
        let (busy, _, _busy_clients) = door_with_clients(8);
        let (quiet, _, quiet_clients) = door_with_clients(1);
        let mut doors = Doors::none();
        doors.add_tcp(busy, None);
        doors.add_tcp(quiet, None);
        let mut listener = doors.watched().expect("a runtime");
        for _ in 0..2 {
            drop(listener.accept().await.expect("somebody waits"));
        }
        // Both have been accepted from: the client of the quiet one is hung up on.
        let mut byte = [0];
        quiet_clients[0].set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        assert_eq!((&quiet_clients[0]).read(&mut byte).expect("hung up on"), 0);
    }
}
