//! Each text and lease verb in literal bytes: parsing, and refusals with memcached's messages.

use lookaside_protocol::text::{CloseReason, Limits, Parsed, compose_command, parse_command};
use lookaside_protocol::{Cas, Command, Direction, Keys, LeaseToken, Operation, Request, StoreMode};

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 600 };

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";

fn command(bytes: &str) -> Command<'_> {
    match parse_command(bytes.as_bytes(), &LIMITS) {
        Parsed::Command { command, consumed } => {
            assert_eq!(consumed, bytes.len(), "{bytes:?}");
            command
        }
        other => panic!("{bytes:?} is {other:?}"),
    }
}

fn single<'a>(key: &'a str, operation: Operation<&'a [u8]>, noreply: bool) -> Command<'a> {
    Command::Single { request: Request { key: key.as_bytes(), operation }, noreply }
}

/// Checks that the bytes are parsed as expected, and composed again.
fn check_round_trip(bytes: &str, expected: Command<'_>) {
    assert_eq!(command(bytes), expected);
    let mut out = Vec::new();
    compose_command(&expected, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), bytes);
}

/// Checks a refusal that keeps the connection: the reply, and the bytes dropped now and as they arrive.
fn check_refused(bytes: &str, line: Option<&str>, dropped: (usize, usize)) {
    match parse_command(bytes.as_bytes(), &LIMITS) {
        Parsed::Bad { line: reply, consumed, swallow, close, .. } => {
            assert_eq!((reply, (consumed, swallow), close), (line, dropped, None), "{bytes:?}");
        }
        other => panic!("{bytes:?} is {other:?}"),
    }
}

fn check_refused_line(bytes: &str, line: Option<&str>) {
    check_refused(bytes, line, (bytes.len(), 0));
}

#[test]
fn retrieving_verbs_are_parsed() {
    let retrieve = |keys, operation| Command::Retrieve { keys: Keys::parse(keys).expect("keys"), operation };
    check_round_trip("get a\r\n", retrieve(b"a", Operation::Get { cas: false }));
    check_round_trip("get a b c\r\n", retrieve(b"a b c", Operation::Get { cas: false }));
    check_round_trip("gets a b\r\n", retrieve(b"a b", Operation::Get { cas: true }));
    check_round_trip("gat 30 a b\r\n", retrieve(b"a b", Operation::GetAndTouch { exptime: 30, cas: false }));
    check_round_trip("gats -1 a\r\n", retrieve(b"a", Operation::GetAndTouch { exptime: -1, cas: true }));
    check_round_trip("lease-get a b\r\n", retrieve(b"a b", Operation::LeaseGet));
    assert_eq!(command("get  a   b \r\n"), command("get a b\n"));
}

#[test]
fn storing_verbs_are_parsed() {
    let store = |mode| Operation::Store { mode, flags: 5, exptime: -1, value: &b"va\r\n"[..], cas: false };
    for (verb, mode) in [
        ("set", StoreMode::Set),
        ("add", StoreMode::Add),
        ("replace", StoreMode::Replace),
        ("append", StoreMode::Append),
        ("prepend", StoreMode::Prepend),
    ] {
        check_round_trip(&format!("{verb} k 5 -1 4\r\nva\r\n\r\n"), single("k", store(mode), false));
        check_round_trip(&format!("{verb} k 5 -1 4 noreply\r\nva\r\n\r\n"), single("k", store(mode), true));
    }
    let cas = store(StoreMode::Cas(Cas(u64::MAX)));
    check_round_trip("cas k 5 -1 4 18446744073709551615\r\nva\r\n\r\n", single("k", cas.clone(), false));
    check_round_trip("cas k 5 -1 4 18446744073709551615 noreply\r\nva\r\n\r\n", single("k", cas, true));
    let lease = Operation::LeaseSet { token: LeaseToken(77), flags: 1, exptime: 9, value: &b""[..] };
    check_round_trip("lease-set k 77 1 9 0\r\n\r\n", single("k", lease.clone(), false));
    check_round_trip("lease-set k 77 1 9 0 noreply\r\n\r\n", single("k", lease, true));
}

