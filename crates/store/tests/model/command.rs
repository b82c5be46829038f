//! Random commands, mixed so that rare cases coincide: a late fill after a delete during a hold-off.

use lookaside_protocol::Direction;
use proptest::prelude::*;

/// The token or unique that a client sends.
#[derive(Clone, Copy, Debug)]
pub enum Remembered {
    /// The newest one that it has seen for that key.
    Newest,
    /// Any one that it has seen for any key.
    Any(usize),
    /// An invented one, or "hot miss".
    Invented(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(Remembered),
}

#[derive(Clone, Debug)]
pub enum Command {
    Get,
    Touch {
        exptime: i64,
    },
    LeaseGet,
    Store {
        mode: Mode,
        flags: u32,
        exptime: i64,
        value: Vec<u8>,
    },
    LeaseSet {
        remembered: Remembered,
        flags: u32,
        exptime: i64,
        value: Vec<u8>,
    },
    Delete {
        hold_off_ms: u32,
    },
    Arithmetic {
        direction: Direction,
        delta: u64,
    },
    Flush {
        ahead_ms: u64,
    },
    Wait {
        ms: u64,
    },
    /// Saves and restores the store; does nothing to one without a region.
    Restart {
        down_ms: u64,
    },
    MetaGet {
        no_bump: bool,
        touch: Option<i64>,
        vivify: Option<i64>,
        recache: Option<i64>,
        unique: Option<u64>,
    },
    MetaSet {
        mode: Mode,
        compare: Option<Remembered>,
        invalidates: bool,
        vivify: Option<i64>,
        unique: Option<u64>,
        item: Item,
    },
    MetaDelete {
        compare: Option<Remembered>,
        invalidates: bool,
        empties: bool,
        touch: Option<i64>,
        unique: Option<u64>,
    },
    MetaArithmetic {
        up: bool,
        delta: u64,
        compare: Option<Remembered>,
        touch: Option<i64>,
        vivify: Option<(u64, i64)>,
        unique: Option<u64>,
    },
}

/// An item that a client stores.
#[derive(Clone, Debug)]
pub struct Item {
    pub flags: u32,
    pub exptime: i64,
    pub value: Vec<u8>,
}

/// Up to `length_max` commands on keys below `keys`, with values of up to `value_bytes_max`.
pub fn commands(keys: u8, value_bytes_max: usize, length_max: usize) -> impl Strategy<Value = Vec<(u8, Command)>> {
    prop::collection::vec((0..keys, command(value_bytes_max)), 1..length_max)
}

fn command(value_bytes_max: usize) -> impl Strategy<Value = Command> {
    prop_oneof![
        4 => Just(Command::Get),
        1 => exptime().prop_map(|exptime| Command::Touch { exptime }),
        6 => Just(Command::LeaseGet),
        6 => (mode(), 0u32..4, exptime(), value(value_bytes_max))
            .prop_map(|(mode, flags, exptime, value)| Command::Store { mode, flags, exptime, value }),
        6 => (remembered(), 0u32..4, exptime(), value(value_bytes_max))
            .prop_map(|(remembered, flags, exptime, value)| Command::LeaseSet { remembered, flags, exptime, value }),
        4 => prop_oneof![Just(0u32), 1u32..4_000].prop_map(|hold_off_ms| Command::Delete { hold_off_ms }),
        1 => (prop_oneof![Just(Direction::Up), Just(Direction::Down)], prop_oneof![0u64..200, any::<u64>()])
            .prop_map(|(direction, delta)| Command::Arithmetic { direction, delta }),
        1 => prop_oneof![Just(0u64), 0u64..3_000].prop_map(|ahead_ms| Command::Flush { ahead_ms }),
        4 => prop_oneof![1u64..50, 500u64..4_000].prop_map(|ms| Command::Wait { ms }),
        1 => prop_oneof![Just(0u64), 1u64..6_000].prop_map(|down_ms| Command::Restart { down_ms }),
        6 => (any::<bool>(), sometimes(exptime()), sometimes(exptime()), sometimes(exptime()), unique())
            .prop_map(|(no_bump, touch, vivify, recache, unique)| {
                Command::MetaGet { no_bump, touch, vivify, recache, unique }
            }),
        4 => (mode(), sometimes(remembered()), any::<bool>(), sometimes(exptime()), unique(), item(value_bytes_max))
            .prop_map(|(mode, compare, invalidates, vivify, unique, item)| {
                Command::MetaSet { mode, compare, invalidates, vivify, unique, item }
            }),
        4 => (sometimes(remembered()), any::<bool>(), sometimes(Just(())), sometimes(exptime()), unique())
            .prop_map(|(compare, invalidates, empties, touch, unique)| {
                Command::MetaDelete { compare, invalidates, empties: empties.is_some(), touch, unique }
            }),
        2 => (any::<bool>(), 0u64..200, sometimes(remembered()), sometimes(exptime()), sometimes((0u64..120, exptime())), unique())
            .prop_map(|(up, delta, compare, touch, vivify, unique)| {
                Command::MetaArithmetic { up, delta, compare, touch, vivify, unique }
            }),
    ]
}

fn sometimes<T: std::fmt::Debug + Clone>(what: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.3, what)
}

/// A CAS unique of the client's choice.
fn unique() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.2, 0u64..4)
}

fn item(value_bytes_max: usize) -> impl Strategy<Value = Item> {
    (0u32..4, exptime(), value(value_bytes_max)).prop_map(|(flags, exptime, value)| Item { flags, exptime, value })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Set),
        3 => Just(Mode::Add),
        1 => Just(Mode::Replace),
        1 => Just(Mode::Append),
        1 => Just(Mode::Prepend),
        2 => remembered().prop_map(Mode::Cas),
    ]
}

fn remembered() -> impl Strategy<Value = Remembered> {
    prop_oneof![
        4 => Just(Remembered::Newest),
        3 => any::<usize>().prop_map(Remembered::Any),
        1 => (0u64..4).prop_map(Remembered::Invented),
    ]
}

fn exptime() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(0i64), 2 => 1i64..6, 1 => Just(-1i64)]
}

fn value(value_bytes_max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop_oneof![0u64..120, any::<u64>()].prop_map(|number| number.to_string().into_bytes()),
        (any::<u8>(), 0..=value_bytes_max).prop_map(|(byte, length)| vec![byte; length]),
        (any::<u8>(), 0..=30usize).prop_map(|(byte, length)| vec![byte; length]),
        prop::sample::select(&["12 x", " 7", "-0", "+3", "-1", "8\r\n", "1 2", "99   "][..])
            .prop_map(|text| text.as_bytes().to_vec()),
    ]
}
