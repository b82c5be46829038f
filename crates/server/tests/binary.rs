//! Sessions of clients of the binary protocol: replies do not depend on where bytes are cut or execution pauses, the
//! first byte selects the protocol, and a client that has to authenticate gets nothing before.

use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryRequest, ParsedResponse, ResponseTag, Status, Vivify, compose_request,
    opcode as op, parse_response,
};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, Direction, StoreMode};
use lookaside_server::credentials::Credentials;
use lookaside_server::{Batch, BatchProgress, Counters, Protocols, Scan, Session, SessionContext, SessionState};
use lookaside_store::{Now, Options, Store};

const NOW: Now = Now { unix_ms: 1_700_000_000_000 };
const VALUE_BYTES_MAX: usize = 4096;

/// A store, and what a session needs with it.
struct Harness {
    store: Store,
    options: Options,
    counters: Counters,
    protocols: Protocols,
    users: Option<Credentials>,
}

impl Harness {
    fn new() -> Harness {
        let options = Options { item_bytes_max: VALUE_BYTES_MAX, seed: 7, ..Options::default() };
        let store = Store::new(options.clone()).expect("the options are fine");
        Harness { store, options, counters: Counters::default(), protocols: Protocols::Both, users: None }
    }

    fn with_users(text: &str) -> Harness {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        let users = Credentials::read(file.path(), [1; 32]).expect("users");
        Harness { protocols: Protocols::Binary, users: Some(users), ..Harness::new() }
    }

    fn context(&self) -> SessionContext<'_> {
        let context = SessionContext::new(&self.store, &self.options, &self.counters);
        SessionContext { protocols: self.protocols, sasl_users: self.users.as_ref(), ..context }
    }

    /// All replies of a new session to bytes that arrive in pieces.
    fn serve_in_pieces(&self, bytes: &[u8], piece_bytes: usize) -> (Vec<u8>, SessionState) {
        let (mut session, mut input, mut out) = (Session::new(), Vec::new(), Vec::new());
        for piece in bytes.chunks(piece_bytes) {
            input.extend_from_slice(piece);
            if session.serve(&mut input, &self.context(), NOW, &mut out) == SessionState::Close {
                return (out, SessionState::Close);
            }
        }
        (out, SessionState::Open)
    }

    /// As the server does it: a reply is sent when it reaches `reply_bytes_max`, and what was not executed by then is
    /// scanned again.
    fn serve_with_pauses(&self, bytes: &[u8], reply_bytes_max: usize) -> Vec<u8> {
        let (mut session, mut input, mut all) = (Session::new(), bytes.to_vec(), Vec::new());
        'pause: loop {
            let (mut batch, mut from) = (Batch::default(), 0);
            loop {
                batch.clear();
                let scan = session.scan(&input, from, &self.context(), NOW, &mut batch);
                let (steps, mut out) = (batch.steps_count(), Vec::new());
                let progress = batch.execute(&self.context(), NOW, steps, reply_bytes_max, &mut out);
                all.extend_from_slice(&out);
                match (progress, scan) {
                    (BatchProgress::Close, _) => return all,
                    (BatchProgress::Full, _) => {
                        session.rewind();
                        let rest = batch.unexecuted(steps, &input).expect("a full reply leaves something");
                        assert!(rest.prefix.is_empty(), "a request is never cut off in its middle");
                        input.drain(..rest.input_at);
                        continue 'pause;
                    }
                    (BatchProgress::Done, Scan::Full { input_at }) => from = input_at,
                    (BatchProgress::Done, Scan::Finished { .. }) => return all,
                    (BatchProgress::Yield, _) => unreachable!("no binary command crawls"),
                }
            }
        }
    }
}

/// A request with this opaque.
fn request(opcode: u8, opaque: u32, command: BinaryCommand<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    compose_request(&BinaryRequest { tag: ResponseTag { opcode, opaque }, command }, &mut out);
    out
}

fn keyed(opcode: u8, opaque: u32, key: &str, operation: BinaryOperation<'_>) -> Vec<u8> {
    request(opcode, opaque, BinaryCommand::Keyed { key: key.as_bytes(), operation })
}

fn get(opcode: u8, opaque: u32, key: &str) -> Vec<u8> {
    let with_key = matches!(opcode, op::GETK | op::GETKQ);
    keyed(opcode, opaque, key, BinaryOperation::Get { exptime: None, with_key, with_value: true })
}

