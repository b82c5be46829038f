//! Each reply in literal bytes: as a server composes it, and as a client parses it.

use lookaside_protocol::text::{
    Limits, ParsedReply, ReplyPart, compose_reply, compose_request, compose_retrieve, parse_reply,
};
use lookaside_protocol::{Cas, ErrorReply, LeaseToken, Operation, Reply, Request};

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 300 };

fn parse(bytes: &str) -> ReplyPart<'_> {
    match parse_reply(bytes.as_bytes(), &LIMITS) {
        ParsedReply::Part { part, consumed } => {
            assert_eq!(consumed, bytes.len(), "{bytes:?}");
            part
        }
        other => panic!("{bytes:?} is {other:?}"),
    }
}

fn compose(reply: &Reply<&[u8]>) -> String {
    let mut out = Vec::new();
    compose_reply(b"k", reply, &mut out);
    String::from_utf8(out).expect("these replies are ASCII")
}

#[test]
fn items_are_composed_and_parsed() {
    let value = |cas| Reply::Value { flags: 7, cas, value: &b"a\r\nb"[..] };
    let lease = |token, stale| Reply::Lease { token, flags: 7, stale };
    for (bytes, reply) in [
        ("VALUE k 7 4\r\na\r\nb\r\n", value(None)),
        ("VALUE k 7 4 18446744073709551615\r\na\r\nb\r\n", value(Some(Cas(u64::MAX)))),
        ("LVALUE k 99 7 3\r\nold\r\n", lease(LeaseToken(99), Some(&b"old"[..]))),
        ("LVALUE k 1 7 0\r\n\r\n", lease(LeaseToken::HOT_MISS, None)),
    ] {
        assert_eq!(compose(&reply), bytes);
        assert_eq!(parse(bytes), ReplyPart::Item { key: b"k", reply });
    }
}

#[test]
fn lines_are_composed_and_parsed() {
    for (bytes, reply) in [
        ("STORED\r\n", Reply::Stored),
        ("STALE_STORED\r\n", Reply::StaleStored),
        ("NOT_STORED\r\n", Reply::NotStored),
        ("EXISTS\r\n", Reply::Exists),
        ("NOT_FOUND\r\n", Reply::NotFound),
        ("DELETED\r\n", Reply::Deleted),
        ("TOUCHED\r\n", Reply::Touched),
        ("OK\r\n", Reply::Ok),
        ("0\r\n", Reply::Number(0)),
        ("18446744073709551615\r\n", Reply::Number(u64::MAX)),
        ("ERROR\r\n", Reply::Error(ErrorReply::Unknown)),
        ("CLIENT_ERROR line too long\r\n", Reply::Error(ErrorReply::Client(&b"line too long"[..]))),
        ("SERVER_ERROR out of memory\r\n", Reply::Error(ErrorReply::Server(&b"out of memory"[..]))),
    ] {
        assert_eq!(compose(&reply), bytes);
        assert_eq!(parse(bytes), ReplyPart::Reply(reply));
    }
    assert_eq!(compose(&Reply::Miss), "");
    assert_eq!(parse("END\r\n"), ReplyPart::End);
    assert_eq!(parse("MN\r\n"), ReplyPart::MetaNoop);
    assert_eq!(parse("VERSION 1.6.45\r\n"), ReplyPart::Version(b"1.6.45"));
    assert_eq!(parse("STAT pid 12\r\n"), ReplyPart::Stat { name: b"pid", value: b"12" });
    assert_eq!(parse("STAT empty\r\n"), ReplyPart::Stat { name: b"empty", value: b"" });
    assert_eq!(parse("99 \r\n"), ReplyPart::Reply(Reply::Number(99)), "memcached pads decremented numbers");
    let refused = Reply::Error(ErrorReply::Server(&b"Too many open connections"[..]));
    assert_eq!(parse("ERROR Too many open connections\r\n"), ReplyPart::Reply(refused));
}

#[test]
fn error_stays_one_line() {
    let reply = Reply::Error(ErrorReply::Server(&b"disk\r\nSTORED\r\n"[..]));
    assert_eq!(compose(&reply), "SERVER_ERROR disk\r\n");
}

#[test]
fn malformed_replies_are_refused() {
    for bytes in [
        "\r\n",
        "HELLO\r\n",
        "VALUE\r\n",
        "VALUE k\r\n",
        "VALUE k 0\r\n",
        "VALUE k 0 x\r\n",
        "VALUE k 0 101\r\n",
        "VALUE k 0 18446744073709551615\r\n",
        "VALUE k 4294967296 1\r\nx\r\n",
        "VALUE k 0 1 x\r\nx\r\n",
        "VALUE k 0 1\r\nxyz",
        "LVALUE k 0 1\r\n",
        "STAT\r\n",
        "OK but later\r\n",
        "-1\r\n",
    ] {
        assert!(matches!(parse_reply(bytes.as_bytes(), &LIMITS), ParsedReply::Malformed { .. }), "{bytes:?}");
    }
    let endless = "x".repeat(301);
    assert!(matches!(parse_reply(endless.as_bytes(), &LIMITS), ParsedReply::Malformed { .. }));
}

#[test]
fn incomplete_reply_reports_the_needed_bytes() {
    for (bytes, expected) in [("", 1), ("VALUE k 0", 10), ("VALUE k 0 10\r\n", 26), ("VALUE k 0 10\r\nabc", 26)] {
        let needed = ParsedReply::Incomplete { needed_bytes: expected };
        assert_eq!(parse_reply(bytes.as_bytes(), &LIMITS), needed, "{bytes:?}");
    }
}

#[test]
fn requests_may_own_or_borrow_their_bytes() {
    let mut out = Vec::new();
    compose_request(&Request { key: b"k".to_vec(), operation: Operation::Get { cas: true } }, &mut out);
    compose_request(&Request { key: "k", operation: Operation::LeaseGet }, &mut out);
    compose_retrieve(&Operation::<&[u8]>::GetAndTouch { exptime: 9, cas: false }, ["a", "b"], &mut out);
    compose_retrieve(&Operation::<&[u8]>::LeaseGet, [] as [&[u8]; 0], &mut out);
    assert_eq!(String::from_utf8_lossy(&out), "gets k\r\nlease-get k\r\ngat 9 a b\r\n");
}
