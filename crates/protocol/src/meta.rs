//! The meta protocol: `mg ms md ma me mn` (memcached's `protocol.txt`, "Meta Commands").
//!
//! ```text
//! mg <key> <flag>*                          HD <flag>* | VA <bytes> <flag>*, data block | EN
//! ms <key> <bytes> <flag>*, data block      HD | NS | EX | NF, each with flags
//! md <key> <flag>*                          HD | NF | EX
//! ma <key> <flag>*                          HD | VA | NF | NS | EX
//! me <key> <flag>*                          ME <key> <name>=<fact>* | EN
//! ```
//!
//! A flag is a letter, often followed by a token: `v`, `T30`, `Oabc`. Flags are kept as text, because replies return
//! them in the order in which they were sent, a router passes on flags that it does not know, and a request must stay
//! small enough to be moved in batches. The parser has checked the text once; the server parses it into [`MetaFlags`]
//! to execute the command.
//!
//! With the flag `b` a key is base64 on the wire. [`crate::Request::key`] keeps the wire's form, so that a command is
//! routed and answered under the bytes that its client sent; [`decode_key`] returns the key that is stored. Two
//! clients of which only one uses `b` for the same key must therefore not share a router.
//!
//! Deliberately absent: suppressing replies for the flag `q`, which the server does by [`MetaStatus::is_silent`].

mod compose;
mod flags;
mod key;
mod operation;
mod parse;
mod reply;
mod verb;

pub use compose::{MetaItemInfo, compose_meta_reply};
pub(crate) use compose::{append_meta_reply, append_meta_request};
pub(crate) use flags::remap_error;
pub use flags::{MetaFlag, MetaFlags, OBSERVER_OPAQUE, OPAQUE_BYTES_MAX, meta_flags};
pub use key::{decode_key, encode_key};
pub use operation::MetaOperation;
pub(crate) use parse::{parse_operation, parse_status_line, parse_value_line};
pub use reply::MetaReply;
pub use verb::{MetaStatus, MetaVerb};