fn set(opcode: u8, opaque: u32, key: &str, value: &str) -> Vec<u8> {
    let value = value.as_bytes();
    keyed(opcode, opaque, key, BinaryOperation::Store { mode: StoreMode::Set, flags: 5, exptime: 0, value })
}

fn noop(opaque: u32) -> Vec<u8> {
    request(op::NOOP, opaque, BinaryCommand::Noop)
}

fn version(opaque: u32) -> Vec<u8> {
    request(op::VERSION, opaque, BinaryCommand::Version)
}

fn authenticate(opcode: u8, opaque: u32, message: &[u8]) -> Vec<u8> {
    let mechanism = b"PLAIN";
    let command = match opcode {
        op::SASL_STEP => BinaryCommand::AuthenticateStep { mechanism, message },
        _ => BinaryCommand::Authenticate { mechanism, message },
    };
    request(opcode, opaque, command)
}

/// One line per response: opaque, status, key, value.
fn describe(mut out: &[u8]) -> Vec<String> {
    let limits = Limits { value_bytes_max: VALUE_BYTES_MAX, line_bytes_max: 0 };
    let mut lines = Vec::new();
    while !out.is_empty() {
        let ParsedResponse::Response { response, consumed } = parse_response(out, &limits) else {
            panic!("no response: {:?}", out.escape_ascii().to_string())
        };
        let (key, value) = (response.key.escape_ascii(), response.value.escape_ascii());
        lines.push(format!("{} {:?} {key} {value}", response.tag.opaque, response.status));
        out = &out[consumed..];
    }
    lines
}

fn exchange() -> Vec<u8> {
    let mut huge = set(op::SET, 9, "huge", &"x".repeat(VALUE_BYTES_MAX + 1));
    huge.extend_from_slice(&request(0x30, 10, BinaryCommand::Stats { arguments: b"unknown" }));
    [
        set(op::SET, 1, "a", "abc"),
        set(op::SETQ, 2, "b", "de"),
        set(op::SETQ, 3, "huge", "small"),
        get(op::GETKQ, 4, "a"),
        get(op::GETQ, 5, "absent"),
        get(op::GETQ, 6, "b"),
        get(op::GETK, 7, "absent"),
        noop(8),
        huge,
        get(op::GET, 11, "huge"),
        keyed(op::DELETEQ, 12, "a", BinaryOperation::Delete { cas: None }),
        keyed(op::DELETE, 13, "a", BinaryOperation::Delete { cas: None }),
        keyed(op::DELETE, 14, "b", BinaryOperation::Delete { cas: Some(Cas(1)) }),
        request(op::QUIT, 15, BinaryCommand::Quit),
        noop(16),
    ]
    .concat()
}

const REPLIES: [&str; 11] = [
    "1 Success  ",
    "4 Success a abc",
    "6 Success  de",
    "7 NotFound absent ",
    "8 Success  ",
    "9 TooLarge  Too large.",
    "10 UnknownCommand  Unknown command",
    "11 NotFound  Not found",
    "13 NotFound  Not found",
    "14 Exists  Data exists for key.",
    "15 Success  ",
];

#[test]
fn the_same_replies_wherever_the_bytes_are_cut() {
    let bytes = exchange();
    for piece_bytes in (1..70).chain([1000, bytes.len()]) {
        let (out, state) = Harness::new().serve_in_pieces(&bytes, piece_bytes);
        assert_eq!((describe(&out), state), (REPLIES.map(String::from).to_vec(), SessionState::Close));
    }
}

#[test]
fn the_same_replies_wherever_execution_pauses() {
    for reply_bytes_max in 1..300 {
        let out = Harness::new().serve_with_pauses(&exchange(), reply_bytes_max);
        assert_eq!(describe(&out), REPLIES, "replies of {reply_bytes_max}");
    }
}

