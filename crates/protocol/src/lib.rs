//! Memcached's protocols: bytes to requests and replies, and back.
//!
//! A client composes a request, the server (or router) parses it and composes a reply, and the client parses that. All
//! of it is sans-I/O: no sockets, no clock.
//!
//! * [`request`] and [`reply`] are the common types: one operation on one key, and its result.
//! * [`text`] and [`meta`] are memcached's text and meta protocols (memcached's `protocol.txt`); [`lease`] has the
//!   lease verbs (§3.2.1 of the paper), which extend the text protocol.
//! * [`binary`] is the binary protocol, with its own requests: its operations are not quite those of the others.
//! * [`percent`] is percent encoding, for keys and addresses inside other texts.
//! * [`udp`] is the eight-byte frame header in front of every datagram (`protocol.txt`, "UDP protocol").
//!
//! Deliberately absent: waiting, and allocations while a server's requests are parsed.
#![forbid(unsafe_code)]

pub mod binary;
pub mod command;
pub mod key;
pub mod lease;
mod line;
pub mod meta;
pub mod percent;
pub mod refusal;
pub mod reply;
pub mod request;
pub mod text;
pub mod udp;

pub use command::{Command, Keys};
pub use key::{KEY_BYTES_MAX, KeyError, check_key};
pub use lease::LeaseToken;
pub use reply::{ErrorReply, Reply};
pub use request::{Cas, Direction, Operation, Request, StoreMode};
