//! The meta verbs in literal bytes: parsing, replies and refusals, as memcached 1.6.45 does.

use lookaside_protocol::meta::{
    MetaFlags, MetaItemInfo, MetaOperation, MetaReply, MetaStatus, MetaVerb, compose_meta_reply, decode_key, encode_key,
};
use lookaside_protocol::text::{
    Limits, Parsed, ParsedReply, ReplyPart, compose_command, compose_reply, parse_command, parse_reply,
};
use lookaside_protocol::{Cas, Command, Direction, KEY_BYTES_MAX, Operation, Reply, Request, StoreMode};

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 600 };

fn check_round_trip(bytes: &str, verb: MetaVerb, flags: &str, value: Option<&str>) {
    let operation = MetaOperation { verb, flags: flags.as_bytes(), value: value.map(str::as_bytes) };
    let request = Request { key: &b"a"[..], operation: Operation::Meta(operation) };
    let command = Command::Single { request, noreply: false };
    let parsed = parse_command(bytes.as_bytes(), &LIMITS);
    assert_eq!(parsed, Parsed::Command { command: command.clone(), consumed: bytes.len() });
    let mut out = Vec::new();
    compose_command(&command, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), bytes);
}

fn refusal_of(bytes: &str) -> (&'static str, usize) {
    match parse_command(bytes.as_bytes(), &LIMITS) {
        Parsed::Bad { line: Some(line), swallow, close: None, .. } => (line, swallow),
        other => panic!("{bytes:?} is {other:?}"),
    }
}

#[test]
fn verbs_keep_their_flags_in_order() {
    check_round_trip("mg a\r\n", MetaVerb::Get, "", None);
    let all = "b c f h k l q s t u v x I P L C1 E2 T-1";
    check_round_trip("mg a v t c k Oxyz N30 R10 E9\r\n", MetaVerb::Get, "v t c k Oxyz N30 R10 E9", None);
    check_round_trip("ms a 3 c MA T-1 F5\r\nx\ny\r\n", MetaVerb::Set, "c MA T-1 F5", Some("x\ny"));
    check_round_trip("ms a 0\r\n\r\n", MetaVerb::Set, "", Some(""));
    check_round_trip("md a q I T30 x\r\n", MetaVerb::Delete, "q I T30 x", None);
    check_round_trip(
        "ma a N0 J13 D18446744073709551615 MD v\r\n",
        MetaVerb::Arithmetic,
        "N0 J13 D18446744073709551615 MD v",
        None,
    );
    check_round_trip("me a v v Q\r\n", MetaVerb::Debug, "v v Q", None);
    assert_eq!(refusal_of(&format!("mg a {all}\r\n")).0, "CLIENT_ERROR error decoding key", "`a` is not base64");
    check_round_trip(&format!("md a {}\r\n", &all[2..]), MetaVerb::Delete, &all[2..], None);
}

#[test]
fn flags_are_parsed_into_numbers() {
    let flags = MetaFlags::read(MetaVerb::Set, b"C18446744073709551615 E7 F4294967295 T-1 N2147483647 R-2147483648 MP")
        .expect("good flags");
    assert_eq!((flags.cas_compare, flags.cas_new), (Some(Cas(u64::MAX)), Some(Cas(7))));
    assert_eq!(flags.client_flags, Some(u32::MAX));
    assert_eq!((flags.ttl_s, flags.vivify_ttl_s, flags.recache_below_s), (Some(-1), Some(i32::MAX), Some(i32::MIN)));
    assert_eq!(flags.store_mode(), StoreMode::Prepend);
    let mode = |text: &'static str| MetaFlags::read(MetaVerb::Set, text.as_bytes()).expect("good flags").store_mode();
    assert_eq!((mode(""), mode("MS"), mode("C5")), (StoreMode::Set, StoreMode::Set, StoreMode::Cas(Cas(5))));
    assert_eq!((mode("ME C5"), mode("MA"), mode("MR")), (StoreMode::Add, StoreMode::Append, StoreMode::Replace));
    assert_eq!(mode("MR C5"), StoreMode::Cas(Cas(5)), "a replace with a CAS unique misses like a cas");
    for (text, direction) in [("", Direction::Up), ("MI", Direction::Up), ("M+", Direction::Up)] {
        assert_eq!(MetaFlags::read(MetaVerb::Arithmetic, text.as_bytes()).expect("good flags").direction(), direction);
    }
    for text in ["MD", "M-"] {
        let flags = MetaFlags::read(MetaVerb::Arithmetic, text.as_bytes()).expect("good flags");
        assert_eq!(flags.direction(), Direction::Down);
    }
}

