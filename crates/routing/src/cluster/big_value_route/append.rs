//! `append` and `prepend` where values may lie in pieces: the server would put the new bytes to the head.
//!
//! ```text
//!   append k x    gets k    no head    append k x, at the server
//!                           a head     its pieces, mg k t   ->   cas k, with x, in new pieces   EXISTS: again
//! ```
//!
//! A value that is gone, or misses a piece, is `NOT_STORED`, as ever. What lives longer than 30 days lives 30 days from then on.
//!
//! Accepted: a large value that another client stores between the look and the append is spoilt; its next reader may see its head.

use super::{BigValueRoute, Manifest};
use crate::{
    Batch, Context, Outcome, Outcomes,
    cluster::staging_route::{time_left_request, time_left_s},
    outcome::is_error,
    split::ask_some,
};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Operation, Reply, Request, StoreMode};

/// How often a value in pieces may change under whoever appends to it before he is told so.
const TRIES_MAX: usize = 5;

/// Whether a request adds to what is there.
pub(super) fn is_append(request: &Request<Bytes>) -> bool {
    matches!(request.operation, Operation::Store { mode: StoreMode::Append | StoreMode::Prepend, .. })
}

impl BigValueRoute {
    /// Carries out appends to different keys.
    pub(super) async fn append(&self, batch: Batch, context: &Context) -> Outcomes {
        let found = self.get_manifests(&batch, context).await;
        let mut outcomes = found.clone();
        let mut small = Vec::new();
        for (at, found) in found.into_iter().enumerate() {
            match found {
                Ok(Reply::Value { flags, ref value, .. }) if Manifest::read(flags, value).is_some() => {
                    outcomes[at] = self.append_to_chunks(&batch[at], found, context).await;
                }
                found if is_error(&found) => {}
                _ => small.push((at, batch[at].clone())),
            }
        }
        for (at, outcome) in ask_some(&*self.target, small, context).await {
            outcomes[at] = outcome;
        }
        outcomes
    }

    async fn get_manifests(&self, batch: &[Request<Bytes>], context: &Context) -> Outcomes {
        let get_manifests =
            |request: &Request<Bytes>| Request { key: request.key.clone(), operation: Operation::Get { cas: true } };
        self.target.route(batch.iter().map(get_manifests).collect(), context).await
    }

    /// `found` is the head.
    async fn append_to_chunks(&self, request: &Request<Bytes>, mut found: Outcome, context: &Context) -> Outcome {
        for _ in 0..TRIES_MAX {
            let outcome = self.try_to_append(request, found, context).await;
            if outcome != Ok(Reply::Exists) {
                return outcome;
            }
            found = self.get_manifests(std::slice::from_ref(request), context).await.remove(0);
        }
        refused("a value in pieces was changed by others, too often to append to it")
    }

    async fn try_to_append(&self, request: &Request<Bytes>, found: Outcome, context: &Context) -> Outcome {
        let mut found = vec![found];
        self.join(std::slice::from_ref(request), &mut found, context).await;
        let (flags, cas, value) = match found.remove(0) {
            Ok(Reply::Value { flags, cas: Some(cas), value }) => (flags, cas, value),
            Ok(Reply::Value { .. }) => return refused("no CAS unique came with a value in pieces"),
            outcome if is_error(&outcome) => return outcome,
            _ => return Ok(Reply::NotStored),
        };
        let left = self.target.route(vec![time_left_request(request)], context).await.remove(0);
        let Some(exptime) = time_left_s(&left) else {
            return refused("how long a value in pieces lives is not known: nothing was appended");
        };
        let value = extended_value(&value, &request.operation);
        let operation = Operation::Store { mode: StoreMode::Cas(cas), flags, exptime, value };
        let store = Request { key: request.key.clone(), operation };
        match self.ask(vec![store], context).await.remove(0) {
            Ok(Reply::NotFound) => Ok(Reply::NotStored),
            outcome => outcome,
        }
    }
}

fn extended_value(value: &Bytes, operation: &Operation<Bytes>) -> Bytes {
    match operation {
        Operation::Store { mode: StoreMode::Append, value: more, .. } => [&value[..], more].concat().into(),
        Operation::Store { mode: StoreMode::Prepend, value: more, .. } => [&more[..], value].concat().into(),
        _ => unreachable!("only appends come here"),
    }
}

fn refused(why: &'static str) -> Outcome {
    Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(why.as_bytes()))))
}
