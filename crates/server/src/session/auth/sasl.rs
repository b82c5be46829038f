//! SASL, mechanism PLAIN (RFC 4616): a client says who it is, in one word or, if it waits to be asked, in two.
//!
//! ```text
//! authenticate PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! authenticate PLAIN  (nothing)                                  ->  go on
//!         step PLAIN  [authorized as] NUL user NUL password      ->  Authenticated | Auth failure.
//! ```
//!
//! The password travels as it is: use TLS, or a network of your own. As in memcached, asking again for authentication or
//! for the mechanisms takes back what was granted, and a client may try as often as it likes; how often a password is
//! looked at is rationed in [`crate::session::auth::credentials`].

use crate::session::auth::credentials::{AuthResult, Credentials};
use crate::session::binary::BinaryStep;
use crate::session::context::SessionContext;
use lookaside_protocol::binary::{ResponseTag, Status};
use lookaside_store::Now;

const MECHANISM: &str = "PLAIN";

/// How far a client has come in saying who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Authentication {
    /// It has said nothing, or nothing right.
    #[default]
    None,
    /// It has named the mechanism and waits to be asked.
    InProgress,
    /// It may ask for anything.
    Done,
}

impl Authentication {
    /// Whether the client may ask for anything.
    pub(crate) fn is_done(self) -> bool {
        self == Authentication::Done
    }

    /// Which mechanisms there are.
    pub(crate) fn list_mechanisms<'b>(&mut self, tag: ResponseTag, users: Option<&Credentials>) -> BinaryStep<'b> {
        if users.is_none() {
            return BinaryStep::refuse(tag, Status::UnknownCommand, false);
        }
        *self = Authentication::None;
        BinaryStep::Reply { tag, status: Status::Success, text: MECHANISM, close: false }
    }

    /// A client's first word.
    pub(crate) fn start<'b>(
        &mut self,
        tag: ResponseTag,
        mechanism: &[u8],
        word: &[u8],
        context: &SessionContext<'_>,
        now: Now,
    ) -> BinaryStep<'b> {
        let is_known = mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes());
        *self = if is_known { Authentication::InProgress } else { Authentication::None };
        if is_known && word.is_empty() && context.sasl.is_some() {
            return BinaryStep::Reply { tag, status: Status::AuthenticationContinues, text: "", close: false };
        }
        self.verify_plain(tag, word, context, now)
    }

    /// A client's second word.
    pub(crate) fn step<'b>(
        &mut self,
        tag: ResponseTag,
        _mechanism: &[u8],
        word: &[u8],
        context: &SessionContext<'_>,
        now: Now,
    ) -> BinaryStep<'b> {
        self.verify_plain(tag, word, context, now)
    }

    /// Looks at the word if a mechanism has been agreed on.
    fn verify_plain<'b>(
        &mut self,
        tag: ResponseTag,
        word: &[u8],
        context: &SessionContext<'_>,
        now: Now,
    ) -> BinaryStep<'b> {
        let Some(users) = context.sasl else {
            return BinaryStep::refuse(tag, Status::UnknownCommand, false);
        };
        let was_in_progress = std::mem::take(self) == Authentication::InProgress;
        context.counters.auth_cmds.add(1);
        let user = parse_plain(word).filter(|_| was_in_progress);
        if user.is_some_and(|(name, password)| users.verify(name, password, now) == AuthResult::Valid) {
            *self = Authentication::Done;
            return BinaryStep::Reply { tag, status: Status::Success, text: "Authenticated", close: false };
        }
        context.refuse_login(user.map(|(name, _)| name), now);
        BinaryStep::refuse(tag, Status::AuthenticationFailed, false)
    }
}

/// User and password of a word of PLAIN. Nobody is authorized as somebody else.
fn parse_plain(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = word.split(|&byte| byte == 0);
    let (authorized_as, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !name.is_empty() && (authorized_as.is_empty() || authorized_as == name);
    is_whole.then_some((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_plain_has_three_parts_and_names_one_user() {
        assert_eq!(parse_plain(b"\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(parse_plain(b"ada\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(parse_plain(b"\0ada\0"), Some((&b"ada"[..], &b""[..])));
        for bad in [&b""[..], b"ada", b"ada\0secret", b"\0\0secret", b"root\0ada\0secret", b"\0ada\0secret\0", b"\0\0"]
        {
            assert_eq!(parse_plain(bad), None, "{:?}", bad.escape_ascii().to_string());
        }
    }
}