#[test]
fn bad_flags_are_refused_with_memcached_messages() {
    let long_opaque = format!("mg a O{}\r\n", "o".repeat(32));
    for (line, refusal) in [
        ("mg\r\n", "bad command line format"),
        ("mg a !\r\n", "bad command line format"),
        ("mg a v v !\r\n", "bad command line format"),
        ("mg a Fx\r\n", "bad command line format"),
        ("ms a x Q\r\n", "bad command line format"),
        ("mg a Q\r\n", "invalid flag"),
        ("mg a 1\r\n", "invalid flag"),
        ("mg a Cx Q\r\n", "invalid flag"),
        ("mg a noreply\r\n", "invalid flag"),
        ("mg a v v Q\r\n", "duplicate flag"),
        ("mg a C\r\n", "bad token in command line format"),
        ("mg a T2147483648\r\n", "bad token in command line format"),
        ("mg a D-5\r\n", "invalid numeric delta value"),
        ("mg a J\r\n", "invalid numeric initial value"),
        ("ma a v v\r\n", "invalid or duplicate flag"),
        ("ma a Nx\r\n", "invalid or duplicate flag"),
        ("ma a MX\r\n", "invalid mode for ma M token"),
        (&long_opaque, "opaque token too long"),
        ("mg a c f h k l q s t u v x L P O C1 E1 I M N0\r\n", "options flags are too long"),
    ] {
        assert_eq!(refusal_of(line), (format!("CLIENT_ERROR {refusal}").as_str(), 0), "{line:?}");
    }
}

#[test]
fn block_of_a_refused_ms_is_swallowed() {
    assert_eq!(refusal_of("ms a 5 Q\r\n"), ("CLIENT_ERROR invalid flag", 7));
    assert_eq!(refusal_of("ms a 5 MX q\r\n"), ("CLIENT_ERROR invalid mode for ms M token", 7));
    assert_eq!(refusal_of("ms a 101 q\r\n"), ("SERVER_ERROR object too large for cache", 103));
    assert_eq!(refusal_of("ms a -1\r\n"), ("CLIENT_ERROR bad command line format", 0));
    assert_eq!(refusal_of("ms a 1 q\r\nxy\r"), ("CLIENT_ERROR bad data chunk", 0));
    let key_to_delete = |line: &'static str| match parse_command(line.as_bytes(), &LIMITS) {
        Parsed::Bad { key_to_delete, .. } => key_to_delete,
        other => panic!("{other:?}"),
    };
    assert_eq!(key_to_delete("ms abc 101\r\n"), Some(&b"abc"[..]));
    assert_eq!(key_to_delete("ms abc 101 ME\r\n"), None);
    assert_eq!(key_to_delete("ms YWJj 101 b\r\n"), None, "the wire form is not the stored key");
}

#[test]
fn base64_keys_keep_their_wire_form_and_can_be_decoded() {
    let bytes = b"mg AP8gCg== b k v\r\n";
    let Parsed::Command { command: Command::Single { request, .. }, .. } = parse_command(bytes, &LIMITS) else {
        panic!("a command")
    };
    assert_eq!(request.key, b"AP8gCg==");
    let mut buffer = [0; KEY_BYTES_MAX];
    assert_eq!(decode_key(request.key, &mut buffer), Some(&b"\0\xff \n"[..]));
    let mut wire = Vec::new();
    encode_key(b"\0\xff \n", &mut wire);
    assert_eq!(wire, request.key);
    for bad in ["YQ", "YQ===", "====", "a!b="] {
        assert_eq!(refusal_of(&format!("mg {bad} b\r\n")).0, "CLIENT_ERROR error decoding key");
    }
}

