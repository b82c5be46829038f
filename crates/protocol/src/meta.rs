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
//! Deliberately absent: suppressing replies for the flag `q`. [`MetaStatus::is_silent`] tells which, and the server
//! does it.

mod compose;
mod flags;
mod key;
mod parse;

pub use compose::{MetaItemInfo, compose_meta_answer};
pub(crate) use compose::{append_meta_reply, append_meta_request};
pub(crate) use flags::remap_error;
pub use flags::{MetaFlag, MetaFlags, OPAQUE_BYTES_MAX, meta_flags};
pub use key::{decode_key, encode_key};
pub(crate) use parse::{parse_operation, parse_status_line, parse_value_line};

/// The meta commands that name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
}

/// A meta command's verb, flags and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOperation<B> {
    /// The verb.
    pub verb: MetaVerb,
    /// The flags as they were sent, separated by spaces. Those of a parsed command are valid [`MetaFlags`].
    pub flags: B,
    /// The value, of an `ms`.
    pub value: Option<B>,
}

/// The first word of a meta reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`: done, or found.
    Done,
    /// `VA`: found, with the value.
    Value,
    /// `EN`: a miss of `mg` or `me`.
    Miss,
    /// `NF`: not found.
    NotFound,
    /// `NS`: not stored.
    NotStored,
    /// `EX`: the CAS unique has changed.
    Exists,
    /// `ME`: an item's metadata.
    Debug,
}

/// The reply to a meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaReply<B> {
    /// The status.
    pub status: MetaStatus,
    /// The flags (of `ME`: the key and the metadata), separated by spaces.
    pub flags: B,
    /// The value; `Some` exactly with [`MetaStatus::Value`].
    pub value: Option<B>,
}

impl<B> MetaOperation<B> {
    /// Converts the operation's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> MetaOperation<C> {
        MetaOperation { verb: self.verb, flags: convert(self.flags), value: self.value.map(convert) }
    }
}

impl<B> MetaReply<B> {
    /// Converts the reply's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> MetaReply<C> {
        MetaReply { status: self.status, flags: convert(self.flags), value: self.value.map(convert) }
    }
}

impl<B: AsRef<[u8]>> MetaReply<B> {
    /// The token of a returned flag, empty if it has none; `None` if the flag was not returned.
    ///
    /// ```
    /// use lookaside_protocol::meta::{MetaReply, MetaStatus};
    /// let reply = MetaReply { status: MetaStatus::Done, flags: "t30 W", value: None };
    /// assert_eq!(reply.flag(b't'), Some(&b"30"[..]));
    /// assert_eq!(reply.flag(b'W'), Some(&b""[..]));
    /// assert_eq!(reply.flag(b'X'), None);
    /// ```
    pub fn flag(&self, letter: u8) -> Option<&[u8]> {
        meta_flags(self.flags.as_ref()).find(|flag| flag.letter == letter).map(|flag| flag.token)
    }
}

impl MetaStatus {
    /// Whether the flag `q` suppresses this reply to `verb`: it suppresses the expected one. Errors are always sent.
    ///
    /// | | silent |
    /// |---|---|
    /// | `mg` | `EN` |
    /// | `ms`, `md` | `HD` |
    /// | `ma` | `HD`, `VA` |
    pub fn is_silent(self, verb: MetaVerb) -> bool {
        match verb {
            MetaVerb::Get => self == MetaStatus::Miss,
            MetaVerb::Set | MetaVerb::Delete => self == MetaStatus::Done,
            MetaVerb::Arithmetic => matches!(self, MetaStatus::Done | MetaStatus::Value),
            MetaVerb::Debug => false,
        }
    }
}
