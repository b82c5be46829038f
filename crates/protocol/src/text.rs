//! The text protocol (memcached's `protocol.txt`): parse and compose, for both ends of a connection.
//!
//! [`parse_command`] and [`compose_reply`] serve a server's end of a connection, [`compose_request`] and
//! [`parse_reply`] a client's (§2 and §3.1 of the paper). Lease verbs (§3.2.1) and meta verbs share the connection and
//! so the two parsers.
//!
//! * A parser gets all bytes that have arrived. It parses one command, or one part of a reply, at their front, or
//!   returns how many bytes are needed at least. It keeps no state between calls and allocates nothing.
//! * Its result does not depend on where the bytes were cut.
//! * HTTP requests and TLS handshakes end the connection before anything in them is taken for a command (`foreign`).
//! * Refusals are memcached 1.6.45's, byte for byte, with a few exceptions: control characters in keys, flags over 32
//!   bits, and a delete's argument that is not a time are refused here and accepted there.
//!
//! Deliberately absent: the execution of commands. Arguments of `stats` are not parsed, and exptimes are not evaluated.

mod block;
mod compose;
mod foreign;
mod limits;
mod line_tail;
mod parse;
mod parse_reply;
mod parsed;

pub use crate::refusal;
pub use compose::{
    END, LINE_END, append_key, append_retrieve_verb, compose_command, compose_reply, compose_request, compose_retrieve,
};
pub use foreign::is_foreign;
pub use limits::Limits;
pub use line_tail::LineTail;
pub use parse::parse_command;
pub use parse_reply::{ParsedReply, ReplyPart, parse_reply, parse_value_of};
pub use parsed::{CloseReason, Parsed};
