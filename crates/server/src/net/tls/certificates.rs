//! The server's certificate, its key, and whose signatures on clients' certificates are believed.
//!
//! The files are read at the start and whenever the operator says so. If they cannot be used then, the connections to
//! come go on with what was read before; connections that are there are not touched.

use crate::cli::TlsMode;
use crate::cli::tls::{ClientCertificate, KeyFormat, TlsOptions};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{CipherSuite, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// How many sessions are kept for clients that come back, if `ssl_session_cache` asks for it.
const SESSIONS_MAX: usize = 10_000;

/// What new connections are served with.
pub(crate) struct Certificates {
    pub(crate) options: TlsOptions,
    current: RwLock<ServerConfigs>,
    refreshed_ms: AtomicU64,
}

/// One for each way in which a listener may treat its clients.
struct ServerConfigs {
    as_configured: Arc<ServerConfig>,
    basic: Arc<ServerConfig>,
    /// There if there are authorities.
    mutual: Option<Arc<ServerConfig>>,
}

/// Why a certificate, or what belongs to it, cannot be used.
#[derive(Debug)]
pub(crate) enum CertificateError {
    /// The chain's file cannot be read or holds no certificate.
    Chain { path: PathBuf, why: String },
    /// The key's file cannot be read or holds no key.
    Key { path: PathBuf, why: String },
    /// The authorities' file cannot be read or holds none.
    Authorities { path: PathBuf, why: String },
    /// They do not fit together, or not to the options.
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
    /// Reads the files that the options name.
    pub(crate) fn read(options: TlsOptions, now_ms: u64) -> Result<Certificates, CertificateError> {
        let current = RwLock::new(ServerConfigs::read(&options)?);
        Ok(Certificates { options, current, refreshed_ms: AtomicU64::new(now_ms) })
    }

    /// Reads them anew. If that fails all stays as it was.
    pub(crate) fn refresh(&self, now_ms: u64) -> Result<(), CertificateError> {
        let configs = ServerConfigs::read(&self.options)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = configs;
        self.refreshed_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }

    /// When they were last read, in Unix milliseconds.
    pub(crate) fn refreshed_ms(&self) -> u64 {
        self.refreshed_ms.load(Ordering::Relaxed)
    }

    /// What a connection that comes in by such a listener is served with; `None` if it stays plain.
    pub(crate) fn server_config(&self, tls_mode: TlsMode) -> Option<Arc<ServerConfig>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        match tls_mode {
            TlsMode::Plain => None,
            TlsMode::AsConfigured => Some(Arc::clone(&current.as_configured)),
            TlsMode::Basic => Some(Arc::clone(&current.basic)),
            // Without authorities the server has not started (see `daemon`), and a refresh cannot lose them.
            TlsMode::Mutual => Some(Arc::clone(current.mutual.as_ref().expect("checked at the start"))),
        }
    }
}

impl ServerConfigs {
    fn read(options: &TlsOptions) -> Result<ServerConfigs, CertificateError> {
        let authorities = options.authorities_path.as_deref().map(read_authorities).transpose()?;
        let configure = |wanted| configure(options, authorities.clone(), wanted);
        Ok(ServerConfigs {
            as_configured: configure(options.client_certificate)?,
            basic: configure(ClientCertificate::Ignored)?,
            mutual: authorities.is_some().then(|| configure(ClientCertificate::Required)).transpose()?,
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
    let builder = match authorities.filter(|_| wanted != ClientCertificate::Ignored) {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider);
            if wanted == ClientCertificate::Requested {
                verifier = verifier.allow_unauthenticated();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
        }
    };
    let (chain, key) = (read_chain(&options.chain_path)?, read_key(options)?);
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

/// The primitives, with no more suites of TLS 1.2 than `ciphers` names, if it names any. As with OpenSSL the list says
/// nothing about TLS 1.3.
fn provider(ciphers: &[String]) -> Result<CryptoProvider, CertificateError> {
    let mut provider = ring::default_provider();
    if !ciphers.is_empty() {
        let is_named = |suite: CipherSuite| ciphers.iter().any(|name| suite_by_name(name) == Some(suite));
        provider.cipher_suites.retain(|suite| match suite {
            SupportedCipherSuite::Tls13(_) => true,
            SupportedCipherSuite::Tls12(_) => is_named(suite.suite()),
        });
        if !provider.cipher_suites.iter().any(|suite| matches!(suite, SupportedCipherSuite::Tls12(_))) {
            let why = format!("-o ssl_ciphers: none of {} is served for TLS 1.2", ciphers.join(":"));
            return Err(CertificateError::Unusable { why });
        }
    }
    Ok(provider)
}

/// OpenSSL's name of a suite.
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

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    read_certificates(path).map_err(|why| CertificateError::Chain { path: path.to_owned(), why })
}

fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, CertificateError> {
    let refuse = |why| CertificateError::Authorities { path: path.to_owned(), why };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path).map_err(refuse)? {
        roots.add(certificate).map_err(|error| refuse(error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in it (PEM)".into()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

fn read_key(options: &TlsOptions) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let path = options.key_path.as_ref().unwrap_or(&options.chain_path);
    let read = match options.key_format {
        KeyFormat::Pem => PrivateKeyDer::from_pem_file(path).map_err(|error| error.to_string()),
        KeyFormat::Der => std::fs::read(path).map_err(|error| error.to_string()).and_then(|bytes| {
            let key = PrivateKeyDer::try_from(bytes);
            key.map_err(str::to_string)
        }),
    };
    read.map_err(|why| CertificateError::Key { path: path.clone(), why })
}

fn unusable(error: impl Display) -> CertificateError {
    CertificateError::Unusable { why: error.to_string() }
}
