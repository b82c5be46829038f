//! ASCII authentication (`-Y`): all commands of a client of the text protocol are refused until it has authenticated
//! with a `set` of any key with `user password` as its value.
//!
//! ```text
//! set auth 0 0 10\r\nada secret\r\n      ->  STORED; the connection is served from then on
//! anything else\r\n                      ->  CLIENT_ERROR unauthenticated; `quit` ends the connection
//! ```
//!
//! As in memcached, key, flags, exptime and `noreply` are ignored. Everything after the first space is the password,
//! including further spaces.
//!
//! The password is verified while scanning, so that the bytes behind it are scanned as those of an authenticated
//! client. The login must not be scanned a second time: it would be a plain `set`, and the password an item. It is not,
//! because only a reply that has reached its bound makes bytes be scanned again, and the refusals for one read are far
//! below that.

use crate::session::auth::credentials::{AuthResult, WORD_BYTES_MAX};
use crate::session::context::SessionContext;
use lookaside_store::Now;

/// The longest command line before authentication, in bytes; as in memcached.
const LINE_BYTES_MAX: usize = 2048;

/// The longest user and password, including the space.
const VALUE_BYTES_MAX: usize = 2 * WORD_BYTES_MAX + 1;

/// The input of an unauthenticated client, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsciiAuth {
    /// Not a whole command yet.
    Incomplete { needed_bytes: usize },
    /// A valid login.
    Authenticated { consumed: usize },
    /// A refused command; `swallow` more bytes of it are still to come.
    Refused { line: &'static str, consumed: usize, swallow: usize },
    /// `quit`, or no command at all: the connection is closed.
    Close,
}

/// Parses the next command of a client that has not authenticated, and verifies a login.
pub(crate) fn parse_login(input: &[u8], context: &SessionContext<'_>, now: Now) -> AsciiAuth {
    let Some(end) = input.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') else {
        let is_too_long = input.len() >= LINE_BYTES_MAX;
        return if is_too_long { AsciiAuth::Close } else { AsciiAuth::Incomplete { needed_bytes: input.len() + 1 } };
    };
    if matches!(&input[..end], b"quit" | b"quit\r") {
        return AsciiAuth::Close;
    }
    let value_at = end + 1;
    let Some(value_bytes) = parse_value_bytes(&input[..end]) else {
        return AsciiAuth::Refused { line: "CLIENT_ERROR unauthenticated", consumed: value_at, swallow: 0 };
    };
    if value_bytes > VALUE_BYTES_MAX {
        let line = "CLIENT_ERROR auth token too long";
        context.counters.auth_cmds.add(1);
        context.refuse_login(None, now);
        return AsciiAuth::Refused { line, consumed: value_at, swallow: value_bytes + 2 };
    }
    let consumed = value_at + value_bytes + 2;
    let Some(data) = input.get(value_at..consumed) else { return AsciiAuth::Incomplete { needed_bytes: consumed } };
    match verify_login(data, context, now) {
        None => AsciiAuth::Authenticated { consumed },
        Some(line) => AsciiAuth::Refused { line, consumed, swallow: 0 },
    }
}

/// The length of the value of a `set`; `None` for any other line.
fn parse_value_bytes(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line).ok()?;
    let login: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
    match login[..] {
        ["set", _key, _flags, _exptime, value_bytes] => value_bytes.parse::<u32>().ok().map(|bytes| bytes as usize),
        _ => None,
    }
}

