//! The router's certificate, its key, and who is believed. No request passes here.
//!
//! The files are read at the start, on SIGHUP, and when they change. If they cannot be used then, the connections to
//! come go on with what was read before; connections that are there are not touched.

use crate::backend::tls_connector::server_name;
use crate::cli::tls::{Papers, TlsOptions};
use lookaside_routing::{Address, Security, TlsPolicy};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::signal::unix::Signal;
use tokio::time::Instant;

/// How often the files are looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What connections are encrypted with, shared by all threads.
pub(crate) struct Certificates {
    options: TlsOptions,
    current: RwLock<Current>,
    refreshed: Mutex<Instant>,
    /// What told the files' versions, before they were read last.
    seen: Mutex<Vec<Option<Version>>>,
    /// Clients' handshakes that went well.
    pub(crate) new_sessions: AtomicU64,
    /// Clients' handshakes that did not, those that took too long included.
    pub(crate) handshake_errors: AtomicU64,
}

/// What tells two versions of a file apart: device, inode, size, and when it was written.
type Version = (u64, u64, u64, i64, i64);

/// What the files said.
struct Current {
    /// There if there is a certificate.
    basic: Option<Arc<ServerConfig>>,
    /// There if there are authorities, too.
    mutual: Option<Arc<ServerConfig>>,
    /// Towards servers; there if there are authorities.
    verified: Option<Arc<ClientConfig>>,
    unverified: Arc<ClientConfig>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Reads the files that the options name.
    pub(crate) fn read(options: TlsOptions) -> Result<Certificates, String> {
        let seen = Mutex::new(fingerprint(&options));
        let current = RwLock::new(Current::read(&options)?);
        Ok(Certificates {
            options,
            current,
            refreshed: Mutex::new(Instant::now()),
            seen,
            new_sessions: AtomicU64::new(0),
            handshake_errors: AtomicU64::new(0),
        })
    }

    /// Reads them anew. If that fails all stays as it was.
    pub(crate) fn refresh(&self) -> Result<(), String> {
        // A file that changes while it is read is read again.
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = fingerprint(&self.options);
        let current = Current::read(&self.options)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        *self.refreshed.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    /// For how many seconds what is in force has been.
    pub(crate) fn age_s(&self) -> u64 {
        self.refreshed.lock().unwrap_or_else(PoisonError::into_inner).elapsed().as_secs()
    }

    /// How long a client's handshake may take.
    pub(crate) fn handshake_max(&self) -> Duration {
        self.options.handshake_max()
    }

    /// What a client's connection is served with; `None` if there is no certificate, or nobody to verify the client's.
    pub(crate) fn for_clients(&self, is_mutual: bool) -> Option<Arc<ServerConfig>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if is_mutual { current.mutual.clone() } else { current.basic.clone() }
    }

    /// Whether clients can be served: without a certificate, or without authorities where theirs are to be verified,
    /// the error says what is missing.
    pub(crate) fn check_for_clients(&self, is_mutual: bool) -> Result<(), String> {
        match (self.for_clients(is_mutual).is_some(), self.for_clients(false).is_some()) {
            (true, _) => Ok(()),
            (false, true) => Err("clients' certificates are verified against --pem-ca-path FILE".to_owned()),
            (false, false) => {
                Err("TLS for clients needs a certificate: --pem-cert-path FILE, and --pem-key-path FILE \
                                   if the key is not in it"
                    .to_owned())
            }
        }
    }

    /// What a connection to a server is made with.
    pub(crate) fn for_servers(&self, is_verified: bool) -> Result<Arc<ClientConfig>, &'static str> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        match is_verified {
            true => current.verified.clone().ok_or("servers' certificates are verified against --pem-ca-path FILE"),
            false => Ok(current.unverified.clone()),
        }
    }

    /// Whether all servers can be reached; the error says what is missing.
    pub(crate) fn check_for_servers(&self, protections: &BTreeMap<Address, TlsPolicy>) -> Result<(), String> {
        for (server, protection) in protections {
            if protection.security != Security::Plain {
                server_name(server, protection)?;
                let is_verified = protection.security == Security::Tls;
                self.for_servers(is_verified).map_err(|why| format!("{server} is reached by TLS: {why}"))?;
            }
        }
        Ok(())
    }

    pub(crate) fn count_handshake(&self, is_good: bool) {
        let counter = if is_good { &self.new_sessions } else { &self.handshake_errors };
        counter.fetch_add(1, Relaxed);
    }

    /// Whether the files are others than those that were read last, or could not be.
    fn have_changed(&self) -> bool {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) != fingerprint(&self.options)
    }

    /// Whether there are any.
    pub(crate) fn are_used(&self) -> bool {
        self.options.files().next().is_some()
    }

    fn refresh_and_tell(&self) {
        if !self.are_used() {
            return;
        }
        match self.refresh() {
            Ok(()) => tracing::info!("the certificates have been read anew"),
            Err(why) => tracing::error!("the certificates stay as they were: {why}"),
        }
    }
}

