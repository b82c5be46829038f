//! Verbs by the names that configurations use, and what kind of effect each has.
//!
//! A meta command counts as a classic verb:
//!
//! | meta command | counts as |
//! |---|---|
//! | `mg` | `get`; `gets` with `c`; `gat` or `gats` with `T` |
//! | `ms` | `set`; by `M`: `add` (E), `append` (A), `prepend` (P), `replace` (R); `cas` with `C` |
//! | `md` | `delete`, also with `I` (which keeps the value as a stale one) |
//! | `ma` | `incr`; `decr` with `MD` or `M-` |
//! | `me` | `metaget` |

use crate::meta::token;
use bytes::Bytes;
use lookaside_protocol::{
    Direction, Operation, StoreMode,
    meta::{MetaOperation, MetaVerb},
};

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the verb of its name")]
pub enum Verb {
    Get,
    Gets,
    Gat,
    Gats,
    LeaseGet,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    LeaseSet,
    Delete,
    Incr,
    Decr,
    Touch,
    Metaget,
}

/// The kind of a verb: most routes distinguish only this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbKind {
    /// Reads a value: `get gets gat gats lease-get metaget`.
    Read,
    /// Changes a value or its exptime: all the stores, `incr decr touch lease-set`.
    Update,
    /// Removes a value: `delete`.
    Delete,
}

impl Verb {
    /// All verbs, in the order of the protocol's description.
    pub const ALL: [Verb; 17] = [
        Verb::Get,
        Verb::Gets,
        Verb::Gat,
        Verb::Gats,
        Verb::LeaseGet,
        Verb::Set,
        Verb::Add,
        Verb::Replace,
        Verb::Append,
        Verb::Prepend,
        Verb::Cas,
        Verb::LeaseSet,
        Verb::Delete,
        Verb::Incr,
        Verb::Decr,
        Verb::Touch,
        Verb::Metaget,
    ];

    /// The verb of an operation. A meta command counts as a classic verb.
    pub fn of(operation: &Operation<Bytes>) -> Verb {
        match operation {
            Operation::Get { cas: false } => Verb::Get,
            Operation::Get { cas: true } => Verb::Gets,
            Operation::GetAndTouch { cas: false, .. } => Verb::Gat,
            Operation::GetAndTouch { cas: true, .. } => Verb::Gats,
            Operation::LeaseGet => Verb::LeaseGet,
            Operation::Store { mode, .. } => Verb::of_store(*mode),
            Operation::LeaseSet { .. } => Verb::LeaseSet,
            Operation::Delete { .. } => Verb::Delete,
            Operation::Arithmetic { direction: Direction::Up, .. } => Verb::Incr,
            Operation::Arithmetic { direction: Direction::Down, .. } => Verb::Decr,
            Operation::Touch { .. } => Verb::Touch,
            Operation::Meta(meta) => verb_of_meta(meta),
        }
    }

    /// The verb of a store.
    pub fn of_store(mode: StoreMode) -> Verb {
        match mode {
            StoreMode::Set => Verb::Set,
            StoreMode::Add => Verb::Add,
            StoreMode::Replace => Verb::Replace,
            StoreMode::Append => Verb::Append,
            StoreMode::Prepend => Verb::Prepend,
            StoreMode::Cas(_) => Verb::Cas,
        }
    }

    /// The name that the text protocol and configurations use.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Gets => "gets",
            Verb::Gat => "gat",
            Verb::Gats => "gats",
            Verb::LeaseGet => "lease-get",
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas => "cas",
            Verb::LeaseSet => "lease-set",
            Verb::Delete => "delete",
            Verb::Incr => "incr",
            Verb::Decr => "decr",
            Verb::Touch => "touch",
            Verb::Metaget => "metaget",
        }
    }

    /// The verb of that name.
    pub fn from_name(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// The kind of the verb.
    pub fn kind(self) -> VerbKind {
        match self {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats | Verb::LeaseGet | Verb::Metaget => VerbKind::Read,
            Verb::Delete => VerbKind::Delete,
            Verb::Set
            | Verb::Add
            | Verb::Replace
            | Verb::Append
            | Verb::Prepend
            | Verb::Cas
            | Verb::LeaseSet
            | Verb::Incr
            | Verb::Decr
            | Verb::Touch => VerbKind::Update,
        }
    }
}

fn verb_of_meta(meta: &MetaOperation<Bytes>) -> Verb {
    let has = |letter| token(&meta.flags, letter).is_some();
    let mode = token(&meta.flags, b'M').and_then(|mode| mode.first());
    match meta.verb {
        MetaVerb::Get => match (has(b'T'), has(b'c')) {
            (false, false) => Verb::Get,
            (false, true) => Verb::Gets,
            (true, false) => Verb::Gat,
            (true, true) => Verb::Gats,
        },
        MetaVerb::Set => match mode {
            Some(b'E') => Verb::Add,
            Some(b'A') => Verb::Append,
            Some(b'P') => Verb::Prepend,
            Some(b'R') => Verb::Replace,
            _ if has(b'C') => Verb::Cas,
            _ => Verb::Set,
        },
        MetaVerb::Delete => Verb::Delete,
        MetaVerb::Arithmetic if matches!(mode, Some(b'D' | b'-')) => Verb::Decr,
        MetaVerb::Arithmetic => Verb::Incr,
        MetaVerb::Debug => Verb::Metaget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_distinct_name() {
        for verb in Verb::ALL {
            assert_eq!(Verb::from_name(verb.name()), Some(verb));
        }
        assert_eq!(Verb::from_name("GET"), None);
    }

    #[test]
    fn a_meta_command_counts_as_a_classic_verb() {
        use MetaVerb::{Arithmetic, Debug, Delete, Get, Set};
        for (command, flags, expected) in [
            (Get, "v", Verb::Get),
            (Get, "v c", Verb::Gets),
            (Get, "v T30", Verb::Gat),
            (Get, "T30 c v", Verb::Gats),
            (Set, "", Verb::Set),
            (Set, "T0 ME", Verb::Add),
            (Set, "MA", Verb::Append),
            (Set, "MP", Verb::Prepend),
            (Set, "MR C5", Verb::Replace),
            (Set, "C5", Verb::Cas),
            (Delete, "q I", Verb::Delete),
            (Arithmetic, "", Verb::Incr),
            (Arithmetic, "D5 M+", Verb::Incr),
            (Arithmetic, "MD", Verb::Decr),
            (Arithmetic, "M-", Verb::Decr),
            (Debug, "", Verb::Metaget),
        ] {
            assert_eq!(
                verb_of_meta(&MetaOperation { verb: command, flags: flags.into(), value: None }),
                expected,
                "{command:?} {flags}"
            );
        }
    }
}
