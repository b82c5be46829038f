//! A dedicated connection to a server for replay. The shared connections refuse a fenced server everything else, and
//! cannot carry `flush_all`.
//!
//! It starts with `version`: a stopped server (SIGSTOP) accepts bytes without replying. Each attempt would add the
//! same deletes to its socket buffers, and the server would execute them all when it resumes.

use super::record::Deletion;
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::text::{Limits, ReplyPart, compose_request};
use lookaside_protocol::{ErrorReply, Reply, meta::MetaStatus};
use lookaside_routing::{Address, is_no_route};
use std::time::Duration;

/// The longest reply is an error message.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 2_048 };

/// A connection on which the server has replied.
pub(super) struct ReplayConnection {
    connection: CommandConnection,
    timeout: Duration,
}

/// A server's reply to one delete or flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplayResult {
    Applied,
    /// The server will never accept it.
    Rejected(String),
    /// The server cannot apply it now.
    Retry(String),
}

impl ReplayConnection {
    /// Connects and checks that the server replies. Connecting and each exchange may take `timeout`.
    pub(super) async fn open(
        network: &dyn Network,
        address: &Address,
        timeout: Duration,
    ) -> Result<ReplayConnection, CommandError> {
        let connection = CommandConnection::connect(network, address, LIMITS, timeout).await?;
        let mut connection = ReplayConnection { connection, timeout };
        // Any complete reply shows that the server is running.
        connection.exchange(b"version\r\n", 1, |_| ()).await?;
        Ok(connection)
    }

    /// Sends deletes and returns the result of each, in order.
    pub(super) async fn delete(&mut self, deletions: &[Deletion]) -> Result<Vec<ReplayResult>, CommandError> {
        let mut results = self.send_deletes(deletions).await?;
        for (deletion, result) in deletions.iter().zip(&mut results) {
            // memcached itself has no hold-off. A delete without it still removes the key, which is what matters.
            if deletion.hold_off_ms > 0 && matches!(result, ReplayResult::Rejected(_)) {
                let plain = Deletion { hold_off_ms: 0, ..deletion.clone() };
                *result = self.send_deletes(&[plain]).await?.remove(0);
            }
        }
        Ok(results)
    }

    async fn send_deletes(&mut self, deletions: &[Deletion]) -> Result<Vec<ReplayResult>, CommandError> {
        let mut lines = Vec::new();
        deletions.iter().for_each(|deletion| compose_request(&deletion.request(), &mut lines));
        self.exchange(&lines, deletions.len(), |reply| classify(&reply)).await
    }

    pub(super) async fn flush(&mut self) -> Result<ReplayResult, CommandError> {
        let mut results = self.exchange(b"flush_all\r\n", 1, |reply| classify(&reply)).await?;
        Ok(results.remove(0))
    }

    async fn exchange<T>(
        &mut self,
        lines: &[u8],
        replies: usize,
        convert: fn(ReplyPart<'_>) -> T,
    ) -> Result<Vec<T>, CommandError> {
        self.connection.set_timeout(self.timeout);
        self.connection.send(lines).await?;
        let mut converted = Vec::with_capacity(replies);
        while converted.len() < replies {
            converted.push(convert(self.connection.read_part().await?));
        }
        Ok(converted)
    }
}

fn classify(reply: &ReplyPart<'_>) -> ReplayResult {
    match reply {
        ReplyPart::Reply(Reply::Deleted | Reply::NotFound | Reply::Ok) => ReplayResult::Applied,
        ReplyPart::Reply(Reply::Meta(meta)) if matches!(meta.status, MetaStatus::Done | MetaStatus::NotFound) => {
            ReplayResult::Applied
        }
        // A server that does not know the command cannot have stored such a key either.
        ReplyPart::Reply(Reply::Error(error @ (ErrorReply::Unknown | ErrorReply::Client(_)))) => {
            ReplayResult::Rejected(error.to_string())
        }
        // Nor can a router that has no route for it.
        ReplyPart::Reply(Reply::Error(error @ ErrorReply::Server(why))) if is_no_route(why) => {
            ReplayResult::Rejected(error.to_string())
        }
        ReplyPart::Reply(Reply::Error(error)) => ReplayResult::Retry(error.to_string()),
        other => ReplayResult::Retry(format!("unexpected reply: {other:?}")),
    }
}
