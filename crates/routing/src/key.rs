//! The parts of a key that routing reads: `/region/cluster/` in front, `|#|` where hashing stops.
//!
//! ```text
//!   /east/web/user:42|#|profile
//!   |--------|                    prefix: chooses the tree (root.rs), does not reach the server
//!             |-----|             routing key: chooses the pool and the server
//!             |---------------|   what the server stores under
//! ```
//!
//! A key that starts with `/` but has no two more slashes has no prefix: it is a key like another.

use memchr::memmem;

/// Keys that agree up to here live on one server.
const HASH_STOP: &[u8] = b"|#|";

/// Length in bytes of the routing prefix, its last slash included; 0 without one.
pub(crate) fn prefix_bytes(key: &[u8]) -> usize {
    if key.first() != Some(&b'/') {
        return 0;
    }
    let mut slashes = memchr::memchr_iter(b'/', &key[1..]);
    match (slashes.next(), slashes.next()) {
        (Some(_), Some(third)) => third + 2,
        _ => 0,
    }
}

/// What pools and servers are chosen by.
pub(crate) fn routing_key(key: &[u8]) -> &[u8] {
    let key = &key[prefix_bytes(key)..];
    match memmem::find(key, HASH_STOP) {
        Some(stop) => &key[..stop],
        None => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(prefix_bytes(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn the_routing_key_lies_between_prefix_and_hash_stop() {
        assert_eq!(routing_key(b"/east/web/user:42|#|profile|#|x"), b"user:42");
        assert_eq!(routing_key(b"user:42"), b"user:42");
        assert_eq!(routing_key(b"|#|all"), b"");
        assert_eq!(routing_key(b"a|#b"), b"a|#b");
    }
}
