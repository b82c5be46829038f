//! The network in which some servers are reached by TLS. Serves every path to such a server, and every purpose: what
//! clients ask, probes, `flush_all`, the deletes of a spool.
//!
//! Whoever connects names an address alone; the configuration says how the way to it is protected. To connect is to have
//! done the handshake: the limit that the caller sets on connecting bounds that too. A server that cannot prove who it is
//! is a server that cannot be connected to, and is taken out like one. The log says why, once until it succeeds.
//!
//! A server that a reload drops is still connected to by the tree that is on its way out. It goes on being reached as it
//! was: only a configuration that names a server makes the way to it plain.
//!
//! Absent on purpose: TLS for listeners; `listen` has its own doors.

use crate::tls::Certificates;
use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture, Security, TlsPolicy};
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Servers that are remembered to be reached by TLS when the configuration names them no longer.
const RETIRED_MAX: usize = 10_000;

/// Connects through another network, by TLS where that is wanted.
pub(crate) struct SecuredNetwork {
    inner: Arc<dyn Network>,
    certificates: Arc<Certificates>,
    ways: RwLock<Ways>,
    /// Servers whose handshake failed last.
    failing: Mutex<BTreeSet<Address>>,
}

/// How servers are reached that are not reached plain.
#[derive(Default)]
struct Ways {
    reloads: u64,
    /// With the reload that named it last.
    secured: BTreeMap<Address, (TlsPolicy, u64)>,
}

impl Ways {
    fn take(&mut self, protections: impl IntoIterator<Item = (Address, TlsPolicy)>) {
        self.reloads += 1;
        let (plain, secured): (Vec<_>, Vec<_>) =
            protections.into_iter().partition(|(_, protection)| protection.security == Security::Plain);
        for (address, _) in plain {
            self.secured.remove(&address);
        }
        let named = secured.into_iter().map(|(address, protection)| (address, (protection, self.reloads)));
        self.secured.extend(named);
        self.forget_oldest();
    }

    fn is_named(&self, address: &Address) -> bool {
        self.secured.get(address).is_some_and(|(_, reload)| *reload == self.reloads)
    }

    fn forget_oldest(&mut self) {
        let retired = self.secured.iter().filter(|(_, (_, reload))| *reload < self.reloads);
        let mut retired: Vec<_> = retired.map(|(address, (_, reload))| (*reload, address.clone())).collect();
        retired.sort_unstable();
        for (_, address) in retired.iter().rev().skip(RETIRED_MAX) {
            self.secured.remove(address);
        }
    }
}

impl SecuredNetwork {
    /// All servers are reached plain, for now.
    pub(crate) fn new(inner: Arc<dyn Network>, certificates: Arc<Certificates>) -> SecuredNetwork {
        SecuredNetwork { inner, certificates, ways: RwLock::default(), failing: Mutex::default() }
    }

    /// From now on this holds for connections to come. Servers that it does not name stay as they are.
    pub(crate) fn protect(&self, protections: impl IntoIterator<Item = (Address, TlsPolicy)>) {
        let mut ways = self.ways.write().unwrap_or_else(PoisonError::into_inner);
        ways.take(protections);
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.retain(|address| ways.is_named(address));
    }

    fn protection(&self, address: &Address) -> Option<TlsPolicy> {
        let ways = self.ways.read().unwrap_or_else(PoisonError::into_inner);
        ways.secured.get(address).map(|(protection, _)| protection.clone())
    }

    async fn secure(
        &self,
        stream: Box<dyn Stream>,
        address: &Address,
        protection: &TlsPolicy,
    ) -> io::Result<Box<dyn Stream>> {
        let name = server_name(address, protection).map_err(io::Error::other)?;
        let is_verified = protection.security == Security::Tls;
        let config = self.certificates.for_servers(is_verified).map_err(io::Error::other)?;
        let mut attempt = Attempt { network: self, address, is_over: false };
        let connected = TlsConnector::from(config).connect(name, stream).await;
        attempt.is_over = true;
        match connected {
            Ok(stream) => {
                self.failing.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
                Ok(Box::new(Secured(stream)))
            }
            Err(error) => {
                self.warn_once(address, &error);
                Err(error)
            }
        }
    }

    fn warn_once(&self, address: &Address, error: &dyn Display) {
        if self.failing.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone()) {
            tracing::warn!(server = %address, %error, "no TLS with this server; it counts as not there");
        }
    }
}

/// A handshake. Who waits for it may give it up, and then nobody else can tell why there is no connection.
struct Attempt<'a> {
    network: &'a SecuredNetwork,
    address: &'a Address,
    is_over: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.network.warn_once(self.address, &"the handshake was given up: the server may not speak TLS");
        }
    }
}

