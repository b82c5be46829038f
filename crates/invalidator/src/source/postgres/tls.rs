//! TLS to the server: PostgreSQL's `SSLRequest`, then the handshake.

use crate::SourceError;
use crate::source::tls::{Bytestream, DatabaseTls};
use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Secures `stream` to `host`.
pub(super) async fn secure(
    mut stream: Box<dyn Bytestream>,
    host: &str,
    options: &DatabaseTls,
) -> Result<Box<dyn Bytestream>, SourceError> {
    let unreachable = |error: std::io::Error| SourceError::Unreachable { why: error.to_string() };
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(unreachable)?;
    stream.flush().await.map_err(unreachable)?;
    // One byte alone: what a man in the middle sends behind it must not pass for the server's.
    match stream.read_u8().await.map_err(unreachable)? {
        b'S' => options.secure(host, stream).await,
        _ => Err(SourceError::Unusable {
            why: "the server does not offer TLS (ssl = on), and the URL's sslmode requires it".into(),
        }),
    }
}
