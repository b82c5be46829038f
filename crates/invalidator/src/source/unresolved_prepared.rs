//! Prepared transactions whose keys a reader of a log does not know, as they are saved beside a position.
//!
//! ```text
//! {"named":["x'6f6c64',x'',1"]}   or   "unknown"
//! ```

use super::Position;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most names that are saved: some 28 KB. If more are unresolved, no names are kept.
pub(crate) const NAMES_MAX: usize = 100;

/// Transactions that were prepared in a part of the log that was never read, and were not resolved at a position. The
/// keys that they named are not known, so the commit of one is a loss of deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnresolvedPrepared {
    /// These, by the names that the log has for them.
    Named(BTreeSet<String>),
    /// Any may be one: the database did not list them, or there were over a hundred.
    Unknown,
}

/// What the next reader from a position must know of prepared transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedState {
    /// Those whose commit is a loss of deletes.
    pub unresolved: UnresolvedPrepared,
    /// How far the log had been read: beyond the position while prepared transactions hold that back. The commit of a
    /// transaction whose XA PREPARE is before the position was read if it is before this, and is a loss of deletes if
    /// it comes later. `None` if this is not known: then only those above count.
    pub read_until: Option<Position>,
}

impl UnresolvedPrepared {
    /// None at all.
    pub fn none() -> UnresolvedPrepared {
        UnresolvedPrepared::Named(BTreeSet::new())
    }

    /// These, if their names can be saved.
    pub fn from_names(names: BTreeSet<String>) -> UnresolvedPrepared {
        match names.len() <= NAMES_MAX {
            true => UnresolvedPrepared::Named(names),
            false => UnresolvedPrepared::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_are_not_kept() {
        let names = |count: usize| (0..count).map(|number| number.to_string()).collect::<BTreeSet<_>>();
        let most = names(NAMES_MAX);
        assert_eq!(UnresolvedPrepared::from_names(most.clone()), UnresolvedPrepared::Named(most));
        assert_eq!(UnresolvedPrepared::from_names(names(NAMES_MAX + 1)), UnresolvedPrepared::Unknown);
    }

    #[test]
    fn text_is_read_as_it_is_written() {
        let named = UnresolvedPrepared::from_names(["x'6f6c64',x'',1".to_owned()].into());
        for (unresolved, text) in
            [(named, r#"{"named":["x'6f6c64',x'',1"]}"#), (UnresolvedPrepared::Unknown, r#""unknown""#)]
        {
            assert_eq!(serde_json::to_string(&unresolved).expect("it is text"), text);
            assert_eq!(serde_json::from_str::<UnresolvedPrepared>(text).expect(text), unresolved);
        }
    }
}
