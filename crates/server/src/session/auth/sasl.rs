//! SASL, mechanism PLAIN (RFC 4616): a client sends user and password in one message, or in a second one when asked.
//!
//! ```text
//! authenticate PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! authenticate PLAIN  (nothing)                                  ->  continue
//!         step PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! ```
//!
//! The password is sent in the clear: use TLS or a trusted network. As in memcached, asking again for authentication or
//! for the mechanisms takes back what was granted. A client may try any number of times; [`super::credentials`] limits
//! how often passwords are checked.

use super::Authentication;
use super::credentials::{AuthResult, Credentials};
use crate::session::context::SessionContext;
use lookaside_protocol::binary::Status;
use lookaside_store::Now;

const MECHANISM: &str = "PLAIN";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SaslReply {
    pub(crate) status: Status,
    pub(crate) text: &'static str,
}

impl SaslReply {
    /// An error in memcached's words.
    fn error(status: Status) -> SaslReply {
        SaslReply { status, text: status.message() }
    }
}

pub(crate) fn list_mechanisms(authentication: &mut Authentication, users: Option<&Credentials>) -> SaslReply {
    if users.is_none() {
        return SaslReply::error(Status::UnknownCommand);
    }
    *authentication = Authentication::None;
    SaslReply { status: Status::Success, text: MECHANISM }
}

/// Handles a client's first message.
pub(crate) fn start(
    authentication: &mut Authentication,
    mechanism: &[u8],
    message: &[u8],
    context: &SessionContext<'_>,
    now: Now,
) -> SaslReply {
    let is_known = mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes());
    *authentication = if is_known { Authentication::InProgress } else { Authentication::None };
    if is_known && message.is_empty() && context.sasl_users.is_some() {
        return SaslReply { status: Status::AuthenticationContinues, text: "" };
    }
    step(authentication, message, context, now)
}

/// Checks user and password, if a mechanism has been agreed on.
pub(crate) fn step(
    authentication: &mut Authentication,
    message: &[u8],
    context: &SessionContext<'_>,
    now: Now,
) -> SaslReply {
    let Some(users) = context.sasl_users else { return SaslReply::error(Status::UnknownCommand) };
    let was_in_progress = std::mem::take(authentication) == Authentication::InProgress;
    context.counters.auth_cmds.add(1);
    let login = parse_plain(message).filter(|_| was_in_progress);
    if login.is_some_and(|(name, password)| users.verify(name, password, now) == AuthResult::Valid) {
        *authentication = Authentication::Done;
        return SaslReply { status: Status::Success, text: "Authenticated" };
    }
    context.refuse_login(login.map(|(name, _)| name), now);
    SaslReply::error(Status::AuthenticationFailed)
}

/// User and password of a PLAIN message. A user cannot be authorized as another one.
fn parse_plain(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = message.split(|&byte| byte == 0);
    let (authorized_as, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !name.is_empty() && (authorized_as.is_empty() || authorized_as == name);
    is_whole.then_some((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_message_has_three_parts_and_names_one_user() {
        assert_eq!(parse_plain(b"\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(parse_plain(b"ada\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(parse_plain(b"\0ada\0"), Some((&b"ada"[..], &b""[..])));
        for bad in [&b""[..], b"ada", b"ada\0secret", b"\0\0secret", b"root\0ada\0secret", b"\0ada\0secret\0", b"\0\0"]
        {
            assert_eq!(parse_plain(bad), None, "{:?}", bad.escape_ascii().to_string());
        }
    }
}
