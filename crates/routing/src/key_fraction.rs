//! A part of all keys: the same ones as mcrouter's, so that a router that replaces one goes on with them.

use crate::{hash::spooky32, key::routing_key};
use bytes::Bytes;
use lookaside_protocol::Request;

/// A part of all keys, by the 32 bits of SpookyHash V2 of the routing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFraction {
    /// The lowest hash.
    first: u32,
    /// The highest hash.
    last: u32,
}

impl KeyFraction {
    /// Every key.
    pub const ALL: KeyFraction = KeyFraction { first: 0, last: u32::MAX };

    /// The keys from `start` to `end`, both parts of 1 and both included.
    pub fn new(start: f64, end: f64) -> Self {
        let hash = |part: f64| (part * f64::from(u32::MAX)) as u32;
        KeyFraction { first: hash(start), last: hash(end) }
    }

    pub(crate) fn contains(self, request: &Request<Bytes>) -> bool {
        (self.first..=self.last).contains(&spooky32(&routing_key(request), 0))
    }
}
