//! The binary dialect: requests and responses of fixed layout, for the clients that still speak it (memcached's
//! `protocol_binary.h`; memcached itself calls it deprecated).
//!
//! ```text
//!  0      1       2      4        5      6          8       12      16            24
//!  | 0x80 | opcode| key  | extras | type | reserved | body  | opaque| CAS unique  | extras | key | value |   request
//!  | 0x81 |       | bytes| bytes  |      | status   | bytes |       |             |                       |   response
//! ```
//!
//! All numbers are big-endian. The body is extras, key and value together. `opaque` comes back as it went out, so that a
//! client finds the answer to a request among those that were left unsaid: a quiet get says nothing on a miss, other quiet
//! requests nothing when all went well. A get of many keys is a row of quiet gets with a `noop` behind it.
//!
//! A get and a delete pass here like those of the text dialect: [`parse_request`] and the composers of responses at a
//! server's end, [`compose_request`] and [`parse_response`] at a client's.
//!
//! * What a request's lengths must be is checked here, as memcached 1.6.45 checks it; statuses and their words are its own.
//! * Keys are any bytes, 1 to 250 of them: this dialect has no separators. Whoever passes a request on in the text
//!   dialect asks [`crate::check_key`] first.
//! * An exptime is 32 bits without a sign: 0xffffffff is a day in the year 2106, not one that has passed. In `incr` and
//!   `decr` it is a word of its own: do not make what is not there.
//! * As everywhere in this crate, parsers borrow and allocate nothing, and what they answer does not depend on where the
//!   bytes were cut.
//!
//! Absent: leases; this dialect has no room for them. Data types and the reserved field are not looked at, as in memcached.

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

/// The first byte of a request, and what tells this dialect from the others.
pub const REQUEST_MAGIC: u8 = 0x80;

/// The first byte of a response.
pub const RESPONSE_MAGIC: u8 = 0x81;

/// The size of a header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// The longest name of a SASL mechanism, in bytes.
pub const MECHANISM_BYTES_MAX: usize = 32;

/// The longest word of a client during authentication, in bytes: room for three names of 255 bytes and what divides them.
pub const AUTHENTICATION_BYTES_MAX: usize = 1024;

/// What a response repeats of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseTag {
    /// The opcode, known or not.
    pub opcode: u8,
    /// The client's own number for the request.
    pub opaque: u32,
}

/// A parsed request, borrowing from the connection's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryRequest<'a> {
    /// What the response repeats.
    pub tag: ResponseTag,
    /// What to do.
    pub command: BinaryCommand<'a>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryCommand<'a> {
    /// An operation on one key.
    Keyed {
        /// The key: any bytes.
        key: &'a [u8],
        /// What to do with it.
        operation: BinaryOperation<'a>,
    },
    /// `flush`
    FlushAll {
        /// Seconds from now (or a Unix time, as an exptime); 0 at once.
        delay_s: i64,
    },
    /// `noop`: answered, so that a client learns that all before it is done.
    Noop,
    /// `version`
    Version,
    /// `stat`
    Stats {
        /// Which statistics; empty for the general ones.
        arguments: &'a [u8],
    },
    /// `quit`
    Quit,
    /// SASL: which mechanisms are there?
    Mechanisms,
    /// SASL: a client names a mechanism and says its first word.
    Authenticate {
        /// The mechanism's name.
        mechanism: &'a [u8],
        /// The first word; empty for none.
        word: &'a [u8],
    },
    /// SASL: a further word.
    AuthenticateStep {
        /// The mechanism's name.
        mechanism: &'a [u8],
        /// The word.
        word: &'a [u8],
    },
}

/// What can be done to a key in this dialect. An exptime is in seconds as [`crate::Operation`] has it, never negative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryOperation<'a> {
    /// `get`, `gat` and `touch` in all their forms. The response has flags and CAS unique in any case.
    Get {
        /// A new exptime, for all but `get`.
        exptime: Option<i64>,
        /// Whether the response repeats the key, even on a miss.
        with_key: bool,
        /// Whether it has the value; not so for `touch`.
        with_value: bool,
    },
    /// `set`, `add` and `replace`. One with a CAS unique is a [`StoreMode::Cas`], whatever its opcode.
    Store {
        /// Under which condition.
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
        /// Only while the item has this unique.
        cas: Option<Cas>,
        /// What to add.
        value: &'a [u8],
    },
    /// `delete`
    Delete {
        /// Only while the item has this unique.
        cas: Option<Cas>,
    },
    /// `incr` and `decr`
    Arithmetic {
        /// Up or down.
        direction: Direction,
        /// By how much.
        delta: u64,
        /// What to make of nothing; without it nothing stays nothing.
        vivify: Option<Vivify>,
        /// Only while the item has this unique.
        cas: Option<Cas>,
    },
}

/// The number that an `incr` or `decr` makes where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vivify {
    /// The number.
    pub initial: u64,
    /// When it expires.
    pub exptime: i64,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// There is no such item.
    NotFound,
    /// The item is there already, or has another CAS unique.
    Exists,
    /// The value is over the limit.
    TooLarge,
    /// The request's lengths are not those of its opcode.
    InvalidArguments,
    /// Nothing to append to.
    NotStored,
    /// `incr` and `decr` of what is no number.
    NotANumber,
    /// A wrong password, or none.
    AuthenticationFailed,
    /// The authentication goes on.
    AuthenticationContinues,
    /// No such opcode.
    UnknownCommand,
    /// No memory could be had.
    OutOfMemory,
    /// Known, and not to be had here: of a router, whose servers are asked in another dialect.
    NotSupported,
    /// Nobody answered; it may be tried again.
    TemporaryFailure,
}

impl BinaryRequest<'_> {
    /// Whether the sender wants to hear nothing of what is to be expected.
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

    /// The words in the body of an error: memcached's, where it has the status.
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
