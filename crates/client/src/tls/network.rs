//! Connections of a client, by TLS to the addresses whose policy says so. Serves a [`DirectRoute`](crate::DirectRoute)
//! and [`Routers`](crate::Routers).
//!
//! | connection to | by TLS |
//! |---|---|
//! | a router, or etcd | if [`TlsClientNetwork::with_policies`] names its address |
//! | a server | if the configuration says so (`security_mech`) |
//!
//! The files are read when the network is made, to find mistakes, and for each connection, so that renewed certificates
//! are used. Connecting includes the handshake, so the caller's connect timeout bounds that, too.

use super::{server_name, shake_hands};
use crate::{Listener, Network, Stream};
use lookaside_net::tls_client::{CertificatePaths, ClientConfigs};
use lookaside_routing::{Address, BoxFuture, Security, TlsPolicy};
use rustls::ClientConfig;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Connects through another network, by TLS where a policy says so.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lookaside_client::tls::{CertificatePaths, TlsClientNetwork};
/// use lookaside_client::{Client, DestinationOptions, Routers, TcpNetwork};
/// use lookaside_routing::{Address, Security, TlsPolicy};
/// use std::sync::Arc;
///
/// let router = Address("cache.example:5001".into());
/// let policy = TlsPolicy { security: Security::Tls, certificate_name: None };
/// let files = CertificatePaths { authorities: Some("ca.pem".into()), ..CertificatePaths::default() };
/// let network = TlsClientNetwork::new(Arc::new(TcpNetwork), files)?.with_policies([(router.clone(), policy)])?;
/// let routers = Routers::new([router], Arc::new(network), &DestinationOptions::default());
/// let client = Client::new(Arc::new(routers));
/// # Ok(())
/// # }
/// ```
pub struct TlsClientNetwork {
    connector: Arc<Connector>,
    policies: BTreeMap<Address, TlsPolicy>,
}

struct Connector {
    inner: Arc<dyn Network>,
    files: CertificatePaths,
}

impl TlsClientNetwork {
    /// A network with these certificates, in which no address has a policy yet. Fails if a file cannot be used.
    pub fn new(inner: Arc<dyn Network>, files: CertificatePaths) -> Result<TlsClientNetwork, String> {
        ClientConfigs::read(&files)?;
        Ok(TlsClientNetwork { connector: Arc::new(Connector { inner, files }), policies: BTreeMap::new() })
    }

    /// The same network with policies of some addresses: of routers, or of etcd
    /// ([`EtcdLocation::tls_policies`](crate::config::EtcdLocation::tls_policies)). Fails if one of them cannot be
    /// connected to so.
    pub fn with_policies(
        mut self,
        policies: impl IntoIterator<Item = (Address, TlsPolicy)>,
    ) -> Result<TlsClientNetwork, String> {
        for (address, policy) in policies {
            if policy.security != Security::Plain {
                server_name(&address, &policy)?;
                self.connector.config(&policy).map_err(|why| format!("{address}: {why}"))?;
                self.policies.insert(address, policy);
            }
        }
        Ok(self)
    }
}

impl Connector {
    fn config(&self, policy: &TlsPolicy) -> Result<Arc<ClientConfig>, String> {
        let configs = ClientConfigs::read(&self.files)?;
        match policy.security {
            Security::Tls => configs.verified.ok_or_else(|| "there is no CA to verify its certificate by".to_owned()),
            _ => Ok(configs.unverified),
        }
    }

    async fn connect(&self, address: &Address, policy: &TlsPolicy) -> io::Result<Box<dyn Stream>> {
        let name = server_name(address, policy).map_err(io::Error::other)?;
        let config = self.config(policy).map_err(io::Error::other)?;
        shake_hands(config, name, self.inner.connect(address).await?).await
    }
}

impl Network for TlsClientNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        match self.policies.get(address) {
            None => self.connector.inner.connect(address),
            Some(policy) => Box::pin(self.connector.connect(address, policy)),
        }
    }

    fn pinned(&self, policy: &TlsPolicy) -> Option<Arc<dyn Network>> {
        let is_possible = policy.security != Security::Plain && self.connector.config(policy).is_ok();
        is_possible.then(|| {
            Arc::new(SecuredNetwork { connector: self.connector.clone(), policy: policy.clone() }) as Arc<dyn Network>
        })
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.connector.inner.resolve(address)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.connector.inner.listen(address)
    }
}

/// Connects by TLS to whatever address.
struct SecuredNetwork {
    connector: Arc<Connector>,
    policy: TlsPolicy,
}

impl Network for SecuredNetwork {
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(self.connector.connect(address, &self.policy))
    }

    fn resolve<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.connector.inner.resolve(address)
    }

    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
        self.connector.inner.listen(address)
    }
}
