//! The binary protocol: parsing inverts composing, wherever the bytes are cut, and no bytes make a parser panic or
//! make no progress.

use crate::cut;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, BinaryRequest, MECHANISM_BYTES_MAX, ParsedResponse, Response,
    ResponseTag, Status, Vivify, compose_request, compose_response, opcode, parse_request, parse_response,
};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, Direction, KEY_BYTES_MAX, StoreMode};
use proptest::prelude::*;

const LIMITS: Limits = Limits { value_bytes_max: 100, line_bytes_max: 0 };
const STATUSES: [u16; 13] = [0, 1, 2, 3, 4, 5, 6, 0x20, 0x21, 0x81, 0x82, 0x83, 0x86];

/// The fields of a request; the opcode determines which of them are used.
#[derive(Clone, Debug)]
struct Parts {
    opcode: u8,
    opaque: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    cas: u64,
    exptime: u32,
    flags: u32,
    delta: u64,
    initial: u64,
}

fn parts() -> impl Strategy<Value = Parts> {
    let opcode = prop_oneof![opcode::GET..=opcode::PREPENDQ, opcode::TOUCH..=opcode::GATQ, 0x20..=0x24u8];
    let key = prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX);
    let value = prop::collection::vec(any::<u8>(), 0..=LIMITS.value_bytes_max);
    let cas = prop_oneof![Just(0), any::<u64>()];
    let exptime = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    let numbers = (any::<u32>(), any::<u64>(), any::<u64>());
    (opcode, any::<u32>(), key, value, cas, exptime, numbers).prop_map(
        |(opcode, opaque, key, value, cas, exptime, (flags, delta, initial))| Parts {
            opcode,
            opaque,
            key,
            value,
            cas,
            exptime,
            flags,
            delta,
            initial,
        },
    )
}

impl Parts {
    fn request(&self) -> BinaryRequest<'_> {
        BinaryRequest { tag: ResponseTag { opcode: self.opcode, opaque: self.opaque }, command: self.command() }
    }

    fn command(&self) -> BinaryCommand<'_> {
        let mechanism = &self.key[..self.key.len().min(MECHANISM_BYTES_MAX)];
        match self.opcode {
            opcode::QUIT | opcode::QUITQ => BinaryCommand::Quit,
            opcode::FLUSH | opcode::FLUSHQ => BinaryCommand::FlushAll { delay_s: self.exptime.into() },
            opcode::NOOP => BinaryCommand::Noop,
            opcode::VERSION => BinaryCommand::Version,
            opcode::STAT => BinaryCommand::Stats { arguments: &self.key },
            opcode::SASL_MECHANISMS => BinaryCommand::Mechanisms,
            opcode::SASL_AUTHENTICATE => BinaryCommand::Authenticate { mechanism, message: &self.value },
            opcode::SASL_STEP => BinaryCommand::AuthenticateStep { mechanism, message: &self.value },
            _ => BinaryCommand::Keyed { key: &self.key, operation: self.operation() },
        }
    }

    fn operation(&self) -> BinaryOperation<'_> {
        let cas = (self.cas != 0).then_some(Cas(self.cas));
        let (exptime, value) = (i64::from(self.exptime), &self.value[..]);
        let store = |mode| {
            let mode = cas.map_or(mode, StoreMode::Cas);
            BinaryOperation::Store { mode, flags: self.flags, exptime, value }
        };
        let get = |exptime, with_key| BinaryOperation::Get { exptime, with_key, with_value: self.opcode != 0x1c };
        match self.opcode {
            opcode::GET | opcode::GETQ => get(None, false),
            opcode::GETK | opcode::GETKQ => get(None, true),
            opcode::TOUCH | opcode::GAT | opcode::GATQ => get(Some(exptime), false),
            opcode::GATK | opcode::GATKQ => get(Some(exptime), true),
            opcode::SET | opcode::SETQ => store(StoreMode::Set),
            opcode::ADD | opcode::ADDQ => store(StoreMode::Add),
            opcode::REPLACE | opcode::REPLACEQ => store(StoreMode::Replace),
            opcode::APPEND | opcode::APPENDQ => BinaryOperation::Extend { mode: StoreMode::Append, cas, value },
            opcode::PREPEND | opcode::PREPENDQ => BinaryOperation::Extend { mode: StoreMode::Prepend, cas, value },
            opcode::DELETE | opcode::DELETEQ => BinaryOperation::Delete { cas },
            opcode => {
                let is_up = matches!(opcode, opcode::INCREMENT | opcode::INCREMENTQ);
                let direction = if is_up { Direction::Up } else { Direction::Down };
                let vivify = (self.exptime != u32::MAX).then_some(Vivify { initial: self.initial, exptime });
                BinaryOperation::Arithmetic { direction, delta: self.delta, vivify, cas }
            }
        }
    }
}

