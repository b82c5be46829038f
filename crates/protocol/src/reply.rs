//! The reply to one request.

use crate::{Cas, LeaseToken, meta::MetaReply};

/// The reply to one [`crate::Request`]. A miss is a reply, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<B> {
    /// `VALUE`: a hit of any of the get verbs.
    Value {
        /// The flags that the value was stored with.
        flags: u32,
        /// `Some` if it was requested.
        cas: Option<Cas>,
        /// The value.
        value: B,
    },
    /// No value: a get's `END` without a `VALUE`.
    Miss,
    /// `LVALUE`: no live value, and which client may fill it (§3.2.1).
    Lease {
        /// The token, or [`LeaseToken::HOT_MISS`] when another client holds it.
        token: LeaseToken,
        /// The flags of the stale value; 0 without one.
        flags: u32,
        /// The value before it was deleted, if the server still has it. It must never be used as a live one.
        stale: Option<B>,
    },
    /// `STORED`
    Stored,
    /// The same, with the item's new CAS unique, which was requested.
    StoredAs(Cas),
    /// `STALE_STORED`: the token was void; the value was kept as a stale one only.
    StaleStored,
    /// `NOT_STORED`
    NotStored,
    /// `EXISTS`: the CAS unique has changed.
    Exists,
    /// `NOT_FOUND`
    NotFound,
    /// `DELETED`
    Deleted,
    /// `TOUCHED`
    Touched,
    /// The new value of an `incr` or `decr`.
    Number(u64),
    /// `OK`
    Ok,
    /// The reply to a meta command.
    Meta(MetaReply<B>),
    /// The request was not executed.
    Error(ErrorReply<B>),
}

/// The three error lines of memcached's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorReply<B> {
    /// `ERROR`: no such command.
    Unknown,
    /// `CLIENT_ERROR <why>`: the request was wrong.
    Client(B),
    /// `SERVER_ERROR <why>`: the server failed.
    Server(B),
}

impl<B: AsRef<[u8]>> std::fmt::Display for ErrorReply<B> {
    /// The reason in the server's words; `ERROR` for [`ErrorReply::Unknown`].
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ErrorReply::Unknown => f.write_str("ERROR"),
            ErrorReply::Client(why) | ErrorReply::Server(why) => f.write_str(&String::from_utf8_lossy(why.as_ref())),
        }
    }
}

impl<B> Reply<B> {
    /// Converts the reply's bytes.
    pub fn map<C>(self, mut convert: impl FnMut(B) -> C) -> Reply<C> {
        match self {
            Reply::Value { flags, cas, value } => Reply::Value { flags, cas, value: convert(value) },
            Reply::Miss => Reply::Miss,
            Reply::Lease { token, flags, stale } => Reply::Lease { token, flags, stale: stale.map(convert) },
            Reply::Stored => Reply::Stored,
            Reply::StoredAs(cas) => Reply::StoredAs(cas),
            Reply::StaleStored => Reply::StaleStored,
            Reply::NotStored => Reply::NotStored,
            Reply::Exists => Reply::Exists,
            Reply::NotFound => Reply::NotFound,
            Reply::Deleted => Reply::Deleted,
            Reply::Touched => Reply::Touched,
            Reply::Number(n) => Reply::Number(n),
            Reply::Ok => Reply::Ok,
            Reply::Meta(meta) => Reply::Meta(meta.map(convert)),
            Reply::Error(ErrorReply::Unknown) => Reply::Error(ErrorReply::Unknown),
            Reply::Error(ErrorReply::Client(why)) => Reply::Error(ErrorReply::Client(convert(why))),
            Reply::Error(ErrorReply::Server(why)) => Reply::Error(ErrorReply::Server(convert(why))),
        }
    }
}
