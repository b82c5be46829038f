//! The binary protocol: requests and responses of fixed layout, for clients that still use it (memcached's
//! `protocol_binary.h`; memcached has deprecated it).
//!
//! ```text
//!  0      1       2      4        5      6          8       12      16            24
//!  | 0x80 | opcode| key  | extras | type | reserved | body  | opaque| CAS unique  | extras | key | value |   request
//!  | 0x81 |       | bytes| bytes  |      | status   | bytes |       |             |                       |   response
//! ```
//!
//! All numbers are big-endian. The body is extras, key and value together. A response repeats the request's `opaque`,
//! so that a client can match responses although some are omitted: a quiet get has no response on a miss, other quiet
//! requests have none on success. A get of many keys is a run of quiet gets followed by a `noop`.
//!
//! [`parse_request`] and the composers of responses serve a server's end, [`compose_request`] and [`parse_response`] a
//! client's.
//!
//! * The lengths of a request are checked as memcached 1.6.45 does; statuses and their messages are memcached's too.
//! * Keys are any 1 to 250 bytes, as this protocol has no separators. A router checks a key with [`crate::check_key`]
//!   before it forwards the request in the text protocol.
//! * An exptime is an unsigned number of 32 bits: 0xffffffff is a day in the year 2106, not one that has passed. In
//!   `incr`/`decr`, 0xffffffff means: do not create the key.
//! * Parsers borrow and allocate nothing, and their results do not depend on where the bytes were cut.
//!
//! Deliberately absent: leases, for which this protocol has no opcodes. Data types and the reserved field are
//! ignored, as in memcached.

mod compose;
pub mod opcode;
mod parse;
mod response;

pub use compose::compose_request;
pub use parse::{BinaryParsed, parse_request, peek_tag};
pub use response::{
    ParsedResponse, Response, compose_error, compose_hit, compose_response, compose_statistics, parse_response,
};

use crate::{Cas, Direction, StoreMode};

/// The first byte of a request; it distinguishes this protocol from the others.
pub const REQUEST_MAGIC: u8 = 0x80;

/// The first byte of a response.
pub const RESPONSE_MAGIC: u8 = 0x81;

/// The size of a header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// The longest name of a SASL mechanism, in bytes.
pub const MECHANISM_BYTES_MAX: usize = 32;

/// The longest SASL message of a client, in bytes: enough for three names of 255 bytes and their separators.
pub const AUTHENTICATION_BYTES_MAX: usize = 1024;

/// The fields of a request that its response repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTag {
    /// The opcode, known or not.
    pub opcode: u8,
    /// The client's number for the request.
    pub opaque: u32,
}

/// A parsed request, borrowing from the connection's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryRequest<'a> {
    /// The fields that the response repeats.
    pub tag: ResponseTag,
    /// The command.
    pub command: BinaryCommand<'a>,
}

/// The command of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryCommand<'a> {
    /// An operation on one key.
    Keyed {
        /// The key: any bytes.
        key: &'a [u8],
        /// The operation.
        operation: BinaryOperation<'a>,
    },
    /// `flush`
    FlushAll {
        /// Seconds from now (or a Unix time, as an exptime); 0 at once.
        delay_s: i64,
    },
    /// `noop`: its response tells a client that all requests before it are done.
    Noop,
    /// `version`
    Version,
    /// `stat`
    Stats {
        /// The statistics to return; empty for the general ones.
        arguments: &'a [u8],
    },
    /// `quit`
    Quit,
    /// SASL: list the mechanisms.
    Mechanisms,
    /// SASL: start authentication.
    Authenticate {
        /// The mechanism's name.
        mechanism: &'a [u8],
        /// The first message; empty for none.
        message: &'a [u8],
    },
    /// SASL: continue authentication.
    AuthenticateStep {
        /// The mechanism's name.
        mechanism: &'a [u8],
        /// The message.
        message: &'a [u8],
    },
}

