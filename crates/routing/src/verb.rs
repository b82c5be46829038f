//! Verbs by the names that configurations use, and what kind of effect each has.

use bytes::Bytes;
use lookaside_protocol::{Direction, Operation, StoreMode};

/// What a request does, without its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Each is the verb of its name.
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

/// What a verb is about: routes that treat verbs differently mostly ask only this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wants a value: `get gets gat gats lease-get metaget`.
    Read,
    /// Changes a value or its exptime: all the stores, `incr decr touch lease-set`.
    Update,
    /// Ends a value: `delete`.
    Delete,
}

impl Verb {
    /// Every verb, in the order of the protocol's description.
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

    /// The verb of an operation. A meta command counts as the classic verb that it amounts to.
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
            Operation::Meta(meta) => crate::meta::verb(meta),
        }
    }

    fn of_store(mode: StoreMode) -> Verb {
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
    pub fn named(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// What the verb is about.
    pub fn kind(self) -> Kind {
        match self {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats | Verb::LeaseGet | Verb::Metaget => Kind::Read,
            Verb::Delete => Kind::Delete,
            Verb::Set
            | Verb::Add
            | Verb::Replace
            | Verb::Append
            | Verb::Prepend
            | Verb::Cas
            | Verb::LeaseSet
            | Verb::Incr
            | Verb::Decr
            | Verb::Touch => Kind::Update,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_name_of_its_own() {
        for verb in Verb::ALL {
            assert_eq!(Verb::named(verb.name()), Some(verb));
        }
        assert_eq!(Verb::named("GET"), None);
    }
}
