//! What routes ask of an outcome: was it a failure, was something there, who is worse.

use crate::{Failure, Outcome, Verb};
use bytes::Bytes;
use lookaside_protocol::{ErrorReply, Operation, Reply, Request, StoreMode, meta::MetaStatus};
use std::mem::discriminant;

/// Whether nothing was heard, or an error line.
pub(crate) fn is_error(outcome: &Outcome) -> bool {
    matches!(outcome, Err(_) | Ok(Reply::Error(_)))
}

/// Whether a read found nothing; a lease says so too. A meta get that creates what it misses (`N`) never misses.
pub(crate) fn is_miss(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Miss | Reply::Lease { .. }) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::Miss,
        _ => false,
    }
}

/// Whether two outcomes say the same, values and numbers aside. All failures do; a kept delete is none, but as if
/// nothing had been found.
pub(crate) fn agree(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Err(Failure::Spooled), other) | (other, Err(Failure::Spooled)) => is_settled(other),
        (Ok(Reply::Meta(one)), Ok(Reply::Meta(other))) => one.status == other.status,
        (Ok(one), Ok(other)) => discriminant(one) == discriminant(other),
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

/// Whether a delete found nothing, or is kept for its server.
fn is_settled(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::NotFound) | Err(Failure::Spooled) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::NotFound,
        _ => false,
    }
}

/// A plain get of a request's key.
pub(crate) fn as_get(request: &Request<Bytes>) -> Request<Bytes> {
    Request { key: request.key.clone(), operation: Operation::Get { cas: false } }
}

/// A store of a value that was read, under the key of `request`; nothing if no value was read.
pub(crate) fn as_store(
    request: &Request<Bytes>,
    read: &Outcome,
    mode: StoreMode,
    exptime: i64,
) -> Option<Request<Bytes>> {
    let Ok(Reply::Value { flags, value, .. }) = read else { return None };
    let operation = Operation::Store { mode, flags: *flags, exptime, value: value.clone() };
    Some(Request { key: request.key.clone(), operation })
}

/// The verb of a request.
pub(crate) fn verb(request: &Request<Bytes>) -> Verb {
    Verb::of(&request.operation)
}

/// A refusal that names the client's mistake.
pub(crate) fn client_error(why: &'static str) -> Outcome {
    Ok(Reply::Error(ErrorReply::Client(Bytes::from_static(why.as_bytes()))))
}
