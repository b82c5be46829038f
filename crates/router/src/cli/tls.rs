//! mcrouter's flags for certificates.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// How long a client may take for the handshake.
const HANDSHAKE_MS: u32 = 10_000;

/// Certificates, keys, and who is believed. All files are PEM; SIGHUP, or a change of them, has them read anew.
#[derive(Clone, Debug, Args)]
pub struct TlsOptions {
    /// The router's certificate, and behind it those between it and the authority: shown to clients of --ssl-port, and
    /// to servers that ask for one
    #[arg(long, value_name = "FILE")]
    pub pem_cert_path: Option<PathBuf>,
    /// Its private key [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "pem_cert_path")]
    pub pem_key_path: Option<PathBuf>,
    /// The authorities that sign servers' certificates, and clients' where those are asked for
    #[arg(long, value_name = "FILE")]
    pub pem_ca_path: Option<PathBuf>,
    /// In place of --pem-cert-path towards clients
    #[arg(long, value_name = "FILE")]
    pub server_pem_cert_path: Option<PathBuf>,
    /// In place of --pem-key-path towards clients
    #[arg(long, value_name = "FILE", requires = "server_pem_cert_path")]
    pub server_pem_key_path: Option<PathBuf>,
    /// In place of --pem-ca-path towards clients
    #[arg(long, value_name = "FILE")]
    pub server_pem_ca_path: Option<PathBuf>,
    /// Clients of --ssl-port must show a certificate that an authority has signed
    #[arg(long)]
    pub ssl_require_peer_certs: bool,
    /// How long a client may take for the handshake, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = HANDSHAKE_MS, value_parser = clap::value_parser!(u32).range(1..=3_600_000))]
    pub ssl_handshake_timeout: u32,
}

/// The files that one side's certificate and trust come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Papers {
    pub(crate) chain: Option<PathBuf>,
    /// The chain's file if it is not given.
    pub(crate) key: Option<PathBuf>,
    pub(crate) authorities: Option<PathBuf>,
}

impl TlsOptions {
    /// How long a handshake may take.
    pub(crate) fn handshake_max(&self) -> Duration {
        Duration::from_millis(self.ssl_handshake_timeout.into())
    }

    /// What servers see that ask, and who signs theirs.
    pub(crate) fn towards_servers(&self) -> Papers {
        let (chain, key) = (self.pem_cert_path.clone(), self.pem_key_path.clone());
        Papers { chain, key, authorities: self.pem_ca_path.clone() }
    }

    /// What clients see, and who signs theirs.
    pub(crate) fn towards_clients(&self) -> Papers {
        let (chain, key) = match &self.server_pem_cert_path {
            Some(chain) => (Some(chain.clone()), self.server_pem_key_path.clone()),
            None => (self.pem_cert_path.clone(), self.pem_key_path.clone()),
        };
        let authorities = self.server_pem_ca_path.as_ref().or(self.pem_ca_path.as_ref()).cloned();
        Papers { chain, key, authorities }
    }

    /// Every file that is named.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let own = [&self.pem_cert_path, &self.pem_key_path, &self.pem_ca_path];
        let clients = [&self.server_pem_cert_path, &self.server_pem_key_path, &self.server_pem_ca_path];
        own.into_iter().chain(clients).flatten()
    }
}

#[cfg(test)]
impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions {
            pem_cert_path: None,
            pem_key_path: None,
            pem_ca_path: None,
            server_pem_cert_path: None,
            server_pem_key_path: None,
            server_pem_ca_path: None,
            ssl_require_peer_certs: false,
            ssl_handshake_timeout: HANDSHAKE_MS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_may_be_shown_another_certificate_than_servers() {
        let path = |text: &str| Some(PathBuf::from(text));
        let options = TlsOptions {
            pem_cert_path: path("c"),
            pem_key_path: path("k"),
            pem_ca_path: path("a"),
            ..TlsOptions::default()
        };
        let own = Papers { chain: path("c"), key: path("k"), authorities: path("a") };
        assert_eq!((options.towards_clients(), options.towards_servers()), (own.clone(), own.clone()));
        let other = TlsOptions { server_pem_cert_path: path("sc"), server_pem_ca_path: path("sa"), ..options };
        let shown = Papers { chain: path("sc"), key: None, authorities: path("sa") };
        assert_eq!(other.towards_clients(), shown, "the key of one does not fit the other");
        assert_eq!((other.towards_servers(), other.files().count()), (own, 5));
    }
}
