//! Connects to servers, to some of them by TLS. Serves every connection to such a server: requests of clients, probes,
//! `flush_all`, the replay of a spool.
//!
//! A caller names only an address; the newest configuration has the policy for it. A tree pins the TLS policies of its
//! own configuration, so that a newer one that makes a server plain holds only for the trees that are built from it.
//! Connecting includes the handshake, so the caller's connect timeout bounds that too. A server whose certificate
//! cannot be verified counts as one that cannot be connected to, and becomes TKO. The reason is logged once, until a
//! handshake succeeds.
//!
//! After a reload a replay may still connect to a server that the new configuration does not name. Its policy stays:
//! only a configuration that names a server can make its connections plain.
//!
//! Absent on purpose: listeners (`frontend::tls_accept`).

use crate::tls::{Certificates, server_name};
use lookaside_client::tls::shake_hands;
use lookaside_client::{Listener, Network, Stream};
use lookaside_routing::{Address, BoxFuture, Security, TlsPolicy};
use lookaside_sync::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// The most servers whose policy is kept when the configuration no longer names them.
const RETIRED_MAX: usize = 10_000;

/// Connects through another network, by TLS if the server's policy says so.
pub(crate) struct TlsNetwork {
    inner: Arc<dyn Network>,
    handshakes: Arc<Handshakes>,
    table: RwLock<TlsPolicyTable>,
}

/// Connects by TLS with one policy, whatever later configurations say.
struct PinnedNetwork {
    inner: Arc<dyn Network>,
    handshakes: Arc<Handshakes>,
    policy: TlsPolicy,
}

struct Handshakes {
    certificates: Arc<Certificates>,
    /// Servers whose last handshake failed.
    failing: Mutex<BTreeSet<Address>>,
}

/// The policies of servers that are reached by TLS.
#[derive(Default)]
struct TlsPolicyTable {
    reloads: u64,
    /// Each with the last reload that named it.
    by_address: BTreeMap<Address, (TlsPolicy, u64)>,
}

impl TlsPolicyTable {
    fn replace(&mut self, policies: impl IntoIterator<Item = (Address, TlsPolicy)>) {
        self.reloads += 1;
        let (plain, by_address): (Vec<_>, Vec<_>) =
            policies.into_iter().partition(|(_, policy)| policy.security == Security::Plain);
        for (address, _) in plain {
            self.by_address.remove(&address);
        }
        let named = by_address.into_iter().map(|(address, policy)| (address, (policy, self.reloads)));
        self.by_address.extend(named);
        self.remove_oldest();
    }

    fn is_named(&self, address: &Address) -> bool {
        self.by_address.get(address).is_some_and(|(_, reload)| *reload == self.reloads)
    }

    fn remove_oldest(&mut self) {
        let retired = self.by_address.iter().filter(|(_, (_, reload))| *reload < self.reloads);
        let mut retired: Vec<_> = retired.map(|(address, (_, reload))| (*reload, address.clone())).collect();
        retired.sort_unstable();
        for (_, address) in retired.iter().rev().skip(RETIRED_MAX) {
            self.by_address.remove(address);
        }
    }
}

impl TlsNetwork {
    /// A network in which all servers are plain.
    pub(crate) fn new(inner: Arc<dyn Network>, certificates: Arc<Certificates>) -> TlsNetwork {
        let handshakes = Arc::new(Handshakes { certificates, failing: Mutex::default() });
        TlsNetwork { inner, handshakes, table: RwLock::default() }
    }

    /// Sets the policies of future connections. Servers that `policies` does not name keep theirs.
    pub(crate) fn set_policies(&self, policies: impl IntoIterator<Item = (Address, TlsPolicy)>) {
        let mut table = self.table.write();
        table.replace(policies);
        let mut failing = self.handshakes.failing.lock();
        failing.retain(|address| table.is_named(address));
    }

    fn policy(&self, address: &Address) -> Option<TlsPolicy> {
        let table = self.table.read();
        table.by_address.get(address).map(|(policy, _)| policy.clone())
    }
}

impl Handshakes {
    async fn connect(&self, inner: &dyn Network, address: &Address, policy: &TlsPolicy) -> io::Result<Box<dyn Stream>> {
        let stream = inner.connect(address).await?;
        self.secure(stream, address, policy).await
    }

    async fn secure(
        &self,
        stream: Box<dyn Stream>,
        address: &Address,
        policy: &TlsPolicy,
    ) -> io::Result<Box<dyn Stream>> {
        let name = server_name(address, policy).map_err(io::Error::other)?;
        let is_verified = policy.security == Security::Tls;
        let config = self.certificates.for_servers(is_verified).map_err(io::Error::other)?;
        let mut attempt = HandshakeAttempt { handshakes: self, address, is_over: false };
        let connected = shake_hands(config, name, stream).await;
        attempt.is_over = true;
        match connected {
            Ok(stream) => {
                self.failing.lock().remove(address);
                Ok(stream)
            }
            Err(error) => {
                self.warn_once(address, &error);
                Err(error)
            }
        }
    }

