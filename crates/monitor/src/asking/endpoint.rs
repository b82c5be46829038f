//! A connection to one router or server, on which keys are asked about.

use super::{MonitorClock, item_reply::parse_item};
use crate::sampling::{Look, Moment, Seen};
use lookaside_client::{CommandConnection, CommandError, Network};
use lookaside_protocol::{
    Reply,
    meta::MetaStatus,
    text::{Limits, ReplyPart},
};
use lookaside_routing::Address;
use std::{sync::Arc, time::Duration};

/// No value of an application is ever asked for.
const LIMITS: Limits = Limits { value_bytes_max: 4_096, line_bytes_max: 2_048 };

/// A router or a server.
pub(super) struct AskedEndpoint {
    address: Address,
    timeout: Duration,
    network: Arc<dyn Network>,
    clock: MonitorClock,
    /// `None` before the first request, and after a failure.
    connection: Option<CommandConnection>,
    /// The questions that were sent, answered or not.
    pub(super) questions: u64,
}

impl AskedEndpoint {
    pub(super) fn new(
        address: Address,
        timeout: Duration,
        network: Arc<dyn Network>,
        clock: MonitorClock,
    ) -> AskedEndpoint {
        AskedEndpoint { address, timeout, network, clock, connection: None, questions: 0 }
    }

    pub(super) fn address(&self) -> &str {
        &self.address.0
    }

    /// Asks about the keys. All that could not be asked, or was not answered, has failed.
    pub(super) async fn ask(&mut self, keys: &[&[u8]]) -> Vec<Look> {
        let mut looks = Vec::with_capacity(keys.len());
        let is_reused = self.connection.is_some();
        let mut ended = self.ask_into(keys, &mut looks).await;
        // A connection that was idle may have been closed meanwhile: by a restart, or for being idle.
        if ended.is_err() && is_reused && looks.is_empty() {
            ended = self.ask_into(keys, &mut looks).await;
        }
        if let Err(why) = ended {
            let (now, why) = ((self.clock)(), why.to_string());
            looks.resize_with(keys.len(), || self.look(now, Seen::Failed(why.clone())));
        }
        looks
    }

    async fn ask_into(&mut self, keys: &[&[u8]], looks: &mut Vec<Look>) -> Result<(), CommandError> {
        let mut connection = match self.connection.take() {
            Some(mut connection) => {
                connection.set_timeout(self.timeout);
                connection
            }
            None => CommandConnection::connect(&*self.network, &self.address, LIMITS, self.timeout).await?,
        };
        let mut commands = Vec::new();
        for key in keys {
            commands.extend_from_slice(b"me ");
            commands.extend_from_slice(key);
            commands.extend_from_slice(b" a\r\n");
        }
        let sent_at = (self.clock)();
        self.questions += keys.len() as u64;
        connection.send(&commands).await?;
        for _ in keys {
            let seen = match connection.read_part().await? {
                ReplyPart::Reply(Reply::Meta(reply)) if reply.status == MetaStatus::Miss => Seen::Absent,
                ReplyPart::Reply(Reply::Meta(reply)) if reply.status == MetaStatus::Debug => {
                    parse_item(reply.flags).ok_or(CommandError::Malformed("the reply to me has no CAS unique"))?
                }
                ReplyPart::Reply(Reply::Error(error)) => Seen::Failed(error.to_string()),
                other => return Err(CommandError::Unexpected(format!("{other:?}"))),
            };
            looks.push(self.look(sent_at, seen));
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// The servers that a router reads the key from at present, with commas between them; `None` if it does not say, or
    /// has not answered before.
    pub(super) async fn find_servers(&mut self, key: &[u8]) -> Option<String> {
        let mut connection = self.connection.take()?;
        connection.set_timeout(self.timeout);
        self.questions += 1;
        connection.send(&[b"get __mcrouter__.route(get,", key, b")\r\n"].concat()).await.ok()?;
        let mut servers = None;
        let on_part = |part: ReplyPart<'_>| {
            if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
                servers = std::str::from_utf8(value).ok().map(|lines| lines.lines().collect::<Vec<_>>().join(","));
            }
        };
        connection.read_until_end(on_part).await.ok()?;
        self.connection = Some(connection);
        servers.filter(|servers| !servers.is_empty() && !servers.starts_with("ERROR"))
    }

    fn look(&self, sent_at: Moment, seen: Seen) -> Look {
        Look { from: self.address.0.to_string(), sent_at, received_at: (self.clock)(), seen, servers: None }
    }
}
