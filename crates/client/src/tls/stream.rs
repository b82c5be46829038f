//! A connection by TLS, as one of a network.

use crate::Stream;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Secures `stream` to the server that has `name`. It sets no timeout.
pub async fn shake_hands(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    stream: Box<dyn Stream>,
) -> io::Result<Box<dyn Stream>> {
    let secured = TlsConnector::from(config).connect(name, stream).await?;
    Ok(Box::new(TlsClientStream(secured)))
}

struct TlsClientStream(TlsStream<Box<dyn Stream>>);

impl Stream for TlsClientStream {
    fn peer(&self) -> Option<IpAddr> {
        self.0.get_ref().0.peer()
    }
}

impl AsyncRead for TlsClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, bytes)
    }
}

impl AsyncWrite for TlsClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Drop for TlsClientStream {
    /// Sends TLS's close_notify if the socket takes it at once, so that the server sees an orderly end.
    fn drop(&mut self) {
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut Context::from_waker(Waker::noop()));
    }
}
