//! Splits hot shards of a key space: each host uses another copy of a shard, under keys that hash to other servers.
//!
//! ```text
//!   get user:4567:profile    host 0: user:4567:profile    host 1: user:4567aa:profile    host 2: user:4567ba:profile
//! ```
//!
//! | verb | effect |
//! |---|---|
//! | delete, with `fanout_deletes` | sent to all splits; the host's own is awaited, and its outcome returned |
//! | all others | sent under the key of the host's own split; the flag `k` of a meta command returns the client's key |
//!
//! The own split is the host's id modulo the number of splits (`support/shard_splits.rs`). Without `fanout_deletes` the
//! copies of other hosts keep their value after a delete, until it expires. While a number of splits changes, hosts
//! move to the new one in the order of their ids; a delete goes to the splits of both numbers, before and afterwards,
//! too: clocks differ.
//!
//! The other splits are deleted in the background, up to [`FAN_OUT_REQUESTS_MAX`] at a time. Their outcomes are
//! dropped, so a failed delete is lost unless the router has a spool. Without a background permit the caller waits for
//! all.
//!
//! A base64 key, and one that is too long for the letters, is not split.

use crate::{
    Batch, BoxFuture, Context, Outcomes, Route,
    cluster::support::shard_splits::{
        SPLIT_BYTES, ShardSplit, ShardSplits, key_in_split, key_of_split, parse_shard_splits,
    },
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    environment::{Background, Clock},
    key::{is_encoded, prefix_bytes, routing_key},
    meta::restore_client_key,
    outcome::verb,
    verb::Verb,
};
use bytes::Bytes;
use futures_util::future::join;
use lookaside_protocol::{KEY_BYTES_MAX, Request};
use std::sync::Arc;

/// The maximum number of deletes of other splits that are sent at a time: a batch of deletes may have 677 times as
/// many.
pub const FAN_OUT_REQUESTS_MAX: usize = 1_024;

/// A child in which hot shards are split.
pub struct ShardSplitRoute {
    destination: Arc<dyn Route>,
    splits: ShardSplits,
    host_id: u32,
    clock: Arc<dyn Clock>,
    background: Background,
}

impl ShardSplitRoute {
    /// Splits the shards of `destination` by `splits`; `host_id` chooses this host's split of each.
    pub fn new(
        destination: Arc<dyn Route>,
        splits: ShardSplits,
        host_id: u32,
        clock: Arc<dyn Clock>,
        background: Background,
    ) -> Self {
        ShardSplitRoute { destination, splits, host_id, clock, background }
    }

    /// How the shard of a request is split, and where its id ends in the key; `None` if it is not.
    fn split_of(&self, request: &Request<Bytes>) -> Option<(usize, ShardSplit)> {
        if is_encoded(request) || request.key.len() + SPLIT_BYTES > KEY_BYTES_MAX {
            return None;
        }
        let (id_end, split) = self.splits.of_key(&routing_key(request))?;
        Some((prefix_bytes(request) + id_end, split))
    }

    async fn route_splits(&self, mut batch: Batch, context: &Context) -> Outcomes {
        let unix_s = self.clock.unix_s();
        let keys: Vec<Bytes> = batch.iter().map(|request| request.key.clone()).collect();
        let mut fan_out = Vec::new();
        for request in &mut batch {
            let Some((id_end, split)) = self.split_of(request) else { continue };
            let own = self.host_id % split.size(self.host_id, unix_s);
            if split.fans_out_deletes && verb(request) == Verb::Delete {
                fan_out.push(SplitDelete { request: request.clone(), id_end, own, size: split.size_max() });
            }
            request.key = key_in_split(&request.key, id_end, own);
        }
        let own = self.destination.route(batch, context);
        let outcomes = match fan_out.is_empty() {
            true => own.await,
            false => {
                let others = delete_others(self.destination.clone(), fan_out, context.clone());
                match self.background.try_permit() {
                    Some(permit) => {
                        permit.spawn_rest(others);
                        own.await
                    }
                    None => join(own, others).await.0,
                }
            }
        };
        outcomes.into_iter().zip(&keys).map(|(outcome, key)| restore_client_key(outcome, key)).collect()
    }
}

/// A delete that is sent to all splits of its shard.
struct SplitDelete {
    /// With the client's key.
    request: Request<Bytes>,
    id_end: usize,
    own: u32,
    size: u32,
}

impl SplitDelete {
    /// The deletes of all splits but the own one.
    fn others(&self) -> impl Iterator<Item = Request<Bytes>> + Send {
        let splits = (0..self.size).filter(|split| *split != self.own);
        splits.map(|split| Request { key: key_in_split(&self.request.key, self.id_end, split), ..self.request.clone() })
    }
}

async fn delete_others(destination: Arc<dyn Route>, deletes: Vec<SplitDelete>, context: Context) {
    let mut others = deletes.iter().flat_map(SplitDelete::others);
    loop {
        let batch: Batch = others.by_ref().take(FAN_OUT_REQUESTS_MAX).collect();
        if batch.is_empty() {
            return;
        }
        destination.route(batch, &context).await;
    }
}

impl Route for ShardSplitRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match batch.iter().any(|request| self.split_of(request).is_some()) {
            true => Box::pin(self.route_splits(batch, context)),
            false => self.destination.route(batch, context),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("ShardSplitRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    destination: Handle,
    splits: ShardSplits,
}

const KEYS: Keys = Keys::known(&["type", "name", "destination", "shard_splits", "split_shard_fanout"]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    object.require("shard_splits", "an object with the splits of each shard")?;
    let destination = parser.parse_required(object, "destination")?;
    split_shards(destination, object, parser)
}

/// A node that splits the shards of `destination` by the key `shard_splits` of `object`; `destination` itself without
/// the key, or if shards are not to be split.
pub(crate) fn split_shards(
    destination: Handle,
    object: &Object<'_>,
    parser: &Parser<'_>,
) -> Result<Handle, ConfigurationError> {
    let Some(node) = object.get("shard_splits") else { return Ok(destination) };
    let splits = parse_shard_splits(&node, object)?;
    Ok(match parser.splits_shards() {
        true => Handle::route(Config { destination, splits }),
        false => destination,
    })
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn changes_keys(&self) -> bool {
        true
    }

    fn keys_changed_to(&self, changed: &[u8]) -> Vec<Bytes> {
        key_of_split(changed).into_iter().collect()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let destination = tree.build(&self.destination);
        if !self.splits.all_fan_out_deletes() {
            // Those of other hosts.
            tree.store_undeleted(&destination);
        }
        let environment = tree.environment();
        let (clock, background) = (environment.clock.clone(), environment.background.clone());
        Arc::new(ShardSplitRoute::new(destination, self.splits.clone(), environment.host_id, clock, background))
    }
}
