//! A meta command on a key, whose key [`crate::Request`] holds.

use super::verb::MetaVerb;

/// A meta command's verb, flags and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOperation<B> {
    /// The verb.
    pub verb: MetaVerb,
    /// The flags as they were sent, separated by spaces. Those of a parsed command are valid
    /// [`MetaFlags`](super::MetaFlags).
    pub flags: B,
    /// The value, of an `ms`.
    pub value: Option<B>,
}

impl<B> MetaOperation<B> {
    /// Converts the operation's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> MetaOperation<C> {
        MetaOperation { verb: self.verb, flags: convert(self.flags), value: self.value.map(convert) }
    }
}
