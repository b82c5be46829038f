//! Sockets behind a trait: all code that connects or listens takes a [`Network`], so that `simulation` can use a seeded
//! one. Time is tokio's, which a simulation can pause and advance.

mod resolver;

use lookaside_routing::{Address, BoxFuture, TlsPolicy};
use std::{
    future::ready,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

/// A connection: bytes in both directions, in order, until it breaks.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// The other end's address; `None` if it has none.
    fn peer(&self) -> Option<IpAddr>;

    /// The socket, to be handed to another process; `None` if the stream is more than a socket.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Accepts connections on one address.
pub trait Listener: Send {
    /// The next connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// Makes and accepts connections.
pub trait Network: Send + Sync {
    /// Connects to `address`. It sets no timeout: callers set their own.
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;

    /// The IP addresses of the host name in `address` at this moment, which [`Network::connect`] would try. Empty, as
    /// by default, if `address` holds no host name.
    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let _ = address;
        Box::pin(ready(Ok(Vec::new())))
    }

    /// This network, with connections protected by `policy` whatever changes later; `None`, as by default, if it
    /// protects none by itself.
    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        let _ = policy;
        None
    }

    /// Listens on `address`.
    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>>;
}

/// The operating system's sockets: TCP without Nagle's delay, or a Unix socket if the address begins with `/`. An
/// existing socket file is not removed: another process may use it.
///
/// A host name is resolved for every connection, and all its addresses are tried; `resolver` describes failures of DNS.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

impl Network for TcpNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            if is_path(address) {
                let stream = UnixStream::connect(&*address.0).await?;
                return Ok(Box::new(stream) as Box<dyn Stream>);
            }
            let stream = resolver::connect(&address.0).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            match is_path(address) {
                true => Ok(Vec::new()),
                false => resolver::addresses(&address.0).await,
            }
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            if is_path(address) {
                return Ok(Box::new(UnixListener::bind(&*address.0)?) as Box<dyn Listener>);
            }
            let listener = TcpListener::bind(&*address.0).await?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }
}

fn is_path(address: &Address) -> bool {
    address.0.starts_with('/')
}

impl Stream for TcpStream {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().ok().map(|address| address.ip())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (stream, _) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}

impl Stream for UnixStream {
    fn peer(&self) -> Option<IpAddr> {
        None
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// A connection within one process.
impl Stream for DuplexStream {
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}

impl Listener for UnixListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (stream, _) = UnixListener::accept(self).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
