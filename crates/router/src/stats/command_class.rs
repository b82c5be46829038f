//! The classes of commands that `stats` and metrics count separately.

use lookaside_protocol::{Direction, Operation, StoreMode};

/// A class of commands: a verb, mcrouter's `metaget`, or the meta commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandClass {
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
    Meta,
}

impl CommandClass {
    /// All, in the order of their numbers.
    pub const ALL: [CommandClass; 18] = [
        CommandClass::Get,
        CommandClass::Gets,
        CommandClass::Gat,
        CommandClass::Gats,
        CommandClass::LeaseGet,
        CommandClass::Set,
        CommandClass::Add,
        CommandClass::Replace,
        CommandClass::Append,
        CommandClass::Prepend,
        CommandClass::Cas,
        CommandClass::LeaseSet,
        CommandClass::Delete,
        CommandClass::Incr,
        CommandClass::Decr,
        CommandClass::Touch,
        CommandClass::Metaget,
        CommandClass::Meta,
    ];

    /// The name in `stats`, and the label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CommandClass::Get => "get",
            CommandClass::Gets => "gets",
            CommandClass::Gat => "gat",
            CommandClass::Gats => "gats",
            CommandClass::LeaseGet => "lease_get",
            CommandClass::Set => "set",
            CommandClass::Add => "add",
            CommandClass::Replace => "replace",
            CommandClass::Append => "append",
            CommandClass::Prepend => "prepend",
            CommandClass::Cas => "cas",
            CommandClass::LeaseSet => "lease_set",
            CommandClass::Delete => "delete",
            CommandClass::Incr => "incr",
            CommandClass::Decr => "decr",
            CommandClass::Touch => "touch",
            CommandClass::Metaget => "metaget",
            CommandClass::Meta => "meta",
        }
    }

    /// The class of an operation. The parser knows which `me` a client has sent as `metaget`: here it is a meta
    /// command.
    pub fn of<B>(operation: &Operation<B>) -> CommandClass {
        match operation {
            Operation::Get { cas: false } => CommandClass::Get,
            Operation::Get { cas: true } => CommandClass::Gets,
            Operation::GetAndTouch { cas: false, .. } => CommandClass::Gat,
            Operation::GetAndTouch { cas: true, .. } => CommandClass::Gats,
            Operation::LeaseGet => CommandClass::LeaseGet,
            Operation::Store { mode, .. } => CommandClass::of_store(*mode),
            Operation::LeaseSet { .. } => CommandClass::LeaseSet,
            Operation::Delete { .. } => CommandClass::Delete,
            Operation::Arithmetic { direction: Direction::Up, .. } => CommandClass::Incr,
            Operation::Arithmetic { direction: Direction::Down, .. } => CommandClass::Decr,
            Operation::Touch { .. } => CommandClass::Touch,
            Operation::Meta(_) => CommandClass::Meta,
        }
    }

    /// The class of a store.
    pub fn of_store(mode: StoreMode) -> CommandClass {
        match mode {
            StoreMode::Set => CommandClass::Set,
            StoreMode::Add => CommandClass::Add,
            StoreMode::Replace => CommandClass::Replace,
            StoreMode::Append => CommandClass::Append,
            StoreMode::Prepend => CommandClass::Prepend,
            StoreMode::Cas(_) => CommandClass::Cas,
        }
    }
}
