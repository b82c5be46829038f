//! mcrouter's flags for certificates.

use crate::tls::{CertificatePaths, TlsFiles};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The default limit on a client's handshake, in milliseconds.
const HANDSHAKE_MS: u32 = 10_000;

/// Certificates, private keys and trusted CAs. All files are PEM; they are reloaded on SIGHUP and when they change.
#[derive(Clone, Debug, Args)]
pub struct TlsOptions {
    /// The router's certificate, followed by its intermediate certificates: sent to clients of --ssl-port, and to
    /// servers that request one
    #[arg(long, value_name = "FILE")]
    pub pem_cert_path: Option<PathBuf>,
    /// Its private key [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "pem_cert_path")]
    pub pem_key_path: Option<PathBuf>,
    /// The CAs that sign the servers' certificates, and those of clients with --ssl-require-peer-certs
    #[arg(long, value_name = "FILE")]
    pub pem_ca_path: Option<PathBuf>,
    /// Overrides --pem-cert-path for clients
    #[arg(long, value_name = "FILE")]
    pub server_pem_cert_path: Option<PathBuf>,
    /// Overrides --pem-key-path for clients
    #[arg(long, value_name = "FILE", requires = "server_pem_cert_path")]
    pub server_pem_key_path: Option<PathBuf>,
    /// Overrides --pem-ca-path for clients
    #[arg(long, value_name = "FILE")]
    pub server_pem_ca_path: Option<PathBuf>,
    /// Clients of --ssl-port must have a certificate that a CA has signed
    #[arg(long)]
    pub ssl_require_peer_certs: bool,
    /// Limit on a client's handshake, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = HANDSHAKE_MS, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub ssl_handshake_timeout: u32,
}

impl TlsOptions {
    pub(crate) fn files(&self) -> TlsFiles {
        TlsFiles {
            clients: self.client_files(),
            servers: CertificatePaths {
                chain: self.pem_cert_path.clone(),
                key: self.pem_key_path.clone(),
                authorities: self.pem_ca_path.clone(),
            },
            handshake_max: Duration::from_millis(self.ssl_handshake_timeout.into()),
        }
    }

    fn client_files(&self) -> CertificatePaths {
        let (chain, key) = match &self.server_pem_cert_path {
            Some(chain) => (Some(chain.clone()), self.server_pem_key_path.clone()),
            None => (self.pem_cert_path.clone(), self.pem_key_path.clone()),
        };
        let authorities = self.server_pem_ca_path.as_ref().or(self.pem_ca_path.as_ref()).cloned();
        CertificatePaths { chain, key, authorities }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_get_another_certificate_than_servers() {
        let path = |text: &str| Some(PathBuf::from(text));
        let options = TlsOptions {
            pem_cert_path: path("c"),
            pem_key_path: path("k"),
            pem_ca_path: path("a"),
            server_pem_cert_path: None,
            server_pem_key_path: None,
            server_pem_ca_path: None,
            ssl_require_peer_certs: false,
            ssl_handshake_timeout: HANDSHAKE_MS,
        };
        let own = CertificatePaths { chain: path("c"), key: path("k"), authorities: path("a") };
        let files = options.files();
        assert_eq!((files.clients, files.servers), (own.clone(), own.clone()));
        let other = TlsOptions { server_pem_cert_path: path("sc"), server_pem_ca_path: path("sa"), ..options };
        let clients = CertificatePaths { chain: path("sc"), key: None, authorities: path("sa") };
        let files = other.files();
        assert_eq!(files.clients, clients, "the key of one does not fit the other");
        assert_eq!((files.iter().count(), files.servers), (5, own));
    }
}