    fn warn_once(&self, address: &Address, error: &dyn Display) {
        if self.failing.lock().insert(address.clone()) {
            tracing::warn!(server = %address, %error, "TLS handshake with server failed; treating it as unreachable");
        }
    }
}

/// A handshake. Logs the failure even if the caller cancels it by its timeout.
struct HandshakeAttempt<'a> {
    handshakes: &'a Handshakes,
    address: &'a Address,
    is_over: bool,
}

impl Drop for HandshakeAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.handshakes.warn_once(self.address, &"the handshake timed out: the server may not use TLS");
        }
    }
}

impl Network for TlsNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        match self.policy(address) {
            None => self.inner.connect(address),
            Some(policy) => Box::pin(async move { self.handshakes.connect(&*self.inner, address, &policy).await }),
        }
    }

    /// A plain policy is not pinned: if a later configuration requires TLS, it holds at once.
    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        let (inner, handshakes, policy) = (self.inner.clone(), self.handshakes.clone(), policy.clone());
        (policy.security != Security::Plain)
            .then(|| Arc::new(PinnedNetwork { inner, handshakes, policy }) as Arc<dyn Network>)
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.inner.resolve(address)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

impl Network for PinnedNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(self.handshakes.connect(&*self.inner, address, &self.policy))
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.inner.resolve(address)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.inner.listen(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{CertificatePaths, TlsFiles};
    use lookaside_client::TcpNetwork;
    use std::time::Duration;
    use tokio::net::TcpListener;

    fn network() -> TlsNetwork {
        let (clients, servers) = (CertificatePaths::default(), CertificatePaths::default());
        let files = TlsFiles { clients, servers, handshake_max: Duration::from_secs(1) };
        let certificates = Certificates::read(files).expect("no file to read");
        TlsNetwork::new(Arc::new(TcpNetwork), Arc::new(certificates))
    }

    fn policy_of(address: &Address, security: Security) -> [(Address, TlsPolicy); 1] {
        [(address.clone(), TlsPolicy { security, certificate_name: None })]
    }

    #[tokio::test]
    async fn server_that_is_no_longer_configured_is_not_reached_plain() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = Address(listener.local_addr().expect("it is bound").to_string().into());
        let network = network();
        let is_reached_plain = async || {
            // A handshake fails, because this server closes every connection.
            tokio::join!(network.connect(&address), async { drop(listener.accept().await) }).0.is_ok()
        };
        network.set_policies(policy_of(&address, Security::UnverifiedTls));
        network.set_policies([]);
        assert!(!is_reached_plain().await, "the old tree connects by TLS");
        network.set_policies(policy_of(&address, Security::Plain));
        assert!(is_reached_plain().await, "the configuration makes it plain");
    }

    /// A thread keeps its old tree for up to two seconds. Once the new configuration's policy applied to that, too.
    #[tokio::test]
    async fn a_pinned_policy_outlives_a_new_configuration() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = Address(listener.local_addr().expect("it is bound").to_string().into());
        let network = network();
        let [(_, secured)] = policy_of(&address, Security::UnverifiedTls);
        let [(_, plain)] = policy_of(&address, Security::Plain);
        let is_reached_plain = async |network: &dyn Network| {
            tokio::join!(network.connect(&address), async { drop(listener.accept().await) }).0.is_ok()
        };
        let pinned = network.pinned(&secured).expect("it distinguishes policies");
        network.set_policies([(address.clone(), plain.clone())]);
        assert!(!is_reached_plain(&*pinned).await, "the old tree connects by TLS");
        assert!(is_reached_plain(&network).await);
        assert!(network.pinned(&plain).is_none(), "an old tree connects by TLS as soon as a configuration requires it");
    }

    #[tokio::test]
    async fn cancelled_handshake_is_logged_while_the_server_is_configured() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = Address(listener.local_addr().expect("it is bound").to_string().into());
        let network = network();
        network.set_policies(policy_of(&address, Security::UnverifiedTls));
        let accepted = tokio::select! {
            biased;
            _ = network.connect(&address) => panic!("the server does not reply"),
            accepted = async {
                let (stream, _) = listener.accept().await.expect("it is connected to");
                stream.readable().await.expect("the handshake begins");
                stream
            } => accepted,
        };
        drop(accepted);
        assert!(network.handshakes.failing.lock().contains(&address));
        network.set_policies([]);
        assert!(network.handshakes.failing.lock().is_empty());
    }

    #[test]
    fn policies_of_removed_servers_are_bounded() {
        let mut table = TlsPolicyTable::default();
        let server = |at: usize| Address(format!("server-{at:05}:1").into());
        let named = |range: std::ops::Range<usize>| range.flat_map(|at| policy_of(&server(at), Security::Tls));
        table.replace(named(0..3));
        table.replace(named(3..RETIRED_MAX));
        table.replace(named(RETIRED_MAX..RETIRED_MAX + 3));
        table.replace([]);
        assert_eq!(table.by_address.len(), RETIRED_MAX);
        assert!((0..3).all(|at| !table.by_address.contains_key(&server(at))), "the oldest are removed");
    }
}
