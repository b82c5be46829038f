//! The tables of a hash over n servers, and the pick of a server for a key.

use super::{
    append::with_appended,
    ch3::ch3,
    digest::Digest,
    rendezvous::{Pymemcache, Rendezvous},
    ring::Ring,
    weighted_ch3,
};
use crate::key::{is_encoded, routing_key, routing_key_of, stored_key, stored_key_of};
use bytes::Bytes;
use lookaside_protocol::Request;

/// A hash over a number of servers, with its tables.
#[derive(Debug)]
pub struct Picker {
    pub(super) salt: Box<[u8]>,
    /// Whether all of the key is hashed, or only the part before `|#|`.
    pub(super) whole_key: bool,
    pub(super) table: Table,
}

#[derive(Debug)]
pub(super) enum Table {
    Ch3(u32),
    /// The weight of each server, in parts of 2^32.
    WeightedCh3(Box<[u64]>),
    ConstShard(u32),
    Rendezvous(Rendezvous),
    Pymemcache(Pymemcache),
    Remainder(Digest, u32),
    /// The index of each server, repeated by its weight.
    Slots(Digest, Box<[u32]>),
    Ring(Digest, Ring),
}

impl Picker {
    /// The index of the server for `key`, which may have a routing prefix.
    #[inline]
    pub fn pick(&self, key: &[u8]) -> usize {
        self.pick_salted(if self.whole_key { stored_key_of(key) } else { routing_key_of(key) })
    }

    /// As [`Picker::pick`], for a request, whose key may be encoded.
    #[inline]
    pub(crate) fn pick_for(&self, request: &Request<Bytes>) -> usize {
        match is_encoded(request) {
            true => self.pick_encoded(request),
            false => self.pick(&request.key),
        }
    }

    #[cold]
    fn pick_encoded(&self, request: &Request<Bytes>) -> usize {
        match self.whole_key {
            true => self.pick_salted(&stored_key(request)),
            false => self.pick_salted(&routing_key(request)),
        }
    }

    /// As [`Picker::pick_for`], with `suffix` instead of the salt.
    pub(crate) fn pick_with_suffix(&self, request: &Request<Bytes>, suffix: &[u8]) -> usize {
        let key = if self.whole_key { stored_key(request) } else { routing_key(request) };
        with_appended(&key, suffix, |salted| self.table.pick(salted))
    }

    #[inline]
    fn pick_salted(&self, key: &[u8]) -> usize {
        match self.salt.is_empty() {
            true => self.table.pick(key),
            false => self.pick_with_salt(key),
        }
    }

    /// Not inlined: it needs a buffer on the stack.
    #[inline(never)]
    fn pick_with_salt(&self, key: &[u8]) -> usize {
        with_appended(key, &self.salt, |salted| self.table.pick(salted))
    }
}

impl Table {
    #[inline]
    fn pick(&self, key: &[u8]) -> usize {
        let index = match self {
            Table::Ch3(servers) => ch3(key, *servers),
            Table::WeightedCh3(weights) => weighted_ch3::pick(key, weights),
            Table::ConstShard(servers) => const_shard(key, *servers),
            Table::Rendezvous(rendezvous) => rendezvous.pick(key),
            Table::Pymemcache(rendezvous) => rendezvous.pick(key),
            Table::Remainder(digest, servers) => digest.of(key) % servers,
            Table::Slots(digest, slots) => slots[digest.of(key) as usize % slots.len()],
            Table::Ring(digest, ring) => ring.pick(digest.of(key)),
        };
        index as usize
    }
}

/// `kind:7:rest` names server 7. A key that names no existing server goes where Ch3 sends it.
fn const_shard(key: &[u8], servers: u32) -> u32 {
    let mut parts = key.splitn(3, |&byte| byte == b':');
    let (_, shard, rest) = (parts.next(), parts.next(), parts.next());
    let number = shard
        .filter(|shard| rest.is_some() && shard.iter().all(u8::is_ascii_digit))
        .and_then(|shard| std::str::from_utf8(shard).ok()?.parse().ok());
    number.filter(|shard| *shard < servers).unwrap_or_else(|| ch3(key, servers))
}
