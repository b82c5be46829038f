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
//! So a client that has not authenticated makes the server hold one line, or one value of [`VALUE_BYTES_MAX`].
//!
//! As in memcached, key, flags, exptime and `noreply` are ignored. Everything after the first space is the password,
//! including further spaces.
//!
//! The password is verified while scanning, so that the bytes behind it are scanned as those of an authenticated
//! client. The login must not be scanned a second time: it would be a plain `set`, and the password an item. It is not,
//! because only a reply that has reached its bound makes bytes be scanned again, and the refusals for one read are far
//! below that.

use crate::session::auth::credentials::AuthResult;
use crate::session::context::SessionContext;
use lookaside_protocol::text::{CloseReason, is_foreign};
use lookaside_store::Now;

/// The longest command line before authentication, in bytes; as in memcached.
const LINE_BYTES_MAX: usize = 2048;

/// The shortest line, in bytes without its line feed. A shorter one closes the connection, as in memcached.
const LINE_BYTES_MIN: usize = 6;

/// The longest value that is compared, in bytes; as in memcached.
const VALUE_BYTES_MAX: usize = 16 << 10;

/// The input of an unauthenticated client, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AsciiAuth {
    /// Not a whole command yet.
    Incomplete { needed_bytes: usize },
    /// A valid login.
    Authenticated { consumed: usize },
    /// A refused command.
    Refused { line: &'static str, consumed: usize },
    /// A line that is too short for any command but `quit`: the connection is closed.
    Quit,
    /// Bytes of no memcached client: the connection is closed.
    Close { reason: CloseReason },
}

/// Parses the next command of a client that has not authenticated, and verifies a login.
pub(crate) fn parse_login(input: &[u8], context: &SessionContext<'_>, now: Now) -> AsciiAuth {
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
        return AsciiAuth::Refused { line: "CLIENT_ERROR unauthenticated", consumed: value_at };
    };
    if value_bytes > VALUE_BYTES_MAX {
        return AsciiAuth::Refused { line: "CLIENT_ERROR auth token too long", consumed: value_at };
    }
    let consumed = value_at + value_bytes + 2;
    let Some(data) = input.get(value_at..consumed) else { return AsciiAuth::Incomplete { needed_bytes: consumed } };
    match verify_login(data, context, now) {
        None => AsciiAuth::Authenticated { consumed },
        Some(line) => AsciiAuth::Refused { line, consumed },
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
            if state == SessionState::Close {
                break;
            }
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
        for line in ["version", "quit now", "shutdown", "watch", "stats", "set a 0 0", "set a 0 0 10x", "set a 0 0 -1"]
        {
            let expected = (UNAUTHENTICATED.to_string(), SessionState::Open);
            assert_eq!(serve_in_pieces(format!("{line}\r\n").as_bytes(), 100), expected, "{line:?}");
        }
        for line in ["", "mn", "quit", "x", "GET / HTTP/1.1", "Host: x", "\u{16}\u{3}\u{1}"] {
            let bytes = format!("version\r\n{line}\r\nset a 0 0 10\r\nada secret\r\n");
            let expected = (UNAUTHENTICATED.to_string(), SessionState::Close);
            assert_eq!(serve_in_pieces(bytes.as_bytes(), 100), expected, "{line:?}");
        }
        let (replies, _) =
            serve_in_pieces(b"set a 0 0 3\r\nada\r\nset a 0 0 10\r\nada secretxxset a 0 0 4\r\nada \r\nstats\r\n", 100);
        let refusals = "CLIENT_ERROR bad authentication token format\r\nCLIENT_ERROR bad command line termination\r\n\
                        CLIENT_ERROR authentication failure\r\n";
        assert_eq!(replies, refusals.to_string() + UNAUTHENTICATED);
    }

    /// Its value was once swallowed: a client that announced 2 GB was never answered again.
    #[test]
    fn a_login_that_is_too_long_is_refused_and_the_next_line_follows() {
        let announced = b"set a 0 0 2147483646\r\nget a\r\nset a 0 0 16385\r\nset a 0 0 10\r\nada secret\r\nmn\r\n";
        let replies = "CLIENT_ERROR auth token too long\r\nCLIENT_ERROR unauthenticated\r\n\
                       CLIENT_ERROR auth token too long\r\nSTORED\r\nMN\r\n";
        for piece_bytes in [1, 7, 1000] {
            assert_eq!(serve_in_pieces(announced, piece_bytes), (replies.to_string(), SessionState::Open));
        }
        let longest = format!("set a 0 0 16384\r\nada {}\r\n", "x".repeat(16_380));
        assert_eq!(serve_in_pieces(longest.as_bytes(), 1000).0, "CLIENT_ERROR authentication failure\r\n");
    }

    #[test]
    fn a_line_without_an_end_closes_the_connection() {
        let set = format!("set {} 0 0 10", "k".repeat(2_037));
        assert_eq!(set.len(), 2_048);
        let login = set.clone() + "\nada secret\r\n";
        for piece_bytes in [1, 100, 5_000] {
            let served = serve_in_pieces(login.as_bytes(), piece_bytes);
            assert_eq!(served, ("STORED\r\n".to_string(), SessionState::Open));
            let endless = set.clone() + "x";
            assert_eq!(serve_in_pieces(endless.as_bytes(), piece_bytes), (String::new(), SessionState::Close));
            let whole = endless + "\r\n";
            assert_eq!(serve_in_pieces(whole.as_bytes(), piece_bytes), (String::new(), SessionState::Close));
        }
    }
}
