//! The outcomes after which a failover route asks the next child, by mcrouter's names.
//!
//! | name | outcome here |
//! |---|---|
//! | `tko` | [`Failure::Tko`] |
//! | all sets, also the empty one | [`Failure::Spooled`]: earlier reads may have gone to the others after any error |
//! | `connect_error`, `connect_timeout` | [`Failure::ConnectFailed`], [`Failure::ConnectTimedOut`] |
//! | `timeout` | [`Failure::TimedOut`], [`Failure::QueueTimedOut`] |
//! | `busy` | [`Failure::Busy`], [`Failure::TooManyPending`], `SERVER_ERROR 307` and any text |
//! | `local_error` | [`Failure::NoRoute`], [`Failure::NoTree`] |
//! | `remote_error` | any other `SERVER_ERROR`, `ERROR`, [`Failure::ConnectionLost`], [`Failure::ReadFailed`], [`Failure::Malformed`] |
//! | `shutdown`, `try_again`, `deadline_exceeded` | none: a memcached server does not report these |
//! | each | [`Failure::Refused`] by an `ErrorRoute` with that `result` |
//!
//! Never a failover: a miss, a refusal (`NOT_STORED`) and `CLIENT_ERROR`: another server would reply the same. Nor is
//! [`Failure::DatagramLost`]: the server has not failed, and may have granted a lease.

use crate::{
    FailoverError, Failure, Outcome,
    configuration::{ConfigurationError, Keys, Node, Object, suggestion},
    outcome::is_busy,
    verb::VerbKind,
};
use lookaside_protocol::{ErrorReply, Reply};

impl FailoverError {
    /// The kind of failure of an outcome; `None` if it is not a failure.
    pub(crate) fn of(outcome: &Outcome) -> Option<FailoverError> {
        match outcome {
            Err(Failure::OfServer { failure, .. }) => FailoverError::of(&Err((**failure).clone())),
            Ok(Reply::Error(ErrorReply::Server(why))) if is_busy(why) => Some(FailoverError::Busy),
            Ok(Reply::Error(ErrorReply::Server(_) | ErrorReply::Unknown)) => Some(FailoverError::RemoteError),
            Ok(_) => None,
            Err(Failure::Tko(_) | Failure::Spooled) => Some(FailoverError::Tko),
            Err(Failure::ConnectFailed) => Some(FailoverError::ConnectError),
            Err(Failure::ConnectTimedOut) => Some(FailoverError::ConnectTimeout),
            Err(Failure::TimedOut | Failure::QueueTimedOut) => Some(FailoverError::Timeout),
            Err(Failure::Busy | Failure::TooManyPending { .. }) => Some(FailoverError::Busy),
            Err(Failure::NoRoute(_) | Failure::NoTree) => Some(FailoverError::LocalError),
            Err(Failure::Refused { error, .. }) => *error,
            Err(Failure::DatagramLost { .. }) => None,
            Err(Failure::ConnectionLost | Failure::ReadFailed(_) | Failure::Malformed) => {
                Some(FailoverError::RemoteError)
            }
        }
    }
}

/// A set of [`FailoverError`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverErrorSet(u16);

impl FailoverErrorSet {
    /// All errors: the default.
    pub const ALL: FailoverErrorSet = FailoverErrorSet((1 << FailoverError::ALL.len()) - 1);
    /// No error: never fail over.
    pub const NONE: FailoverErrorSet = FailoverErrorSet(0);

    /// Whether the set has `error`.
    pub fn contains(self, error: FailoverError) -> bool {
        self.0 & 1 << error as u16 != 0
    }
}

impl FromIterator<FailoverError> for FailoverErrorSet {
    fn from_iter<I: IntoIterator<Item = FailoverError>>(errors: I) -> Self {
        FailoverErrorSet(errors.into_iter().fold(0, |set, error| set | 1 << error as u16))
    }
}

/// The errors that count, by the kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverErrors {
    /// For verbs that read.
    pub gets: FailoverErrorSet,
    /// For verbs that change a value.
    pub updates: FailoverErrorSet,
    /// For `delete`.
    pub deletes: FailoverErrorSet,
}

impl Default for FailoverErrors {
    fn default() -> Self {
        FailoverErrors::same(FailoverErrorSet::ALL)
    }
}

impl FailoverErrors {
    /// The same set for all kinds of requests.
    pub fn same(set: FailoverErrorSet) -> Self {
        FailoverErrors { gets: set, updates: set, deletes: set }
    }

    /// Whether the next child is asked after `outcome` of a request of this kind.
    pub fn triggers_failover(&self, kind: VerbKind, outcome: &Outcome) -> bool {
        if *outcome == Err(Failure::Spooled) {
            return true;
        }
        let set = match kind {
            VerbKind::Read => self.gets,
            VerbKind::Update => self.updates,
            VerbKind::Delete => self.deletes,
        };
        FailoverError::of(outcome).is_some_and(|error| set.contains(error))
    }
}

/// Parses the key `failover_errors`: a list of names, or a list for each of `gets`, `updates`, `deletes`.
pub(crate) fn parse_failover_errors(object: &Object<'_>) -> Result<FailoverErrors, ConfigurationError> {
    let Some(node) = object.get("failover_errors") else { return Ok(FailoverErrors::default()) };
    if !node.is_object() {
        return parse_error_set(&node).map(FailoverErrors::same);
    }
    let object = node.object("failover errors")?;
    object.check(&Keys::known(&["gets", "updates", "deletes"]))?;
    let of = |kind| object.get(kind).map_or(Ok(FailoverErrorSet::ALL), |node| parse_error_set(&node));
    Ok(FailoverErrors { gets: of("gets")?, updates: of("updates")?, deletes: of("deletes")? })
}

pub(crate) fn parse_error_set(node: &Node<'_>) -> Result<FailoverErrorSet, ConfigurationError> {
    let names = FailoverError::ALL.map(FailoverError::name);
    let named = |node: &Node<'_>| {
        let text = node.string("the name of an error, such as \"timeout\"")?;
        let error = FailoverError::ALL.into_iter().find(|error| error.name() == text);
        error.ok_or_else(|| node.error(format!("no error is named {text:?}{}", suggestion(text, "errors", names))))
    };
    node.array("a list of errors")?.iter().map(named).collect()
}
