//! How bytes reach another process. Everything that connects or listens takes a [`Network`], so that `simulation` can
//! put a seeded one in the place of sockets. Time is tokio's, which a simulation can pause and advance.

use lookaside_routing::{Address, BoxFuture};
use std::{io, net::IpAddr};
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection: bytes both ways, in order, until it breaks.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// The other end's address, where it has one.
    fn peer(&self) -> Option<IpAddr>;
}

/// Accepts connections on one address.
pub trait Listener: Send {
    /// The next connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// Makes and accepts connections.
pub trait Network: Send + Sync {
    /// Connects to `address`. Takes as long as the network takes: callers set their own limit.
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;

    /// Listens on `address`.
    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>>;
}

/// The operating system's TCP, with Nagle's delay off.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNetwork;

impl Network for TcpNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(&*address.0).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = tokio::net::TcpListener::bind(&*address.0).await?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }
}

impl Stream for tokio::net::TcpStream {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().ok().map(|address| address.ip())
    }
}

impl Listener for tokio::net::TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (stream, _) = tokio::net::TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
