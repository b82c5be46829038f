//! The server's certificate, private key, and trusted authorities for clients' certificates.
//!
//! The files are read at the start, and again on SIGHUP and `refresh_certs`. If they are invalid then, new connections
//! use what was read before. Open connections are not affected.

use super::no_authority::NoAuthority;
use super::options::{ClientCertificate, KeyFormat, TlsOptions};
use lookaside_net::{TlsMode, pem};
use lookaside_sync::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{CipherSuite, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// TLS sessions cached for resumption, with `ssl_session_cache`.
const SESSIONS_MAX: usize = 10_000;

/// The TLS configuration of new connections.
pub(crate) struct Certificates {
    pub(crate) options: TlsOptions,
    current: RwLock<ServerConfigs>,
    refreshed_ms: AtomicU64,
}

/// One for each TLS mode of a listener.
struct ServerConfigs {
    as_configured: Arc<ServerConfig>,
    basic: Arc<ServerConfig>,
    /// Refuses every client if there are no authorities.
    mutual: Arc<ServerConfig>,
}

#[derive(Debug)]
pub(crate) enum CertificateError {
    /// The file of the chain cannot be read or holds no certificate.
    Chain { path: PathBuf, why: String },
    /// The file of the key cannot be read or holds no key.
    Key { path: PathBuf, why: String },
    /// The file of authorities cannot be read or holds none.
    Authorities { path: PathBuf, why: String },
    /// The files do not match each other or the options.
    Unusable { why: String },
}

impl std::error::Error for CertificateError {}

impl Display for CertificateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CertificateError::Chain { path, why } => {
                write!(f, "Error loading the certificate chain: {} : {why}", path.display())
            }
            CertificateError::Key { path, why } => write!(f, "Error loading the key: {} : {why}", path.display()),
            CertificateError::Authorities { path, why } => {
                write!(f, "Error loading the client CA list: {} : {why}", path.display())
            }
            CertificateError::Unusable { why } => write!(f, "Error validating the certificate: {why}"),
        }
    }
}

impl Certificates {
    pub(crate) fn read(options: TlsOptions, now_ms: u64) -> Result<Certificates, CertificateError> {
        let current = RwLock::new(ServerConfigs::read(&options)?);
        Ok(Certificates { options, current, refreshed_ms: AtomicU64::new(now_ms) })
    }

    /// Reads the files again. If that fails, nothing changes.
    pub(crate) fn refresh(&self, now_ms: u64) -> Result<(), CertificateError> {
        let configs = ServerConfigs::read(&self.options)?;
        *self.current.write() = configs;
        self.refreshed_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }

    /// The time of the last successful read, in Unix milliseconds.
    pub(crate) fn refreshed_ms(&self) -> u64 {
        self.refreshed_ms.load(Ordering::Relaxed)
    }

    /// The configuration for connections of a listener with this TLS mode; `None` if they do not use TLS.
    pub(crate) fn server_config(&self, tls: Option<TlsMode>) -> Option<Arc<ServerConfig>> {
        let current = self.current.read();
        match tls {
            Some(TlsMode::Plain) => None,
            None => Some(Arc::clone(&current.as_configured)),
            Some(TlsMode::Tls) => Some(Arc::clone(&current.basic)),
            Some(TlsMode::MutualTls) => Some(Arc::clone(&current.mutual)),
        }
    }
}

impl ServerConfigs {
    fn read(options: &TlsOptions) -> Result<ServerConfigs, CertificateError> {
        let authorities = read_authorities(options)?;
        let configure = |wanted| configure(options, authorities.clone(), wanted);
        Ok(ServerConfigs {
            as_configured: configure(options.client_certificate)?,
            basic: configure(ClientCertificate::Ignored)?,
            mutual: configure(ClientCertificate::Required)?,
        })
    }
}

fn configure(
    options: &TlsOptions,
    authorities: Option<Arc<RootCertStore>>,
    wanted: ClientCertificate,
) -> Result<Arc<ServerConfig>, CertificateError> {
    let provider = Arc::new(provider(&options.ciphers)?);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions(options)).map_err(unusable)?;
    let builder = match authorities {
        _ if wanted == ClientCertificate::Ignored => builder.with_no_client_auth(),
        None => builder.with_client_cert_verifier(Arc::new(NoAuthority(provider))),
        Some(authorities) => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider);
            if wanted == ClientCertificate::Requested {
                verifier = verifier.allow_unauthenticated();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
        }
    };
    let chain = pem::read_certificates(&options.chain_path)
        .map_err(|why| CertificateError::Chain { path: options.chain_path.clone(), why })?;
    let key = read_key(options)?;
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    if options.session_cache {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS_MAX);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

fn versions(options: &TlsOptions) -> &'static [&'static SupportedProtocolVersion] {
    const ONLY_TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
    if options.only_tls13 { ONLY_TLS13 } else { rustls::ALL_VERSIONS }
}

/// The cryptography provider. If `ciphers` is not empty, it restricts the suites of TLS 1.2; as with OpenSSL, not those
/// of TLS 1.3.
fn provider(ciphers: &[String]) -> Result<CryptoProvider, CertificateError> {
    let mut provider = ring::default_provider();
    if !ciphers.is_empty() {
        let is_named = |suite: CipherSuite| ciphers.iter().any(|name| suite_by_name(name) == Some(suite));
        provider.cipher_suites.retain(|suite| match suite {
            SupportedCipherSuite::Tls13(_) => true,
            SupportedCipherSuite::Tls12(_) => is_named(suite.suite()),
        });
        if !provider.cipher_suites.iter().any(|suite| matches!(suite, SupportedCipherSuite::Tls12(_))) {
            let why = format!("-o ssl_ciphers: none of {} is supported for TLS 1.2", ciphers.join(":"));
            return Err(CertificateError::Unusable { why });
        }
    }
    Ok(provider)
}

/// Looks up a suite by its name in OpenSSL.
fn suite_by_name(name: &str) -> Option<CipherSuite> {
    Some(match name {
        "ECDHE-ECDSA-AES128-GCM-SHA256" => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES256-GCM-SHA384" => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-CHACHA20-POLY1305" => CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256" => CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES256-GCM-SHA384" => CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-CHACHA20-POLY1305" => CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        _ => return None,
    })
}

fn read_authorities(options: &TlsOptions) -> Result<Option<Arc<RootCertStore>>, CertificateError> {
    let Some(path) = &options.authorities_path else { return Ok(None) };
    let authorities = pem::read_authorities(path);
    authorities.map(Some).map_err(|why| CertificateError::Authorities { path: path.clone(), why })
}

fn read_key(options: &TlsOptions) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let path = options.key_path.as_ref().unwrap_or(&options.chain_path);
    let key = match options.key_format {
        KeyFormat::Pem => pem::read_key(path),
        KeyFormat::Der => pem::read_der_key(path),
    };
    key.map_err(|why| CertificateError::Key { path: path.clone(), why })
}

fn unusable(error: impl Display) -> CertificateError {
    CertificateError::Unusable { why: error.to_string() }
}
