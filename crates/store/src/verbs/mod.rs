//! What a client may do, one file a family of verbs.

pub(crate) mod arithmetic;
pub(crate) mod get;
pub(crate) mod meta;
pub(crate) mod set;
