//! The classes of commands that `stats` and metrics count separately.

use lookaside_protocol::Operation;

/// A class of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandClass {
    /// `get`, `gets`
    Get,
    /// `gat`, `gats`
    GetAndTouch,
    /// `lease-get`
    LeaseGet,
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`
    Store,
    /// `lease-set`
    LeaseSet,
    /// `delete`
    Delete,
    /// `incr`, `decr`
    Arithmetic,
    /// `touch`
    Touch,
    /// The meta commands
    Meta,
}

impl CommandClass {
    /// All, in the order of their numbers.
    pub const ALL: [CommandClass; 9] = [
        CommandClass::Get,
        CommandClass::GetAndTouch,
        CommandClass::LeaseGet,
        CommandClass::Store,
        CommandClass::LeaseSet,
        CommandClass::Delete,
        CommandClass::Arithmetic,
        CommandClass::Touch,
        CommandClass::Meta,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CommandClass::Get => "get",
            CommandClass::GetAndTouch => "gat",
            CommandClass::LeaseGet => "lease_get",
            CommandClass::Store => "set",
            CommandClass::LeaseSet => "lease_set",
            CommandClass::Delete => "delete",
            CommandClass::Arithmetic => "incr",
            CommandClass::Touch => "touch",
            CommandClass::Meta => "meta",
        }
    }

    /// The class of an operation.
    pub fn of<B>(operation: &Operation<B>) -> CommandClass {
        match operation {
            Operation::Get { .. } => CommandClass::Get,
            Operation::GetAndTouch { .. } => CommandClass::GetAndTouch,
            Operation::LeaseGet => CommandClass::LeaseGet,
            Operation::Store { .. } => CommandClass::Store,
            Operation::LeaseSet { .. } => CommandClass::LeaseSet,
            Operation::Delete { .. } => CommandClass::Delete,
            Operation::Arithmetic { .. } => CommandClass::Arithmetic,
            Operation::Touch { .. } => CommandClass::Touch,
            Operation::Meta(_) => CommandClass::Meta,
        }
    }
}
