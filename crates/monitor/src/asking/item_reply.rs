//! Parses what `me` says about an item.

use crate::sampling::{AgeBounds, Seen, SeenItem};

/// What `me KEY a` has found, from its reply behind `ME `; `None` if it is not one.
///
/// ```
/// use lookaside_monitor::{asking::parse_item, sampling::{AgeBounds, Seen, SeenItem}};
/// let reply = b"user:1 exp=-1 la=3 cas=257 fetch=no cls=1 size=64 age=1500-2530 hidden=no";
/// let age = Some(AgeBounds { min_ms: 1_500, max_ms: Some(2_530) });
/// assert_eq!(parse_item(reply), Some(Seen::Item(SeenItem { cas: 257, age })));
/// // memcached tells no age.
/// let reply = b"user:1 exp=-1 la=3 cas=257 fetch=no cls=1 size=64";
/// assert_eq!(parse_item(reply), Some(Seen::Item(SeenItem { cas: 257, age: None })));
/// ```
pub fn parse_item(reply: &[u8]) -> Option<Seen> {
    let fields = || reply.split(|&byte| byte == b' ').skip(1);
    let field = |name: &str| {
        let value = fields().find_map(|field| field.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(value).ok()
    };
    if field("hidden") == Some("yes") {
        return Some(Seen::Hidden);
    }
    let cas = field("cas")?.parse().ok()?;
    let age = match field("age") {
        None => None,
        Some(bounds) => {
            let (min, max) = bounds.split_once('-')?;
            let max_ms = if max.is_empty() { None } else { Some(max.parse().ok()?) };
            Some(AgeBounds { min_ms: min.parse().ok()?, max_ms })
        }
    };
    Some(Seen::Item(SeenItem { cas, age }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(reply: &str) -> Option<AgeBounds> {
        match parse_item(format!("k exp=-1 cas=1 {reply}").as_bytes()) {
            Some(Seen::Item(item)) => item.age,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bounds_may_be_unknown() {
        assert_eq!(age("age=0- hidden=no"), Some(AgeBounds { min_ms: 0, max_ms: None }));
        assert_eq!(age("age=7-9 hidden=no"), Some(AgeBounds { min_ms: 7, max_ms: Some(9) }));
        assert_eq!(age("size=64"), None);
    }

    #[test]
    fn a_key_is_not_taken_for_a_field() {
        let reply = b"cas=9 exp=-1 la=0 cas=1 fetch=no";
        assert_eq!(parse_item(reply), Some(Seen::Item(SeenItem { cas: 1, age: None })));
        assert_eq!(parse_item(b"cas=9 exp=-1"), None);
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        for reply in ["", "k", "k cas=x", "k cas=1 age=5", "k cas=1 age=x-", "k cas=1 age=1-y", "k cas=-1"] {
            assert_eq!(parse_item(reply.as_bytes()), None, "{reply}");
        }
    }
}
