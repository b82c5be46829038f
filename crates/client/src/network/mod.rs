//! How bytes reach another process. Everything that connects or listens takes a [`Network`], so that `simulation` can
//! put a seeded one in the place of sockets. Time is tokio's, which a simulation can pause and advance.

mod resolver;

use lookaside_routing::{Address, BoxFuture};
use std::{
    future::ready,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

/// A connection: bytes both ways, in order, until it breaks.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// The other end's address, where it has one.
    fn peer(&self) -> Option<IpAddr>;

    /// What another process could go on with, where it is nothing but a socket.
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
    /// Connects to `address`. Takes as long as the network takes: callers set their own limit.
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;

    /// Where the name in `address` leads at this moment: where [`Network::connect`] would try. Empty, as by default, where
    /// there is no name that could ever lead elsewhere.
    fn addresses<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        let _ = address;
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Listens on `address`.
    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>>;
}

/// The operating system's sockets: TCP with Nagle's delay off, or a unix socket where the address begins with `/`. A
/// socket file that is left from before is not removed: it might be somebody's.
///
/// A name is resolved anew for every connection, and all that it stands for is tried; `names` says what happens when the
/// resolver fails.
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

    fn addresses<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
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

impl Listener for UnixListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let (stream, _) = UnixListener::accept(self).await?;
            Ok(Box::new(stream) as Box<dyn Stream>)
        })
    }
}
