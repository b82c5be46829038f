//! TLS to a database server: the parameters of a URL, and a handshake that verifies the server's certificate.
//!
//! ```text
//! sslmode, ssl-mode                disable, DISABLED: no TLS
//!                                  verify-ca, VERIFY_CA: one of the authorities signed the certificate
//!                                  verify-full, VERIFY_IDENTITY: and it names the host
//! sslrootcert, ssl-ca              the authorities (PEM)
//! sslcert, ssl-cert; sslkey, ssl-key   the certificate that identifies this client, and its key (PEM)
//! ```
//!
//! The names are those of the databases' own clients; either spelling is accepted in each URL. Their modes that encrypt
//! without verification (`require`, `prefer` and the like) are refused: an attacker in between could read everything
//! and turn the encryption off. There is no fallback: if the server offers no TLS, the connection fails.
//!
//! Files are read for each connection, so that renewed certificates are used.

use crate::SourceError;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::{path::PathBuf, sync::Arc};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A connection's bytes, plain or by TLS.
pub(super) trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for T {}

/// How a connection is secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseTls {
    /// The certificate authorities that the server's certificate is verified by, as a PEM file.
    pub authorities: PathBuf,
    /// Whether the certificate must name the host of the URL.
    pub verifies_name: bool,
    /// The files of the certificate that identifies this client and of its key. `None` if the account needs none.
    pub client: Option<ClientFiles>,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificate, followed by those that lead to an authority of the server.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
}

impl DatabaseTls {
    /// Verifies the certificate by `authorities` and the host's name.
    pub fn verify_full(authorities: impl Into<PathBuf>) -> DatabaseTls {
        DatabaseTls { authorities: authorities.into(), verifies_name: true, client: None }
    }

    /// Secures `stream` to `host`.
    pub(super) async fn secure(
        &self,
        host: &str,
        stream: Box<dyn Bytestream>,
    ) -> Result<Box<dyn Bytestream>, SourceError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| unusable(format!("no certificate can be verified for the host {host:?}")))?;
        let connector = TlsConnector::from(Arc::new(self.client_config()?));
        match connector.connect(name, stream).await {
            Ok(secured) => Ok(Box::new(secured)),
            // A wrong certificate needs an operator; a connection that breaks does not.
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
                Err(unusable(format!("the TLS handshake with {host} failed: {error}")))
            }
            Err(error) => {
                Err(SourceError::Unreachable { why: format!("the connection broke in the TLS handshake: {error}") })
            }
        }
    }

    fn client_config(&self) -> Result<ClientConfig, SourceError> {
        let authorities = lookaside_net::pem::read_authorities(&self.authorities)
            .map_err(|why| unreadable("ssl-ca (sslrootcert)", &self.authorities, &why))?;
        let builder = match self.verifies_name {
            true => ClientConfig::builder().with_root_certificates(authorities),
            false => {
                let inner = WebPkiServerVerifier::builder(authorities)
                    .build()
                    .map_err(|why| unreadable("ssl-ca (sslrootcert)", &self.authorities, &why.to_string()))?;
                ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(AnyName(inner)))
            }
        };
        let Some(client) = &self.client else { return Ok(builder.with_no_client_auth()) };
        let certificates = lookaside_net::pem::read_certificates(&client.certificate)
            .map_err(|why| unreadable("ssl-cert (sslcert)", &client.certificate, &why))?;
        let key = lookaside_net::pem::read_key(&client.key)
            .map_err(|why| unreadable("ssl-key (sslkey)", &client.key, &why))?;
        builder
            .with_client_auth_cert(certificates, key)
            .map_err(|why| unreadable("ssl-key (sslkey)", &client.key, &why.to_string()))
    }
}

fn unusable(why: String) -> SourceError {
    SourceError::Unusable { why }
}

fn unreadable(option: &str, file: &std::path::Path, why: &str) -> SourceError {
    unusable(format!("{option} {}: {why}", file.display()))
}

