//! Into how many parts each shard of a key space is split, and the keys of the parts.
//!
//! ```text
//!   user:4567:profile      a key of shard 4567: its id is between the first two colons, and ends in a digit
//!   user:4567ba:profile    the same key in split 2 of the shard; split 0 keeps the key
//! ```

use crate::{
    cluster::migrate_route::UNIX_S_MAX,
    configuration::{ConfigurationError, Keys, Node, Object},
};
use bytes::Bytes;
use memchr::memchr;
use std::collections::BTreeMap;

/// The maximum number of splits of a shard: the key itself, and one for each pair of letters.
pub const SHARD_SPLITS_MAX: u32 = 1 + LETTERS * LETTERS;

const LETTERS: u32 = 26;

/// The bytes by which a split makes a key longer.
pub(crate) const SPLIT_BYTES: usize = 2;

/// Hosts move from the old size to the new one in the order of their ids modulo this.
const HOSTS_IN_ORDER: u64 = 16_384;

/// How one shard is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardSplit {
    /// The number of splits before the migration.
    pub old_size: u32,
    /// The number of splits after it.
    pub new_size: u32,
    /// When the migration begins, in seconds since 1970.
    pub start_unix_s: u64,
    /// How long it takes until all hosts use the new size, in seconds.
    pub migration_s: u64,
    /// Whether a delete goes to all splits, or to the host's own only.
    pub fans_out_deletes: bool,
}

impl ShardSplit {
    /// A shard that has always had `size` splits.
    pub fn constant(size: u32, fans_out_deletes: bool) -> Self {
        ShardSplit { old_size: 1, new_size: size, start_unix_s: 0, migration_s: 0, fans_out_deletes }
    }

    /// The number of splits for a host at a time.
    pub fn size(&self, host_id: u32, unix_s: u64) -> u32 {
        let Some(elapsed_s) = unix_s.checked_sub(self.start_unix_s) else { return self.old_size };
        let host = u64::from(host_id) % HOSTS_IN_ORDER;
        match elapsed_s >= self.migration_s || host * self.migration_s < elapsed_s * HOSTS_IN_ORDER {
            true => self.new_size,
            false => self.old_size,
        }
    }

    /// The number of splits that any host may use, whatever its clock shows.
    pub(crate) fn size_max(&self) -> u32 {
        self.old_size.max(self.new_size)
    }
}

/// The shards that are split, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardSplits(BTreeMap<Box<[u8]>, ShardSplit>);

impl ShardSplits {
    /// These shards, each with its id.
    pub fn new(shards: impl IntoIterator<Item = (String, ShardSplit)>) -> Self {
        ShardSplits(shards.into_iter().map(|(id, split)| (id.into_bytes().into(), split)).collect())
    }

    /// Whether each delete goes to all splits of its shard.
    pub(crate) fn all_fan_out_deletes(&self) -> bool {
        self.0.values().all(|split| split.fans_out_deletes)
    }

    /// How the shard of a routing key is split, and where the shard's id ends in the key; `None` if it is not.
    pub(crate) fn of_key(&self, routing_key: &[u8]) -> Option<(usize, ShardSplit)> {
        let start = memchr(b':', routing_key)? + 1;
        let end = start + memchr(b':', &routing_key[start..])?;
        let id = &routing_key[start..end];
        id.last()?.is_ascii_digit().then(|| self.0.get(id)).flatten().map(|split| (end, *split))
    }
}

/// The key in a split of its shard, whose id ends at `id_end`.
pub(crate) fn key_in_split(key: &Bytes, id_end: usize, split: u32) -> Bytes {
    let Some(pair) = split.checked_sub(1) else { return key.clone() };
    let letter = |number: u32| b'a' + number as u8;
    [&key[..id_end], &[letter(pair % LETTERS), letter(pair / LETTERS)], &key[id_end..]].concat().into()
}

/// The key of which `changed` may be that of a split other than 0.
pub(crate) fn key_of_split(changed: &[u8]) -> Option<Bytes> {
    let start = memchr(b':', changed)? + 1;
    let letters_end = start + memchr(b':', &changed[start..])?;
    let id_end = letters_end.checked_sub(SPLIT_BYTES).filter(|end| *end > start)?;
    let is_split = changed[id_end..letters_end].iter().all(u8::is_ascii_lowercase);
    is_split.then(|| [&changed[..id_end], &changed[letters_end..]].concat().into())
}

/// A hundred years: a longer migration is probably a wrong unit.
const MIGRATION_S_MAX: i64 = 100 * 366 * 86_400;

const SPLIT: Keys =
    Keys::known(&["old_split_size", "new_split_size", "split_start", "migration_period", "fanout_deletes"]);

