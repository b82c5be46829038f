//! One thread's listener over all of its sockets. No request passes here, only connections.

use crate::frontend::tls_accept::ClientTls;
use lookaside_client::{Listener, Stream};
use lookaside_routing::BoxFuture;
use socket2::Socket;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream, UnixListener};

/// The sockets that one thread accepts from. [`AcceptorSockets::register`] must be called in the thread's runtime.
#[derive(Debug, Default)]
pub(crate) struct AcceptorSockets {
    tcp: Vec<(Socket, Option<ClientTls>)>,
    unix: Vec<Socket>,
}

/// The registered sockets. They are polled round-robin, so that a busy one does not starve the others.
struct Acceptor {
    listeners: Vec<AcceptSocket>,
    next: usize,
}

enum AcceptSocket {
    Tcp(TcpListener),
    Tls(TcpListener, ClientTls),
    Unix(UnixListener),
}

impl AcceptorSockets {
    pub(crate) fn new() -> AcceptorSockets {
        AcceptorSockets::default()
    }

    /// Adds a TCP socket; `tls` is `None` if its clients use none.
    pub(super) fn add_tcp(&mut self, socket: Socket, tls: Option<ClientTls>) {
        self.tcp.push((socket, tls));
    }

    pub(super) fn add_unix(&mut self, socket: Socket) {
        self.unix.push(socket);
    }

    pub(crate) fn register(self) -> io::Result<Box<dyn Listener>> {
        let tcp = self.tcp.into_iter().map(|(socket, tls)| {
            let listener = TcpListener::from_std(socket.into())?;
            Ok(match tls {
                Some(tls) => AcceptSocket::Tls(listener, tls),
                None => AcceptSocket::Tcp(listener),
            })
        });
        let unix = self.unix.into_iter().map(|socket| UnixListener::from_std(socket.into()).map(AcceptSocket::Unix));
        let listeners = tcp.chain(unix).collect::<io::Result<Vec<_>>>()?;
        Ok(Box::new(Acceptor { listeners, next: 0 }))
    }
}

impl Acceptor {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Stream>>> {
        for _ in 0..self.listeners.len() {
            let listener = &self.listeners[self.next];
            self.next = (self.next + 1) % self.listeners.len();
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }
}

impl AcceptSocket {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Box<dyn Stream>>> {
        match self {
            AcceptSocket::Tcp(listener) => poll_tcp(listener, cx).map_ok(|stream| Box::new(stream) as Box<dyn Stream>),
            AcceptSocket::Tls(listener, tls) => {
                poll_tcp(listener, cx).map_ok(|stream| Box::new(tls.accept(stream)) as Box<dyn Stream>)
            }
            AcceptSocket::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| Box::new(stream) as Box<dyn Stream>)
            }
        }
    }
}

fn poll_tcp(listener: &TcpListener, cx: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
    listener.poll_accept(cx).map_ok(|(stream, _)| {
        // If the client has disconnected meanwhile, the first read fails.
        let _ = stream.set_nodelay(true);
        stream
    })
}

impl Listener for Acceptor {
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

    /// A socket on a free port, and clients in its queue.
    fn listener_with_clients(clients: usize) -> (Socket, u16, Vec<StdTcpStream>) {
        let listener = StdTcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("bound");
        let clients = (0..clients).map(|_| StdTcpStream::connect(address).expect("the queue is long enough")).collect();
        (listener.into(), address.port(), clients)
    }

    #[tokio::test]
    async fn busy_socket_does_not_starve_the_others() {
        let (busy, _, _busy_clients) = listener_with_clients(8);
        let (quiet, _, quiet_clients) = listener_with_clients(1);
        let mut listeners = AcceptorSockets::new();
        listeners.add_tcp(busy, None);
        listeners.add_tcp(quiet, None);
        let mut listener = listeners.register().expect("a runtime");
        for _ in 0..2 {
            drop(listener.accept().await.expect("a client waits"));
        }
        // Both have been accepted from: the client of the quiet one is disconnected.
        let mut byte = [0];
        quiet_clients[0].set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        assert_eq!((&quiet_clients[0]).read(&mut byte).expect("disconnected"), 0);
    }
}