/// Verifies that an authority signed the certificate, which may name any host.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is compared after the signatures.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The parameters of a URL that concern TLS.
#[derive(Debug, Default)]
pub(super) struct TlsParameters {
    /// Whether the name is verified; `None` without TLS.
    verifies_name: Option<bool>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl TlsParameters {
    /// Takes the decoded parameter `name=value`; returns whether it is one of TLS. Errors continue "the database URL".
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "sslmode" | "ssl-mode" => {
                self.verifies_name = match value.to_ascii_lowercase().replace('_', "-").as_str() {
                    "disable" | "disabled" => None,
                    "verify-ca" => Some(false),
                    "verify-full" | "verify-identity" => Some(true),
                    _ => {
                        return Err(format!(
                            "has an {name} other than disable, verify-ca and verify-full (DISABLED, VERIFY_CA, \
                             VERIFY_IDENTITY): without verification TLS does not protect from an attacker in between"
                        ));
                    }
                }
            }
            "sslrootcert" | "ssl-ca" => self.authorities = Some(value.into()),
            "sslcert" | "ssl-cert" => self.certificate = Some(value.into()),
            "sslkey" | "ssl-key" => self.key = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The options; `None` without TLS.
    pub fn into_options(self) -> Result<Option<DatabaseTls>, String> {
        let client = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some(ClientFiles { certificate, key }),
            (None, None) => None,
            _ => return Err("has one of ssl-cert (sslcert) and ssl-key (sslkey) without the other".into()),
        };
        match (self.verifies_name, self.authorities) {
            (Some(verifies_name), Some(authorities)) => Ok(Some(DatabaseTls { authorities, verifies_name, client })),
            (Some(_), None) => Err("verifies certificates without ssl-ca=FILE (sslrootcert=FILE)".into()),
            (None, None) if client.is_none() => Ok(None),
            (None, _) => Err("has certificates without sslmode=verify-full (ssl-mode=VERIFY_IDENTITY)".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(parameters: &[(&str, &str)]) -> Result<Option<DatabaseTls>, String> {
        let mut tls = TlsParameters::default();
        for (name, value) in parameters {
            assert!(tls.set(name, value)?, "{name}");
        }
        tls.into_options()
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let expected = Ok(Some(DatabaseTls::verify_full("/ca.pem")));
        assert_eq!(options(&[("sslmode", "verify-full"), ("sslrootcert", "/ca.pem")]), expected);
        assert_eq!(options(&[("ssl-mode", "VERIFY_IDENTITY"), ("ssl-ca", "/ca.pem")]), expected);
        assert_eq!(options(&[("ssl-mode", "DISABLED")]), Ok(None));
        assert_eq!(options(&[]), Ok(None));
        let with_client =
            [("ssl-mode", "VERIFY_CA"), ("ssl-ca", "/ca.pem"), ("ssl-cert", "/c.pem"), ("ssl-key", "/k.pem")];
        let found = options(&with_client).expect("valid").expect("TLS");
        assert!(!found.verifies_name);
        assert_eq!(found.client, Some(ClientFiles { certificate: "/c.pem".into(), key: "/k.pem".into() }));
        assert_eq!(TlsParameters::default().set("charset", "x"), Ok(false));
    }

    #[test]
    fn what_is_not_verified_is_refused() {
        for mode in ["require", "prefer", "allow", "REQUIRED", "PREFERRED", ""] {
            let error = options(&[("ssl-mode", mode), ("ssl-ca", "/ca.pem")]).expect_err(mode);
            assert!(error.contains("verify-full"), "{error}");
        }
        for incomplete in [
            &[("sslmode", "verify-full")][..],
            &[("ssl-ca", "/ca.pem")],
            &[("ssl-mode", "DISABLED"), ("ssl-cert", "/c"), ("ssl-key", "/k")],
            &[("sslmode", "verify-ca"), ("ssl-ca", "/ca.pem"), ("ssl-cert", "/c")],
        ] {
            assert!(options(incomplete).is_err(), "{incomplete:?}");
        }
    }
}
