//! Reads and deletes cached values, by a router of the cluster.

use super::{backoff::Backoff, cached_value::CachedValue, comparison::CachedItem, queries::FlagsMeaning};
use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use lookaside_client::{CommandConnection, Network};
use lookaside_invalidator::options::Cluster;
use lookaside_protocol::{
    Reply,
    meta::{MetaStatus, OBSERVER_OPAQUE},
    text::{Limits, ReplyPart},
};
use lookaside_routing::Address;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const LIMITS: Limits = Limits { value_bytes_max: 64 << 20, line_bytes_max: 4_096 };
const TIMEOUT: Duration = Duration::from_secs(5);

/// A cluster, by its routers.
pub struct AuditedCluster {
    pub name: String,
    routers: Vec<Address>,
    network: Arc<dyn Network>,
    /// To which router, and its connection; `None` before the first request, and after a failure.
    connection: Option<(Address, CommandConnection)>,
    backoff: Backoff,
}

impl AuditedCluster {
    pub fn new(cluster: &Cluster, network: &Arc<dyn Network>) -> AuditedCluster {
        let routers = cluster.routers.iter().map(|router| Address(router.as_str().into())).collect();
        AuditedCluster {
            name: cluster.name.clone(),
            routers,
            network: network.clone(),
            connection: None,
            backoff: Backoff::default(),
        }
    }

    /// Whether no router has answered lately, so that none is to be asked now.
    pub fn is_backing_off(&self) -> bool {
        self.backoff.is_waiting(Instant::now())
    }

    /// The item of `key`, whose flags mean `flags`; `None` if none is cached. It is not touched; the server counts a
    /// get. A router takes no lease after a miss, and fills nothing.
    pub async fn read(&mut self, key: &[u8], flags: FlagsMeaning) -> Result<Option<CachedItem>> {
        let command = [b"mg ", key, b" v c f u O", OBSERVER_OPAQUE, b"\r\n"].concat();
        let read = |reply: &ReplyPart<'_>| match reply {
            ReplyPart::Reply(Reply::Meta(reply)) if reply.status == MetaStatus::Miss => Ok(None),
            // Marked as stale by `md` with `I`: readers are not shown it as a value.
            ReplyPart::Reply(Reply::Meta(reply)) if reply.flag(b'X').is_some() => Ok(None),
            ReplyPart::Reply(Reply::Meta(reply)) if reply.status == MetaStatus::Value => {
                let number = |name: u8| reply.flag(name).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                let cas = number(b'c').ok_or_else(|| anyhow!("the reply to mg has no CAS unique"))?;
                let item_flags = number(b'f').and_then(|flags: u64| u32::try_from(flags).ok());
                let item_flags = item_flags.ok_or_else(|| anyhow!("the reply to mg has no flags"))?;
                let value = Bytes::copy_from_slice(reply.value.unwrap_or_default());
                Ok(Some(CachedItem { cas, value: CachedValue::decode(value, item_flags, flags) }))
            }
            other => Err(unexpected(other)),
        };
        self.ask(&command, read).await
    }

    /// Deletes `key`, as an application would.
    pub async fn delete(&mut self, key: &[u8]) -> Result<()> {
        let command = [b"delete ", key, b"\r\n"].concat();
        let read = |reply: &ReplyPart<'_>| match reply {
            ReplyPart::Reply(Reply::Deleted | Reply::NotFound) => Ok(()),
            other => Err(unexpected(other)),
        };
        self.ask(&command, read).await
    }

    /// Sends a command to one router, or to the others in turn if it does not answer.
    async fn ask<T>(&mut self, command: &[u8], read: impl Fn(&ReplyPart<'_>) -> Result<T>) -> Result<T> {
        let mut last = anyhow!("cluster {} has no routers", self.name);
        for attempt in 0..=self.routers.len() {
            let (router, mut connection) = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    let router = &self.routers[attempt % self.routers.len()];
                    match CommandConnection::connect(&*self.network, router, LIMITS, TIMEOUT).await {
                        Ok(connection) => (router.clone(), connection),
                        Err(why) => {
                            last = anyhow!("cluster {}, router {}: {why}", self.name, router.0);
                            continue;
                        }
                    }
                }
            };
            connection.set_timeout(TIMEOUT);
            let answer = match connection.send(command).await {
                Ok(()) => connection.read_part().await,
                Err(why) => Err(why),
            };
            match answer {
                Ok(reply) => {
                    let place = || format!("cluster {}, router {}", self.name, router.0);
                    let result = read(&reply).with_context(place);
                    self.connection = Some((router, connection));
                    self.backoff.reset();
                    return result;
                }
                Err(why) => last = anyhow!("cluster {}, router {}: {why}", self.name, router.0),
            }
        }
        self.backoff.fail(Instant::now());
        Err(last)
    }
}

fn unexpected(reply: &ReplyPart<'_>) -> anyhow::Error {
    match reply {
        ReplyPart::Reply(Reply::Error(error)) => anyhow!("{error}"),
        other => anyhow!("unexpected reply: {other:?}"),
    }
}