fn compose(status: MetaStatus, flags: &str, info: MetaItemInfo, value: Option<&str>) -> String {
    let flags = MetaFlags::read(MetaVerb::Get, flags.as_bytes()).expect("good flags");
    let mut out = Vec::new();
    compose_meta_reply(status, b"YWI=", &flags, &info, value.map(str::as_bytes), &mut out);
    String::from_utf8(out).expect("these replies are ASCII")
}

#[test]
fn replies_return_the_requested_flags_in_order() {
    let info = MetaItemInfo {
        cas: Some(Cas(99)),
        client_flags: Some(7),
        hit_before: Some(true),
        idle_s: Some(12),
        value_bytes: Some(2),
        ttl_s: Some(-1),
        ..MetaItemInfo::default()
    };
    let done = MetaStatus::Done;
    assert_eq!(compose(done, "", info, None), "HD\r\n");
    assert_eq!(compose(done, "s t l h f c", info, None), "HD s2 t-1 l12 h1 f7 c99\r\n");
    assert_eq!(compose(done, "b O1 k s", info, None), "HD O1 kYWI= b s2\r\n");
    assert_eq!(compose(done, "s b", info, None), "HD s2\r\n");
    assert_eq!(compose(MetaStatus::Value, "c v q k", info, Some("hi")), "VA 2 c99 kYWI=\r\nhi\r\n");
    assert_eq!(compose(MetaStatus::Miss, "v k O1 t", MetaItemInfo::default(), None), "EN kYWI= O1\r\n");
    let stale = MetaItemInfo { stale: true, ..MetaItemInfo::default() };
    assert_eq!(compose(done, "k", MetaItemInfo { won: true, ..stale }, None), "HD kYWI= X W\r\n");
    assert_eq!(compose(done, "k", MetaItemInfo { already_won: true, ..stale }, None), "HD kYWI= Z X\r\n");
}

#[test]
fn replies_are_parsed_as_composed() {
    for (bytes, status, flags, value) in [
        ("HD\r\n", MetaStatus::Done, "", None),
        ("HD c1 kx\r\n", MetaStatus::Done, "c1 kx", None),
        ("VA 2 t-1 W\r\nh\n\r\n", MetaStatus::Value, "t-1 W", Some("h\n")),
        ("VA 0\r\n\r\n", MetaStatus::Value, "", Some("")),
        ("EN O9\r\n", MetaStatus::Miss, "O9", None),
        ("NF\r\n", MetaStatus::NotFound, "", None),
        ("NS kx\r\n", MetaStatus::NotStored, "kx", None),
        ("EX\r\n", MetaStatus::Exists, "", None),
        ("ME a exp=-1 la=0\r\n", MetaStatus::Debug, "a exp=-1 la=0", None),
    ] {
        let reply = Reply::Meta(MetaReply { status, flags: flags.as_bytes(), value: value.map(str::as_bytes) });
        let mut out = Vec::new();
        compose_reply(b"unused", &reply, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), bytes);
        let parsed = parse_reply(bytes.as_bytes(), &LIMITS);
        assert_eq!(parsed, ParsedReply::Part { part: ReplyPart::Reply(reply), consumed: bytes.len() });
    }
    for bytes in ["VA\r\n", "VA x\r\n", "VA 101\r\n", "VA 1\r\nxyz"] {
        assert!(matches!(parse_reply(bytes.as_bytes(), &LIMITS), ParsedReply::Malformed { .. }), "{bytes:?}");
    }
}

#[test]
fn quiet_commands_suppress_only_the_expected_reply() {
    use MetaStatus::{Done, Exists, Miss, NotFound, Value};
    for (verb, silent, sent) in [
        (MetaVerb::Get, &[Miss][..], &[Done, Value][..]),
        (MetaVerb::Set, &[Done], &[Exists, NotFound]),
        (MetaVerb::Delete, &[Done], &[Exists, NotFound]),
        (MetaVerb::Arithmetic, &[Done, Value], &[Exists, NotFound]),
    ] {
        assert!(silent.iter().all(|status| status.is_silent(verb)), "{verb:?}");
        assert!(!sent.iter().any(|status| status.is_silent(verb)), "{verb:?}");
    }
}
