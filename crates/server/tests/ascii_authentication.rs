//! ASCII authentication (`-Y`), as a client sees it.

use lookaside_server::credentials::Credentials;
use lookaside_server::{Counters, Session, SessionContext, SessionState};
use lookaside_store::{Now, Options, Store};

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
    for line in ["version", "quit now", "shutdown", "watch", "stats", "set a 0 0", "set a 0 0 10x", "set a 0 0 -1"] {
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
