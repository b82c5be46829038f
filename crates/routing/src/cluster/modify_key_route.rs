//! Changes keys on their way to one child.
//!
//! | verb | effect |
//! |---|---|
//! | all | handed on under the changed key; a meta command's `k` is answered with the key that the client sent |
//! | all, where the key gets longer than 250 bytes | `CLIENT_ERROR`, and nobody is asked for that key |
//!
//! In this order: `replace_key_prefix` at the key's start becomes `ensure_key_prefix`; else `ensure_key_prefix` is put in
//! front unless the key starts with it; `set_key_suffix` is appended; `set_routing_prefix` takes the place of the routing
//! prefix (empty: takes it off). What is a key's start comes behind its routing prefix. Appended behind `|#|`, a suffix
//! does not move the key to another server.
//!
//! A base64 key (meta flag `b`) is handed on as it is: its client sees to its own prefixes.

use crate::{
    Batch, BoxFuture, Context, Outcome, Outcomes, Route, RoutingPrefix,
    configuration::{ConfigurationError, Handle, Keys, Object, Parser, RouteConfig, RouteType, TreeBuilder},
    key::{is_encoded, prefix_bytes},
    meta::restore_client_key,
    outcome::client_error,
    split::ask_some,
};
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, Request};
use std::sync::Arc;

/// What is changed in a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// The routing prefix from here on; `Some(None)` for none.
    pub routing_prefix: Option<Option<RoutingPrefix>>,
    /// What every key starts with from here on.
    pub ensure_prefix: String,
    /// What `ensure_prefix` takes the place of.
    pub replace_prefix: Option<String>,
    /// What every key ends with from here on.
    pub suffix: String,
}

/// One child, which knows keys by other names.
pub struct ModifyKeyRoute {
    target: Arc<dyn Route>,
    change: KeyChange,
}

impl ModifyKeyRoute {
    /// Hands requests on to `target` with their keys changed.
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
            _ => (ensured, key),
        };
        [routing_prefix, front, rest, change.suffix.as_bytes()].concat().into()
    }

    async fn modify(&self, batch: Batch, context: &Context) -> Outcomes {
        let too_long = || client_error("the key is too long once it is changed");
        let mut outcomes: Vec<Outcome> = batch.iter().map(|_| too_long()).collect();
        let mut asked = Vec::with_capacity(batch.len());
        let mut keys = Vec::with_capacity(batch.len());
        for (at, mut request) in batch.into_iter().enumerate() {
            keys.push(request.key.clone());
            if !is_encoded(&request) {
                request.key = self.changed_key(&request);
            }
            if request.key.len() <= KEY_BYTES_MAX {
                asked.push((at, request));
            }
        }
        for (at, outcome) in ask_some(&*self.target, asked, context).await {
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
])
.refusing(&["modify_inplace"]);

fn parse<'a>(object: &Object<'a>, parser: &mut Parser<'a>) -> Result<Handle, ConfigurationError> {
    object.check(&KEYS)?;
    let text = |key: &str| match object.get(key) {
        None => Ok(None),
        Some(node) => {
            let text = node.string("a piece of a key")?;
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
        suffix: text("set_key_suffix")?.unwrap_or_default(),
    };
    if change.replace_prefix.is_some() && object.get("ensure_key_prefix").is_none() {
        return Err(object
            .node
            .error("\"replace_key_prefix\" stands alone: expected \"ensure_key_prefix\", its successor"));
    }
    Ok(Handle::route(Config { target: parser.required(object, "target")?, change }))
}

impl RouteConfig for Config {
    fn name(&self) -> &'static str {
        TYPE.name()
    }

    fn build(&self, tree: &mut dyn TreeBuilder) -> Arc<dyn Route> {
        Arc::new(ModifyKeyRoute::new(tree.build(&self.target), self.change.clone()))
    }
}
