//! Properties of outcomes by which routes decide: failure, miss, agreement, severity; and requests derived from others.

use crate::{ErrorKind, FailoverError, Failure, Outcome, Verb, key::is_encoded};
use bytes::Bytes;
use lookaside_protocol::{
    ErrorReply, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaStatus, MetaVerb},
};
use std::mem::discriminant;

/// Whether a server's error says that it is busy, in mcrouter's words (`SERVER_ERROR 307 busy`).
pub fn is_busy(error: &[u8]) -> bool {
    error.strip_prefix(b"307").is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b' '))
}

/// How a request has failed; `None` if it has not.
pub(crate) fn error_kind(outcome: &Outcome) -> Option<ErrorKind> {
    match outcome.as_ref().map_err(Failure::unnamed) {
        Ok(Reply::Error(ErrorReply::Server(why))) if is_busy(why) => Some(ErrorKind::Busy),
        Ok(Reply::Error(ErrorReply::Server(_) | ErrorReply::Unknown)) => Some(ErrorKind::RemoteError),
        Ok(Reply::Error(ErrorReply::Client(_))) => Some(ErrorKind::ClientError),
        Ok(_) | Err(Failure::Spooled) => None,
        Err(Failure::Tko(_)) => Some(ErrorKind::Tko),
        Err(Failure::ConnectFailed) => Some(ErrorKind::ConnectError),
        Err(Failure::ConnectTimedOut) => Some(ErrorKind::ConnectTimeout),
        Err(Failure::TimedOut | Failure::QueueTimedOut | Failure::DatagramLost { .. }) => Some(ErrorKind::Timeout),
        Err(Failure::Busy | Failure::TooManyPending { .. }) => Some(ErrorKind::Busy),
        Err(Failure::ConnectionLost | Failure::ReadFailed(_) | Failure::Malformed) => Some(ErrorKind::RemoteError),
        Err(_) => Some(ErrorKind::LocalError),
    }
}

/// Whether there is no reply, or an error line.
pub(crate) fn is_error(outcome: &Outcome) -> bool {
    matches!(outcome, Err(_) | Ok(Reply::Error(_)))
}

/// Whether a read missed; a lease is a miss, too. A meta get that creates the key on a miss (`N`) never misses.
pub(crate) fn is_miss(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::Miss | Reply::Lease { .. }) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::Miss,
        _ => false,
    }
}

/// Whether two outcomes are of one kind, apart from values and numbers. All failures agree. A spooled delete is not a
/// failure; it agrees with "not found".
pub(crate) fn outcomes_agree(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Err(Failure::Spooled), other) | (other, Err(Failure::Spooled)) => is_done(other),
        (Ok(Reply::Meta(one)), Ok(Reply::Meta(other))) => one.status == other.status,
        (Ok(Reply::Stored | Reply::StoredAs(_)), Ok(Reply::Stored | Reply::StoredAs(_))) => true,
        (Ok(one), Ok(other)) => discriminant(one) == discriminant(other),
        (Err(_), Err(_)) => true,
        _ => false,
    }
}

/// Whether a delete found no value, or was spooled.
fn is_done(outcome: &Outcome) -> bool {
    match outcome {
        Ok(Reply::NotFound) | Err(Failure::Spooled) => true,
        Ok(Reply::Meta(meta)) => meta.status == MetaStatus::NotFound,
        _ => false,
    }
}

/// Merges the outcomes of deletes of one key at two servers. A spooled delete must be visible above: a failover route
/// then deletes at its other children, too.
pub fn merge_deletes(one: Outcome, other: Outcome) -> Outcome {
    let is_spooled = [&one, &other].contains(&&Err(Failure::Spooled));
    match (is_failed_delete(&one), is_failed_delete(&other)) {
        (false, false) if is_spooled => Err(Failure::Spooled),
        // The second may be a classic delete. The client sent a meta command, and expects its reply.
        (false, false) if matches!(one, Ok(Reply::Meta(_))) && !matches!(other, Ok(Reply::Meta(_))) => one,
        _ => worse(one, other),
    }
}

/// Whether a delete with this outcome was neither applied nor spooled.
pub fn is_failed_delete(outcome: &Outcome) -> bool {
    is_error(outcome) && *outcome != Err(Failure::Spooled)
}

