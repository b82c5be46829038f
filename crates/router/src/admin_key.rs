//! Keys that the router answers itself. Clients read them (`admin`), and routers of a cluster exchange their fences by
//! them (`spool`).

pub(crate) const ADMIN_KEY_PREFIX: &[u8] = b"__mcrouter__.";

/// Whether the router answers a get of `key` itself.
pub(crate) fn is_admin_key(key: &[u8]) -> bool {
    key.starts_with(ADMIN_KEY_PREFIX)
}

/// Whether the keys in `text`, separated by spaces, may have one that the router answers itself. Cheap, as every get
/// asks: it looks for keys that begin with the same byte.
pub(crate) fn may_have_admin_key(text: &[u8]) -> bool {
    let first = ADMIN_KEY_PREFIX[0];
    // No early exit: vector steps over the whole text are faster than stopping at such a key, which is rare.
    let pairs = text.iter().zip(text.get(1..).unwrap_or_default());
    text.first() == Some(&first)
        || pairs.fold(false, |found, (&space, &byte)| found | (space == b' ') & (byte == first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_key_is_found_at_every_place() {
        for keys in 1..40 {
            for at in 0..keys {
                for (key, expected) in [("__mcrouter__.version", true), ("a_key", false), ("k_", false)] {
                    let text: Vec<&str> = (0..keys).map(|index| if index == at { key } else { "user:1_" }).collect();
                    for separator in [" ", "  "] {
                        assert_eq!(
                            may_have_admin_key(text.join(separator).as_bytes()),
                            expected,
                            "{key} {at} of {keys}"
                        );
                    }
                }
            }
        }
        assert!(!may_have_admin_key(b"") && may_have_admin_key(b"  _"));
    }
}
