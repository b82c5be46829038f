//! One operation on one key: the unit that is routed, stored and answered.
//!
//! `B` is the type of the bytes: `&[u8]` in a connection's buffer (the server never copies a request), `bytes::Bytes`
//! or `Vec<u8>` if a request outlives the buffer (router, client).

use crate::{LeaseToken, meta::MetaOperation};

/// A compare-and-swap unique: changes with every change of an item's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cas(pub u64);

/// An operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<B> {
    /// The key; valid by [`crate::check_key`].
    pub key: B,
    /// The operation.
    pub operation: Operation<B>,
}

/// An operation on a key. An `exptime` is in seconds as memcached counts it: 0 never, negative already expired,
/// up to 30 days from now, beyond that a Unix time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<B> {
    /// `get`, or `gets` with the CAS unique in the reply.
    Get {
        /// Whether the reply carries the CAS unique.
        cas: bool,
    },
    /// `gat` or `gats`: get, and set a new exptime.
    GetAndTouch {
        /// The new exptime.
        exptime: i64,
        /// Whether the reply carries the CAS unique.
        cas: bool,
    },
    /// `lease-get`: get, or a token to fill the miss with (§3.2.1).
    LeaseGet,
    /// `set`, `add`, `replace`, `append`, `prepend` and `cas`.
    Store {
        /// The condition under which the value is stored, and how.
        mode: StoreMode,
        /// Opaque to the server.
        flags: u32,
        /// When the item expires.
        exptime: i64,
        /// The value.
        value: B,
        /// Whether the reply should carry the new CAS unique, which only a meta command can. The text protocol's reply
        /// does not.
        cas: bool,
    },
    /// `lease-set`: a set that needs a valid token.
    LeaseSet {
        /// The token from a `lease-get`.
        token: LeaseToken,
        /// Opaque to the server.
        flags: u32,
        /// When the item expires.
        exptime: i64,
        /// The value.
        value: B,
    },
    /// `delete`: removes the value and voids its lease.
    Delete {
        /// How long `add` is refused afterwards (§4.3), in milliseconds; 0 for no hold-off.
        hold_off_ms: u32,
    },
    /// `incr` and `decr` on a decimal value.
    Arithmetic {
        /// Up or down.
        direction: Direction,
        /// The amount.
        delta: u64,
    },
    /// `touch`: sets a new exptime.
    Touch {
        /// The new exptime.
        exptime: i64,
    },
    /// One of the meta commands `mg ms md ma me`.
    Meta(MetaOperation<B>),
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Unconditionally.
    Set,
    /// Only if there is no value.
    Add,
    /// Only if there is a value.
    Replace,
    /// After the present value.
    Append,
    /// Before the present value.
    Prepend,
    /// Only if the item still has this CAS unique.
    Cas(Cas),
}

/// The direction of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `incr`; wraps at 2^64.
    Up,
    /// `decr`; stops at 0.
    Down,
}

impl<B> Request<B> {
    /// Converts the request's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> Request<C> {
        Request { key: convert(self.key), operation: self.operation.map(convert) }
    }
}

impl<B> Operation<B> {
    /// Converts the operation's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> Operation<C> {
        match self {
            Operation::Get { cas } => Operation::Get { cas },
            Operation::GetAndTouch { exptime, cas } => Operation::GetAndTouch { exptime, cas },
            Operation::LeaseGet => Operation::LeaseGet,
            Operation::Store { mode, flags, exptime, value, cas } => {
                Operation::Store { mode, flags, exptime, value: convert(value), cas }
            }
            Operation::LeaseSet { token, flags, exptime, value } => {
                Operation::LeaseSet { token, flags, exptime, value: convert(value) }
            }
            Operation::Delete { hold_off_ms } => Operation::Delete { hold_off_ms },
            Operation::Arithmetic { direction, delta } => Operation::Arithmetic { direction, delta },
            Operation::Touch { exptime } => Operation::Touch { exptime },
            Operation::Meta(meta) => Operation::Meta(meta.map(convert)),
        }
    }
}
