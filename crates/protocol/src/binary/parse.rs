//! Parses requests, for servers and routers: a header, and a body whose lengths must fit its opcode.

use super::opcode::{self as op, has_key};
use super::{
    AUTHENTICATION_BYTES_MAX, BinaryCommand, BinaryOperation, BinaryRequest, HEADER_BYTES, MECHANISM_BYTES_MAX,
    REQUEST_MAGIC, ResponseTag, Status, Vivify,
};
use crate::text::Limits;
use crate::{Cas, Direction, KEY_BYTES_MAX, StoreMode};

/// The exptime with which `incr` and `decr` do not create an item.
pub(super) const EXPTIME_NO_VIVIFY: u32 = u32::MAX;

/// The result of parsing a request at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryParsed<'a> {
    /// Not a whole request yet.
    Incomplete {
        /// The buffer holds no whole request below this length, in bytes.
        needed_bytes: usize,
    },
    /// A request.
    Request {
        /// The request.
        request: BinaryRequest<'a>,
        /// Bytes of the buffer that it took.
        consumed: usize,
    },
    /// A refused request; its sender gets an error, even if the request is quiet.
    Bad {
        /// The fields that the response repeats.
        tag: ResponseTag,
        /// The status of the response.
        status: Status,
        /// Bytes of the buffer to drop now.
        consumed: usize,
        /// Further bytes to drop as they arrive.
        swallow: usize,
        /// Whether the connection must be closed.
        close: bool,
        /// The key of a `set` that was refused for its size; its old value must be deleted.
        key_to_delete: Option<&'a [u8]>,
    },
    /// Not this protocol: the connection must be closed, without a response.
    NotBinary,
}

struct RequestHeader {
    opcode: u8,
    key_bytes: usize,
    extras_bytes: usize,
    body_bytes: usize,
    opaque: u32,
    cas: u64,
}

/// Parses one request at the front of `buffer`.
///
/// ```
/// use lookaside_protocol::binary::{BinaryCommand, BinaryParsed, parse_request};
/// let limits = lookaside_protocol::text::Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let mut noop = [0; 24];
/// (noop[0], noop[1]) = (0x80, 0x0a);
/// let BinaryParsed::Request { request, consumed: 24 } = parse_request(&noop, &limits) else { panic!("a request") };
/// assert_eq!(request.command, BinaryCommand::Noop);
/// assert_eq!(parse_request(b"get a\r\n", &limits), BinaryParsed::NotBinary);
/// ```
pub fn parse_request<'a>(buffer: &'a [u8], limits: &Limits) -> BinaryParsed<'a> {
    if buffer.first().is_some_and(|&magic| magic != REQUEST_MAGIC) {
        return BinaryParsed::NotBinary;
    }
    let Some((header, _)) = buffer.split_first_chunk() else {
        return BinaryParsed::Incomplete { needed_bytes: HEADER_BYTES };
    };
    let header = RequestHeader::parse(header);
    if header.key_bytes + header.extras_bytes > header.body_bytes {
        return header.refuse(Status::UnknownCommand, true);
    }
    if header.key_bytes > KEY_BYTES_MAX || !header.is_well_formed() {
        return header.refuse(Status::InvalidArguments, true);
    }
    if !header.is_known() {
        return header.refuse(Status::UnknownCommand, false);
    }
    if header.value_bytes() > header.value_bytes_max(limits) || header.has_unknown_mechanism() {
        return header.refuse_value(buffer);
    }
    let consumed = HEADER_BYTES + header.body_bytes;
    match buffer.get(HEADER_BYTES..consumed) {
        Some(body) => {
            let request = BinaryRequest { tag: header.tag(), command: header.parse_body(body) };
            BinaryParsed::Request { request, consumed }
        }
        None => BinaryParsed::Incomplete { needed_bytes: consumed },
    }
}

/// The response tag of the first request in `buffer`; `None` if its header is incomplete. For refusing a request
/// before it has arrived.
pub fn peek_tag(buffer: &[u8]) -> Option<ResponseTag> {
    buffer.split_first_chunk().map(|(header, _)| RequestHeader::parse(header).tag())
}