/// Verifies user and password; `Some` is the error line.
fn verify_login(data: &[u8], context: &SessionContext<'_>, now: Now) -> Option<&'static str> {
    let Some(login) = data.strip_suffix(b"\r\n") else { return Some("CLIENT_ERROR bad command line termination") };
    let Some(space) = login.iter().position(|&byte| byte == b' ') else {
        return Some("CLIENT_ERROR bad authentication token format");
    };
    let (user, password) = (&login[..space], &login[space + 1..]);
    let result = context.text_users.map_or(AuthResult::Invalid, |users| users.verify(user, password, now));
    context.counters.auth_cmds.add(1);
    if result != AuthResult::Valid {
        context.refuse_login(Some(user), now);
    }
    match result {
        AuthResult::Valid => None,
        AuthResult::Invalid => Some("CLIENT_ERROR authentication failure"),
        AuthResult::TryLater => Some("SERVER_ERROR too many have tried to authenticate, try later"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::counters::Counters;
    use crate::session::auth::credentials::Credentials;
    use crate::session::{Session, SessionState};
    use lookaside_store::{Options, Store};

    const NOW: Now = Now { unix_ms: 1_700_000_000_000 };

    /// All replies to bytes that arrive in pieces, and whether the connection stays open.
    fn serve_in_pieces(bytes: &[u8], piece_bytes: usize) -> (String, SessionState) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "ada:secret\nbob:x y\n").expect("written");
        let users = Credentials::read(file.path(), [7; 32]).expect("two users");
        let options = Options::default();
        let store = Store::new(options.clone()).expect("the options are fine");
        let counters = Counters::default();
        let context = SessionContext { text_users: Some(&users), ..SessionContext::new(&store, &options, &counters) };
        let (mut session, mut input, mut out) = (Session::new(), Vec::new(), Vec::new());
        let mut state = SessionState::Open;
        for piece in bytes.chunks(piece_bytes) {
            input.extend_from_slice(piece);
            state = session.serve(&mut input, &context, NOW, &mut out);
        }
        (String::from_utf8(out).expect("text"), state)
    }

    #[test]
    fn a_client_with_a_valid_login_is_served_wherever_the_bytes_are_cut() {
        let bytes = b"get k\r\nset a 0 0 10\r\nada wrong!\r\nset a b c 10 noreply\r\nada secret\r\nget a\r\nset k 0 0 1\r\nx\r\nget k\r\n";
        let replies = "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\nEND\r\nSTORED\r\n\
                       VALUE k 0 1\r\nx\r\nEND\r\n";
        for piece_bytes in (1..40).chain([bytes.len()]) {
            assert_eq!(serve_in_pieces(bytes, piece_bytes), (replies.to_string(), SessionState::Open), "{piece_bytes}");
        }
        assert_eq!(serve_in_pieces(b"set a 0 0 7\r\nbob x y\r\nmn\r\n", 100).0, "STORED\r\nMN\r\n");
    }

    #[test]
    fn nothing_else_is_executed() {
        const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated\r\n";
        for line in [
            "version",
            "quit now",
            "shutdown",
            "watch",
            "stats",
            "set a 0 0",
            "set a 0 0 10x",
            "set a 0 0 -1",
            "",
            "mn",
        ] {
            let expected = (UNAUTHENTICATED.to_string(), SessionState::Open);
            assert_eq!(serve_in_pieces(format!("{line}\r\n").as_bytes(), 100), expected, "{line:?}");
        }
        assert_eq!(serve_in_pieces(b"mn\r\nquit\r\nmn\r\n", 100), (UNAUTHENTICATED.to_string(), SessionState::Close));
        let (replies, _) =
            serve_in_pieces(b"set a 0 0 3\r\nada\r\nset a 0 0 10\r\nada secretxxset a 0 0 4\r\nada \r\nmn\r\n", 100);
        let refusals = "CLIENT_ERROR bad authentication token format\r\nCLIENT_ERROR bad command line termination\r\n\
                        CLIENT_ERROR authentication failure\r\n";
        assert_eq!(replies, refusals.to_string() + UNAUTHENTICATED);
    }

    #[test]
    fn a_login_that_is_too_long_is_not_stored() {
        let long = format!("set a 0 0 100000\r\n{}\r\nmn\r\n", "x".repeat(100_000));
        let replies = "CLIENT_ERROR auth token too long\r\nCLIENT_ERROR unauthenticated\r\n";
        assert_eq!(serve_in_pieces(long.as_bytes(), 1000).0, replies);
        assert_eq!(serve_in_pieces(&[b'x'; 5000], 100).1, SessionState::Close);
    }
}
