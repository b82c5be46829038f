//! A delete that is asked about, and the choice of these.

use super::moment::Moment;
use lookaside_invalidator::Position;
use lookaside_routing::fnv1a_64;
use std::time::SystemTime;

/// A delete of one key by one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The key.
    pub key: Vec<u8>,
    /// The position of the commit.
    pub position: Position,
    /// When it was committed, by the database's clock. It is shown and compared with nothing.
    pub committed_at: SystemTime,
    /// The commit was not in the log at this time, so it came later; `None` if no such time is known.
    pub not_before: Option<Moment>,
    /// Readers saw the commit at this time.
    pub read_at: Moment,
}

impl Sample {
    /// The earliest time at which it can have been committed, as far as that is known, or else when it was read.
    pub fn earliest(&self) -> Moment {
        self.not_before.unwrap_or(self.read_at)
    }
}

/// Whether the delete of `key` by the commit at `position` is one of the sample: one in `one_in`. It depends on nothing
/// else, so all monitors of a log that have the same number choose the same deletes.
///
/// ```
/// use lookaside_invalidator::Position;
/// use lookaside_monitor::sampling::is_sampled;
/// let chosen = (0..10_000).filter(|n| is_sampled(b"user:42", &Position(format!("0-1-{n}")), 100)).count();
/// assert!((50..200).contains(&chosen), "{chosen}");
/// assert!(is_sampled(b"user:42", &Position("0-1-7".into()), 1));
/// ```
pub fn is_sampled(key: &[u8], position: &Position, one_in: u32) -> bool {
    hash(&[position.0.as_bytes(), b" ", key]).is_multiple_of(u64::from(one_in))
}

/// FNV-1a, and the last step of MurmurHash3, since the remainder must depend on all bits.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = fnv1a_64(parts.iter().flat_map(|part| part.iter().copied()));
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_depends_on_key_and_commit() {
        let chosen = |key: &str, commit: u32| is_sampled(key.as_bytes(), &Position(commit.to_string()), 10);
        let keys: Vec<bool> = (0..100).map(|n| chosen(&format!("user:{n}"), 1)).collect();
        let commits: Vec<bool> = (0..100).map(|n| chosen("user:1", n)).collect();
        for choices in [&keys, &commits] {
            let count = choices.iter().filter(|&&is_chosen| is_chosen).count();
            assert!((2..30).contains(&count), "{count}");
        }
        // The remainder by a power of two must not depend on the last byte alone.
        let even = (0..1_000).filter(|n| is_sampled(format!("k{n}0").as_bytes(), &Position("1".into()), 2)).count();
        assert!((400..600).contains(&even), "{even}");
    }
}
