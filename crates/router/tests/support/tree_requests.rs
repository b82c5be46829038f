//! Requests of one key to a tree of routes, and the outcomes that tests of a router with a spool expect of them.

use bytes::Bytes;
use lookaside_protocol::{Operation, Reply, Request, StoreMode};
use lookaside_router::Tree;
use lookaside_routing::{Context, Failure, Outcome, TkoReason};

pub const GET: Operation<Bytes> = Operation::Get { cas: false };
pub const DELETE: Operation<Bytes> = Operation::Delete { hold_off_ms: 0 };

pub fn set(value: &str) -> Operation<Bytes> {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Operation::Store { mode: StoreMode::Set, flags: 0, exptime: 0, value, cas: false }
}

pub const NOT_FOUND: Outcome = Ok(Reply::NotFound);
pub const MISS: Outcome = Ok(Reply::Miss);
/// The server is TKO or fenced, for whatever reason: see [`without_reason`].
pub const TKO: Outcome = Err(Failure::Tko(TkoReason::Fenced));

pub fn value(text: &str) -> Outcome {
    Ok(Reply::Value { flags: 0, cas: None, value: Bytes::copy_from_slice(text.as_bytes()) })
}

/// Routes requests of one operation for several keys as one batch.
pub async fn request_batch(tree: &Tree, keys: &[&str], operation: Operation<Bytes>) -> Vec<Outcome> {
    let request = |key: &&str| Request { key: Bytes::copy_from_slice(key.as_bytes()), operation: operation.clone() };
    let batch = keys.iter().map(request).collect();
    tree.root().route(batch, &Context::default()).await.into_iter().map(without_reason).collect()
}

pub async fn request(tree: &Tree, key: &str, operation: Operation<Bytes>) -> Outcome {
    request_batch(tree, &[key], operation).await.remove(0)
}

/// The outcome with the same reason for every server that is TKO or fenced.
fn without_reason(outcome: Outcome) -> Outcome {
    outcome.map_err(|failure| match failure {
        Failure::Tko(_) => Failure::Tko(TkoReason::Fenced),
        failure => failure,
    })
}
