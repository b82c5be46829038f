//! A network in which every address leads to one server after the other, as that of a primary does in a failover.

use lookaside_client::{Listener, Network, Stream, TcpNetwork};
use lookaside_routing::{Address, BoxFuture};
use std::{
    io,
    sync::atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
};

#[derive(Default)]
pub struct MovingAddress {
    port: AtomicU16,
    /// How often it was connected to since it was moved.
    pub connections: AtomicUsize,
}

impl MovingAddress {
    pub fn move_to(&self, port: u16) {
        self.port.store(port, SeqCst);
        self.connections.store(0, SeqCst);
    }
}

impl Network for MovingAddress {
    fn connect<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            self.connections.fetch_add(1, SeqCst);
            let address = Address(format!("127.0.0.1:{}", self.port.load(SeqCst)).as_str().into());
            TcpNetwork.connect(&address).await
        })
    }

    fn listen<'a>(&'a self, _: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
