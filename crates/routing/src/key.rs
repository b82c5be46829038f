//! The parts of a key that routing reads: `/region/cluster/` at its start, and `|#|`, where hashing stops.
//!
//! ```text
//!   /east/web/user:42|#|profile
//!   |--------|                    prefix: chooses the tree (region/root_route.rs), is not sent to the server
//!             |-----|             routing key: chooses the pool and the server
//!             |---------------|   stored key: the key at the server
//! ```
//!
//! A key that starts with `/` but has no two further slashes has no prefix.
//!
//! A meta command may send its key in base64 (flag `b`). Such a key has no prefix, and chooses its server by the
//! decoded key: `md` with `b` must find what a plain `set` stored.

use crate::meta::has_encoded_key;
use bytes::Bytes;
use lookaside_protocol::{KEY_BYTES_MAX, Operation, Request, meta::decode_key};
use memchr::memmem;
use std::borrow::Cow;

/// Keys that are equal up to this marker are on one server.
const HASH_STOP: &[u8] = b"|#|";

/// Length in bytes of a request's routing prefix, its last slash included; 0 without one.
#[inline]
pub(crate) fn prefix_bytes(request: &Request<Bytes>) -> usize {
    // The first byte is read first, as hardly any key begins with a slash.
    match request.key.first() == Some(&b'/') && !is_encoded(request) {
        true => prefix_bytes_of(&request.key),
        false => 0,
    }
}

/// The key at the server: without prefix, decoded.
#[inline]
pub fn stored_key(request: &Request<Bytes>) -> Cow<'_, [u8]> {
    if is_encoded(request)
        && let Some(key) = decode_key(&request.key, &mut [0; KEY_BYTES_MAX])
    {
        return Cow::Owned(key.to_vec());
    }
    Cow::Borrowed(&request.key[prefix_bytes(request)..])
}

/// The part by which pools and servers are chosen: the stored key up to `|#|`.
#[inline]
pub(crate) fn routing_key(request: &Request<Bytes>) -> Cow<'_, [u8]> {
    match stored_key(request) {
        Cow::Borrowed(key) => Cow::Borrowed(up_to_hash_stop(key)),
        Cow::Owned(key) => Cow::Owned(up_to_hash_stop(&key).to_vec()),
    }
}

/// Whether the key is base64 on the wire: it cannot be changed without decoding it.
#[inline]
pub(crate) fn is_encoded(request: &Request<Bytes>) -> bool {
    matches!(&request.operation, Operation::Meta(meta) if has_encoded_key(meta))
}

/// A copy of `key` with `suffix` behind the part that is hashed: before `|#|`, or at the end.
pub(crate) fn with_hashed_suffix(key: &[u8], suffix: &str) -> Bytes {
    let stop = up_to_hash_stop(key).len();
    [&key[..stop], suffix.as_bytes(), &key[stop..]].concat().into()
}

/// The suffix of keys with a `|#|` at other servers than their own.
const FAILOVER_TAG: &[u8] = b":failover=1";

/// A key with the failover tag, if it has a `|#|` and does not become too long.
pub(crate) fn with_failover_tag(key: Bytes) -> Bytes {
    match memmem::find(&key, HASH_STOP).is_some() && key.len() + FAILOVER_TAG.len() <= KEY_BYTES_MAX {
        true => [&key, FAILOVER_TAG].concat().into(),
        false => key,
    }
}

/// What the routing keys of all stored keys begin with that begin with `start`.
pub(crate) fn routing_key_start(start: &[u8]) -> &[u8] {
    let routed = up_to_hash_stop(start);
    // A key may go on with the rest of `|#|`.
    let is_cut = routed.len() < start.len();
    let ends = [&HASH_STOP[..2], &HASH_STOP[..1]];
    ends.iter().filter(|_| !is_cut).find_map(|end| routed.strip_suffix(*end)).unwrap_or(routed)
}

/// The start of a key as clients write it, without its routing prefix; `None` if it may end in the middle of one.
pub(crate) fn stored_key_start(start: &[u8]) -> Option<&[u8]> {
    match (start.first(), prefix_bytes_of(start)) {
        (Some(b'/') | None, 0) => None,
        (_, prefix_bytes) => Some(&start[prefix_bytes..]),
    }
}

#[inline]
pub(crate) fn stored_key_of(key: &[u8]) -> &[u8] {
    &key[prefix_bytes_of(key)..]
}

#[inline]
pub(crate) fn routing_key_of(key: &[u8]) -> &[u8] {
    up_to_hash_stop(&key[prefix_bytes_of(key)..])
}

#[inline]
fn prefix_bytes_of(key: &[u8]) -> usize {
    match key {
        [b'/', rest @ ..] => prefix_bytes_behind_slash(rest),
        _ => 0,
    }
}

#[inline(never)]
fn prefix_bytes_behind_slash(rest: &[u8]) -> usize {
    let mut slashes = memchr::memchr_iter(b'/', rest);
    match (slashes.next(), slashes.next()) {
        (Some(_), Some(third)) => third + 2,
        _ => 0,
    }
}

