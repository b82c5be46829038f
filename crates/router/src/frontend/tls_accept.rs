//! A client's connection that begins with a TLS handshake. Serves every path of clients that use TLS.
//!
//! The thread that accepts the connection waits for nothing: the handshake is part of the first read or write, in the
//! session's own task. A client that takes longer than `--ssl-handshake-timeout` is disconnected. A failed handshake is
//! reported to the client by TLS's alert, and counted.

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

/// The TLS side of a listener.
#[derive(Clone)]
pub(crate) struct ClientTls {
    pub(crate) certificates: Arc<Certificates>,
    /// Whether clients must have a certificate.
    pub(crate) is_mutual: bool,
}

impl ClientTls {
    /// The client's stream, with the certificates in force now.
    pub(crate) fn accept(&self, stream: TcpStream) -> HandshakingStream {
        let peer = stream.peer();
        let certificates = self.certificates.clone();
        // Checked at the start, and a reload cannot lose them.
        let config = certificates.for_clients(self.is_mutual).expect("a listener with TLS has a certificate");
        let accept = TlsAcceptor::from(config).accept(stream);
        let deadline = Box::pin(sleep(certificates.handshake_max()));
        HandshakingStream { state: State::Handshake { accept, deadline }, peer, certificates }
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").field("is_mutual", &self.is_mutual).finish_non_exhaustive()
    }
}

pub(crate) struct HandshakingStream {
    state: State,
    peer: Option<IpAddr>,
    certificates: Arc<Certificates>,
}

enum State {
    Handshake { accept: Accept<TcpStream>, deadline: Pin<Box<Sleep>> },
    Open(TlsStream<TcpStream>),
    Over,
}

impl HandshakingStream {
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

impl AsyncRead for HandshakingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_read(cx, bytes)
    }
}

impl AsyncWrite for HandshakingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let State::Handshake { .. } = self.state {
            // Nothing has been written yet.
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(cx))?.poll_shutdown(cx)
    }
}

impl Stream for HandshakingStream {
    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }
}

impl Drop for HandshakingStream {
    /// Sends TLS's close_notify if the socket takes it at once. Without it the client could not distinguish the end
    /// from a connection that an attacker cut.
    fn drop(&mut self) {
        if let State::Open(mut stream) = mem::replace(&mut self.state, State::Over) {
            let _ = Pin::new(&mut stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}
