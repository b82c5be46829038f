//! What came of one request.

use crate::{Cas, LeaseToken, meta::MetaReply};

/// The answer to one [`crate::Request`]. A miss is an answer like another, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<B> {
    /// `VALUE`: a hit of any of the get verbs.
    Value {
        /// As the value was stored with.
        flags: u32,
        /// Present when it was asked for.
        cas: Option<Cas>,
        /// The value.
        value: B,
    },
    /// Nothing there: a get's `END` without a `VALUE`.
    Miss,
    /// `LVALUE`: nothing live there, but here is who may fill it (§3.2.1).
    Lease {
        /// The token, or [`LeaseToken::HOT_MISS`] when another client holds it.
        token: LeaseToken,
        /// The flags of the stale value; 0 without one.
        flags: u32,
        /// The value before it was deleted, if the server still has it. Never to be taken for a live one.
        stale: Option<B>,
    },
    /// `STORED`
    Stored,
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
    /// The answer to a meta command.
    Meta(MetaReply<B>),
    /// The request was not carried out.
    Error(ErrorReply<B>),
}

/// The three error lines of memcached's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorReply<B> {
    /// `ERROR`: no such command.
    Unknown,
    /// `CLIENT_ERROR <why>`: the request was wrong.
    Client(B),
    /// `SERVER_ERROR <why>`: the server could not.
    Server(B),
}

impl<B: AsRef<[u8]>> std::fmt::Display for ErrorReply<B> {
    /// The reason in the server's words; `ERROR` without one.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ErrorReply::Unknown => f.write_str("ERROR"),
            ErrorReply::Client(why) | ErrorReply::Server(why) => f.write_str(&String::from_utf8_lossy(why.as_ref())),
        }
    }
}

impl<B> Reply<B> {
    /// The same reply with its bytes held another way.
    pub fn map<C>(self, mut hold: impl FnMut(B) -> C) -> Reply<C> {
        match self {
            Reply::Value { flags, cas, value } => Reply::Value { flags, cas, value: hold(value) },
            Reply::Miss => Reply::Miss,
            Reply::Lease { token, flags, stale } => Reply::Lease { token, flags, stale: stale.map(hold) },
            Reply::Stored => Reply::Stored,
            Reply::StaleStored => Reply::StaleStored,
            Reply::NotStored => Reply::NotStored,
            Reply::Exists => Reply::Exists,
            Reply::NotFound => Reply::NotFound,
            Reply::Deleted => Reply::Deleted,
            Reply::Touched => Reply::Touched,
            Reply::Number(n) => Reply::Number(n),
            Reply::Ok => Reply::Ok,
            Reply::Meta(meta) => Reply::Meta(meta.map(hold)),
            Reply::Error(ErrorReply::Unknown) => Reply::Error(ErrorReply::Unknown),
            Reply::Error(ErrorReply::Client(why)) => Reply::Error(ErrorReply::Client(hold(why))),
            Reply::Error(ErrorReply::Server(why)) => Reply::Error(ErrorReply::Server(hold(why))),
        }
    }
}
