//! Copies of hot keys: each key is stored under several names, which hash to several servers.
//!
//! | verb | sent to | reply |
//! |---|---|---|
//! | get gets gat gats metaget lease-get | this host's copy | its outcome; after a miss of a `get` with `first_hit`: all other copies are asked, the first hit in their order |
//! | cas lease-set | this host's copy: it issued the CAS unique or the token | its outcome |
//! | set add replace append prepend touch incr decr | this host's copy; with `all_sync` all copies | the worst (`all_sync_route.rs`) |
//! | delete | all copies, awaited | an error if any failed; `DELETED` if any held the key |
//!
//! Copy 0 has the key's own name; copy n has the suffix `::n`, before `|#|` so that it hashes differently. Without
//! `all_sync` the other copies keep their old value after a set, as in mcrouter: that is for clients that delete after
//! a write (§2 of the paper), and for no others.
//!
//! A key whose name would exceed 250 bytes, and a base64 key, has copy 0 only.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    key::{is_encoded, up_to_hash_stop, with_hashed_suffix},
    meta::restore_client_key,
    outcome::{is_error, is_miss, verb, worse},
    split::route_some,
    verb::{Verb, VerbKind},
};
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, Request};
use memchr::memmem;
use std::sync::Arc;

/// The maximum number of copies of a key: a delete is sent to each.
pub const KEY_COPIES_MAX: usize = 1_000;

/// Copies of keys under one child.
pub struct KeySplitRoute {
    destination: Arc<dyn Route>,
    copies: usize,
    own_copy: usize,
    all_sync: bool,
    first_hit: bool,
}

impl KeySplitRoute {
    /// Keeps `copies` of each key in `destination`; `host_id` chooses this host's copy.
    ///
    /// # Panics
    /// With no copy, or more than [`KEY_COPIES_MAX`].
    pub fn new(destination: Arc<dyn Route>, copies: usize, host_id: u32, all_sync: bool, first_hit: bool) -> Self {
        assert!((1..=KEY_COPIES_MAX).contains(&copies), "{copies} copies");
        KeySplitRoute { destination, copies, own_copy: host_id as usize % copies, all_sync, first_hit }
    }

    /// The request for one copy; `None` if the key cannot have that copy.
    fn request_for_copy(request: &Request<Bytes>, copy: usize) -> Option<Request<Bytes>> {
        if copy == 0 {
            return Some(request.clone());
        }
        let key = with_hashed_suffix(&request.key, &format!("::{copy}"));
        let named = key.len() <= KEY_BYTES_MAX && !is_encoded(request);
        named.then(|| Request { key, operation: request.operation.clone() })
    }

    fn asks_all(&self, verb: Verb) -> bool {
        match (verb, verb.kind()) {
            (Verb::Cas | Verb::LeaseSet, _) | (_, VerbKind::Read) => false,
            (_, VerbKind::Delete) => true,
            (_, VerbKind::Update) => self.all_sync,
        }
    }

    async fn route_batch(&self, batch: Batch, context: &Context) -> Outcomes {
        let mut asked = Vec::with_capacity(batch.len());
        for (at, request) in batch.iter().enumerate() {
            if self.asks_all(verb(request)) {
                asked.extend((0..self.copies).filter_map(|copy| Some((at, Self::request_for_copy(request, copy)?))));
            } else {
                asked.push((at, Self::request_for_copy(request, self.own_copy).unwrap_or_else(|| request.clone())));
            }
        }
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.len()];
        for (at, outcome) in route_some(&*self.destination, asked, context).await {
            let so_far = outcomes[at].take();
            outcomes[at] = Some(so_far.into_iter().fold(outcome, |now, before| worse(before, now)));
        }
        let outcomes = outcomes.into_iter().map(|outcome| outcome.expect("copy 0 always exists")).collect();
        let outcomes = self.route_to_other_copies(&batch, outcomes, context).await;
        batch.iter().zip(outcomes).map(|(request, outcome)| restore_client_key(outcome, &request.key)).collect()
    }

    async fn route_to_other_copies(&self, batch: &Batch, mut outcomes: Outcomes, context: &Context) -> Outcomes {
        if !self.first_hit {
            return outcomes;
        }
        let missed =
            |at: &usize| verb(&batch[*at]) == Verb::Get && (is_miss(&outcomes[*at]) || is_error(&outcomes[*at]));
        let others = |at: usize| (0..self.copies).filter(|copy| *copy != self.own_copy).map(move |copy| (at, copy));
        let asked: Vec<_> = (0..batch.len())
            .filter(missed)
            .flat_map(others)
            .filter_map(|(at, copy)| Some((at, Self::request_for_copy(&batch[at], copy)?)))
            .collect();
        for (at, outcome) in route_some(&*self.destination, asked, context).await {
            let is_open = is_miss(&outcomes[at]) || is_error(&outcomes[at]);
            if is_open && !is_miss(&outcome) && !is_error(&outcome) {
                outcomes[at] = outcome;
            }
        }
        outcomes
    }
}

impl Route for KeySplitRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        match self.copies {
            1 => self.destination.route(batch, context),
            _ => Box::pin(self.route_batch(batch, context)),
        }
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("KeySplitRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    destination: Handle,
    copies: usize,
    all_sync: bool,
    first_hit: bool,
}

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&Keys::known(&["type", "name", "destination", "replicas", "all_sync", "first_hit"]))?;
    let copies = object.require("replicas", "the number of copies of a key")?;
    Ok(Handle::route(Config {
        copies: copies.integer("copies of a key", 1, KEY_COPIES_MAX as i64)? as usize,
        all_sync: object.flag("all_sync")?,
        first_hit: object.flag("first_hit")?,
        destination: parser.parse_required(object, "destination")?,
    }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn mcrouter_name(&self) -> String {
        "keysplit".to_owned()
    }

    fn changes_keys(&self) -> bool {
        true
    }

    fn keys_changed_to(&self, changed: &[u8]) -> Vec<Bytes> {
        let hashed = up_to_hash_stop(changed);
        let Some(own_bytes) = memmem::rfind(hashed, b"::") else { return Vec::new() };
        let is_copy = hashed[own_bytes + 2..].iter().all(u8::is_ascii_digit);
        let own = || [&hashed[..own_bytes], &changed[hashed.len()..]].concat().into();
        is_copy.then(own).into_iter().collect()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let destination = tree.build(&self.destination);
        let host_id = tree.environment().host_id;
        Arc::new(KeySplitRoute::new(destination, self.copies, host_id, self.all_sync, self.first_hit))
    }
}
