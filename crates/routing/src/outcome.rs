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
pub(crate) fn outcomes_agree(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Err(Failure::Spooled), other) | (other, Err(Failure::Spooled)) => is_done(other),
        (Ok(Reply::Meta(one)), Ok(Reply::Meta(other))) => one.status == other.status,
        (Ok(one), Ok(other)) => discriminant(one) == discriminant(other),
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

/// Whether a delete found nothing, or is kept for its server.
fn is_done(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::NotFound) | Err(Failure::Spooled) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::NotFound,
        _ => false,
    }
}

/// The answer to one request that several children were asked: the worse one, the earlier one of equals.
pub(crate) fn worse(one: Outcome, other: Outcome) -> Outcome {
    if severity(&other) > severity(&one) { other } else { one }
}

/// Only the order among replies to the same request counts. Done comes behind not found, so that a delete which found
/// something somewhere says so; for all other verbs "not done" comes behind "done".
fn severity(outcome: &Outcome) -> u8 {
    match outcome {
        Ok(reply) => match reply {
            Reply::Value { .. } | Reply::Stored | Reply::Touched | Reply::Number(_) | Reply::Ok => 0,
            Reply::NotFound => 1,
            Reply::Deleted => 2,
            Reply::Miss | Reply::Lease { .. } | Reply::StaleStored | Reply::NotStored | Reply::Exists => 3,
            Reply::Meta(meta) => match meta.status {
                MetaStatus::Value | MetaStatus::Debug => 0,
                MetaStatus::NotFound => 1,
                MetaStatus::Done => 2,
                MetaStatus::Miss | MetaStatus::NotStored | MetaStatus::Exists => 3,
            },
            Reply::Error(_) => 4,
        },
        // It will be gone from there before anybody looks; whether there was anything is not known.
        Err(Failure::Spooled) => 1,
        Err(_) => 5,
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
