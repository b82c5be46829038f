//! Parsing allocates nothing, whatever the command or reply.
use std::hint::black_box;

use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, BinaryRequest, ParsedResponse, ResponseTag, Status, compose_error,
    compose_hit, compose_request, opcode, parse_request, parse_response,
};
use lookaside_protocol::meta::{MetaFlags, MetaVerb};
use lookaside_protocol::text::{Limits, Parsed, ParsedReply, parse_command, parse_reply};
use lookaside_protocol::udp::FrameHeader;
use lookaside_protocol::{Cas, Command, Operation, StoreMode};
use lookaside_test_support::{CountingAllocator, count_allocations};

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 4096 };

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn allocator_counts() {
    assert_eq!(count_allocations(|| drop(black_box(vec![0u8; 8]))), 1);
}

#[test]
fn commands_are_parsed_without_allocating() {
    let many_keys = format!("get {}\r\n", ["user:1"; 500].join(" "));
    let commands = [
        "gets a b\r\n",
        "lease-get a b c\r\n",
        "gat 5 a\r\n",
        "set a 1 2 3 noreply\r\nabc\r\n",
        "cas a 1 2 3 4\r\nabc\r\n",
        "lease-set a 9 1 2 3\r\nabc\r\n",
        "delete a 0.25\r\n",
        "incr a 5\r\n",
        "touch a 5\r\n",
        "flush_all 1\r\n",
        "stats items\r\n",
        "mg YWJj b v t k c Oabc N30\r\n",
        "ms a 3 T30 F5 MS\r\nabc\r\n",
        "ma a N0 J5 MD\r\n",
        &many_keys,
    ];
    for bytes in commands {
        let count = count_allocations(|| match black_box(parse_command(bytes.as_bytes(), &LIMITS)) {
            Parsed::Command { command: Command::Retrieve { keys, .. }, .. } => {
                assert!(black_box(keys.count()) > 0)
            }
            Parsed::Command { command: Command::Single { request, .. }, .. } => {
                if let Operation::Meta(meta) = request.operation {
                    black_box(MetaFlags::read(meta.verb, meta.flags)).expect("checked while parsing");
                }
            }
            Parsed::Command { .. } => {}
            _ => panic!("not a command"),
        });
        assert_eq!(count, 0, "{bytes:?}");
    }
}

#[test]
fn refusals_and_incomplete_commands_do_not_allocate() {
    for bytes in ["", "get a", "set a 0 0 50\r\nabc", "foo\r\n", "set a 0 0 101\r\n", "mg a Q\r\n", "get \x01\r\n"] {
        let count = count_allocations(|| {
            let parsed = parse_command(bytes.as_bytes(), &LIMITS);
            assert!(!matches!(black_box(parsed), Parsed::Command { .. }));
        });
        assert_eq!(count, 0, "{bytes:?}");
    }
    assert_eq!(count_allocations(|| assert!(MetaFlags::read(MetaVerb::Get, b"Cx").is_err())), 0);
}

#[test]
fn replies_and_datagrams_are_parsed_without_allocating() {
    for bytes in ["VALUE a 1 3 99\r\nabc\r\n", "LVALUE a 9 1 0\r\n\r\n", "STORED\r\n", "17\r\n", "VA 1 t5\r\nx\r\n"] {
        let count = count_allocations(|| {
            let parsed = parse_reply(bytes.as_bytes(), &LIMITS);
            assert!(matches!(black_box(parsed), ParsedReply::Part { .. }));
        });
        assert_eq!(count, 0, "{bytes:?}");
    }
    assert_eq!(count_allocations(|| assert!(FrameHeader::parse(b"\0\x01\0\0\0\x01\0\0END\r\n").is_ok())), 0);
}

#[test]
fn binary_requests_are_parsed_and_answered_without_allocating() {
    let mut requests = Vec::new();
    let keyed = |opcode, operation| {
        let tag = ResponseTag { opcode, opaque: 7 };
        BinaryRequest { tag, command: BinaryCommand::Keyed { key: b"user:1", operation } }
    };
    let get = BinaryOperation::Get { exptime: None, with_key: true, with_value: true };
    let set = BinaryOperation::Store { mode: StoreMode::Set, flags: 1, exptime: 0, value: b"abc" };
    compose_request(&keyed(opcode::GETKQ, get), &mut requests);
    compose_request(&keyed(opcode::SETQ, set), &mut requests);
    compose_request(&keyed(opcode::DELETEQ, BinaryOperation::Delete { cas: None }), &mut requests);
    let (mut refused, mut out) = (requests.clone(), Vec::with_capacity(1 << 12));
    refused[11] = 99;
    let count = count_allocations(|| {
        let mut at = 0;
        while let BinaryParsed::Request { request, consumed } = black_box(parse_request(&requests[at..], &LIMITS)) {
            compose_hit(request.tag, Cas(1), 2, b"user:1", 3, &mut out);
            compose_error(request.tag, Status::NotFound, &mut out);
            at += consumed;
        }
        assert_eq!(at, requests.len());
        assert!(matches!(black_box(parse_request(&refused, &LIMITS)), BinaryParsed::Bad { .. }));
        assert!(matches!(
            parse_response(&out, &LIMITS),
            ParsedResponse::Incomplete { .. } | ParsedResponse::Response { .. }
        ));
    });
    assert_eq!(count, 0);
}