#[test]
fn deletes_carry_a_hold_off_in_seconds() {
    let delete = |hold_off_ms, noreply| single("k", Operation::Delete { hold_off_ms }, noreply);
    check_round_trip("delete k\r\n", delete(0, false));
    check_round_trip("delete k noreply\r\n", delete(0, true));
    check_round_trip("delete k 2\r\n", delete(2000, false));
    check_round_trip("delete k 0.25\r\n", delete(250, false));
    check_round_trip("delete k 0.005 noreply\r\n", delete(5, true));
    check_round_trip("delete k 4294967.295\r\n", delete(u32::MAX, false));
    assert_eq!(command("delete k 0\r\n"), delete(0, false));
    assert_eq!(command("delete k 0.2500\r\n"), delete(250, false));
    assert_eq!(command("delete k 0.0001\r\n"), delete(1, false), "never shorter than requested");
    check_round_trip("delete noreply 0\r\n", single("noreply", Operation::Delete { hold_off_ms: 0 }, false));
    check_round_trip("delete noreply 0 noreply\r\n", single("noreply", Operation::Delete { hold_off_ms: 0 }, true));
    for hold_off in ["-1", "x", "1.", ".5", "1.x", "1.5.5", "4294967.296", "99999999999999999999"] {
        check_refused_line(&format!("delete k {hold_off}\r\n"), Some(BAD_FORMAT));
    }
}

#[test]
fn other_verbs_are_parsed() {
    let arithmetic = |direction, delta| Operation::Arithmetic { direction, delta };
    check_round_trip("incr k 5\r\n", single("k", arithmetic(Direction::Up, 5), false));
    check_round_trip(
        "decr k 18446744073709551615 noreply\r\n",
        single("k", arithmetic(Direction::Down, u64::MAX), true),
    );
    check_round_trip("touch k 60\r\n", single("k", Operation::Touch { exptime: 60 }, false));
    check_round_trip("touch k -5 noreply\r\n", single("k", Operation::Touch { exptime: -5 }, true));
    check_round_trip("flush_all 10\r\n", Command::FlushAll { delay_s: 10, noreply: false });
    check_round_trip("flush_all 0 noreply\r\n", Command::FlushAll { delay_s: 0, noreply: true });
    assert_eq!(command("flush_all\r\n"), Command::FlushAll { delay_s: 0, noreply: false });
    assert_eq!(command("flush_all noreply\r\n"), Command::FlushAll { delay_s: 0, noreply: true });
    check_round_trip("verbosity 2\r\n", Command::Verbosity { level: 2, noreply: false });
    check_round_trip("stats\r\n", Command::Stats { arguments: b"" });
    check_round_trip("stats items x\r\n", Command::Stats { arguments: b"items x" });
    check_round_trip("version\r\n", Command::Version);
    check_round_trip("quit\r\n", Command::Quit);
    check_round_trip("mn\r\n", Command::MetaNoop);
}

#[test]
fn bad_lines_are_refused_with_memcached_messages() {
    let long = "k".repeat(251);
    for line in
        ["\r\n", "\n", "x\r\n", "mn\n", "get\r\n", "get \r\n", "gat\r\n", "gat 1\r\n", "set\r\n", "set a 0 0\r\n"]
    {
        check_refused_line(line, Some(BAD_FORMAT));
    }
    for line in ["foo\r\n", "GET a\r\n", "  get a\r\n", "getx a\r\n", "  \r\n", "\0a\r\n"] {
        check_refused_line(line, Some("ERROR"));
    }
    check_refused_line(&format!("get a {long}\r\n"), Some(BAD_FORMAT));
    check_refused_line(&format!("delete {long}\r\n"), Some(BAD_FORMAT));
    check_refused_line("get a\tb\r\n", Some(BAD_FORMAT));
    check_refused_line("incr a\r\n", Some(BAD_FORMAT));
    check_refused_line("verbosity x\r\n", Some(BAD_FORMAT));
    check_refused_line("incr a -1\r\n", Some("CLIENT_ERROR invalid numeric delta argument"));
    check_refused_line("decr a 18446744073709551616\r\n", Some("CLIENT_ERROR invalid numeric delta argument"));
    check_refused_line("touch a x\r\n", Some("CLIENT_ERROR invalid exptime argument"));
    check_refused_line("gat x a\r\n", Some("CLIENT_ERROR invalid exptime argument"));
    check_refused_line("flush_all x\r\n", Some("CLIENT_ERROR invalid exptime argument"));
}