/// The name that the server's certificate must bear.
pub(crate) fn server_name(address: &Address, protection: &TlsPolicy) -> Result<ServerName<'static>, String> {
    let host = match &protection.identity {
        Some(identity) => identity,
        None => {
            let host = address.0.rsplit_once(':').map_or(&*address.0, |(host, _)| host);
            host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
        }
    };
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| {
        format!("{address}: {host:?} is no name that a certificate can bear; say \"ssl_service_identity\"")
    })
}

impl Network for SecuredNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        match self.protection(address) {
            None => self.inner.connect(address),
            Some(protection) => Box::pin(async move {
                let stream = self.inner.connect(address).await?;
                self.secure(stream, address, &protection).await
            }),
        }
    }

    fn addresses<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.inner.addresses(address)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

/// A connection to a server, its handshake done.
struct Secured(TlsStream<Box<dyn Stream>>);

impl Stream for Secured {
    fn peer(&self) -> Option<IpAddr> {
        self.0.get_ref().0.peer()
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, bytes)
    }
}

impl AsyncWrite for Secured {
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

impl Drop for Secured {
    /// A last word, if the socket takes it at once: the server need not take this for a cut.
    fn drop(&mut self) {
        let _ = Pin::new(&mut self.0).poll_shutdown(&mut Context::from_waker(Waker::noop()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TlsOptions;
    use lookaside_client::TcpNetwork;
    use tokio::net::TcpListener;

    fn network() -> SecuredNetwork {
        let certificates = Certificates::read(TlsOptions::default()).expect("no file to read");
        SecuredNetwork::new(Arc::new(TcpNetwork), Arc::new(certificates))
    }

    fn protected(address: &Address, security: Security) -> [(Address, TlsPolicy); 1] {
        [(address.clone(), TlsPolicy { security, identity: None })]
    }

    #[tokio::test]
    async fn a_server_that_is_dropped_is_not_reached_plain() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = Address(listener.local_addr().expect("it is bound").to_string().into());
        let network = network();
        let is_reached_plain = async || {
            // Who shakes hands fails, for this server hangs up on everybody.
            tokio::join!(network.connect(&address), async { drop(listener.accept().await) }).0.is_ok()
        };
        network.protect(protected(&address, Security::UnverifiedTls));
        network.protect([]);
        assert!(!is_reached_plain().await, "the tree that still has it connects");
        network.protect(protected(&address, Security::Plain));
        assert!(is_reached_plain().await, "a configuration says so");
    }

    #[tokio::test]
    async fn a_handshake_that_is_given_up_is_warned_of_while_the_server_is_configured() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = Address(listener.local_addr().expect("it is bound").to_string().into());
        let network = network();
        network.protect(protected(&address, Security::UnverifiedTls));
        let accepted = tokio::select! {
            biased;
            _ = network.connect(&address) => panic!("nobody answers"),
            accepted = async {
                let (stream, _) = listener.accept().await.expect("it is connected to");
                stream.readable().await.expect("the handshake begins");
                stream
            } => accepted,
        };
        drop(accepted);
        assert!(network.failing.lock().expect("unharmed").contains(&address));
        network.protect([]);
        assert!(network.failing.lock().expect("unharmed").is_empty());
    }

    #[test]
    fn so_many_dropped_servers_are_remembered_and_no_more() {
        let mut ways = Ways::default();
        let server = |at: usize| Address(format!("server-{at:05}:1").into());
        let named = |range: std::ops::Range<usize>| range.flat_map(|at| protected(&server(at), Security::Tls));
        ways.take(named(0..3));
        ways.take(named(3..RETIRED_MAX));
        ways.take(named(RETIRED_MAX..RETIRED_MAX + 3));
        ways.take([]);
        assert_eq!(ways.secured.len(), RETIRED_MAX);
        assert!((0..3).all(|at| !ways.secured.contains_key(&server(at))), "the oldest are forgotten");
    }

    #[test]
    fn the_name_is_the_hosts_or_the_one_that_is_said() {
        let name = |address: &str, identity: Option<&str>| {
            let protection = TlsPolicy { security: Security::Tls, identity: identity.map(Into::into) };
            server_name(&Address(address.into()), &protection).map(|name| name.to_str().into_owned())
        };
        assert_eq!(name("cache-1.example:11211", None).as_deref(), Ok("cache-1.example"));
        assert_eq!(name("10.0.0.7:11211", None).as_deref(), Ok("10.0.0.7"));
        assert_eq!(name("[::1]:11211", None).as_deref(), Ok("::1"));
        assert_eq!(name("10.0.0.7:11211", Some("cache.example")).as_deref(), Ok("cache.example"));
        assert!(name("no/name:1", None).is_err_and(|why| why.contains("ssl_service_identity")));
    }
}
