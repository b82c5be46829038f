//! How etcd is reached: plain, or by TLS with the certificates for servers. For the daemon, and for tools that read its
//! configuration without it.

use crate::backend::tls_connector::TlsNetwork;
use crate::tls::{CertificatePaths, Certificates, TlsFiles};
use lookaside_client::TcpNetwork;
use lookaside_client::config::{EtcdLocation, Source};
use std::sync::Arc;
use std::time::Duration;

/// The network that reaches `source`, if that is in etcd. Fails if TLS lacks certificates.
pub(super) fn source_network(source: &Source, certificates: &Arc<Certificates>) -> Result<TlsNetwork, String> {
    match source {
        Source::Etcd(location) => etcd_network(location, certificates),
        Source::File(_) | Source::Text(_) => Ok(TlsNetwork::new(Arc::new(TcpNetwork), certificates.clone())),
    }
}

/// The network that reaches `location`. Fails if TLS lacks certificates.
pub(super) fn etcd_network(location: &EtcdLocation, certificates: &Arc<Certificates>) -> Result<TlsNetwork, String> {
    let network = TlsNetwork::new(Arc::new(TcpNetwork), certificates.clone());
    let policies = location.tls_policies();
    certificates.check_for_servers(&policies)?;
    network.set_policies(policies);
    Ok(network)
}

/// The text of the configuration as it is now, read as a router with these certificates reads it. Blocks, so it must
/// not be called inside a runtime.
pub fn read_source(source: &Source, certificates: CertificatePaths) -> Result<String, String> {
    let files =
        TlsFiles { clients: CertificatePaths::default(), servers: certificates, handshake_max: Duration::default() };
    let certificates = Arc::new(Certificates::read(files)?);
    source.read_through(Arc::new(source_network(source, &certificates)?))
}