#[test]
fn a_sequence_of_quiet_gets_longer_than_a_batch() {
    let harness = Harness::new();
    let mut bytes = Vec::new();
    for n in 0..200 {
        bytes.extend(set(op::SETQ, n, &format!("k{n}"), &n.to_string()));
    }
    for n in 0..200 {
        bytes.extend(get(op::GETKQ, n, &format!("absent{n}")));
        bytes.extend(get(op::GETKQ, n, &format!("k{n}")));
    }
    bytes.extend(noop(1000));
    let mut replies: Vec<String> = (0..200).map(|n| format!("{n} Success k{n} {n}")).collect();
    replies.push("1000 Success  ".into());
    assert_eq!(describe(&harness.serve_in_pieces(&bytes, usize::MAX).0), replies);
    assert_eq!(describe(&harness.serve_with_pauses(&bytes, 100)), replies);
    let counters = harness.counters.snapshot();
    assert_eq!((counters.get_hits, counters.get_misses), (400, 400));
}

#[test]
fn missing_numbers_are_created_unless_the_client_forbids_it() {
    let increment = |opaque, vivify, cas| {
        let operation = BinaryOperation::Arithmetic { direction: Direction::Up, delta: 5, vivify, cas };
        keyed(op::INCREMENT, opaque, "n", operation)
    };
    let vivify = Some(Vivify { initial: 10, exptime: 0 });
    let bytes = [
        increment(1, None, None),
        increment(2, vivify, None),
        increment(3, None, None),
        increment(4, None, Some(Cas(1))),
    ];
    let (out, _) = Harness::new().serve_in_pieces(&bytes.concat(), 1000);
    let number = |n: u8| format!("Success  {}{}", "\\x00".repeat(7), n.escape_ascii());
    let replies = ["1 NotFound  Not found".into(), format!("2 {}", number(10)), format!("3 {}", number(15))];
    assert_eq!(describe(&out)[..3], replies);
    assert_eq!(describe(&out)[3], "4 Exists  Data exists for key.");
}

#[test]
fn an_append_with_a_cas_compares_it() {
    let harness = Harness::new();
    let append = |cas| keyed(op::APPEND, 2, "a", BinaryOperation::Extend { mode: StoreMode::Append, cas, value: b"d" });
    let (out, _) = harness.serve_in_pieces(&set(op::SET, 1, "a", "abc"), 1000);
    let unique = Cas(u64::from_be_bytes(out[16..24].try_into().expect("eight bytes")));
    let (out, _) =
        harness.serve_in_pieces(&[append(Some(Cas(unique.0 + 1))), append(Some(unique)), append(None)].concat(), 1000);
    assert_eq!(describe(&out), ["2 Exists  Data exists for key.", "2 Success  ", "2 Success  "]);
    assert_eq!(describe(&harness.serve_in_pieces(&get(op::GET, 3, "a"), 1000).0), ["3 Success  abcdd"]);
}

#[test]
fn the_first_byte_selects_the_protocol_of_the_connection() {
    let harness = Harness::new();
    let (out, state) = harness.serve_in_pieces(&[noop(1), b"version\r\n".to_vec(), noop(2)].concat(), 1);
    assert_eq!((describe(&out), state), (vec!["1 Success  ".to_string()], SessionState::Close));
    let (out, state) =
        harness.serve_in_pieces(&[b"mn\r\n".to_vec(), version(1), b"\r\nmn\r\n".to_vec()].concat(), 1000);
    assert_eq!((String::from_utf8(out).expect("text"), state), ("MN\r\nERROR\r\nMN\r\n".into(), SessionState::Open));
}

#[test]
fn a_server_can_be_restricted_to_one_protocol() {
    let harness = Harness { protocols: Protocols::Binary, ..Harness::new() };
    assert_eq!(harness.serve_in_pieces(b"version\r\n", 100), (vec![], SessionState::Close));
    let harness = Harness { protocols: Protocols::Text, ..Harness::new() };
    assert_eq!(
        harness.serve_in_pieces(&[&version(1)[..], b"\r\n"].concat(), 100),
        (b"ERROR\r\n".to_vec(), SessionState::Open)
    );
}

