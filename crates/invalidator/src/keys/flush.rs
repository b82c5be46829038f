//! Flushes that stand among the keys of a commit. They are delivered, retried and acknowledged as deletes of keys are.
//! No server accepts what stands for them as a key.
//!
//! | flush | stands for it | a router is sent |
//! |---|---|---|
//! | of the cluster | `\0flush-cluster` | `flush_all` |
//! | of the servers that may hold keys with a prefix | `\0flush-prefix:PREFIX` | `get __mcrouter__.flush_prefix(PREFIX)` |

/// Stands for a key among the keys of a commit, and means all keys: the cluster is flushed.
pub const FLUSH_CLUSTER: &[u8] = b"\0flush-cluster";
const FLUSH_PREFIX: &[u8] = b"\0flush-prefix:";

/// A flush that a commit demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flush<'a> {
    /// Of all servers of the cluster.
    Cluster,
    /// Of the servers of the cluster that may hold a key that begins with this.
    Prefix(&'a [u8]),
}

impl<'a> Flush<'a> {
    /// The flush of all keys that begin with `prefix`.
    pub fn of_prefix(prefix: &'a [u8]) -> Flush<'a> {
        if prefix.is_empty() { Flush::Cluster } else { Flush::Prefix(prefix) }
    }

    /// The flush that `key` stands for; `None` if it is a key.
    pub fn parse(key: &'a [u8]) -> Option<Flush<'a>> {
        match key.strip_prefix(FLUSH_PREFIX) {
            Some(prefix) => Some(Flush::of_prefix(prefix)),
            None => (key == FLUSH_CLUSTER).then_some(Flush::Cluster),
        }
    }

    /// What stands for it among keys.
    pub fn to_key(self) -> Vec<u8> {
        match self {
            Flush::Cluster => FLUSH_CLUSTER.to_vec(),
            Flush::Prefix(prefix) => [FLUSH_PREFIX, prefix].concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::check_key;

    #[test]
    fn a_flush_is_parsed_from_what_stands_for_it_and_no_key_is() {
        for flush in [Flush::Cluster, Flush::Prefix(b"user:"), Flush::Prefix(b"/east/web/u")] {
            assert_eq!(Flush::parse(&flush.to_key()), Some(flush));
            assert!(check_key(&flush.to_key()).is_err(), "no server accepts it");
        }
        assert_eq!(Flush::of_prefix(b""), Flush::Cluster);
        assert_eq!([&b"user:1"[..], b"flush-cluster", b""].map(Flush::parse), [None; 3]);
    }
}
