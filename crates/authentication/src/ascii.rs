//! ASCII authentication (`-Y`): all commands of a client of the text protocol are refused until it has authenticated
//! with a `set` of any key with `user password` as its value.
//!
//! ```text
//! set auth 0 0 10\r\nada secret\r\n      ->  STORED; the connection is served from then on
//! set auth 0 0 16385\r\n                 ->  CLIENT_ERROR auth token too long; the next line follows
//! anything else\r\n                      ->  CLIENT_ERROR unauthenticated
//! a line below 6 bytes, no line end,
//! an HTTP request, a TLS handshake       ->  none; the connection is closed
//! ```
//!
//! So a client that has not authenticated makes the process hold one line, or one value of `VALUE_BYTES_MAX`.
//!
//! As in memcached, key, flags, exptime and `noreply` are ignored. Everything after the first space is the password,
//! including further spaces.
//!
//! The password is verified while parsing, so that the bytes behind it are parsed as those of an authenticated client.
//! The caller must not parse a login a second time: it would be a plain `set`, and the password an item.

use crate::LoginAttempt;
use crate::credentials::{AuthResult, Credentials};
use lookaside_protocol::text::{CloseReason, is_foreign};

/// The longest command line before authentication, in bytes; as in memcached.
const LINE_BYTES_MAX: usize = 2048;

/// The shortest line, in bytes without its line feed. A shorter one closes the connection, as in memcached.
const LINE_BYTES_MIN: usize = 6;

/// The longest value that is compared, in bytes; as in memcached.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// The input of an unauthenticated client, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsciiAuth<'a> {
    /// Not a whole command yet.
    Incomplete {
        /// The input must have this many bytes before it is worthwhile to parse it again.
        needed_bytes: usize,
    },
    /// A valid login.
    Authenticated {
        /// Its length.
        consumed: usize,
    },
    /// A refused command.
    Refused {
        /// The reply.
        line: &'static str,
        /// The command's length.
        consumed: usize,
        /// The login that was refused; `None` if there was none.
        attempt: Option<LoginAttempt<'a>>,
    },
    /// A line that is too short for any command but `quit`: the connection is closed.
    Quit,
    /// Bytes of no memcached client: the connection is closed.
    Close {
        /// Why.
        reason: CloseReason,
    },
}

/// Parses the next command of a client that has not authenticated, and verifies a login. Without `users` no login is
/// valid.
pub fn parse_login<'a>(input: &'a [u8], users: Option<&Credentials>, now_ms: u64) -> AsciiAuth<'a> {
    if is_foreign(input) {
        return AsciiAuth::Close { reason: CloseReason::ForeignProtocol };
    }
    let Some(end) = input.iter().take(LINE_BYTES_MAX + 1).position(|&byte| byte == b'\n') else {
        return match input.len() > LINE_BYTES_MAX {
            true => AsciiAuth::Close { reason: CloseReason::LineTooLong },
            false => AsciiAuth::Incomplete { needed_bytes: input.len() + 1 },
        };
    };
    if end < LINE_BYTES_MIN {
        return AsciiAuth::Quit;
    }
    let value_at = end + 1;
    let Some(value_bytes) = parse_value_bytes(&input[..end]) else {
        return AsciiAuth::refuse("CLIENT_ERROR unauthenticated", value_at);
    };
    if value_bytes > VALUE_BYTES_MAX {
        return AsciiAuth::refuse("CLIENT_ERROR auth token too long", value_at);
    }
    let consumed = value_at + value_bytes + 2;
    let Some(data) = input.get(value_at..consumed) else { return AsciiAuth::Incomplete { needed_bytes: consumed } };
    verify_login(data, consumed, users, now_ms)
}

impl AsciiAuth<'_> {
    fn refuse(line: &'static str, consumed: usize) -> AsciiAuth<'static> {
        AsciiAuth::Refused { line, consumed, attempt: None }
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

/// Verifies user and password.
fn verify_login<'a>(data: &'a [u8], consumed: usize, users: Option<&Credentials>, now_ms: u64) -> AsciiAuth<'a> {
    let Some(login) = data.strip_suffix(b"\r\n") else {
        return AsciiAuth::refuse("CLIENT_ERROR bad command line termination", consumed);
    };
    let Some(space) = login.iter().position(|&byte| byte == b' ') else {
        return AsciiAuth::refuse("CLIENT_ERROR bad authentication token format", consumed);
    };
    let (user, password) = (&login[..space], &login[space + 1..]);
    let line = match users.map_or(AuthResult::Invalid, |users| users.verify(user, password, now_ms)) {
        AuthResult::Valid => return AsciiAuth::Authenticated { consumed },
        AuthResult::Invalid => "CLIENT_ERROR authentication failure",
        AuthResult::TryLater => "SERVER_ERROR too many have tried to authenticate, try later",
    };
    AsciiAuth::Refused { line, consumed, attempt: Some(LoginAttempt::Refused { user: Some(user) }) }
}
