//! Flushes among the deletes of a batch: of the cluster, or of the servers that may hold keys with a prefix. Any router
//! does: which servers these are, and whether one that does not answer is fenced until it is flushed, routers know.
//!
//! | reply of a router | result |
//! |---|---|
//! | `OK`; `flushed N` | applied |
//! | `flushed 0` | the next router is asked: it may have a pool that is being rolled out. Unroutable if all of them say so |
//! | `refused: ...`, an error, none; a miss of a router that does not know flushes by prefix | the next router is asked; refused if none is left |
//! | none within the hedge delay | the next router is asked too |
//!
//! A flush and a delete need no order: both are sent after their commits are visible.

use super::{DeleteResult, Refusal, batch::RoutedBatch, routers::RouterDelivery};
use crate::keys::Flush;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lookaside_client::{CommandConnection, CommandError};
use lookaside_protocol::{
    KEY_BYTES_MAX, Reply,
    text::{Limits, ReplyPart},
};
use lookaside_routing::{Address, BoxFuture};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tokio::time::sleep;

/// How long a router may take to flush its cluster.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest reply to a flush.
const FLUSH_LIMITS: Limits = Limits { value_bytes_max: 8 << 10, line_bytes_max: 1024 };

/// In the reply of a router that flushes nothing.
const FLUSH_DISABLED: &str = "Command disabled";

/// The key of a router that flushes when it is read, without its argument.
const FLUSH_KEY: &str = "__mcrouter__.flush_prefix";
/// The longest argument. A shorter prefix flushes the same servers, or more.
const PREFIX_BYTES_MAX: usize = KEY_BYTES_MAX - FLUSH_KEY.len() - "()".len();

impl RouterDelivery {
    /// Deletes `keys`, and does each flush among them, once however often it is there.
    pub(super) async fn delete_and_flush(&self, keys: Vec<Bytes>) -> Vec<DeleteResult> {
        let plain_keys: Vec<Bytes> = keys.iter().filter(|key| Flush::parse(key).is_none()).cloned().collect();
        let mut plain_results = match plain_keys.is_empty() {
            true => Vec::new(),
            false => RoutedBatch::new(self, plain_keys).run().await,
        }
        .into_iter();
        let flushed = self.flush_each(keys.iter().filter_map(|key| Flush::parse(key)).collect()).await;
        let result_of = |key: &Bytes| match Flush::parse(key) {
            Some(flush) => flushed[&flush].clone(),
            None => plain_results.next().expect("a batch has one result for each key"),
        };
        keys.iter().map(result_of).collect()
    }

    /// The results of these flushes. One of the cluster does for all.
    async fn flush_each<'a>(&self, flushes: BTreeSet<Flush<'a>>) -> BTreeMap<Flush<'a>, DeleteResult> {
        if flushes.contains(&Flush::Cluster) {
            let flushed = self.flush_cluster().await.map_or_else(DeleteResult::Refused, |()| DeleteResult::Applied);
            return flushes.into_iter().map(|flush| (flush, flushed.clone())).collect();
        }
        let mut results = BTreeMap::new();
        for flush in flushes {
            let Flush::Prefix(prefix) = flush else { unreachable!("none is of the cluster") };
            results.insert(flush, self.flush_prefix(prefix).await);
        }
        results
    }

    /// Flushes the servers that may hold keys with this prefix.
    async fn flush_prefix(&self, prefix: &[u8]) -> DeleteResult {
        let without_pool = AtomicUsize::new(0);
        let flushed =
            self.ask_routers(|router| Box::pin(self.flush_prefix_through(router, prefix, &without_pool))).await;
        match flushed {
            Ok(()) => DeleteResult::Applied,
            Err(why) if without_pool.load(Ordering::Relaxed) == self.router_count() => DeleteResult::Unroutable(why),
            Err(why) => DeleteResult::Refused(why),
        }
    }

    /// Fails also if the router has no pool for such keys, which it adds to `without_pool`.
    async fn flush_prefix_through(
        &self,
        router: &Address,
        prefix: &[u8],
        without_pool: &AtomicUsize,
    ) -> Result<(), Refusal> {
        let shown = String::from_utf8_lossy(prefix);
        let why = match self.request_flush(router, prefix).await {
            Ok(Some(reply)) if reply == "flushed 0" => {
                without_pool.fetch_add(1, Ordering::Relaxed);
                return Err(format!("router {router}: no server can hold keys that begin with {shown:?}"));
            }
            Ok(Some(reply)) if reply.starts_with("flushed ") => return Ok(()),
            Ok(Some(reply)) => reply,
            Ok(None) => "it is of a version without flushes of pools; update it".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!("router {router}: flush of the pools of keys that begin with {shown:?}: {why}"))
    }

    /// A router's reply to a flush by prefix; `None` if it knows no such flush.
    async fn request_flush(&self, router: &Address, prefix: &[u8]) -> Result<Option<String>, CommandError> {
        let prefix = &prefix[..prefix.len().min(PREFIX_BYTES_MAX)];
        let command = [b"get ", FLUSH_KEY.as_bytes(), b"(", prefix, b")\r\n"].concat();
        let mut connection = CommandConnection::connect(self.network(), router, FLUSH_LIMITS, FLUSH_TIMEOUT).await?;
        connection.send(&command).await?;
        let mut reply = None;
        connection
            .read_until_end(|part| {
                if let ReplyPart::Item { reply: Reply::Value { value, .. }, .. } = part {
                    reply = Some(String::from_utf8_lossy(value).into_owned());
                }
            })
            .await?;
        Ok(reply)
    }

    async fn flush_cluster_through(&self, router: &Address) -> Result<(), Refusal> {
        let flushed = match CommandConnection::connect(self.network(), router, FLUSH_LIMITS, FLUSH_TIMEOUT).await {
            Ok(mut connection) => connection.flush_all(None).await,
            Err(error) => Err(error),
        };
        flushed.map_err(|why| match why {
            CommandError::Refused(why) if why.contains(FLUSH_DISABLED) => format!(
                "router {router} refuses flush_all ({why}): start the routers of the cluster with --enable-flush-cmd"
            ),
            why => format!("router {router}: flush_all: {why}"),
        })
    }

    /// As [`Delivery::flush`](super::Delivery::flush).
    pub(super) async fn flush_cluster(&self) -> Result<(), Refusal> {
        self.ask_routers(|router| Box::pin(self.flush_cluster_through(router))).await
    }

    /// The first success of the routers. Each is asked when the one before it refuses, or has not answered within the
    /// hedge delay: a flush that two routers do costs hits, and one that waits for a hung router leaves old values.
    async fn ask_routers<'a, T>(
        &'a self,
        ask: impl Fn(&'a Address) -> BoxFuture<'a, Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let mut routers = self.in_order().into_iter();
        let mut next = routers.next();
        let mut asked = FuturesUnordered::new();
        loop {
            asked.extend(next.take().map(|at| ask(self.router(at).address())));
            tokio::select! {
                biased;
                Some(answer) = asked.next() => match answer {
                    Ok(done) => return Ok(done),
                    Err(refusal) => {
                        next = routers.next();
                        if next.is_none() && asked.is_empty() {
                            return Err(refusal);
                        }
                    }
                },
                () = sleep(self.hedge_delay), if routers.len() > 0 => next = routers.next(),
            }
        }
    }
}
