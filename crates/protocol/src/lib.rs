//! Bytes to requests and replies, and back: the language that every part of Lookaside speaks.
//!
//! A get and a delete both pass here four times: the client composes a request, the server (or router) parses it,
//! composes a reply, and the client parses that. Nothing here touches a socket or a clock: bytes in, values out.
//!
//! * [`request`] and [`reply`] hold the vocabulary: one operation on one key, and what came of it.
//! * [`text`] and [`meta`] are memcached's two text dialects (memcached's `protocol.txt`); [`lease`] the verbs of
//!   leases (§3.2.1 of the paper) that ride on the text dialect.
//! * [`binary`] is the binary dialect, with its own requests: it can say things that the others cannot, and not others.
//! * [`percent`] is percent encoding, for keys and addresses inside other texts.
//! * [`udp`] is the eight-byte frame header in front of every datagram (`protocol.txt`, "UDP protocol").
//!
//! Absent on purpose: anything that waits, any allocation on the path that parses a server's requests.
#![forbid(unsafe_code)]

pub mod binary;
pub mod command;
pub mod key;
pub mod lease;
pub mod meta;
pub mod percent;
pub mod reply;
pub mod request;
pub mod text;
pub mod udp;

pub use command::{Command, Keys};
pub use key::{KEY_BYTES_MAX, KeyError, check_key};
pub use lease::LeaseToken;
pub use reply::{ErrorReply, Reply};
pub use request::{Cas, Direction, Operation, Request, StoreMode};
