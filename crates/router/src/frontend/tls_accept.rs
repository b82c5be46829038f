//! A client's connection that begins with a handshake. Serves every path of clients that come in by TLS.
//!
//! The thread that accepts it waits for nothing: the handshake goes on as part of the first read or write, in the
//! session's own task. A client that takes longer than `--ssl-handshake-timeout` is hung up on, and a failed handshake
//! is told to the client alone, as TLS has it, and counted.

use crate::tls::Certificates;
use lookaside_client::Stream;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::{io, mem};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

/// What stands at a door with TLS.
#[derive(Clone)]
pub(crate) struct Greeter {
    pub(crate) certificates: Arc<Certificates>,
    /// Nobody comes in without a certificate.
    pub(crate) is_mutual: bool,
}

impl Greeter {
    /// The client's stream, with what is in force now.
    pub(crate) fn greet(&self, stream: TcpStream) -> Greeted {
        let peer = stream.peer();
        let certificates = self.certificates.clone();
        // Checked at the start, and a refresh cannot lose them.
        let config = certificates.for_clients(self.is_mutual).expect("a door with TLS has a certificate");
        let accept = TlsAcceptor::from(config).accept(stream);
        let deadline = Box::pin(sleep(certificates.handshake_max()));
        Greeted { state: State::Handshake { accept, deadline }, peer, certificates }
    }
}

impl std::fmt::Debug for Greeter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Greeter").field("is_mutual", &self.is_mutual).finish_non_exhaustive()
    }
}

/// A client's encrypted connection.
pub(crate) struct Greeted {
    state: State,
    peer: Option<IpAddr>,
    certificates: Arc<Certificates>,
}

enum State {
    Handshake { accept: Accept<TcpStream>, deadline: Pin<Box<Sleep>> },
    Open(TlsStream<TcpStream>),
    Over,
}

impl Greeted {
    /// The stream, once the handshake is done.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<TcpStream>>>> {
        if let State::Handshake { accept, deadline } = &mut self.state {
            let accepted = match Pin::new(accept).poll(cx) {
                Poll::Ready(accepted) => accepted,
                Poll::Pending => {
                    ready!(deadline.as_mut().poll(cx));
                    Err(io::ErrorKind::TimedOut.into())
                }
            };
            self.certificates.count_handshake(accepted.is_ok());
            self.state = match accepted {
                Ok(stream) => State::Open(stream),
                Err(error) => {
                    tracing::debug!(%error, "a client's TLS handshake failed");
                    self.state = State::Over;
                    return Poll::Ready(Err(error));
                }
            };
        }
        Poll::Ready(match &mut self.state {
            State::Open(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Greeted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, bytes)
    }
}

impl AsyncWrite for Greeted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Handshake { .. } = self.state {
            // Nothing has been taken yet.
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_shutdown(cx)
    }
}

impl Stream for Greeted {
    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }
}

impl Drop for Greeted {
    /// Tells the client that nothing more will come, if the socket takes that at once: else it cannot tell the end from
    /// a connection that somebody cut.
    fn drop(&mut self) {
        if let State::Open(mut stream) = mem::replace(&mut self.state, State::Over) {
            let _ = Pin::new(&mut stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}
