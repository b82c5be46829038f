//! The text protocol (memcached's `protocol.txt`): parse and compose, for both ends of a connection.
//!
//! A get and a delete both pass here: [`parse_command`] and [`compose_reply`] at a server's end of a connection,
//! [`compose_request`] and [`parse_reply`] at a client's (§2 and §3.1 of the paper). Lease verbs (§3.2.1) and meta
//! verbs share the connection and so the two parsers.
//!
//! * A parser gets all bytes that have arrived. It parses one command, or one part of a reply, at their front, or
//!   returns how many bytes are needed at least. It keeps no state between calls and allocates nothing.
//! * Its result does not depend on where the bytes were cut.
//! * Refusals are memcached 1.6.45's, byte for byte, with a few exceptions: control characters in keys, flags over 32
//!   bits, and a delete's argument that is not a time are refused here and accepted there.
//!
//! Deliberately absent: the execution of commands. Arguments of `stats` are not parsed, and exptimes are not evaluated.

mod block;
mod compose;
mod parse;
mod parse_reply;
mod parsed;

pub use compose::{END, compose_command, compose_reply, compose_request, compose_retrieve};
pub use parse::parse_command;
pub use parse_reply::{ParsedReply, ReplyPart, parse_reply, parse_value_of};
pub use parsed::Parsed;

/// Sizes beyond which a parser refuses a command or a reply.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest value, in bytes (memcached's `-I`).
    pub value_bytes_max: usize,
    /// The longest command line, in bytes; a get of many keys may be this long.
    pub line_bytes_max: usize,
}

/// The replies to refused commands.
pub mod refusal {
    /// No such verb.
    pub const UNKNOWN: &str = "ERROR";
    /// Too few arguments, an invalid key, or an argument that is not a number.
    pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
    /// The data block does not end where its length says.
    pub const BAD_DATA_CHUNK: &str = "CLIENT_ERROR bad data chunk";
    /// The value is over the limit.
    pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
    /// No end of the line within the limit.
    pub const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
    /// An exptime that is not a number.
    pub const INVALID_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
    /// A delta that is not a number of 64 bits.
    pub const INVALID_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
}
