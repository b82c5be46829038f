//! A connection of its own to a server that owes deletes: the shared ones refuse it everything else meanwhile, and cannot
//! say `flush_all`.
//!
//! It begins with `version`: a server that is stopped takes bytes and answers nothing, and would find the same deletes
//! over and over in its buffers once it goes on.

use super::record::Deletion;
use lookaside_client::{Network, Stream};
use lookaside_protocol::text::{Limits, ParsedReply, ReplyPart, compose_request, parse_reply};
use lookaside_protocol::{ErrorReply, Reply, meta::MetaStatus};
use lookaside_routing::Address;
use std::future::Future;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// The longest answer: an error's text.
const LIMITS: Limits = Limits { value_bytes_max: 0, line_bytes_max: 2_048 };

/// A connection that has answered.
pub(super) struct Conversation {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
    limit: Duration,
}

/// What a server says to one delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The key is gone.
    Done,
    /// It will never take this.
    Refused(String),
    /// Not now.
    Later(String),
}

/// What went wrong with the connection.
type Trouble = String;

impl Conversation {
    /// Connects, and makes sure that somebody is there. Each exchange may take `limit`.
    pub(super) async fn open(network: &dyn Network, address: &Address, limit: Duration) -> Result<Self, Trouble> {
        let stream = within(limit, async { network.connect(address).await.map_err(|error| error.to_string()) }).await?;
        let mut conversation = Conversation { stream, read: Vec::new(), limit };
        // Any whole answer proves that it lives.
        conversation.exchange(b"version\r\n", 1, |_| ()).await?;
        Ok(conversation)
    }

    /// Deletes, in order. The verdicts are as many as there are deletions.
    pub(super) async fn delete(&mut self, deletions: &[Deletion]) -> Result<Vec<Verdict>, Trouble> {
        let mut verdicts = self.send(deletions).await?;
        for (deletion, verdict) in deletions.iter().zip(&mut verdicts) {
            // memcached itself has no hold-off. Without one the key goes, which is what matters.
            if deletion.hold_off_ms > 0 && matches!(verdict, Verdict::Refused(_)) {
                let plain = Deletion { hold_off_ms: 0, ..deletion.clone() };
                *verdict = self.send(&[plain]).await?.remove(0);
            }
        }
        Ok(verdicts)
    }

    async fn send(&mut self, deletions: &[Deletion]) -> Result<Vec<Verdict>, Trouble> {
        let mut lines = Vec::new();
        deletions.iter().for_each(|deletion| compose_request(&deletion.request(), &mut lines));
        self.exchange(&lines, deletions.len(), |reply| verdict(&reply)).await
    }

    /// Tells the server to forget everything.
    pub(super) async fn forget(&mut self) -> Result<Verdict, Trouble> {
        let mut verdicts = self.exchange(b"flush_all\r\n", 1, |reply| verdict(&reply)).await?;
        Ok(verdicts.remove(0))
    }

    async fn exchange<T>(
        &mut self,
        lines: &[u8],
        count: usize,
        take: fn(ReplyPart<'_>) -> T,
    ) -> Result<Vec<T>, Trouble> {
        within(self.limit, async {
            self.stream.write_all(lines).await.map_err(|error| error.to_string())?;
            self.stream.flush().await.map_err(|error| error.to_string())?;
            let mut taken = Vec::with_capacity(count);
            while taken.len() < count {
                match parse_reply(&self.read, &LIMITS) {
                    ParsedReply::Part { part: reply, consumed } => {
                        taken.push(take(reply));
                        self.read.drain(..consumed);
                    }
                    ParsedReply::Malformed { why } => return Err(format!("it said what no server says: {why}")),
                    ParsedReply::Incomplete { .. } => {
                        if self.stream.read_buf(&mut self.read).await.map_err(|error| error.to_string())? == 0 {
                            return Err("it closed the connection".to_owned());
                        }
                    }
                }
            }
            Ok(taken)
        })
        .await
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

fn verdict(reply: &ReplyPart<'_>) -> Verdict {
    let words = |why: &[u8]| String::from_utf8_lossy(why).into_owned();
    match reply {
        ReplyPart::Reply(Reply::Deleted | Reply::NotFound | Reply::Ok) => Verdict::Done,
        ReplyPart::Reply(Reply::Meta(meta)) if matches!(meta.status, MetaStatus::Done | MetaStatus::NotFound) => {
            Verdict::Done
        }
        // A server that does not know the command has not stored under such a key either.
        ReplyPart::Reply(Reply::Error(ErrorReply::Unknown)) => Verdict::Refused("ERROR".to_owned()),
        ReplyPart::Reply(Reply::Error(ErrorReply::Client(why))) => Verdict::Refused(words(why)),
        ReplyPart::Reply(Reply::Error(ErrorReply::Server(why))) => Verdict::Later(words(why)),
        other => Verdict::Later(format!("{other:?} is no answer to a delete")),
    }
}
