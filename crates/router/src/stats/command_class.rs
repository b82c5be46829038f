//! The classes of commands that `stats` and metrics count separately.

use bytes::Bytes;
use lookaside_protocol::Operation;
use lookaside_routing::Verb;

/// A class of commands. The tree of routes takes each meta command for a verb; here they are a class of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// A classic verb, or mcrouter's `metaget`.
    Verb(Verb),
    Meta,
}

impl CommandClass {
    /// How many there are.
    pub const COUNT: usize = Verb::ALL.len() + 1;

    /// All, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = CommandClass> {
        Verb::ALL.into_iter().map(CommandClass::Verb).chain([CommandClass::Meta])
    }

    /// The number, below [`CommandClass::COUNT`].
    pub fn number(self) -> usize {
        match self {
            CommandClass::Verb(verb) => verb as usize,
            CommandClass::Meta => Verb::ALL.len(),
        }
    }

    /// The name in `stats`, and the label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CommandClass::Verb(Verb::LeaseGet) => "lease_get",
            CommandClass::Verb(Verb::LeaseSet) => "lease_set",
            CommandClass::Verb(verb) => verb.name(),
            CommandClass::Meta => "meta",
        }
    }

    /// The class of an operation. The parser knows which `me` a client has sent as `metaget`: here it is a meta
    /// command.
    pub fn of(operation: &Operation<Bytes>) -> CommandClass {
        match operation {
            Operation::Meta(_) => CommandClass::Meta,
            classic => CommandClass::Verb(Verb::of(classic)),
        }
    }
}
