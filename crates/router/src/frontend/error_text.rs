//! The errors of the router's own making, as clients see them. They begin with mcrouter's words, by which programs
//! recognize them. None has the key: error messages end in logs.
//!
//! | failure | text, behind `SERVER_ERROR ` |
//! |---|---|
//! | connecting failed | `AsyncSocketException: connect failed` |
//! | connecting took too long | `Timed out when trying to connect to server. Ex: ...` |
//! | the connection ended | `Connection closed by the server.` |
//! | reading from it failed | `Failed to read from socket with remote endpoint SERVER` |
//! | no reply in time | `Reply timeout` |
//! | not sent in time | `Client queue timeout` |
//! | TKO, fenced | `Server unavailable. Reason: ...` |
//! | too many requests wait for it | `Max pending requests (N) reached for destination SERVER` |
//! | a limit of a route | `307 busy` |
//! | no tree for the prefix | `RootRoute: No rh found` |
//! | an `ErrorRoute` | its text |
//!
//! `ERROR` of a server, which does not know the command, becomes an error of this kind, too ([`UNKNOWN_COMMAND`]): a
//! client could take a bare `ERROR` for one about its own command.
//!
//! [`UNKNOWN_COMMAND`]: lookaside_routing::UNKNOWN_COMMAND

use lookaside_routing::Failure;
use std::borrow::Cow;

/// In place of every error, with `--group-remote-errors`.
pub(super) const GROUPED: &str = "remote error";

/// The text of a failure.
pub(super) fn error_text(failure: &Failure) -> Cow<'static, str> {
    match failure {
        Failure::ConnectFailed => "AsyncSocketException: connect failed".into(),
        Failure::ConnectTimedOut => "Timed out when trying to connect to server. Ex: connect timed out".into(),
        Failure::ConnectionLost => "Connection closed by the server.".into(),
        Failure::ReadFailed(server) => format!("Failed to read from socket with remote endpoint {server}").into(),
        Failure::TimedOut => "Reply timeout".into(),
        Failure::QueueTimedOut => "Client queue timeout".into(),
        Failure::Tko(reason) => format!("Server unavailable. Reason: {}", reason.name()).into(),
        Failure::TooManyPending { server, requests_max } => {
            format!("Max pending requests ({requests_max}) reached for destination {server}").into()
        }
        Failure::Busy => "307 busy".into(),
        Failure::Refused { text, .. } => text.to_string().into(),
        Failure::NoTree
        | Failure::NoRoute(_)
        | Failure::Malformed
        | Failure::DatagramLost { .. }
        | Failure::Spooled => failure.to_string().into(),
        Failure::OfServer { failure, .. } => error_text(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_routing::{Address, TkoReason};

    #[test]
    fn texts_begin_with_mcrouters_words() {
        let server = || Address("10.0.0.1:11211".into());
        for (failure, expected) in [
            (Failure::Tko(TkoReason::TimedOut), "Server unavailable. Reason: mc_res_timeout"),
            (Failure::Tko(TkoReason::ConnectFailed), "Server unavailable. Reason: mc_res_connect_error"),
            (Failure::Tko(TkoReason::ConnectTimedOut), "Server unavailable. Reason: mc_res_connect_timeout"),
            (
                Failure::TooManyPending { server: server(), requests_max: 7 },
                "Max pending requests (7) reached for destination 10.0.0.1:11211",
            ),
            (Failure::ReadFailed(server()), "Failed to read from socket with remote endpoint 10.0.0.1:11211"),
            (Failure::ConnectTimedOut, "Timed out when trying to connect to server. Ex: connect timed out"),
            (Failure::QueueTimedOut, "Client queue timeout"),
            (Failure::NoTree, "RootRoute: No rh found"),
            (Failure::Busy, "307 busy"),
        ] {
            assert_eq!(error_text(&failure), expected);
            let named = Failure::OfServer { server: server(), failure: Box::new(failure) };
            assert_eq!(error_text(&named), expected);
        }
    }
}