/// Reads the certificates anew at each `hangup`, and when their files change, for ever.
pub(crate) async fn keep_fresh(certificates: &Certificates, hangup: &mut Signal) {
    loop {
        tokio::select! {
            biased;
            _ = hangup.recv() => {}
            () = tokio::time::sleep(POLL_INTERVAL) => {
                if !certificates.have_changed() {
                    continue;
                }
            }
        }
        certificates.refresh_and_tell();
    }
}

/// What tells whether the files have changed.
fn fingerprint(options: &TlsOptions) -> Vec<Option<Version>> {
    let of = |path| {
        let file = fs::metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
    };
    options.files().map(of).collect()
}

impl Current {
    fn read(options: &TlsOptions) -> Result<Current, String> {
        let (verified, unverified) = towards_servers(&options.towards_servers())?;
        let papers = options.towards_clients();
        let (mut basic, mut mutual) = (None, None);
        if let Some((chain, key)) = read_own(&papers)? {
            let authorities = papers.authorities.as_deref().map(read_authorities).transpose()?;
            basic = Some(for_clients(None, chain.clone(), key.clone_key())?);
            mutual = authorities.map(|authorities| for_clients(Some(authorities), chain, key)).transpose()?;
        }
        Ok(Current { basic, mutual, verified, unverified })
    }
}

/// What servers are reached with that must prove who they are, and what those are that need not.
fn towards_servers(papers: &Papers) -> Result<(Option<Arc<ClientConfig>>, Arc<ClientConfig>), String> {
    let own = read_own(papers)?;
    let authorities = papers.authorities.as_deref().map(read_authorities).transpose()?;
    let verified = authorities.map(|authorities| {
        let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider());
        for_servers(verifier.build().map_err(unusable)?, own.as_ref())
    });
    Ok((verified.transpose()?, for_servers(Arc::new(Unverified(provider())), own.as_ref())?))
}

fn for_servers(verifier: Arc<dyn ServerCertVerifier>, own: Option<&(Chain, Key)>) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).map_err(unusable)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(unusable)?,
        None => builder.with_no_client_auth(),
    };
    // A server is connected to rarely, and then it is to prove anew who it is.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Believes every certificate; only that its bearer has the key is verified.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn for_clients(authorities: Option<Arc<RootCertStore>>, chain: Chain, key: Key) -> Result<Arc<ServerConfig>, String> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).map_err(unusable)?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            builder.with_client_cert_verifier(verifier.build().map_err(unusable)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

type Chain = Vec<CertificateDer<'static>>;
type Key = PrivateKeyDer<'static>;

/// A certificate and its key, if there is one.
fn read_own(papers: &Papers) -> Result<Option<(Chain, Key)>, String> {
    let Some(path) = &papers.chain else { return Ok(None) };
    let chain = read_certificates(path).map_err(|why| format!("the certificate in {}: {why}", path.display()))?;
    let path = papers.key.as_ref().unwrap_or(path);
    let key = PrivateKeyDer::from_pem_file(path);
    let key = key.map_err(|error| format!("the certificate's private key in {}: {error}", path.display()))?;
    Ok(Some((chain, key)))
}

fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    let refuse = |why: String| format!("the authorities in {}: {why}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path).map_err(refuse)? {
        roots.add(certificate).map_err(|error| refuse(error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

fn read_certificates(path: &Path) -> Result<Chain, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in it (PEM)".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}

fn unusable(error: impl Display) -> String {
    format!("the certificate cannot be used: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let certificates = Certificates::read(TlsOptions::default()).expect("no file to read");
        assert!(certificates.for_clients(false).is_none() && certificates.for_clients(true).is_none());
        for is_mutual in [false, true] {
            assert!(certificates.check_for_clients(is_mutual).is_err_and(|why| why.contains("--pem-cert-path")));
        }
    }

    #[test]
    fn files_that_change_at_any_time_after_they_were_read_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("authorities.pem");
        let mut options = TlsOptions::default();
        let certificates = Certificates::read(options.clone()).expect("no file to read");
        assert!(!certificates.have_changed());
        options.pem_ca_path = Some(path.clone());
        let certificates = Certificates { options, ..certificates };
        assert!(certificates.have_changed());
        assert!(certificates.refresh().is_err() && !certificates.have_changed(), "refused, and that is known");
        fs::write(&path, "").expect("written");
        assert!(certificates.have_changed(), "nobody has looked since");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let (missing, empty) = (folder.path().join("missing"), folder.path().join("empty"));
        fs::write(&empty, "").expect("written");
        for path in [missing, empty] {
            let options = TlsOptions { pem_cert_path: Some(path.clone()), ..TlsOptions::default() };
            let why = Certificates::read(options).expect_err("nothing to read");
            assert!(why.contains(&path.display().to_string()), "{why}");
        }
    }
}
