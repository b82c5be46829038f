//! The rustls configurations by which a client connects to servers, from PEM files: for the router, and for the client
//! library.

use crate::pem::{read_authorities, read_certificates, read_key};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

/// A certificate, followed by the intermediate ones.
pub type Chain = Vec<CertificateDer<'static>>;
/// The private key of a certificate.
pub type Key = PrivateKeyDer<'static>;

/// The files of one side: its own certificate, and the CAs that it trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificatePaths {
    /// The certificate, followed by the intermediate ones; `None` if there is none.
    pub chain: Option<PathBuf>,
    /// The private key; `None` if it is in the chain's file.
    pub key: Option<PathBuf>,
    /// The CAs; `None` if none is trusted.
    pub authorities: Option<PathBuf>,
}

impl CertificatePaths {
    /// The files that are named.
    pub fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.chain, &self.key, &self.authorities].into_iter().flatten()
    }

    /// Reads the certificate and its key; `None` if there is none. The error names the file.
    pub fn read_own(&self) -> Result<Option<(Chain, Key)>, String> {
        let Some(path) = &self.chain else { return Ok(None) };
        let chain = read_certificates(path).map_err(|why| format!("the certificate in {}: {why}", path.display()))?;
        let path = self.key.as_ref().unwrap_or(path);
        let key =
            read_key(path).map_err(|error| format!("the certificate's private key in {}: {error}", path.display()))?;
        Ok(Some((chain, key)))
    }

    /// Reads the CAs; `None` if none is trusted. The error names the file.
    pub fn read_trusted(&self) -> Result<Option<Arc<RootCertStore>>, String> {
        let Some(path) = &self.authorities else { return Ok(None) };
        read_authorities(path).map(Some).map_err(|why| format!("the authorities in {}: {why}", path.display()))
    }
}

/// How servers are connected to.
#[derive(Clone, Debug)]
pub struct ClientConfigs {
    /// For servers whose certificates are verified; `None` without CAs.
    pub verified: Option<Arc<ClientConfig>>,
    /// For the others.
    pub unverified: Arc<ClientConfig>,
}

impl ClientConfigs {
    /// Reads the files. The error names the one that cannot be used.
    pub fn read(paths: &CertificatePaths) -> Result<ClientConfigs, String> {
        let own = paths.read_own()?;
        let verified = paths.read_trusted()?.map(|authorities| {
            let verifier = WebPkiServerVerifier::builder_with_provider(authorities, provider());
            client_config(verifier.build().map_err(unusable)?, own.as_ref())
        });
        let unverified = client_config(Arc::new(NoServerVerification(provider())), own.as_ref())?;
        Ok(ClientConfigs { verified: verified.transpose()?, unverified })
    }
}

fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    own: Option<&(Chain, Key)>,
) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).map_err(unusable)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match own {
        Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(unusable)?,
        None => builder.with_no_client_auth(),
    };
    // Connections to servers are rare, and each is to verify the server again.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Accepts every certificate. Only verifies that the server has the certificate's private key.
#[derive(Debug)]
struct NoServerVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoServerVerification {
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

/// The cryptography of all configurations: ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Why a certificate that was read is of no use.
pub fn unusable(error: impl Display) -> String {
    format!("the certificate cannot be used: {error}")
}