#[test]
fn noreply_suppresses_errors_too() {
    for line in ["foo noreply\r\n", "incr a x noreply\r\n", "touch a x noreply \r\n", "verbosity noreply\r\n"] {
        check_refused_line(line, None);
    }
    check_refused("set a x 0 1 noreply\r\n", None, (21, 3));
    // A get has no `noreply`, and a block whose end is unknown will be parsed as commands.
    check_refused_line("gat x a noreply\r\n", Some("CLIENT_ERROR invalid exptime argument"));
    check_refused_line("set a 0 0 -1 noreply\r\n", Some(BAD_FORMAT));
}

#[test]
fn block_of_a_refused_store_is_swallowed() {
    check_refused("set a x 0 1\r\n", Some(BAD_FORMAT), (13, 3));
    check_refused("set a 0 4294967296x 8\r\n", Some(BAD_FORMAT), (23, 10));
    check_refused("set a -1 0 8\r\n", Some(BAD_FORMAT), (14, 10));
    check_refused("cas a 0 0 1 x\r\n", Some(BAD_FORMAT), (15, 3));
    check_refused("lease-set a x 0 0 1\r\n", Some(BAD_FORMAT), (21, 3));
    check_refused("set a\x01b 0 0 1\r\nx\r\n", Some(BAD_FORMAT), (15, 3));
    check_refused("set a 0 0 101\r\n", Some(TOO_LARGE), (15, 103));
    check_refused("add a 0 0 2147483645 noreply\r\nxxx", None, (30, 2147483647));
    for length in ["-1", "2147483646", "4294967296", "x", "1x"] {
        check_refused_line(&format!("set a 0 0 {length}\r\n"), Some(BAD_FORMAT));
    }
}

#[test]
fn set_over_the_limit_returns_the_key_to_delete() {
    let key_to_delete = |line: &'static str| match parse_command(line.as_bytes(), &LIMITS) {
        Parsed::Bad { key_to_delete, .. } => key_to_delete,
        other => panic!("{other:?}"),
    };
    assert_eq!(key_to_delete("set abc 0 0 101\r\n"), Some(&b"abc"[..]));
    assert_eq!(key_to_delete("add abc 0 0 101\r\n"), None);
    assert_eq!(key_to_delete("set abc x 0 101\r\n"), None);
}

#[test]
fn block_of_another_length_is_bad() {
    let line = "CLIENT_ERROR bad data chunk";
    check_refused("set a 0 0 1\r\nxx\r\n", Some(line), (16, 0));
    check_refused("set a 0 0 1\r\nx\nversion\r\n", Some(line), (16, 0));
    check_refused("set a 0 0 1 noreply\r\nxxxxx\r\n", None, (24, 0));
}

#[test]
fn line_over_the_limit_closes_the_connection() {
    for bytes in ["g".repeat(601), "g".repeat(601) + "\r\n", "get ".to_string() + &"a ".repeat(400) + "\r\n"] {
        assert_eq!(parse_command(bytes.as_bytes(), &LIMITS), too_long(bytes.len()));
    }
}

fn too_long(consumed: usize) -> Parsed<'static> {
    let line = Some("CLIENT_ERROR line too long");
    Parsed::Bad {
        line,
        consumed,
        swallow: 0,
        close: Some(CloseReason::LineTooLong),
        key_to_delete: None,
        is_too_large: false,
    }
}

/// A client that sent a line without an end, and waited for the connection to be closed, waited until 1 MB had arrived.
#[test]
fn only_a_multiget_is_longer_than_2048_bytes() {
    let limits = Limits { line_bytes_max: 10_000, ..LIMITS };
    let parse = |line: &str, spaces: usize| {
        let bytes = [line.as_bytes(), &vec![b' '; spaces]].concat();
        match parse_command(&bytes, &limits) {
            Parsed::Incomplete { needed_bytes } => Parsed::Incomplete { needed_bytes },
            other => {
                assert_eq!(other, too_long(bytes.len()));
                too_long(bytes.len())
            }
        }
    };
    for verb in ["", "x", "set a", "delete a", "mg a", "stats", "GET a", "getx a", "lease-set a"] {
        let bytes = 2_049 - verb.len();
        assert_eq!(parse(verb, bytes), too_long(2_049), "{verb}");
        assert_eq!(parse(verb, bytes - 1), Parsed::Incomplete { needed_bytes: 2_049 }, "{verb}");
        let whole = format!("{verb}{}\n", " ".repeat(bytes));
        assert_eq!(parse_command(whole.as_bytes(), &limits), too_long(2_050), "{verb}");
    }
    for verb in ["get a", "gets a", "gat 0 a", "gats 0 a", "lease-get a", &(" ".repeat(100) + "get a")] {
        let bytes = 9_000 - verb.len();
        assert_eq!(parse(verb, bytes), Parsed::Incomplete { needed_bytes: 9_001 }, "{verb}");
        assert_eq!(parse(verb, bytes + 1_001), too_long(10_001), "{verb}");
    }
    assert_eq!(parse(&(" ".repeat(101) + "get a"), 2_000), too_long(2_106));
}

