//! One operation on one key: the unit that is routed, stored and answered.
//!
//! `B` is how bytes are held: `&[u8]` while they lie in a connection's buffer (the server never copies a request),
//! `bytes::Bytes` or `Vec<u8>` where a request outlives the buffer (router, client).

use crate::{LeaseToken, meta::MetaOperation};

/// A compare-and-swap unique: changes with every change of an item's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cas(pub u64);

/// An operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<B> {
    /// The key; valid as [`crate::check_key`] has it.
    pub key: B,
    /// What to do with it.
    pub operation: Operation<B>,
}

/// What can be done to a key. An `exptime` is in seconds as memcached counts it: 0 never, negative already expired,
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
    /// `lease-get`: a value, or a token to fill the miss with (§3.2.1).
    LeaseGet,
    /// `set`, `add`, `replace`, `append`, `prepend` and `cas`.
    Store {
        /// Under which condition the value is stored, and how.
        mode: StoreMode,
        /// Opaque to the server.
        flags: u32,
        /// When the item expires.
        exptime: i64,
        /// The value.
        value: B,
    },
    /// `lease-set`: a set that only counts while its token does.
    LeaseSet {
        /// The token that a `lease-get` handed out.
        token: LeaseToken,
        /// Opaque to the server.
        flags: u32,
        /// When the item expires.
        exptime: i64,
        /// The value.
        value: B,
    },
    /// `delete`: the value is gone, leases for it are void.
    Delete {
        /// For how long an `add` is refused from now on (§4.3), in milliseconds; 0 for no hold-off.
        hold_off_ms: u32,
    },
    /// `incr` and `decr` on a decimal value.
    Arithmetic {
        /// Up or down.
        direction: Direction,
        /// By how much.
        delta: u64,
    },
    /// `touch`: a new exptime.
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
    /// Whatever was there.
    Set,
    /// Only where nothing is.
    Add,
    /// Only where something is.
    Replace,
    /// Behind what is there.
    Append,
    /// In front of what is there.
    Prepend,
    /// Only where the item still has this CAS unique.
    Cas(Cas),
}

/// Which way arithmetic goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `incr`; wraps at 2^64.
    Up,
    /// `decr`; stops at 0.
    Down,
}

impl<B> Request<B> {
    /// The same request with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> Request<C> {
        Request { key: hold(self.key), operation: self.operation.map(hold) }
    }
}

impl<B> Operation<B> {
    /// The same operation with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> Operation<C> {
        match self {
            Operation::Get { cas } => Operation::Get { cas },
            Operation::GetAndTouch { exptime, cas } => Operation::GetAndTouch { exptime, cas },
            Operation::LeaseGet => Operation::LeaseGet,
            Operation::Store { mode, flags, exptime, value } => {
                Operation::Store { mode, flags, exptime, value: hold(value) }
            }
            Operation::LeaseSet { token, flags, exptime, value } => {
                Operation::LeaseSet { token, flags, exptime, value: hold(value) }
            }
            Operation::Delete { hold_off_ms } => Operation::Delete { hold_off_ms },
            Operation::Arithmetic { direction, delta } => Operation::Arithmetic { direction, delta },
            Operation::Touch { exptime } => Operation::Touch { exptime },
            Operation::Meta(meta) => Operation::Meta(meta.map(hold)),
        }
    }
}
