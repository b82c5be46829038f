//! SASL, mechanism PLAIN (RFC 4616): a client sends user and password in one message, or in a second one when asked.
//!
//! ```text
//! authenticate PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! authenticate PLAIN  (nothing)                                  ->  continue
//!         step PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! ```
//!
//! The password is sent in the clear: use TLS or a trusted network. As in memcached, asking again for authentication or
//! for the mechanisms takes back what was granted. A client may try any number of times; [`crate::credentials`] limits
//! how often passwords are checked.

use crate::credentials::{AuthResult, Credentials};
use crate::{Authentication, LoginAttempt};
use lookaside_protocol::binary::{
    BinaryCommand, BinaryParsed, HEADER_BYTES, ResponseTag, Status, opcode, parse_request, peek_tag,
};
use lookaside_protocol::text::Limits;

const MECHANISM: &str = "PLAIN";

/// The reply to a request that authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaslReply<'a> {
    /// The response's status.
    pub status: Status,
    /// The response's value.
    pub text: &'static str,
    /// The login that was tried; `None` if there was none.
    pub attempt: Option<LoginAttempt<'a>>,
}

impl SaslReply<'_> {
    fn new(status: Status, text: &'static str) -> SaslReply<'static> {
        SaslReply { status, text, attempt: None }
    }

    /// An error in memcached's words.
    fn error(status: Status) -> SaslReply<'static> {
        SaslReply::new(status, status.message())
    }
}

/// Whether a request authenticates, and so changes what its connection may do.
pub fn is_authentication(command: &BinaryCommand<'_>) -> bool {
    matches!(
        command,
        BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. }
    )
}

/// Whether requests with this opcode authenticate.
pub fn is_authentication_opcode(opcode: u8) -> bool {
    matches!(opcode, opcode::SASL_MECHANISMS | opcode::SASL_AUTHENTICATE | opcode::SASL_STEP)
}

/// The request at the front of `input`, if a client that has not authenticated may not send it. Known as soon as its
/// header has arrived. Such a client may ask for the version, and authenticate.
pub fn find_forbidden(input: &[u8], limits: &Limits) -> Option<ResponseTag> {
    let tag = peek_tag(input)?;
    match parse_request(&input[..HEADER_BYTES], limits) {
        // These errors take precedence, as in memcached.
        BinaryParsed::NotBinary | BinaryParsed::Bad { status: Status::UnknownCommand, close: true, .. } => return None,
        _ => {}
    }
    match tag.opcode {
        opcode::VERSION => None,
        opcode => (!is_authentication_opcode(opcode)).then_some(tag),
    }
}

/// Executes a request that authenticates; `None` for any other. Without `users` there is no such command.
pub fn authenticate<'a>(
    authentication: &mut Authentication,
    command: &BinaryCommand<'a>,
    users: Option<&Credentials>,
    now_ms: u64,
) -> Option<SaslReply<'a>> {
    let reply = match (command, users) {
        (command, None) if is_authentication(command) => SaslReply::error(Status::UnknownCommand),
        (BinaryCommand::Mechanisms, _) => {
            *authentication = Authentication::None;
            SaslReply::new(Status::Success, MECHANISM)
        }
        (BinaryCommand::Authenticate { mechanism, message }, Some(users)) => {
            start(authentication, mechanism, message, users, now_ms)
        }
        (BinaryCommand::AuthenticateStep { message, .. }, Some(users)) => step(authentication, message, users, now_ms),
        _ => return None,
    };
    Some(reply)
}

/// Handles a client's first message.
fn start<'a>(
    authentication: &mut Authentication,
    mechanism: &[u8],
    message: &'a [u8],
    users: &Credentials,
    now_ms: u64,
) -> SaslReply<'a> {
    let is_known = mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes());
    *authentication = if is_known { Authentication::InProgress } else { Authentication::None };
    if is_known && message.is_empty() {
        return SaslReply::new(Status::AuthenticationContinues, "");
    }
    step(authentication, message, users, now_ms)
}

/// Checks user and password, if a mechanism has been agreed on.
fn step<'a>(authentication: &mut Authentication, message: &'a [u8], users: &Credentials, now_ms: u64) -> SaslReply<'a> {
    let was_in_progress = std::mem::take(authentication) == Authentication::InProgress;
    let login = parse_plain(message).filter(|_| was_in_progress);
    if login.is_some_and(|(name, password)| users.verify(name, password, now_ms) == AuthResult::Valid) {
        *authentication = Authentication::Done;
        let attempt = Some(LoginAttempt::Accepted);
        return SaslReply { attempt, ..SaslReply::new(Status::Success, "Authenticated") };
    }
    let attempt = Some(LoginAttempt::Refused { user: login.map(|(name, _)| name) });
    SaslReply { attempt, ..SaslReply::error(Status::AuthenticationFailed) }
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
