//! Voids the leases of a server that gets no more deletes for some keys, or got none for a time: a token does not expire,
//! and a client that hung could fill a key by one from before a delete that did not reach the server.

use lookaside_client::{CommandConnection, CommandError};

/// Sends `lease-void-all`. A server that does not know it, such as memcached, has no leases.
pub(super) async fn void_leases(connection: &mut CommandConnection) -> Result<(), CommandError> {
    connection.send(b"lease-void-all\r\n").await?;
    match connection.read_line().await? {
        b"OK" | b"ERROR" => Ok(()),
        line => Err(CommandError::Unexpected(String::from_utf8_lossy(line).into_owned())),
    }
}
