//! `append` and `prepend` where values may be split: the server would append the bytes to the manifest.
//!
//! ```text
//!   append k x    gets k    no manifest   append k x, at the server
//!                           a manifest    its chunks, mg k t   ->   cas k, with x, in new chunks   EXISTS: again
//! ```
//!
//! A value that is gone, or misses a chunk, is `NOT_STORED`, as usual. A value that lives longer than 30 days lives 30
//! days from the append on.
//!
//! Accepted: a large value that another client stores between the get and the append is corrupted; its next reader may
//! see its manifest.

use super::{BigValueRoute, Manifest};
use crate::{
    Batch, Context, Outcome, Outcomes,
    cluster::staging_route::{time_left_request, time_left_s},
    outcome::{is_error, server_error},
    split::route_some,
};
use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};

/// How often an append to a split value is tried while other clients change the value.
const TRIES_MAX: usize = 5;

impl BigValueRoute {
    /// Executes appends to different keys.
    pub(super) async fn append(&self, batch: Batch, context: &Context) -> Outcomes {
        let found = self.get_manifests(&batch, context).await;
        let mut outcomes = found.clone();
        let mut small = Vec::new();
        for (at, found) in found.into_iter().enumerate() {
            match found {
                Ok(Reply::Value { flags, ref value, .. }) if Manifest::parse(flags, value).is_some() => {
                    outcomes[at] = self.append_to_chunks(&batch[at], found, context).await;
                }
                found if is_error(&found) => {}
                _ => small.push((at, batch[at].clone())),
            }
        }
        for (at, outcome) in route_some(&*self.target, small, context).await {
            outcomes[at] = outcome;
        }
        outcomes
    }

    async fn get_manifests(&self, batch: &[Request<Bytes>], context: &Context) -> Outcomes {
        let as_gets =
            |request: &Request<Bytes>| Request { key: request.key.clone(), operation: Operation::Get { cas: true } };
        self.target.route(batch.iter().map(as_gets).collect(), context).await
    }

    /// Appends to a split value; `found` is its manifest.
    async fn append_to_chunks(&self, request: &Request<Bytes>, mut found: Outcome, context: &Context) -> Outcome {
        for _ in 0..TRIES_MAX {
            let outcome = self.try_to_append(request, found, context).await;
            if outcome != Ok(Reply::Exists) {
                return outcome;
            }
            found = self.get_manifests(std::slice::from_ref(request), context).await.remove(0);
        }
        server_error("a split value changed too often to append to it")
    }

    async fn try_to_append(&self, request: &Request<Bytes>, found: Outcome, context: &Context) -> Outcome {
        let mut found = vec![found];
        self.join(std::slice::from_ref(request), &mut found, context).await;
        let (flags, cas, value) = match found.remove(0) {
            Ok(Reply::Value { flags, cas: Some(cas), value }) => (flags, cas, value),
            Ok(Reply::Value { .. }) => return server_error("the reply for a split value has no CAS unique"),
            outcome if is_error(&outcome) => return outcome,
            _ => return Ok(Reply::NotStored),
        };
        let left = self.target.route(vec![time_left_request(request)], context).await.remove(0);
        let Some(exptime) = time_left_s(&left) else {
            return server_error("the exptime of a split value is not known: nothing was appended");
        };
        let value = extended_value(&value, &request.operation);
        let returns_cas = matches!(request.operation, Operation::Store { cas: true, .. });
        let mode = StoreMode::Cas(cas);
        let operation = Operation::Store { mode, flags, exptime, value, cas: returns_cas };
        let store = Request { key: request.key.clone(), operation };
        match self.route_batch(vec![store], context).await.remove(0) {
            Ok(Reply::NotFound) => Ok(Reply::NotStored),
            outcome => outcome,
        }
    }
}

fn extended_value(value: &Bytes, operation: &Operation<Bytes>) -> Bytes {
    match operation {
        Operation::Store { mode: StoreMode::Append, value: more, .. } => [&value[..], more].concat().into(),
        Operation::Store { mode: StoreMode::Prepend, value: more, .. } => [&more[..], value].concat().into(),
        _ => unreachable!("only appends are extended"),
    }
}