/// The worse outcome of one request to two children; of equals the first.
pub(crate) fn worse(one: Outcome, other: Outcome) -> Outcome {
    if severity(&other) > severity(&one) { other } else { one }
}

/// Compares replies to the same request, in mcrouter's order but for two: "deleted" is above "not found", so that a
/// delete that found a value anywhere reports it; and for `cas` "exists" is above "stored", as for all other verbs "not
/// done" is above "done".
///
/// | | |
/// |---|---|
/// | 0 to 3 | done, not found, deleted, not done |
/// | 4 | no answer: TKO, timeout, connect error, busy, shutdown |
/// | 5 | not attempted: deadline exceeded, aborted, bad key, bad value, and other results that are no error of a failover |
/// | 6 | an error of the server: `SERVER_ERROR`, `ERROR`, a lost connection |
/// | 7 | an error of the router: no route |
/// | 8 | an error of the client: `CLIENT_ERROR` |
///
/// An `ErrorRoute` stands where its result does.
fn severity(outcome: &Outcome) -> u8 {
    match outcome.as_ref().map_err(Failure::unnamed) {
        Ok(reply) => match reply {
            Reply::Value { .. }
            | Reply::Stored
            | Reply::StoredAs(_)
            | Reply::Touched
            | Reply::Number(_)
            | Reply::Ok => 0,
            Reply::NotFound => 1,
            Reply::Deleted => 2,
            Reply::Miss | Reply::Lease { .. } | Reply::StaleStored | Reply::NotStored | Reply::Exists => 3,
            Reply::Meta(meta) => match meta.status {
                MetaStatus::Value | MetaStatus::Debug => 0,
                MetaStatus::NotFound => 1,
                MetaStatus::Done => 2,
                MetaStatus::Miss | MetaStatus::NotStored | MetaStatus::Exists => 3,
            },
            Reply::Error(ErrorReply::Server(why)) if is_busy(why) => 4,
            Reply::Error(ErrorReply::Server(_) | ErrorReply::Unknown) => 6,
            Reply::Error(ErrorReply::Client(why)) if why == BAD_KEY => 5,
            Reply::Error(ErrorReply::Client(_)) => 8,
        },
        // It is replayed before the server is read; whether there was a value is not known.
        Err(Failure::Spooled) => 1,
        Err(Failure::ConnectionLost | Failure::ReadFailed(_) | Failure::Malformed) => 6,
        Err(Failure::NoRoute(_) | Failure::NoTree) => 7,
        Err(Failure::Refused { error, .. }) => match error {
            Some(FailoverError::LocalError) => 7,
            Some(FailoverError::RemoteError) => 6,
            Some(FailoverError::DeadlineExceeded) | None => 5,
            Some(_) => 4,
        },
        Err(_) => 4,
    }
}

/// The text of a `CLIENT_ERROR` about the key, mcrouter's and this router's.
const BAD_KEY: &str = "bad key";

/// An unconditional delete of the request's key, with the hold-off of the request if it is a delete.
pub fn as_delete(request: &Request<Bytes>) -> Request<Bytes> {
    let operation = match &request.operation {
        Operation::Delete { hold_off_ms } => Operation::Delete { hold_off_ms: *hold_off_ms },
        _ if is_encoded(request) => {
            Operation::Meta(MetaOperation { verb: MetaVerb::Delete, flags: Bytes::from_static(b"b"), value: None })
        }
        _ => Operation::Delete { hold_off_ms: 0 },
    };
    Request { key: request.key.clone(), operation }
}

pub(crate) fn as_get(request: &Request<Bytes>) -> Request<Bytes> {
    Request { key: request.key.clone(), operation: Operation::Get { cas: false } }
}

/// A store of a value that was read, under the key of `request`; `None` if no value was read.
pub(crate) fn as_store(
    request: &Request<Bytes>,
    read: &Outcome,
    mode: StoreMode,
    exptime: i64,
) -> Option<Request<Bytes>> {
    let Ok(Reply::Value { flags, value, .. }) = read else { return None };
    let operation = Operation::Store { mode, flags: *flags, exptime, value: value.clone(), cas: false };
    Some(Request { key: request.key.clone(), operation })
}

pub(crate) fn verb(request: &Request<Bytes>) -> Verb {
    Verb::of(&request.operation)
}

