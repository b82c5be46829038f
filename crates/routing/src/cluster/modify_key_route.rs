//! Changes the keys of requests to one child.
//!
//! | verb | effect |
//! |---|---|
//! | all | sent under the changed key; the flag `k` of a meta command returns the client's key |
//! | all, if the changed key exceeds 250 bytes | `SERVER_ERROR`; that request is not sent |
//!
//! In this order: `replace_key_prefix` at the start of the key is replaced by `ensure_key_prefix`; otherwise
//! `ensure_key_prefix` is prepended unless the key starts with it, or with `modify_inplace` overwrites the first bytes
//! of a key that is at least as long; `set_key_suffix` is appended; `set_routing_prefix` replaces the routing prefix
//! (empty: removes it). The start of a key is behind its routing prefix. A suffix behind `|#|` does not move the key to
//! another server.
//!
//! Two keys that differ only in overwritten bytes become one: `modify_inplace` is for keys that reserve them.
//!
//! A base64 key (meta flag `b`) is not changed: the client adds its own prefixes.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route, RoutingPrefix,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    key::{is_encoded, prefix_bytes},
    meta::restore_client_key,
    outcome::server_error,
    split::route_some,
};
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, Request};
use std::sync::Arc;

/// The changes to a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The new routing prefix: `None` keeps the old one, `Some(None)` removes it.
    pub routing_prefix: Option<Option<RoutingPrefix>>,
    /// The prefix of every changed key.
    pub ensure_prefix: String,
    /// A prefix that `ensure_prefix` replaces.
    pub replace_prefix: Option<String>,
    /// Whether `ensure_prefix` overwrites the first bytes of a key that is at least as long, instead of being
    /// prepended.
    pub is_in_place: bool,
    /// The suffix of every changed key.
    pub suffix: String,
}

/// A child with changed keys.
pub struct ModifyKeyRoute {
    target: Arc<dyn Route>,
    change: KeyChange,
}

impl ModifyKeyRoute {
    /// Sends requests to `target` with changed keys.
    pub fn new(target: Arc<dyn Route>, change: KeyChange) -> Self {
        ModifyKeyRoute { target, change }
    }

    fn changed_key(&self, request: &Request<Bytes>) -> Bytes {
        let change = &self.change;
        let (routing_prefix, key) = request.key.split_at(prefix_bytes(request));
        let routing_prefix = match &change.routing_prefix {
            None => routing_prefix,
            Some(None) => b"",
            Some(Some(prefix)) => prefix.as_str().as_bytes(),
        };
        let ensured = change.ensure_prefix.as_bytes();
        let (front, rest) = match &change.replace_prefix {
            Some(replaced) if key.starts_with(replaced.as_bytes()) => (ensured, &key[replaced.len()..]),
            _ if key.starts_with(ensured) => (&b""[..], key),
            _ if change.is_in_place && key.len() >= ensured.len() => (ensured, &key[ensured.len()..]),
            _ => (ensured, key),
        };
        [routing_prefix, front, rest, change.suffix.as_bytes()].concat().into()
    }

    async fn modify(&self, batch: Batch, context: &Context) -> Outcomes {
        let too_long = server_error("ModifyKeyRoute: invalid key: too long");
        let mut outcomes: Vec<Outcome> = vec![too_long; batch.len()];
        let mut asked = Vec::with_capacity(batch.len());
        let mut keys = Vec::with_capacity(batch.len());
        for (at, mut request) in batch.into_iter().enumerate() {
            keys.push(request.key.clone());
            if !is_encoded(&request) {
                request.key = self.changed_key(&request);
            }
            match request.key.len() {
                0 => outcomes[at] = server_error("ModifyKeyRoute: invalid key: missing"),
                1..=KEY_BYTES_MAX => asked.push((at, request)),
                _ => {}
            }
        }
        for (at, outcome) in route_some(&*self.target, asked, context).await {
            outcomes[at] = restore_client_key(outcome, &keys[at]);
        }
        outcomes
    }
}

impl Route for ModifyKeyRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.modify(batch, context))
    }
}

pub(crate) const TYPE: RouteType = RouteType::new("ModifyKeyRoute", parse);

#[derive(Debug, PartialEq)]
struct Config {
    target: Handle,
    change: KeyChange,
}

const KEYS: Keys = Keys::known(&[
    "type",
    "name",
    "target",
    "set_routing_prefix",
    "ensure_key_prefix",
    "replace_key_prefix",
    "set_key_suffix",
    "modify_inplace",
]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let text = |key: &str| match object.get(key) {
        None => Ok(None),
        Some(node) => {
            let text = node.string("a part of a key")?;
            match text.bytes().all(|byte| byte.is_ascii_graphic() || byte >= 0x80) {
                true => Ok(Some(text.to_owned())),
                false => Err(node.error("a key has no spaces and no control characters: expected none")),
            }
        }
    };
    let routing_prefix = match object.get("set_routing_prefix") {
        None => None,
        Some(node) => match node.string("a routing prefix such as \"/region/cluster/\", or \"\"")? {
            "" => Some(None),
            text => Some(Some(RoutingPrefix::parse(text).map_err(|error| node.error(error.to_string()))?)),
        },
    };
    let change = KeyChange {
        routing_prefix,
        ensure_prefix: text("ensure_key_prefix")?.unwrap_or_default(),
        replace_prefix: text("replace_key_prefix")?,
        is_in_place: object.flag("modify_inplace")?,
        suffix: text("set_key_suffix")?.unwrap_or_default(),
    };
    if change.replace_prefix.is_some() && object.get("ensure_key_prefix").is_none() {
        return Err(object.node.error("\"replace_key_prefix\" needs its successor: expected \"ensure_key_prefix\""));
    }
    if change.is_in_place
        && let Some(node) = object.get("replace_key_prefix")
    {
        return Err(node.error("\"modify_inplace\" overwrites any prefix: expected one of both"));
    }
    Ok(Handle::route(Config { target: parser.parse_required(object, "target")?, change }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn changes_keys(&self) -> bool {
        true
    }

    fn keys_changed_to(&self, changed: &[u8]) -> Vec<Bytes> {
        let KeyChange { ensure_prefix, replace_prefix, suffix, is_in_place, .. } = &self.change;
        let Some(ensured) = changed.strip_suffix(suffix.as_bytes()) else { return Vec::new() };
        let Some(rest) = ensured.strip_prefix(ensure_prefix.as_bytes()) else { return Vec::new() };
        let replaced = replace_prefix.iter().map(|prefix| [prefix.as_bytes(), rest].concat());
        let other = |byte: u8| if byte == b'0' { b'1' } else { b'0' };
        let overwritten = is_in_place.then(|| ensure_prefix.bytes().map(other).chain(rest.iter().copied()).collect());
        let keys = [ensured.to_vec(), rest.to_vec()].into_iter().chain(replaced).chain(overwritten);
        keys.map(Bytes::from).collect()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        let target = tree.build(&self.target);
        if self.change.is_in_place {
            // Routes above this one may choose by the bytes that it overwrites, so their keys are unknown.
            tree.store_undeleted(&target);
        }
        Arc::new(ModifyKeyRoute::new(target, self.change.clone()))
    }
}
