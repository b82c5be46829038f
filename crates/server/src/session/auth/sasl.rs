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

use crate::session::auth::credentials::{Credentials, Verdict};
use crate::session::binary::BinaryStep;
use crate::session::context::Service;
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
    Begun,
    /// It may ask for anything.
    Done,
}

impl Authentication {
    /// Whether the client may ask for anything.
    pub(crate) fn is_done(self) -> bool {
        self == Authentication::Done
    }

    /// Which mechanisms there are.
    pub(crate) fn mechanisms<'b>(&mut self, tag: ResponseTag, users: Option<&Credentials>) -> BinaryStep<'b> {
        if users.is_none() {
            return BinaryStep::refuse(tag, Status::UnknownCommand, false);
        }
        *self = Authentication::None;
        BinaryStep::Say { tag, status: Status::Success, words: MECHANISM, close: false }
    }

    /// A client's first word.
    pub(crate) fn begin<'b>(
        &mut self,
        tag: ResponseTag,
        mechanism: &[u8],
        word: &[u8],
        service: &Service<'_>,
        now: Now,
    ) -> BinaryStep<'b> {
        let is_known = mechanism.eq_ignore_ascii_case(MECHANISM.as_bytes());
        *self = if is_known { Authentication::Begun } else { Authentication::None };
        if is_known && word.is_empty() && service.sasl.is_some() {
            return BinaryStep::Say { tag, status: Status::AuthenticationContinues, words: "", close: false };
        }
        self.decide(tag, word, service, now)
    }

    /// A client's second word.
    pub(crate) fn go_on<'b>(
        &mut self,
        tag: ResponseTag,
        _mechanism: &[u8],
        word: &[u8],
        service: &Service<'_>,
        now: Now,
    ) -> BinaryStep<'b> {
        self.decide(tag, word, service, now)
    }

    /// Looks at the word if a mechanism has been agreed on.
    fn decide<'b>(&mut self, tag: ResponseTag, word: &[u8], service: &Service<'_>, now: Now) -> BinaryStep<'b> {
        let Some(users) = service.sasl else {
            return BinaryStep::refuse(tag, Status::UnknownCommand, false);
        };
        let has_begun = std::mem::take(self) == Authentication::Begun;
        service.counters.auth_cmds.add(1);
        let user = plain(word).filter(|_| has_begun);
        if user.is_some_and(|(name, password)| users.verify(name, password, now) == Verdict::Right) {
            *self = Authentication::Done;
            return BinaryStep::Say { tag, status: Status::Success, words: "Authenticated", close: false };
        }
        service.refuse_login(user.map(|(name, _)| name), now);
        BinaryStep::refuse(tag, Status::AuthenticationFailed, false)
    }
}

/// User and password of a word of PLAIN. Nobody is authorized as somebody else.
fn plain(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = word.split(|&byte| byte == 0);
    let (as_whom, name, password) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !name.is_empty() && (as_whom.is_empty() || as_whom == name);
    is_whole.then_some((name, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_plain_has_three_parts_and_names_one_user() {
        assert_eq!(plain(b"\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(plain(b"ada\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(plain(b"\0ada\0"), Some((&b"ada"[..], &b""[..])));
        for bad in [&b""[..], b"ada", b"ada\0secret", b"\0\0secret", b"root\0ada\0secret", b"\0ada\0secret\0", b"\0\0"]
        {
            assert_eq!(plain(bad), None, "{:?}", bad.escape_ascii().to_string());
        }
    }
}