#[test]
fn a_client_that_has_to_authenticate_gets_nothing_before() {
    let harness = Harness::with_users("ada:secret\n");
    let (out, state) = harness.serve_in_pieces(&[set(op::SET, 1, "a", "x"), noop(2)].concat(), 1000);
    assert_eq!(
        (describe(&out), state),
        (vec!["1 AuthenticationFailed  Auth failure.".to_string()], SessionState::Close)
    );
    let header = &set(op::SET, 1, "a", "x")[..24];
    let (out, state) = harness.serve_in_pieces(header, 1000);
    assert_eq!((describe(&out).len(), state), (1, SessionState::Close), "a header is enough to refuse");
    let mut impossible = get(op::GET, 1, "key");
    impossible[11] = 1;
    let (out, state) = harness.serve_in_pieces(&impossible, 1000);
    assert_eq!((describe(&out), state), (vec!["1 UnknownCommand  Unknown command".to_string()], SessionState::Close));
    let mechanisms = request(op::SASL_MECHANISMS, 2, BinaryCommand::Mechanisms);
    let (out, state) = harness.serve_in_pieces(&[version(1), mechanisms].concat(), 7);
    let replies = vec![format!("1 Success  {}", lookaside_server::VERSION), "2 Success  PLAIN".to_string()];
    assert_eq!((describe(&out), state), (replies, SessionState::Open));
}

#[test]
fn a_valid_password_allows_commands_and_an_invalid_one_revokes_that() {
    let right = authenticate(op::SASL_AUTHENTICATE, 2, b"\0ada\0secret");
    let wrong = authenticate(op::SASL_AUTHENTICATE, 4, b"\0ada\0guess");
    let bytes = [
        authenticate(op::SASL_AUTHENTICATE, 1, b"\0ada\0secre"),
        right,
        set(op::SET, 3, "a", &"x".repeat(500)),
        get(op::GET, 31, "a"),
        get(op::GET, 32, "a"),
        wrong,
        get(op::GET, 5, "a"),
        noop(6),
    ]
    .concat();
    let replies = vec![
        "1 AuthenticationFailed  Auth failure.".to_string(),
        "2 Success  Authenticated".to_string(),
        "3 Success  ".to_string(),
        format!("31 Success  {}", "x".repeat(500)),
        format!("32 Success  {}", "x".repeat(500)),
        "4 AuthenticationFailed  Auth failure.".to_string(),
        "5 AuthenticationFailed  Auth failure.".to_string(),
    ];
    for piece_bytes in [1, 30, bytes.len()] {
        let harness = Harness::with_users("ada:secret\n");
        assert_eq!(describe(&harness.serve_in_pieces(&bytes, piece_bytes).0), replies);
        assert_eq!((harness.counters.snapshot().auth_cmds, harness.counters.snapshot().auth_errors), (3, 2));
    }
    // After a pause, commands are scanned again with the authentication that they had.
    for reply_bytes_max in [1, 100, 600, 1200] {
        let harness = Harness::with_users("ada:secret\n");
        assert_eq!(describe(&harness.serve_with_pauses(&bytes, reply_bytes_max)), replies, "{reply_bytes_max}");
    }
}

#[test]
fn plain_works_in_two_steps_and_other_mechanisms_are_refused() {
    let harness = Harness::with_users("ada:secret\n");
    let message = b"\0ada\0secret";
    let bytes = [
        authenticate(op::SASL_STEP, 1, message),
        authenticate(op::SASL_AUTHENTICATE, 2, b""),
        authenticate(op::SASL_STEP, 3, message),
        noop(4),
        request(op::SASL_AUTHENTICATE, 5, BinaryCommand::Authenticate { mechanism: b"CRAM-MD5", message }),
        noop(6),
    ];
    let statuses = ["1 AuthenticationFailed", "2 AuthenticationContinues", "3 Success", "4 Success"];
    let (out, state) = harness.serve_in_pieces(&bytes.concat(), 1000);
    for (line, status) in describe(&out).iter().zip(statuses) {
        assert!(line.starts_with(status), "{line}");
    }
    assert_eq!(describe(&out)[4..], ["5 AuthenticationFailed  Auth failure.", "6 AuthenticationFailed  Auth failure."]);
    assert_eq!(state, SessionState::Close);
}

#[test]
fn without_users_authentication_is_an_unknown_command() {
    let bytes = [request(op::SASL_MECHANISMS, 1, BinaryCommand::Mechanisms), noop(2)];
    let (out, _) = Harness::new().serve_in_pieces(&bytes.concat(), 1000);
    assert_eq!(describe(&out), ["1 UnknownCommand  Unknown command", "2 Success  "]);
    assert_eq!(Status::UnknownCommand.code(), 0x81);
}
