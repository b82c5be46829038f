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
    key::{is_encoded, prefix_bytes},
    meta::answer_with_key,
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

    fn changed(&self, request: &Request<Bytes>) -> Bytes {
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
                request.key = self.changed(&request);
            }
            if request.key.len() <= KEY_BYTES_MAX {
                asked.push((at, request));
            }
        }
        for (at, outcome) in ask_some(&*self.target, asked, context).await {
            outcomes[at] = answer_with_key(outcome, &keys[at]);
        }
        outcomes
    }
}

impl Route for ModifyKeyRoute {
    fn route<'a>(&'a self, batch: Batch, context: &'a Context) -> BoxFuture<'a, Outcomes> {
        Box::pin(self.modify(batch, context))
    }
}