impl RequestHeader {
    #[inline]
    fn parse(bytes: &[u8; HEADER_BYTES]) -> RequestHeader {
        let [_, opcode, k0, k1, extras_bytes, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = *bytes;
        RequestHeader {
            opcode,
            key_bytes: usize::from(u16::from_be_bytes([k0, k1])),
            extras_bytes: usize::from(extras_bytes),
            body_bytes: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: u32::from_be_bytes([o0, o1, o2, o3]),
            cas: u64::from_be_bytes(cas),
        }
    }

    fn tag(&self) -> ResponseTag {
        ResponseTag { opcode: self.opcode, opaque: self.opaque }
    }

    fn value_bytes(&self) -> usize {
        self.body_bytes - self.key_bytes - self.extras_bytes
    }

    fn cas(&self) -> Option<Cas> {
        (self.cas != 0).then_some(Cas(self.cas))
    }

    fn is_known(&self) -> bool {
        matches!(self.opcode, op::GET..=op::PREPENDQ | op::TOUCH..=op::GATQ | op::SASL_MECHANISMS..=op::GATKQ)
    }

    /// Whether the opcode has exactly this key, these extras and this value.
    #[inline]
    fn is_well_formed(&self) -> bool {
        let (has_key, has_value) = (self.key_bytes > 0, self.value_bytes() > 0);
        match self.opcode {
            op::GET | op::GETQ | op::GETK | op::GETKQ | op::DELETE | op::DELETEQ => {
                has_key && self.extras_bytes == 0 && !has_value
            }
            op::TOUCH | op::GAT | op::GATQ | op::GATK | op::GATKQ => has_key && self.extras_bytes == 4 && !has_value,
            op::SET | op::SETQ | op::ADD | op::ADDQ | op::REPLACE | op::REPLACEQ => has_key && self.extras_bytes == 8,
            op::APPEND | op::APPENDQ | op::PREPEND | op::PREPENDQ | op::SASL_AUTHENTICATE | op::SASL_STEP => {
                has_key && self.extras_bytes == 0
            }
            op::INCREMENT | op::INCREMENTQ | op::DECREMENT | op::DECREMENTQ => {
                has_key && self.extras_bytes == 20 && !has_value
            }
            op::FLUSH | op::FLUSHQ => !has_key && !has_value && matches!(self.extras_bytes, 0 | 4),
            op::STAT => self.extras_bytes == 0 && !has_value,
            op::NOOP | op::VERSION | op::QUIT | op::QUITQ | op::SASL_MECHANISMS => self.body_bytes == 0,
            _ => true,
        }
    }

    fn is_authentication(&self) -> bool {
        matches!(self.opcode, op::SASL_AUTHENTICATE | op::SASL_STEP)
    }

    fn value_bytes_max(&self, limits: &Limits) -> usize {
        if self.is_authentication() { AUTHENTICATION_BYTES_MAX } else { limits.value_bytes_max }
    }

    fn has_unknown_mechanism(&self) -> bool {
        self.is_authentication() && self.key_bytes > MECHANISM_BYTES_MAX
    }

    /// Parses the body. The opcode is known, and the lengths have been checked.
    #[inline]
    fn parse_body<'a>(&self, body: &'a [u8]) -> BinaryCommand<'a> {
        let (extras, rest) = body.split_at(self.extras_bytes);
        let (key, value) = rest.split_at(self.key_bytes);
        let operation = match self.opcode {
            op::GET | op::GETQ | op::GETK | op::GETKQ => {
                BinaryOperation::Get { exptime: None, with_key: has_key(self.opcode), with_value: true }
            }
            op::TOUCH | op::GAT | op::GATQ | op::GATK | op::GATKQ => BinaryOperation::Get {
                exptime: Some(exptime(number_32(extras))),
                with_key: has_key(self.opcode),
                with_value: self.opcode != op::TOUCH,
            },
            op::SET | op::SETQ => self.parse_store(StoreMode::Set, extras, value),
            op::ADD | op::ADDQ => self.parse_store(StoreMode::Add, extras, value),
            op::REPLACE | op::REPLACEQ => self.parse_store(StoreMode::Replace, extras, value),
            op::APPEND | op::APPENDQ => BinaryOperation::Extend { mode: StoreMode::Append, cas: self.cas(), value },
            op::PREPEND | op::PREPENDQ => BinaryOperation::Extend { mode: StoreMode::Prepend, cas: self.cas(), value },
            op::DELETE | op::DELETEQ => BinaryOperation::Delete { cas: self.cas() },
            op::INCREMENT | op::INCREMENTQ => self.parse_arithmetic(Direction::Up, extras),
            op::DECREMENT | op::DECREMENTQ => self.parse_arithmetic(Direction::Down, extras),
            _ => return self.parse_keyless(extras, key, value),
        };
        BinaryCommand::Keyed { key, operation }
    }

    fn parse_keyless<'a>(&self, extras: &'a [u8], key: &'a [u8], value: &'a [u8]) -> BinaryCommand<'a> {
        match self.opcode {
            op::FLUSH | op::FLUSHQ if extras.is_empty() => BinaryCommand::FlushAll { delay_s: 0 },
            op::FLUSH | op::FLUSHQ => BinaryCommand::FlushAll { delay_s: exptime(number_32(extras)) },
            op::NOOP => BinaryCommand::Noop,
            op::VERSION => BinaryCommand::Version,
            op::STAT => BinaryCommand::Stats { arguments: key },
            op::QUIT | op::QUITQ => BinaryCommand::Quit,
            op::SASL_MECHANISMS => BinaryCommand::Mechanisms,
            op::SASL_AUTHENTICATE => BinaryCommand::Authenticate { mechanism: key, message: value },
            op::SASL_STEP => BinaryCommand::AuthenticateStep { mechanism: key, message: value },
            _ => unreachable!("an unknown opcode has been refused"),
        }
    }

    fn parse_store<'a>(&self, mode: StoreMode, extras: &[u8], value: &'a [u8]) -> BinaryOperation<'a> {
        let mode = self.cas().map_or(mode, StoreMode::Cas);
        let (flags, exptime_bytes) = extras.split_at(4);
        BinaryOperation::Store { mode, flags: number_32(flags), exptime: exptime(number_32(exptime_bytes)), value }
    }

    fn parse_arithmetic<'a>(&self, direction: Direction, extras: &[u8]) -> BinaryOperation<'a> {
        let (delta, rest) = extras.split_at(8);
        let (initial, exptime_bytes) = rest.split_at(8);
        let vivify = match number_32(exptime_bytes) {
            EXPTIME_NO_VIVIFY => None,
            seconds => Some(Vivify { initial: number_64(initial), exptime: exptime(seconds) }),
        };
        BinaryOperation::Arithmetic { direction, delta: number_64(delta), vivify, cas: self.cas() }
    }

    /// Refuses a request as soon as its header is complete. Unless the connection is closed, the body is dropped as
    /// it arrives.
    fn refuse<'a>(&self, status: Status, close: bool) -> BinaryParsed<'a> {
        let swallow = if close { 0 } else { self.body_bytes };
        BinaryParsed::Bad { tag: self.tag(), status, consumed: HEADER_BYTES, swallow, close, key_to_delete: None }
    }

    /// Refuses a value over its limit once the key has arrived; the value is dropped as it arrives.
    fn refuse_value<'a>(&self, buffer: &'a [u8]) -> BinaryParsed<'a> {
        let key_at = HEADER_BYTES + self.extras_bytes;
        let consumed = key_at + self.key_bytes;
        let Some(key) = buffer.get(key_at..consumed) else {
            return BinaryParsed::Incomplete { needed_bytes: consumed };
        };
        let replaces = matches!(self.opcode, op::SET | op::SETQ);
        BinaryParsed::Bad {
            tag: self.tag(),
            status: if self.is_authentication() { Status::InvalidArguments } else { Status::TooLarge },
            consumed,
            swallow: self.value_bytes(),
            close: false,
            key_to_delete: replaces.then_some(key),
        }
    }
}

fn exptime(seconds: u32) -> i64 {
    i64::from(seconds)
}

/// The number in four bytes; the length has been checked.
fn number_32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("extras have the length that was checked"))
}

fn number_64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("extras have the length that was checked"))
}
