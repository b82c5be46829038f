//! TLS to the server: PostgreSQL's `SSLRequest`, then a handshake that verifies the certificate and the host's name.

use super::connection::Bytestream;
use crate::SourceError;
use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::{path::Path, sync::Arc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

/// Secures `stream` to `host`, whose certificate one of the authorities in the PEM file `root_certificates` must have
/// signed.
pub(super) async fn secure(
    mut stream: Box<dyn Bytestream>,
    host: &str,
    root_certificates: &Path,
) -> Result<Box<dyn Bytestream>, SourceError> {
    let unusable = |why: String| SourceError::Unusable { why };
    let unreachable = |error: std::io::Error| SourceError::Unreachable { why: error.to_string() };
    let authorities = lookaside_net::pem::read_authorities(root_certificates)
        .map_err(|why| unusable(format!("sslrootcert: {why}")))?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| unusable(format!("no certificate can be verified for the host {host:?}")))?;
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(unreachable)?;
    stream.flush().await.map_err(unreachable)?;
    // One byte alone: what a man in the middle sends behind it must not pass for the server's.
    match stream.read_u8().await.map_err(unreachable)? {
        b'S' => {}
        _ => return Err(unusable("the server does not offer TLS (ssl = on), and sslmode is verify-full".into())),
    }
    let config = ClientConfig::builder().with_root_certificates(authorities).with_no_client_auth();
    let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    Ok(Box::new(secured.map_err(|error| unusable(format!("TLS handshake failed: {error}")))?))
}
