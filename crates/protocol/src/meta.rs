//! The meta dialect: `mg ms md ma me mn` (memcached's `protocol.txt`, "Meta Commands").
//!
//! ```text
//! mg <key> <flag>*                          HD <flag>* | VA <bytes> <flag>*, data block | EN
//! ms <key> <bytes> <flag>*, data block      HD | NS | EX | NF, each with flags
//! md <key> <flag>*                          HD | NF | EX
//! ma <key> <flag>*                          HD | VA | NF | NS | EX
//! me <key> <flag>*                          ME <key> <name>=<fact>* | EN
//! ```
//!
//! A flag is a letter with a token behind it, or with none: `v`, `T30`, `Oabc`. Flags stay the text they came as,
//! because answers return them in the order they were sent, a router passes on those it does not know the sense of,
//! and a request must stay small enough to be moved about in batches. The parser has checked the text once; whoever
//! carries a command out reads it into a [`MetaFlags`].
//!
//! With the flag `b` a key is base64 on the wire. [`crate::Request::key`] keeps the wire's form, so that a command is
//! routed and answered under the bytes its client chose; [`decode_key`] gives the key that is stored. Two clients of
//! which only one uses `b` for the same key must therefore not share a router.
//!
//! Absent on purpose: `q`'s silence, which is [`MetaStatus::is_silent`] to ask and the server's to keep.

mod compose;
mod flags;
mod key;
mod parse;

pub use compose::{MetaItemInfo, compose_meta_answer};
pub(crate) use compose::{compose_meta_reply, compose_meta_request};
pub(crate) use flags::reworded;
pub use flags::{MetaFlag, MetaFlags, OPAQUE_BYTES_MAX, meta_flags};
pub use key::{decode_key, encode_key};
pub(crate) use parse::{checked_operation, status_line, value_line};

/// Which of the meta commands that name a key.
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
    /// The flags as they were sent, separated by spaces. Those of a parsed command are good to be read as
    /// [`MetaFlags`].
    pub flags: B,
    /// The value, of an `ms`.
    pub value: Option<B>,
}

/// What a meta command's answer begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaStatus {
    /// `HD`: done, or found.
    Done,
    /// `VA`: found, and here is the value.
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

/// The answer to a meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaReply<B> {
    /// How it went.
    pub status: MetaStatus,
    /// The flags (of `ME`: the key and the metadata), separated by spaces.
    pub flags: B,
    /// The value; present with [`MetaStatus::Value`] and only then.
    pub value: Option<B>,
}

impl<B> MetaOperation<B> {
    /// The same operation with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> MetaOperation<C> {
        MetaOperation { verb: self.verb, flags: hold(self.flags), value: self.value.map(hold) }
    }
}

impl<B> MetaReply<B> {
    /// The same reply with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> MetaReply<C> {
        MetaReply { status: self.status, flags: hold(self.flags), value: self.value.map(hold) }
    }
}

impl<B: AsRef<[u8]>> MetaReply<B> {
    /// The token of a returned flag: empty for one without a token, nothing if the flag was not returned.
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
    /// Whether this answer to `verb` is kept back when the command had the flag `q`: the expected one is, so that a
    /// client hears only of what it cannot guess. Errors are always told.
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
