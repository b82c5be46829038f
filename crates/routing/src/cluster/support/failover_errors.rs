//! Which outcomes make a failover route ask the next child, by the names that mcrouter gives them.
//!
//! | name | outcome here |
//! |---|---|
//! | `tko` | [`Failure::Tko`] |
//! | whatever is named, none too | [`Failure::Spooled`]: reads may have gone to the others before, by whatever error |
//! | `connect_error`, `connect_timeout` | [`Failure::ConnectFailed`], [`Failure::ConnectTimedOut`] |
//! | `timeout` | [`Failure::TimedOut`] |
//! | `busy` | [`Failure::Busy`] |
//! | `local_error` | [`Failure::NoRoute`] |
//! | `remote_error` | `SERVER_ERROR`, [`Failure::ConnectionLost`], [`Failure::Malformed`] |
//! | `shutdown`, `try_again`, `deadline_exceeded` | none: a memcached server cannot say it |
//!
//! Never a failover: a miss, a refusal (`NOT_STORED`), `ERROR` and `CLIENT_ERROR`: another server would say the same.

use crate::{
    Failure, Outcome,
    configuration::{ConfigurationError, Keys, Node, Object, suggestion},
    verb::Kind,
};
use lookaside_protocol::{ErrorReply, Reply};

/// A kind of failure that a configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverError {
    /// `tko`
    Tko,
    /// `connect_error`
    ConnectError,
    /// `connect_timeout`
    ConnectTimeout,
    /// `timeout`
    Timeout,
    /// `busy`
    Busy,
    /// `local_error`
    LocalError,
    /// `remote_error`
    RemoteError,
    /// `shutdown`
    Shutdown,
    /// `try_again`
    TryAgain,
    /// `deadline_exceeded`
    DeadlineExceeded,
}

impl FailoverError {
    /// All of them: mcrouter's default.
    pub const ALL: [FailoverError; 10] = [
        FailoverError::Tko,
        FailoverError::ConnectError,
        FailoverError::ConnectTimeout,
        FailoverError::Timeout,
        FailoverError::Busy,
        FailoverError::LocalError,
        FailoverError::RemoteError,
        FailoverError::Shutdown,
        FailoverError::TryAgain,
        FailoverError::DeadlineExceeded,
    ];

    /// The name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            FailoverError::Tko => "tko",
            FailoverError::ConnectError => "connect_error",
            FailoverError::ConnectTimeout => "connect_timeout",
            FailoverError::Timeout => "timeout",
            FailoverError::Busy => "busy",
            FailoverError::LocalError => "local_error",
            FailoverError::RemoteError => "remote_error",
            FailoverError::Shutdown => "shutdown",
            FailoverError::TryAgain => "try_again",
            FailoverError::DeadlineExceeded => "deadline_exceeded",
        }
    }

    /// The kind of failure that an outcome is, if it is one.
    pub(crate) fn of(outcome: &Outcome) -> Option<FailoverError> {
        match outcome {
            Ok(Reply::Error(ErrorReply::Server(_))) => Some(FailoverError::RemoteError),
            Ok(_) => None,
            Err(Failure::Tko | Failure::Spooled) => Some(FailoverError::Tko),
            Err(Failure::ConnectFailed) => Some(FailoverError::ConnectError),
            Err(Failure::ConnectTimedOut) => Some(FailoverError::ConnectTimeout),
            Err(Failure::TimedOut) => Some(FailoverError::Timeout),
            Err(Failure::Busy) => Some(FailoverError::Busy),
            Err(Failure::NoRoute(_)) => Some(FailoverError::LocalError),
            Err(Failure::ConnectionLost | Failure::Malformed) => Some(FailoverError::RemoteError),
        }
    }
}

/// A set of [`FailoverError`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverErrorSet(u16);

impl FailoverErrorSet {
    /// Every one: the default.
    pub const ALL: FailoverErrorSet = FailoverErrorSet((1 << FailoverError::ALL.len()) - 1);
    /// None: never fail over.
    pub const NONE: FailoverErrorSet = FailoverErrorSet(0);

    /// Whether `error` is among them.
    pub fn contains(self, error: FailoverError) -> bool {
        self.0 & 1 << error as u16 != 0
    }
}

impl FromIterator<FailoverError> for FailoverErrorSet {
    fn from_iter<I: IntoIterator<Item = FailoverError>>(errors: I) -> Self {
        FailoverErrorSet(errors.into_iter().fold(0, |set, error| set | 1 << error as u16))
    }
}

/// The errors that count, by what the request was about.
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
    /// The same set whatever the request was about.
    pub fn same(set: FailoverErrorSet) -> Self {
        FailoverErrors { gets: set, updates: set, deletes: set }
    }

    /// Whether `outcome` of such a request makes the next child be asked.
    pub fn triggers_failover(&self, kind: Kind, outcome: &Outcome) -> bool {
        if *outcome == Err(Failure::Spooled) {
            return true;
        }
        let set = match kind {
            Kind::Read => self.gets,
            Kind::Update => self.updates,
            Kind::Delete => self.deletes,
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

/// Parses a list of names.
pub(crate) fn parse_error_set(node: &Node<'_>) -> Result<FailoverErrorSet, ConfigurationError> {
    let names = FailoverError::ALL.map(FailoverError::name);
    let named = |node: &Node<'_>| {
        let text = node.string("the name of an error, such as \"timeout\"")?;
        let error = FailoverError::ALL.into_iter().find(|error| error.name() == text);
        error.ok_or_else(|| node.error(format!("no error is named {text:?}{}", suggestion(text, "errors", names))))
    };
    node.array("a list of errors")?.iter().map(named).collect()
}