pub(crate) fn server_error(why: &'static str) -> Outcome {
    Ok(Reply::Error(ErrorReply::Server(Bytes::from_static(why.as_bytes()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, DatagramLoss, Health, HealthSettings, TkoReason};

    fn refused(error: Option<FailoverError>) -> Outcome {
        Err(Failure::Refused { text: "text".into(), error })
    }

    fn client_error(text: &'static str) -> Outcome {
        Ok(Reply::Error(ErrorReply::Client(Bytes::from_static(text.as_bytes()))))
    }

    #[test]
    fn the_worst_outcome_is_mcrouters() {
        let classes = [
            vec![Ok(Reply::Stored), Ok(Reply::Touched), Ok(Reply::Number(7))],
            vec![Ok(Reply::NotFound), Err(Failure::Spooled)],
            vec![Ok(Reply::Deleted)],
            vec![Ok(Reply::NotStored), Ok(Reply::Exists), Ok(Reply::Miss)],
            vec![
                Err(Failure::Tko(TkoReason::TimedOut)),
                Err(Failure::TimedOut),
                Err(Failure::ConnectFailed),
                server_error("307 busy"),
                refused(Some(FailoverError::Tko)),
                refused(Some(FailoverError::Timeout)),
                refused(Some(FailoverError::ConnectError)),
                refused(Some(FailoverError::ConnectTimeout)),
                refused(Some(FailoverError::Busy)),
                refused(Some(FailoverError::Shutdown)),
                refused(Some(FailoverError::TryAgain)),
            ],
            vec![refused(Some(FailoverError::DeadlineExceeded)), refused(None), client_error("bad key")],
            vec![
                server_error("out of memory"),
                Err(Failure::ConnectionLost),
                Err(Failure::Malformed),
                refused(Some(FailoverError::RemoteError)),
            ],
            vec![Err(Failure::NoTree), refused(Some(FailoverError::LocalError))],
            vec![client_error("bad command"), client_error("bad keys")],
        ];
        for (at, class) in classes.iter().enumerate() {
            for outcome in class {
                assert_eq!(usize::from(severity(outcome)), at, "{outcome:?}");
            }
        }
        let (deadline, broken) = (refused(Some(FailoverError::DeadlineExceeded)), server_error("broken"));
        assert_eq!(worse(deadline.clone(), broken.clone()), broken);
        assert_eq!(worse(broken.clone(), deadline), broken);
    }

    #[test]
    fn a_named_failure_is_of_the_kind_that_it_is_without_its_name() {
        let server = || Address("10.0.0.1:11211".into());
        let refusals = [None].into_iter().chain(FailoverError::ALL.map(Some));
        let failures = refusals.map(|error| Failure::Refused { text: "text".into(), error }).chain([
            Failure::Tko(TkoReason::TimedOut),
            Failure::ConnectFailed,
            Failure::ConnectTimedOut,
            Failure::Busy,
            Failure::TooManyPending { server: server(), requests_max: 7 },
            Failure::QueueTimedOut,
            Failure::NoRoute("no pool".into()),
            Failure::NoTree,
            Failure::TimedOut,
            Failure::ConnectionLost,
            Failure::ReadFailed(server()),
            Failure::Malformed,
            Failure::DatagramLost { server: server(), loss: DatagramLoss::LostOrLate },
        ]);
        for failure in failures {
            let named = Failure::OfServer { server: server(), failure: Box::new(failure.clone()) };
            assert_eq!(named.to_string(), format!("10.0.0.1:11211: {failure}"));
            assert_eq!((named.unnamed(), failure.unnamed()), (&failure, &failure));
            assert_eq!(named.is_timeout(), failure.is_timeout(), "{failure:?}");
            let (named, outcome) = (Err(named), Err(failure));
            assert_eq!(error_kind(&named), error_kind(&outcome), "{outcome:?}");
            assert_eq!(severity(&named), severity(&outcome), "{outcome:?}");
            assert_eq!(FailoverError::of(&named), FailoverError::of(&outcome), "{outcome:?}");
            let settings = HealthSettings { timeouts_until_tko: 1, ..HealthSettings::default() };
            let change = |outcome| Health::new(settings).on_outcome(outcome, 0);
            assert_eq!(change(&named), change(&outcome), "{outcome:?}");
        }
    }
}
