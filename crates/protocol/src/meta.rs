//! The meta dialect: `mg ms md ma me mn` (memcached's `protocol.txt`, "Meta Commands").

use std::marker::PhantomData;

/// A meta command's verb, flags and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOperation<B>(PhantomData<B>);

/// The answer to a meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaReply<B>(PhantomData<B>);

impl<B> MetaOperation<B> {
    /// The same operation with its bytes held another way.
    pub fn map<C>(self, _hold: impl FnMut(B) -> C) -> MetaOperation<C> {
        MetaOperation(PhantomData)
    }
}

impl<B> MetaReply<B> {
    /// The same reply with its bytes held another way.
    pub fn map<C>(self, _hold: impl FnMut(B) -> C) -> MetaReply<C> {
        MetaReply(PhantomData)
    }
}
