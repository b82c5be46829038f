//! The reply to a meta command.

use super::flags::meta_flags;
use super::verb::MetaStatus;

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