/// Parses `{id: size, id: {...}}` at `shard_splits`, and `split_shard_fanout`, which holds for shards without
/// `fanout_deletes`.
pub(crate) fn parse_shard_splits(node: &Node<'_>, object: &Object<'_>) -> Result<ShardSplits, ConfigurationError> {
    let fans_out = object.flag("split_shard_fanout")?;
    let mut shards = Vec::new();
    for (id, node) in node.object("shards by id, each a number of splits or an object")?.entries() {
        if !id.ends_with(|last: char| last.is_ascii_digit()) || id.contains(':') {
            node.warn(format!("no key is of shard {id:?}: an id ends in a digit, and has no colon"));
        }
        shards.push((id.to_owned(), parse_split(&node, fans_out)?));
    }
    Ok(ShardSplits::new(shards))
}

fn parse_split(node: &Node<'_>, fans_out: bool) -> Result<ShardSplit, ConfigurationError> {
    let size = |node: &Node<'_>| Ok(node.integer("splits of a shard", 1, SHARD_SPLITS_MAX.into())? as u32);
    if !node.is_object() {
        return Ok(ShardSplit::constant(size(node)?, fans_out));
    }
    let object = node.object("a split")?;
    object.check(&SPLIT)?;
    let size_or_1 = |key| object.get(key).map_or(Ok(1), |node| size(&node));
    Ok(ShardSplit {
        old_size: size_or_1("old_split_size")?,
        new_size: size_or_1("new_split_size")?,
        start_unix_s: object.integer_or("split_start", "seconds since 1970", UNIX_S_MAX, 0)? as u64,
        migration_s: object.integer_or("migration_period", "seconds", MIGRATION_S_MAX, 0)? as u64,
        fans_out_deletes: object.get("fanout_deletes").map_or(Ok(fans_out), |node| node.boolean())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(split: u32) -> Bytes {
        key_in_split(&Bytes::from_static(b"user:4567:x"), 9, split)
    }

    /// As mcrouter names them: the first letter changes fastest.
    #[test]
    fn a_split_is_two_letters_behind_the_id() {
        for (split, expected) in [
            (0, "user:4567:x"),
            (1, "user:4567aa:x"),
            (2, "user:4567ba:x"),
            (26, "user:4567za:x"),
            (27, "user:4567ab:x"),
            (52, "user:4567zb:x"),
            (53, "user:4567ac:x"),
            (676, "user:4567zz:x"),
        ] {
            assert_eq!(key(split), expected, "{split}");
        }
        let all: std::collections::BTreeSet<Bytes> = (0..SHARD_SPLITS_MAX).map(key).collect();
        assert!((1..SHARD_SPLITS_MAX).all(|split| key_of_split(&key(split)) == Some(key(0))));
        for key in ["user:4567:x", "user:4567aB:x", "user:aa:x", "user:4567aa", "x"] {
            assert_eq!(key_of_split(key.as_bytes()), None, "{key}");
        }
        assert_eq!((all.len(), SHARD_SPLITS_MAX), (677, 677));
    }

    #[test]
    fn the_id_is_between_the_first_two_colons_and_ends_in_a_digit() {
        let splits = ShardSplits::new(
            ["1", "a1", "", "a", "1a", "x1"].map(|id| (id.to_owned(), ShardSplit::constant(2, false))),
        );
        for (key, end) in [
            ("k:1:x", Some(3)),
            (":1:", Some(2)),
            ("k:a1:1:x", Some(4)),
            ("k:1", None),
            ("k", None),
            ("k::x", None),
            ("k:a:x", None),
            ("k:1a:x", None),
            ("k:2:x", None),
            ("k:x:1:x", None),
        ] {
            assert_eq!(splits.of_key(key.as_bytes()).map(|(end, _)| end), end, "{key}");
        }
    }

    #[test]
    fn hosts_move_to_the_new_size_one_after_the_other() {
        let split =
            ShardSplit { old_size: 2, new_size: 5, start_unix_s: 1_000, migration_s: 16_384, fans_out_deletes: false };
        for (host_id, unix_s, expected) in [
            (0, 999, 2),
            (0, 1_000, 2),
            (0, 1_001, 5),
            (100, 1_100, 2),
            (100, 1_101, 5),
            (16_384 + 100, 1_100, 2),
            (16_384 + 100, 1_101, 5),
            (16_383, 1_000 + 16_383, 2),
            (16_383, 1_000 + 16_384, 5),
            (u32::MAX, 1_000 + 16_383, 2),
            (u32::MAX, u64::MAX, 5),
        ] {
            assert_eq!(split.size(host_id, unix_s), expected, "{host_id} at {unix_s}");
        }
        let halfway = (0..16_384).filter(|&host| split.size(host, 1_000 + 8_192) == 5).count();
        assert_eq!(halfway, 8_192);
        let at_once = ShardSplit { migration_s: 0, ..split };
        assert_eq!([999, 1_000].map(|unix_s| at_once.size(16_383, unix_s)), [2, 5]);
        assert_eq!(ShardSplit::constant(3, true).size(16_383, 0), 3);
        assert_eq!(split.size_max(), 5);
    }
}
