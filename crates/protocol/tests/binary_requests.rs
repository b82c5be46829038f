//! The binary protocol byte by byte: valid lengths of requests, and the errors for others.

use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, ResponseTag, Status, opcode, parse_request, peek_tag,
};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, StoreMode};

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 0 };
const OPAQUE: u32 = 0x0102_0304;

/// Opcode, extras, key and value.
type Parts<'a> = (u8, &'a [u8], &'a [u8], &'a [u8]);

/// A request whose lengths are those of its parts.
fn request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body_bytes = (extras.len() + key.len() + value.len()) as u32;
    let mut bytes = vec![0x80, opcode, (key.len() >> 8) as u8, key.len() as u8, extras.len() as u8, 0, 0, 0];
    bytes.extend_from_slice(&body_bytes.to_be_bytes());
    bytes.extend_from_slice(&OPAQUE.to_be_bytes());
    bytes.extend_from_slice(&[0; 8]);
    [&bytes, extras, key, value].concat()
}

fn refuse(bytes: &[u8]) -> (Status, bool, usize) {
    match parse_request(bytes, &LIMITS) {
        BinaryParsed::Bad { tag, status, close, swallow, .. } => {
            assert_eq!(tag.opaque, OPAQUE);
            (status, close, swallow)
        }
        other => panic!("{other:?} of {bytes:?}"),
    }
}

#[test]
fn set_is_parsed_with_all_its_fields() {
    let mut bytes = request(opcode::SETQ, &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff], b"a b\n", b"value");
    bytes[23] = 9;
    let BinaryParsed::Request { request, consumed } = parse_request(&bytes, &LIMITS) else { panic!("a request") };
    let operation =
        BinaryOperation::Store { mode: StoreMode::Cas(Cas(9)), flags: 7, exptime: 0xffff_ffff, value: b"value" };
    assert_eq!(request.command, BinaryCommand::Keyed { key: b"a b\n", operation });
    assert_eq!((request.tag.opcode, request.is_quiet(), consumed), (opcode::SETQ, true, bytes.len()));
}

#[test]
fn parts_that_an_opcode_does_not_have_end_the_connection() {
    let (four, eight, twenty) = ([0; 4], [0; 8], [0; 20]);
    let wrong: &[Parts<'_>] = &[
        (opcode::GET, b"", b"", b""),
        (opcode::GETQ, b"x", b"k", b""),
        (opcode::GETKQ, b"", b"k", b"v"),
        (opcode::SET, b"", b"k", b"v"),
        (opcode::ADDQ, &eight, b"", b"v"),
        (opcode::APPEND, &eight, b"k", b"v"),
        (opcode::PREPENDQ, b"", b"", b"v"),
        (opcode::DELETE, &four, b"k", b""),
        (opcode::INCREMENT, &eight, b"k", b""),
        (opcode::DECREMENTQ, &twenty, b"k", b"v"),
        (opcode::TOUCH, b"", b"k", b""),
        (opcode::GAT, &four, b"", b""),
        (opcode::GATKQ, &four, b"k", b"v"),
        (opcode::FLUSH, b"ab", b"", b""),
        (opcode::FLUSHQ, &four, b"k", b""),
        (opcode::NOOP, b"", b"k", b""),
        (opcode::VERSION, b"", b"", b"v"),
        (opcode::QUITQ, b"x", b"", b""),
        (opcode::STAT, b"x", b"", b""),
        (opcode::STAT, b"", b"", b"v"),
        (opcode::SASL_MECHANISMS, b"", b"k", b""),
        (opcode::SASL_AUTHENTICATE, b"", b"", b"v"),
        (opcode::SASL_STEP, b"x", b"k", b"v"),
        (opcode::GET, b"", &[b'k'; 251], b""),
        (0x55, b"", &[b'k'; 251], b""),
    ];
    for (opcode, extras, key, value) in wrong {
        let bytes = request(*opcode, extras, key, value);
        assert_eq!(refuse(&bytes), (Status::InvalidArguments, true, 0), "opcode {opcode:#x}");
        assert_eq!(refuse(&bytes[..24]), (Status::InvalidArguments, true, 0), "opcode {opcode:#x}, header only");
    }
}

#[test]
fn body_shorter_than_its_parts_ends_the_connection() {
    let mut bytes = request(opcode::GET, b"", b"key", b"");
    bytes[11] = 2;
    assert_eq!(refuse(&bytes), (Status::UnknownCommand, true, 0));
}

#[test]
fn body_of_an_unknown_opcode_is_dropped() {
    for opcode in [0x1b, 0x1f, 0x25, 0x30, 0xff] {
        assert_eq!(refuse(&request(opcode, b"ext", b"key", b"value")), (Status::UnknownCommand, false, 11));
    }
}

#[test]
fn value_over_the_limit_is_refused_before_it_arrives_and_its_key_is_to_be_deleted() {
    let bytes = request(opcode::SET, &[0; 8], b"key", &[b'v'; 101]);
    for length in 24..35 {
        assert_eq!(parse_request(&bytes[..length], &LIMITS), BinaryParsed::Incomplete { needed_bytes: 35 });
    }
    let tag = ResponseTag { opcode: opcode::SET, opaque: OPAQUE };
    let refused = |tag, consumed, key_to_delete| BinaryParsed::Bad {
        tag,
        status: Status::TooLarge,
        consumed,
        swallow: 101,
        close: false,
        key_to_delete,
    };
    assert_eq!(parse_request(&bytes[..35], &LIMITS), refused(tag, 35, Some(&b"key"[..])));
    let bytes = request(opcode::APPENDQ, b"", b"key", &[b'v'; 101]);
    let tag = ResponseTag { opcode: opcode::APPENDQ, opaque: OPAQUE };
    assert_eq!(parse_request(&bytes, &LIMITS), refused(tag, 27, None));
}

#[test]
fn sasl_messages_have_their_own_limits() {
    let long = request(opcode::SASL_AUTHENTICATE, b"", &[b'M'; 33], b"word");
    assert_eq!(refuse(&long), (Status::InvalidArguments, false, 4));
    let long = request(opcode::SASL_STEP, b"", b"PLAIN", &[b'w'; 1025]);
    assert_eq!(refuse(&long), (Status::InvalidArguments, false, 1025));
    let whole = request(opcode::SASL_STEP, b"", b"PLAIN", &[b'w'; 1024]);
    assert!(matches!(parse_request(&whole, &LIMITS), BinaryParsed::Request { .. }), "over the limit of values");
}

#[test]
fn another_protocol_is_recognized_by_its_first_byte() {
    for bytes in [&b"g"[..], b"\x81", b"version\r\n"] {
        assert_eq!(parse_request(bytes, &LIMITS), BinaryParsed::NotBinary);
    }
    assert_eq!(parse_request(b"", &LIMITS), BinaryParsed::Incomplete { needed_bytes: 24 });
}

#[test]
fn tag_can_be_parsed_from_the_header_alone() {
    let bytes = request(opcode::SET, &[0; 8], b"key", &[b'v'; 1000]);
    assert_eq!(peek_tag(&bytes[..24]), Some(ResponseTag { opcode: opcode::SET, opaque: OPAQUE }));
    assert_eq!(peek_tag(&bytes[..23]), None);
}
