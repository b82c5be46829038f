//! Why an operation of the client failed.

use lookaside_protocol::{ErrorReply, KeyError, Reply};
use lookaside_routing::{Address, DatagramLoss, Failure, Outcome, UNKNOWN_COMMAND};
use std::fmt;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The key is invalid; nothing was sent.
    BadKey(KeyError),
    /// No server replied.
    Failed(Failure),
    /// A lookup was sent by UDP, and a datagram was lost, late or out of order (§3.1 of the paper): it is a miss that
    /// must not be filled, as the server may have granted a lease that no client knows.
    /// [`Client::read`](crate::Client::read) does so.
    DatagramLost {
        /// The server.
        server: Address,
        /// What is known of the datagram.
        loss: DatagramLoss,
    },
    /// A server replied with an error line.
    Refused {
        /// Its message.
        why: String,
    },
    /// A server does not know the operation: a plain memcached knows no leases.
    UnknownCommand {
        /// The operation.
        operation: &'static str,
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
            ClientError::DatagramLost { server, loss } => write!(f, "no reply from the cache: {loss} ({server})"),
            ClientError::Refused { why } => write!(f, "the cache refused: {why}"),
            ClientError::UnknownCommand { operation } => write!(f, "the cache refused: it does not know {operation}"),
            ClientError::Unexpected { operation } => write!(f, "unexpected reply to {operation}"),
            ClientError::NotStored => f.write_str("not stored: the value was not read under a lease of its key"),
            ClientError::DeadlineExceeded => write!(f, "the deadline has passed"),
        }
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> ClientError {
        match failure {
            Failure::DatagramLost { server, loss } => ClientError::DatagramLost { server, loss },
            failure => ClientError::Failed(failure),
        }
    }
}

/// The error of an outcome that the operation does not have.
pub(super) fn unexpected(operation: &'static str, outcome: Outcome) -> ClientError {
    match outcome {
        Err(failure) => ClientError::from(failure),
        Ok(Reply::Error(ErrorReply::Unknown)) => ClientError::UnknownCommand { operation },
        Ok(Reply::Error(ErrorReply::Server(why))) if why == UNKNOWN_COMMAND => {
            ClientError::UnknownCommand { operation }
        }
        Ok(Reply::Error(error)) => ClientError::Refused { why: error.to_string() },
        Ok(_) => ClientError::Unexpected { operation },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_operation_differs_from_a_refusal() {
        let error = |reply| unexpected("lease-get", Ok(Reply::Error(reply)));
        let of_router = |why: &'static str| error(ErrorReply::Server(why.into()));
        let unknown = ClientError::UnknownCommand { operation: "lease-get" };
        assert_eq!(error(ErrorReply::Unknown), unknown);
        assert_eq!(of_router(UNKNOWN_COMMAND), unknown, "a router says so of its server");
        assert_eq!(of_router("Reply timeout"), ClientError::Refused { why: "Reply timeout".to_owned() });
        assert_eq!(unknown.to_string(), "the cache refused: it does not know lease-get");
    }

    #[test]
    fn a_lost_datagram_names_its_server() {
        let server = || Address("10.0.0.1:11211".into());
        for (loss, expected) in [
            (DatagramLoss::LostOrLate, "no reply from the cache: no reply by UDP in time (10.0.0.1:11211)"),
            (
                DatagramLoss::OutOfOrder,
                "no reply from the cache: a datagram of the reply by UDP was lost or overtaken (10.0.0.1:11211)",
            ),
        ] {
            let error = ClientError::from(Failure::DatagramLost { server: server(), loss });
            assert_eq!(error, ClientError::DatagramLost { server: server(), loss });
            assert_eq!(error.to_string(), expected);
        }
    }
}
