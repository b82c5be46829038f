//! `metaget`, mcrouter's command for the age and the exptime of items.
//!
//! ```text
//!   metaget a b                                                             a client's line
//!   me a    me b                                                            to servers, each by its own route
//!   ME a exp=-1 la=12 ...    EN                                             their replies
//!   META a age: 12; exptime: 0; from: unknown; is_transient: 0    END       to the client
//! ```
//!
//! Servers do not know `metaget`. An `me` counts as one in the tree of routes ([`lookaside_routing::Verb::Metaget`]),
//! and leaves the item as it is: it is not taken for an access. The age is the time since the last access, the exptime
//! is absolute, 0 for never, and the address of the writer is not known.

use bytes::Bytes;
use lookaside_protocol::meta::{MetaOperation, MetaVerb};
use lookaside_protocol::{Keys, Operation};

/// The keys of a `metaget` line; `None` if it is another command, or has a bad key.
pub(super) fn keys_of(line: &[u8]) -> Option<Keys<'_>> {
    Keys::parse(line.strip_prefix(b"metaget ")?.trim_ascii_end())
}

/// The operation on each key.
pub(super) fn operation() -> Operation<Bytes> {
    Operation::Meta(MetaOperation { verb: MetaVerb::Debug, flags: Bytes::new(), value: None })
}

/// Appends the line for `key` to `out`; `metadata` is what a server has sent behind `ME`, at `unix_s`.
pub(super) fn compose_line(key: &[u8], metadata: &[u8], unix_s: u64, out: &mut Vec<u8>) {
    let number = |name: &[u8]| {
        let named = metadata.split(|&byte| byte == b' ').find_map(|fact| fact.strip_prefix(name));
        named.and_then(|number| str::from_utf8(number).ok()?.parse::<i64>().ok())
    };
    let age = number(b"la=").map_or("unknown".to_owned(), |age_s| age_s.to_string());
    let exptime = match number(b"exp=") {
        None | Some(-1) => 0,
        Some(left_s) => unix_s.saturating_add_signed(left_s),
    };
    out.extend_from_slice(b"META ");
    out.extend_from_slice(key);
    out.extend_from_slice(format!(" age: {age}; exptime: {exptime}; from: unknown; is_transient: 0\r\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_a_metaget_line() {
        let keys = |line: &str| Some(keys_of(line.as_bytes())?.map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert_eq!(keys("metaget a  bc\r\n"), Some(vec![b"a".to_vec(), b"bc".to_vec()]));
        assert_eq!(keys("metaget noreply\n"), Some(vec![b"noreply".to_vec()]));
        for line in
            ["metaget\r\n", "metaget \r\n", "metagets a\r\n", "get a\r\n", &format!("metaget {}\r\n", "k".repeat(251))]
        {
            assert_eq!(keys(line), None, "{line}");
        }
    }

    #[test]
    fn the_line_has_the_age_and_the_absolute_exptime() {
        let line = |metadata: &str| {
            let mut out = Vec::new();
            compose_line(b"/r/c/k", metadata.as_bytes(), 1_000, &mut out);
            String::from_utf8(out).expect("text")
        };
        for (metadata, expected) in [
            ("k exp=-1 la=12 cas=2 fetch=yes cls=1 size=63", "age: 12; exptime: 0"),
            ("k exp=30 la=0 cas=2", "age: 0; exptime: 1030"),
            ("k exp=0 la=5", "age: 5; exptime: 1000"),
            ("k cas=2", "age: unknown; exptime: 0"),
            ("la=7 exp=9 la=x", "age: 7; exptime: 1009"),
        ] {
            assert_eq!(
                line(metadata),
                format!("META /r/c/k {expected}; from: unknown; is_transient: 0\r\n"),
                "{metadata}"
            );
        }
    }
}
