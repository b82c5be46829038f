//! TCP keepalive towards servers: a connection whose server has vanished without closing it, or that a firewall has
//! forgotten, ends before a request waits for it.

use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture, TlsPolicy};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// When the system probes a connection, and when it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// Without traffic before the first probe.
    pub(crate) idle: Duration,
    /// Between two probes.
    pub(crate) interval: Duration,
    /// Probes without a reply before the connection is closed.
    pub(crate) probes: u32,
}

/// A network whose TCP connections are probed.
pub(crate) struct KeepaliveNetwork {
    inner: Arc<dyn Network>,
    settings: TcpKeepalive,
}

impl KeepaliveNetwork {
    pub(crate) fn new(inner: Arc<dyn Network>, keepalive: Keepalive) -> KeepaliveNetwork {
        let Keepalive { idle, interval, probes } = keepalive;
        let settings = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
        KeepaliveNetwork { inner, settings }
    }
}

impl Network for KeepaliveNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            let stream = self.inner.connect(address).await?;
            // A Unix socket has no peer address.
            if let Some(socket) = stream.descriptor().filter(|_| stream.peer().is_some()) {
                SockRef::from(&socket).set_tcp_keepalive(&self.settings)?;
            }
            Ok(stream)
        })
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.inner.resolve(address)
    }

    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        self.inner.pinned(policy)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::TcpNetwork;
    use std::net::TcpListener;

    #[tokio::test]
    async fn connections_have_the_settings() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = Address(listener.local_addr().expect("bound").to_string().into());
        let keepalive = Keepalive { idle: Duration::from_secs(7), interval: Duration::from_secs(5), probes: 3 };
        let network = KeepaliveNetwork::new(Arc::new(TcpNetwork), keepalive);
        let stream = network.connect(&address).await.expect("it listens");
        let socket = stream.descriptor().expect("TCP");
        let socket = SockRef::from(&socket);
        assert!(socket.keepalive().expect("readable"));
        assert_eq!(socket.tcp_keepalive_time().expect("readable"), keepalive.idle);
        assert_eq!(socket.tcp_keepalive_interval().expect("readable"), keepalive.interval);
        assert_eq!(socket.tcp_keepalive_retries().expect("readable"), keepalive.probes);
    }
}
