//! A connection to another router, for the requests of [`super::peer_protocol`]. It is made when it is needed.

use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::Reply;
use lookaside_protocol::text::{Limits, ReplyPart};
use lookaside_routing::Address;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

const LIMITS: Limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 2_048 };

#[derive(Debug)]
pub(super) enum PeerError {
    Connection(CommandError),
    /// It does not answer the requests of the spool.
    NoSpool,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerError::Connection(error) => error.fmt(f),
            PeerError::NoSpool => f.write_str("it has no --spool or no --spool-peers, or it is this router itself"),
        }
    }
}

impl From<CommandError> for PeerError {
    fn from(error: CommandError) -> PeerError {
        PeerError::Connection(error)
    }
}

pub(super) struct PeerConnection<'a> {
    network: &'a dyn Network,
    address: &'a Address,
    /// How long the peer may take to connect, or to reply.
    timeout: Duration,
    open: Option<CommandConnection>,
}

impl<'a> PeerConnection<'a> {
    /// The most keys in one get: each may cost the peer a sync of its disk.
    pub(super) const KEYS_PER_GET_MAX: usize = 50;

    pub(super) fn new(network: &'a dyn Network, address: &'a Address, timeout: Duration) -> PeerConnection<'a> {
        PeerConnection { network, address, timeout, open: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// The values of `keys`, in order. `None` for a miss. After an error the connection must be closed.
    pub(super) async fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, CommandError> {
        let mut replies = Vec::with_capacity(keys.len());
        for keys in keys.chunks(Self::KEYS_PER_GET_MAX) {
            let timeout = self.timeout;
            let connection = self.connect().await?;
            let line = [b"get ".as_slice(), &keys.join(&b' '), b"\r\n"].concat();
            let mut values = BTreeMap::new();
            let mut unexpected = None;
            connection.set_timeout(timeout);
            connection.send(&line).await?;
            let on_part = |part: ReplyPart<'_>| match part {
                ReplyPart::Item { key, reply: Reply::Value { value, .. } } => {
                    values.insert(key.to_vec(), value.to_vec());
                }
                other => unexpected = Some(format!("{other:?}")),
            };
            connection.read_until_end(on_part).await?;
            if let Some(reply) = unexpected {
                return Err(CommandError::Unexpected(reply));
            }
            // A key may be in the request twice: a key that is deleted often is spooled as often.
            replies.extend(keys.iter().map(|key| values.get(key).cloned()));
        }
        Ok(replies)
    }

    async fn connect(&mut self) -> Result<&mut CommandConnection, CommandError> {
        let connection = match self.open.take() {
            Some(connection) => connection,
            None => CommandConnection::connect(self.network, self.address, LIMITS, self.timeout).await?,
        };
        Ok(self.open.insert(connection))
    }
}