/// An operation on a key. An exptime is in seconds as in [`crate::Operation`], never negative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryOperation<'a> {
    /// `get`, `gat` and `touch` in all their forms. The response always has flags and CAS unique.
    Get {
        /// The new exptime; `None` for `get`.
        exptime: Option<i64>,
        /// Whether the response repeats the key, even on a miss.
        with_key: bool,
        /// Whether the response has the value; false for `touch`.
        with_value: bool,
    },
    /// `set`, `add` and `replace`. One with a CAS unique is a [`StoreMode::Cas`], whatever its opcode.
    Store {
        /// The condition.
        mode: StoreMode,
        /// Opaque to the server.
        flags: u32,
        /// When the item expires.
        exptime: i64,
        /// The value.
        value: &'a [u8],
    },
    /// `append` and `prepend`.
    Extend {
        /// [`StoreMode::Append`] or [`StoreMode::Prepend`].
        mode: StoreMode,
        /// Only if the item has this unique.
        cas: Option<Cas>,
        /// The bytes to add.
        value: &'a [u8],
    },
    /// `delete`
    Delete {
        /// Only if the item has this unique.
        cas: Option<Cas>,
    },
    /// `incr` and `decr`
    Arithmetic {
        /// Up or down.
        direction: Direction,
        /// The amount.
        delta: u64,
        /// The item to create on a miss; `None`: create none.
        vivify: Option<Vivify>,
        /// Only if the item has this unique.
        cas: Option<Cas>,
    },
}

/// The item that an `incr` or `decr` creates on a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vivify {
    /// The number.
    pub initial: u64,
    /// Its exptime.
    pub exptime: i64,
}

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// There is no such item.
    NotFound,
    /// The item exists already, or has another CAS unique.
    Exists,
    /// The value is over the limit.
    TooLarge,
    /// The request's lengths are not those of its opcode.
    InvalidArguments,
    /// Nothing to append to.
    NotStored,
    /// `incr` or `decr` of a value that is not a number.
    NotANumber,
    /// A wrong password, or none.
    AuthenticationFailed,
    /// Authentication needs another message.
    AuthenticationContinues,
    /// No such opcode.
    UnknownCommand,
    /// Out of memory.
    OutOfMemory,
    /// Known, but not supported here: a router sends its servers another protocol.
    NotSupported,
    /// No server replied; the client may retry.
    TemporaryFailure,
}

impl BinaryRequest<'_> {
    /// Whether the expected response is omitted.
    pub fn is_quiet(&self) -> bool {
        opcode::is_quiet(self.tag.opcode)
    }
}

impl Status {
    const ALL: [Status; 13] = [
        Status::Success,
        Status::NotFound,
        Status::Exists,
        Status::TooLarge,
        Status::InvalidArguments,
        Status::NotStored,
        Status::NotANumber,
        Status::AuthenticationFailed,
        Status::AuthenticationContinues,
        Status::UnknownCommand,
        Status::OutOfMemory,
        Status::NotSupported,
        Status::TemporaryFailure,
    ];

    /// The number in the header.
    pub fn code(self) -> u16 {
        match self {
            Status::Success => 0x00,
            Status::NotFound => 0x01,
            Status::Exists => 0x02,
            Status::TooLarge => 0x03,
            Status::InvalidArguments => 0x04,
            Status::NotStored => 0x05,
            Status::NotANumber => 0x06,
            Status::AuthenticationFailed => 0x20,
            Status::AuthenticationContinues => 0x21,
            Status::UnknownCommand => 0x81,
            Status::OutOfMemory => 0x82,
            Status::NotSupported => 0x83,
            Status::TemporaryFailure => 0x86,
        }
    }

    /// The status with this number.
    pub fn from_code(code: u16) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.code() == code)
    }

    /// The message in the body of an error: memcached's, if memcached has the status.
    pub fn message(self) -> &'static str {
        match self {
            Status::Success | Status::AuthenticationContinues => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotANumber => "Non-numeric server-side value for incr or decr",
            Status::AuthenticationFailed => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::NotSupported => "Not supported.",
            Status::TemporaryFailure => "Temporary failure",
        }
    }
}