/// A web page's request set a value: its first lines were refused as commands, and its body was executed.
#[test]
fn request_of_another_protocol_ends_the_connection_with_all_that_follows() {
    let set = "set injected 0 0 1\r\nx\r\n";
    let line = None;
    for request in [
        "GET / HTTP/1.0\r\n",
        "POST / HTTP/1.1\nHost: a\n\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: 127.0.0.1:11211\r\n",
        "\x16\x03\x01\x02\x00\x01\n",
        "\x16\x03\n",
        "\x16\x03\x01",
    ] {
        let bytes = request.to_owned() + set;
        let (close, consumed) = (Some(CloseReason::ForeignProtocol), bytes.len());
        let parsed = parse_command(bytes.as_bytes(), &LIMITS);
        assert_eq!(
            parsed,
            Parsed::Bad { line, consumed, swallow: 0, close, key_to_delete: None, is_too_large: false },
            "{request:?}"
        );
    }
    // A handshake longer than any line is one all the same, wherever its bytes are cut.
    let long = "\x16\x03\x01".to_owned() + &"x".repeat(3_000);
    for bytes in [long.clone(), long.repeat(4), long + "\n"] {
        let (close, consumed) = (Some(CloseReason::ForeignProtocol), bytes.len());
        let parsed = parse_command(bytes.as_bytes(), &LIMITS);
        assert_eq!(
            parsed,
            Parsed::Bad { line, consumed, swallow: 0, close, key_to_delete: None, is_too_large: false },
            "{consumed} bytes"
        );
    }
    check_refused_line("get / http/1.1:\x01\r\n", Some("CLIENT_ERROR bad command line format"));
    check_refused_line("GET /\r\n", Some("ERROR"));
}

/// A page that has bound its own name to this address chooses the method of its request: a verb. It took leases.
#[test]
fn request_line_whose_method_is_a_verb_changes_nothing() {
    let parse = |line: &str| match parse_command(line.as_bytes(), &LIMITS) {
        Parsed::Command { command, .. } => Some(format!("{command:?}")),
        Parsed::Bad { .. } => None,
        other => panic!("{line:?} is {other:?}"),
    };
    let stores = ["set", "add", "replace", "append", "prepend", "cas", "lease-set", "ms"];
    let updates = ["delete", "md", "ma", "incr", "decr", "touch", "gat", "gats", "flush_all", "verbosity"];
    let operators = ["slabs", "lru_crawler", "cache_memlimit", "shutdown", "refresh_certs", "watch"];
    for verb in stores.iter().chain(&updates).chain(&operators).chain(&["lease-get"]) {
        for version in ["1.0", "1.1"] {
            assert_eq!(parse(&format!("{verb} /x HTTP/{version}\r\n")), None, "{verb}");
        }
    }
    for line in ["gets /x HTTP/1.1\r\n", "lease-get /x HTTP/1\r\n", "lease-get xHTTP/1.1\r\n"] {
        assert!(parse(line).is_some(), "{line}");
    }
}

/// A caller that waits for the needed bytes parses a store of any size twice: once for the line, once for the block.
#[test]
fn incomplete_command_reports_the_needed_bytes() {
    let incomplete = |bytes: &str| match parse_command(bytes.as_bytes(), &LIMITS) {
        Parsed::Incomplete { needed_bytes } => needed_bytes,
        other => panic!("{bytes:?} is {other:?}"),
    };
    assert_eq!(incomplete(""), 1);
    assert_eq!(incomplete("get a"), 6);
    assert_eq!(incomplete("get a\r"), 7);
    assert_eq!(incomplete("set a 0 0 100\r\n"), 117);
    assert_eq!(incomplete("set a 0 0 100\r\nxyz"), 117);
    assert_eq!(incomplete("lease-set a 9 0 0 3\r\nxyz\r"), 26);
}