/// Requests, with a header's bytes damaged now and then.
fn nearly_requests() -> impl Strategy<Value = Vec<u8>> {
    let damage = prop::option::weighted(0.3, (prop_oneof![0usize..12, 0..24usize], any::<u8>()));
    prop::collection::vec((parts(), damage), 0..6).prop_map(|requests| {
        let mut bytes = Vec::new();
        for (parts, damage) in requests {
            let start = bytes.len();
            compose_request(&parts.request(), &mut bytes);
            if let Some((at, byte)) = damage {
                bytes[start + at] = byte;
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn binary_request_is_parsed_as_composed(parts in parts()) {
        let (request, mut out) = (parts.request(), Vec::new());
        compose_request(&request, &mut out);
        let consumed = out.len();
        out.extend_from_slice(b"further bytes");
        prop_assert_eq!(parse_request(&out, &LIMITS), BinaryParsed::Request { request, consumed });
    }

    #[test]
    fn response_is_parsed_as_composed(parts in parts(), status in prop::sample::select(&STATUSES[..])) {
        let Parts { opcode, opaque, cas, key, value, .. } = &parts;
        let status = Status::from_code(status).expect("a known code");
        let tag = ResponseTag { opcode: *opcode, opaque: *opaque };
        let extras = parts.flags.to_be_bytes();
        let extras = &extras[..if parts.exptime % 2 == 0 { 4 } else { 0 }];
        let (response, mut out) = (Response { tag, status, cas: Cas(*cas), extras, key, value }, Vec::new());
        compose_response(&response, &mut out);
        let consumed = out.len();
        for cut in 0..consumed {
            let half = parse_response(&out[..cut], &LIMITS);
            let is_waiting = matches!(half, ParsedResponse::Incomplete { needed_bytes } if needed_bytes > cut);
            prop_assert!(is_waiting, "{} of {consumed} bytes: {half:?}", cut);
        }
        prop_assert_eq!(parse_response(&out, &LIMITS), ParsedResponse::Response { response, consumed });
    }

    #[test]
    fn binary_requests_are_parsed_the_same_wherever_the_bytes_are_cut(
        bytes in nearly_requests(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let whole = parse_requests(&bytes, vec![bytes.len()]);
        prop_assert_eq!(parse_requests(&bytes, cut(&bytes, &cuts)), whole.clone());
        prop_assert_eq!(parse_requests(&bytes, (0..=bytes.len()).collect()), whole);
    }

    #[test]
    fn any_bytes_are_parsed_or_incomplete_in_the_binary_protocol(mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        parse_requests(&bytes, vec![bytes.len()]);
        for at in (0..bytes.len()).step_by(24) {
            bytes[at] = 0x80;
        }
        parse_requests(&bytes, vec![bytes.len()]);
        parse_response(&bytes, &LIMITS);
    }
}

/// Parses requests from `bytes` that arrive up to each of `lengths` in turn.
fn parse_requests(bytes: &[u8], lengths: Vec<usize>) -> Vec<String> {
    let (mut parsed, mut from, mut needed) = (Vec::new(), 0, 0);
    for length in lengths {
        while from <= length {
            let buffer = &bytes[from..length];
            match parse_request(buffer, &LIMITS) {
                BinaryParsed::Incomplete { needed_bytes } => {
                    assert!(needed_bytes > buffer.len(), "needs more bytes than it has");
                    needed = needed_bytes;
                    break;
                }
                BinaryParsed::Request { request, consumed } => {
                    assert!(consumed <= buffer.len() && buffer.len() >= needed);
                    parsed.push(format!("{request:?}"));
                    from += consumed;
                }
                BinaryParsed::Bad { tag, status, consumed, swallow, close, key_to_delete } => {
                    assert!(consumed > 0 && consumed <= buffer.len() && buffer.len() >= needed);
                    parsed.push(format!("{tag:?} {status:?} {swallow} {close} {key_to_delete:?}"));
                    if close {
                        return parsed;
                    }
                    from += consumed + swallow;
                }
                BinaryParsed::NotBinary => {
                    parsed.push("foreign".to_string());
                    return parsed;
                }
            }
            needed = 0;
        }
    }
    parsed
}