#[inline]
pub(crate) fn up_to_hash_stop(key: &[u8]) -> &[u8] {
    match may_have_hash_stop(key) {
        true => find_hash_stop(key),
        false => key,
    }
}

/// Keys are short, and most have no `|`: an inlined loop of eight bytes per step is faster than a search made for long
/// texts.
#[inline]
fn may_have_hash_stop(key: &[u8]) -> bool {
    const FIRST: u64 = u64::from_ne_bytes([HASH_STOP[0]; 8]);
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let Some(last) = key.last_chunk::<8>() else { return key.contains(&HASH_STOP[0]) };
    // After the exclusive or, the byte that is searched for is zero. The lowest zero byte is marked exactly, so that
    // there is a mark if and only if there is one.
    let has_first = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word) ^ FIRST;
        word.wrapping_sub(LOW) & !word & HIGH != 0
    };
    // The last step may look at some bytes again.
    key.as_chunks::<8>().0.iter().any(has_first) || has_first(last)
}

#[inline(never)]
fn find_hash_stop(key: &[u8]) -> &[u8] {
    let stop = memchr::memchr_iter(HASH_STOP[0], key).find(|&at| key[at..].starts_with(HASH_STOP));
    &key[..stop.unwrap_or(key.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::meta::{MetaOperation, MetaVerb};

    #[test]
    fn a_prefix_is_two_segments_between_three_slashes() {
        for (key, expected) in [
            ("user:42", 0),
            ("/user", 0),
            ("/east/user", 0),
            ("/east/web/user", 10),
            ("/*/*/k", 5),
            ("///k", 3),
            ("/a/b/", 5),
            ("/a/b/c/d", 5),
            ("", 0),
        ] {
            assert_eq!(prefix_bytes_of(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn the_routing_key_lies_between_prefix_and_hash_stop() {
        assert_eq!(routing_key_of(b"/east/web/user:42|#|profile|#|x"), b"user:42");
        assert_eq!(routing_key_of(b"user:42"), b"user:42");
        assert_eq!(routing_key_of(b"|#|all"), b"");
        assert_eq!(routing_key_of(b"a|#b"), b"a|#b");
    }

    #[test]
    fn a_hash_stop_is_found_at_every_index_and_with_every_neighbour() {
        for length in 3..40 {
            // '}' is the byte above '|': its subtraction could borrow from a byte beside it.
            for neighbour in [b'|', b'#', b'}', b'{', b'a', 0x00, 0x80, 0xfc, 0xff] {
                let key = vec![neighbour; length];
                assert_eq!(up_to_hash_stop(&key).len(), length, "{neighbour:#x}");
                for at in 0..=length - 3 {
                    let mut key = key.clone();
                    key[at..at + 3].copy_from_slice(HASH_STOP);
                    assert_eq!(up_to_hash_stop(&key).len(), at, "length {length}, {neighbour:#x}");
                }
            }
        }
        assert_eq!([&b""[..], b"|", b"|#"].map(|key| up_to_hash_stop(key).len()), [0, 1, 2]);
    }

    #[test]
    fn the_start_of_a_routing_key_may_be_shorter_than_that_of_the_key() {
        for (start, expected) in
            [("user:", "user:"), ("a|#|b", "a"), ("a|#", "a"), ("a|", "a"), ("a|b", "a|b"), ("", "")]
        {
            assert_eq!(routing_key_start(start.as_bytes()), expected.as_bytes(), "{start}");
        }
        assert_eq!(stored_key_start(b"/east/web/user:"), Some(&b"user:"[..]));
        assert_eq!(stored_key_start(b"user:/a/b/"), Some(&b"user:/a/b/"[..]));
        assert_eq!([stored_key_start(b"/east/w"), stored_key_start(b"")], [None, None]);
    }

    fn meta_get(key: &'static [u8], flags: &'static str) -> Request<Bytes> {
        let meta = MetaOperation { verb: MetaVerb::Get, flags: flags.into(), value: None };
        Request { key: Bytes::from_static(key), operation: Operation::Meta(meta) }
    }

    #[test]
    fn an_encoded_key_is_routed_by_the_decoded_key() {
        let encoded = meta_get(b"dXNlcjo0MnwjfHg=", "v b");
        assert_eq!(&*stored_key(&encoded), b"user:42|#|x");
        assert_eq!(&*routing_key(&encoded), b"user:42");
        assert_eq!(&*routing_key(&meta_get(b"dXNlcjo0MnwjfHg=", "v")), b"dXNlcjo0MnwjfHg=");
    }

    /// The slash is a character of base64.
    #[test]
    fn an_encoded_key_has_no_prefix() {
        let key = b"/8/w/w==";
        assert_eq!(prefix_bytes(&meta_get(key, "v b")), 0);
        assert_eq!(&*stored_key(&meta_get(key, "v b")), [0xff, 0xcf, 0xf0, 0xff]);
        assert_eq!(prefix_bytes(&meta_get(key, "v")), 5);
        assert_eq!(&*stored_key(&meta_get(b"no base64", "b")), b"no base64", "the server refuses it");
    }
}
