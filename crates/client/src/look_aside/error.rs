//! Why an operation of the client failed.

use lookaside_protocol::{ErrorReply, KeyError, Reply};
use lookaside_routing::{Failure, Outcome};
use std::fmt;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The key is invalid; nothing was sent.
    BadKey(KeyError),
    /// No server replied.
    Failed(Failure),
    /// A server replied with an error line.
    Refused {
        /// Its message.
        why: String,
    },
    /// A server's reply was not one of the operation's.
    Unexpected {
        /// The operation.
        operation: &'static str,
    },
    /// A router that takes leases for plain clients did not store the value: this client has not missed the key, or the
    /// value may be older than a delete.
    NotStored,
    /// The client's deadline has passed ([`Client::with_deadline`](crate::Client::with_deadline)). Whether a set, fill
    /// or delete was executed is unknown.
    DeadlineExceeded,
}

impl std::error::Error for ClientError {}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::BadKey(error) => write!(f, "bad key: {error}"),
            ClientError::Failed(failure) => write!(f, "no reply from the cache: {failure}"),
            ClientError::Refused { why } => write!(f, "the cache refused: {why}"),
            ClientError::Unexpected { operation } => write!(f, "unexpected reply to {operation}"),
            ClientError::NotStored => f.write_str("not stored: the value was not read under a lease of its key"),
            ClientError::DeadlineExceeded => write!(f, "the deadline has passed"),
        }
    }
}

/// The error of an outcome that the operation does not have.
pub(super) fn unexpected(operation: &'static str, outcome: Outcome) -> ClientError {
    match outcome {
        Err(failure) => ClientError::Failed(failure),
        Ok(Reply::Error(ErrorReply::Unknown)) => ClientError::Refused { why: format!("it does not know {operation}") },
        Ok(Reply::Error(error)) => ClientError::Refused { why: error.to_string() },
        Ok(_) => ClientError::Unexpected { operation },
    }
}
