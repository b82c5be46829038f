//! Clients that must authenticate get nothing before they have, wherever their bytes are cut.

use crate::support::{SessionHarness, expect, rest};
use lookaside_protocol::binary::{BinaryCommand, BinaryRequest, ResponseTag, Status, compose_request, opcode as op};
use lookaside_router::{Settings, Users};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

fn start(has_text: bool, has_sasl: bool) -> SessionHarness {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "ada:secret\nbob:x y\n").expect("written");
    let path = |is_used: bool| is_used.then_some(file.path());
    let users: Option<Users> = Users::open(path(has_text), path(has_sasl)).expect("two users");
    SessionHarness::start(Settings { users: users.map(Arc::new), ..Settings::default() })
}

/// All replies to bytes that arrive in pieces, until the router closes the connection.
async fn exchange(harness: &SessionHarness, bytes: &[u8], piece_bytes: usize) -> Vec<u8> {
    let mut client = harness.connect();
    for piece in bytes.chunks(piece_bytes) {
        if client.write_all(piece).await.is_err() {
            break;
        }
        // Paused time advances only when all tasks wait: the piece has been read.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).await.expect("a pipe does not break");
    replies
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_valid_login_is_served_wherever_the_bytes_are_cut() {
    let bytes = b"get k\r\nset a 0 0 10\r\nada wrong!\r\nset a 0 0 2147483646\r\nset a 0 0 3\r\nada\r\n\
                  set a b c 10 noreply\r\nada secret\r\nget a\r\nset k 0 0 1\r\nx\r\nget k\r\nquit\r\n";
    let replies = "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\n\
                   CLIENT_ERROR auth token too long\r\nCLIENT_ERROR bad authentication token format\r\n\
                   STORED\r\nEND\r\nSTORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n";
    for piece_bytes in [1, 7, 30, bytes.len()] {
        let harness = start(true, false);
        let served = exchange(&harness, bytes, piece_bytes).await;
        assert_eq!(String::from_utf8_lossy(&served), replies, "{piece_bytes}");
        assert_eq!(harness.route.keys(), ["a", "k", "k"], "the login itself is not stored");
        assert_eq!((harness.counters().auth_cmds, harness.counters().auth_errors), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_client_without_a_login_is_routed() {
    let harness = start(true, false);
    let lines = "delete k\r\nflush_all\r\nstats\r\nget __mcrouter__.config\r\nmg k v\r\nlease-get k\r\nversion\r\n";
    let mut client = harness.connect();
    client.write_all(lines.as_bytes()).await.unwrap();
    expect(&mut client, &"CLIENT_ERROR unauthenticated\r\n".repeat(7)).await;
    for end in ["quit\r\n", "GET / HTTP/1.1\r\n", "\u{16}\u{3}\u{1}\n", &"x".repeat(2_049)] {
        let mut client = harness.connect();
        client.write_all(end.as_bytes()).await.unwrap();
        client.write_all(b"set a 0 0 10\r\nada secret\r\n").await.unwrap();
        assert_eq!(rest(&mut client).await, "", "{end:?}");
    }
    let counters = harness.counters();
    assert_eq!((counters.closed_foreign_protocol, counters.closed_long_line, counters.auth_cmds), (2, 1, 0));
    assert_eq!(harness.route.keys(), [""; 0]);
}

/// Strangers kept their places among all connections for ever.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_log_in_in_time_is_disconnected() {
    let version = request(op::VERSION, 1, BinaryCommand::Version);
    let half = &b"set a 0 0 10\r\nada"[..];
    for (first, then) in [(&b""[..], &b""[..]), (half, b""), (b"version\r\n", b"version\r\n"), (&version, &version)] {
        let harness = start(true, true);
        let mut stranger = harness.connect();
        let (began, second, mut replies) = (tokio::time::Instant::now(), Duration::from_secs(1), [0; 4_096]);
        stranger.write_all(first).await.unwrap();
        while !matches!(timeout(second, stranger.read(&mut replies)).await, Ok(Ok(0) | Err(_))) {
            assert!(began.elapsed() < Duration::from_secs(40), "{first:?}");
            tokio::time::sleep(second).await;
            let _ = stranger.write_all(then).await;
        }
        assert!(began.elapsed() >= Duration::from_secs(30), "{first:?}");
        assert_eq!(harness.counters().login_timeouts, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_logged_in_has_no_deadline() {
    let harness = start(true, false);
    let mut client = harness.connect();
    client.write_all(b"set a 0 0 10\r\nada secret\r\n").await.unwrap();
    expect(&mut client, "STORED\r\n").await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    client.write_all(b"mn\r\n").await.unwrap();
    expect(&mut client, "MN\r\n").await;
    assert_eq!(harness.counters().login_timeouts, 0);
}

fn request(opcode: u8, opaque: u32, command: BinaryCommand<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    compose_request(&BinaryRequest { tag: ResponseTag { opcode, opaque }, command }, &mut out);
    out
}

fn authenticate(opaque: u32, message: &[u8]) -> Vec<u8> {
    request(op::SASL_AUTHENTICATE, opaque, BinaryCommand::Authenticate { mechanism: b"PLAIN", message })
}

fn noop(opaque: u32) -> Vec<u8> {
    request(op::NOOP, opaque, BinaryCommand::Noop)
}

/// Opaque and status of each response.
fn statuses(mut bytes: &[u8]) -> Vec<(u32, u16)> {
    let mut statuses = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(24) {
        let number = |at: std::ops::Range<usize>| header[at].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        statuses.push((number(12..16), number(6..8) as u16));
        bytes = &rest[number(8..12) as usize..];
    }
    statuses
}

#[tokio::test(start_paused = true)]
async fn sasl_is_required_and_can_be_taken_back() {
    let bytes = [
        request(op::VERSION, 1, BinaryCommand::Version),
        request(op::SASL_MECHANISMS, 2, BinaryCommand::Mechanisms),
        authenticate(3, b"\0ada\0guess"),
        authenticate(4, b""),
        request(op::SASL_STEP, 5, BinaryCommand::AuthenticateStep { mechanism: b"PLAIN", message: b"\0ada\0secret" }),
        noop(6),
        noop(7),
        authenticate(8, b"\0bob\0x y"),
        noop(9),
        authenticate(10, b"\0bob\0x"),
        noop(11),
        noop(12),
    ]
    .concat();
    let (success, failed, goes_on) = (0, Status::AuthenticationFailed.code(), Status::AuthenticationContinues.code());
    let expected = [
        (1, success),
        (2, success),
        (3, failed),
        (4, goes_on),
        (5, success),
        (6, success),
        (7, success),
        (8, success),
        (9, success),
        (10, failed),
        (11, failed),
    ];
    for piece_bytes in [1, 25, bytes.len()] {
        for has_text in [false, true] {
            let harness = start(has_text, true);
            assert_eq!(statuses(&exchange(&harness, &bytes, piece_bytes).await), expected, "{piece_bytes}");
            assert_eq!((harness.counters().auth_cmds, harness.counters().auth_errors), (4, 2));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_protocol_without_users_is_not_served() {
    // Unlike that of a noop, its header has no line feed.
    let binary = [request(op::VERSION, 1, BinaryCommand::Version), b"\r\n".to_vec()].concat();
    let replies = exchange_open(&start(true, false), &binary).await;
    assert_eq!(replies, "CLIENT_ERROR unauthenticated\r\n");
    let harness = start(false, true);
    assert_eq!(exchange(&harness, b"set a 0 0 10\r\nada secret\r\nget a\r\n", 100).await, b"");
    let harness = start(true, true);
    assert_eq!(exchange_open(&harness, b"set a 0 0 10\r\nada secret\r\nmn\r\n").await, "STORED\r\nMN\r\n");
    assert_eq!(statuses(&exchange(&harness, &noop(1), 100).await), [(1, Status::AuthenticationFailed.code())]);
}

/// The replies of a connection that stays open.
async fn exchange_open(harness: &SessionHarness, bytes: &[u8]) -> String {
    let mut client = harness.connect();
    client.write_all(bytes).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut replies = vec![0; 1_000];
    let count = client.read(&mut replies).await.unwrap();
    String::from_utf8_lossy(&replies[..count]).into_owned()
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let error = Users::open(Some(Path::new("/nowhere/users")), None).expect_err("it is absent");
    assert!(error.starts_with("-Y: ") && error.contains("/nowhere/users"), "{error}");
    assert!(Users::open(None, None).expect("no file").is_none());
}
