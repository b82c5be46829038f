//! Voids the leases of a server that gets no more deletes for some keys, or got none for a time: a token does not
//! expire, and a client that hung could fill a key by one from before a delete that did not reach the server.
//!
//! ```text
//!   lease-void-all               OK
//!                                ERROR     the server does not know it; then
//!   lease-get KEY                ERROR           of memcached, which has no leases
//!     of 251 bytes               CLIENT_ERROR    of an earlier version: its leases hold
//! ```

use lookaside_client::{CommandConnection, CommandError};
use lookaside_protocol::KEY_BYTES_MAX;

/// The leases of a server after [`void_leases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingLeases {
    /// They are void, or the server never has any.
    None,
    /// The server does not know `lease-void-all`, and has leases.
    All,
}

/// Sends `lease-void-all`, and finds out whether a server that does not know it has leases.
pub(super) async fn void_leases(connection: &mut CommandConnection) -> Result<RemainingLeases, CommandError> {
    connection.send(b"lease-void-all\r\n").await?;
    match connection.read_line().await? {
        b"OK" => return Ok(RemainingLeases::None),
        b"ERROR" => {}
        line => return Err(unexpected(line)),
    }
    // No server issues a lease for a key that is too long.
    connection.send(&[b"lease-get ", &[b'k'; KEY_BYTES_MAX + 1][..], b"\r\n"].concat()).await?;
    match connection.read_line().await? {
        b"ERROR" => Ok(RemainingLeases::None),
        line if line.starts_with(b"CLIENT_ERROR") => Ok(RemainingLeases::All),
        line => Err(unexpected(line)),
    }
}

fn unexpected(line: &[u8]) -> CommandError {
    CommandError::Unexpected(String::from_utf8_lossy(line).into_owned())
}
