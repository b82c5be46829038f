//! Strategies: valid commands and replies for round trips, and nearly valid bytes for error handling.

use lookaside_protocol::meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb, encode_key};
use lookaside_protocol::text::{compose_reply, compose_request};
use lookaside_protocol::{Cas, Direction, ErrorReply, LeaseToken, Operation, Reply, Request, StoreMode};
use proptest::prelude::*;

pub const VALUE_BYTES_MAX: usize = 300;

pub fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => b'a'..=b'c', 1 => b'!'..=b'~', 1 => 0x80..=0xffu8];
    let bytes = prop_oneof![8 => 1usize..40, 1 => 249usize..=250];
    prop_oneof![
        20 => bytes.prop_flat_map(move |bytes| prop::collection::vec(byte.clone(), bytes)),
        1 => Just(b"noreply".to_vec()),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'x'), any::<u8>()];
    prop::collection::vec(byte, 0..=VALUE_BYTES_MAX)
}

/// 32 bits, as on the wire.
fn exptime() -> impl Strategy<Value = i64> {
    any::<i32>().prop_map(i64::from)
}

fn store_mode() -> impl Strategy<Value = StoreMode> {
    prop_oneof![
        Just(StoreMode::Set),
        Just(StoreMode::Add),
        Just(StoreMode::Replace),
        Just(StoreMode::Append),
        Just(StoreMode::Prepend),
        any::<u64>().prop_map(|cas| StoreMode::Cas(Cas(cas))),
    ]
}

fn store() -> impl Strategy<Value = Operation<Vec<u8>>> {
    (store_mode(), any::<u32>(), exptime(), value()).prop_map(|(mode, flags, exptime, value)| Operation::Store {
        mode,
        flags,
        exptime,
        value,
        cas: false,
    })
}

fn lease_set() -> impl Strategy<Value = Operation<Vec<u8>>> {
    (any::<u64>(), any::<u32>(), exptime(), value()).prop_map(|(token, flags, exptime, value)| Operation::LeaseSet {
        token: LeaseToken(token),
        flags,
        exptime,
        value,
    })
}

/// Any operation but the meta ones.
pub fn text_operation() -> impl Strategy<Value = Operation<Vec<u8>>> {
    let direction = prop_oneof![Just(Direction::Up), Just(Direction::Down)];
    prop_oneof![
        any::<bool>().prop_map(|cas| Operation::Get { cas }),
        (exptime(), any::<bool>()).prop_map(|(exptime, cas)| Operation::GetAndTouch { exptime, cas }),
        Just(Operation::LeaseGet),
        store(),
        lease_set(),
        prop_oneof![0..2000u32, any::<u32>()].prop_map(|hold_off_ms| Operation::Delete { hold_off_ms }),
        (direction, any::<u64>()).prop_map(|(direction, delta)| Operation::Arithmetic { direction, delta }),
        exptime().prop_map(|exptime| Operation::Touch { exptime }),
    ]
}

/// A flag that every verb accepts, with a valid token.
fn meta_flag() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&["b", "c", "f", "h", "k", "l", "q", "s", "t", "u", "v", "x", "I"][..])
            .prop_map(String::from),
        (prop::sample::select(&["C", "E", "D", "J"][..]), any::<u64>()).prop_map(|(flag, n)| format!("{flag}{n}")),
        (prop::sample::select(&["T", "N", "R"][..]), any::<i32>()).prop_map(|(flag, n)| format!("{flag}{n}")),
        any::<u32>().prop_map(|flags| format!("F{flags}")),
        "O[!-~]{0,31}",
        "[PL][!-~]{0,31}",
    ]
}

fn meta_flags() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(meta_flag(), 0..17).prop_map(|mut flags| {
        flags.sort_unstable();
        flags.dedup_by_key(|flag| flag.as_bytes()[0]);
        flags.reverse();
        flags
    })
}

fn meta_request() -> impl Strategy<Value = Request<Vec<u8>>> {
    let verb = prop_oneof![
        Just((MetaVerb::Get, "")),
        prop::sample::select(&["", "MS", "ME", "MA", "MP", "MR"][..]).prop_map(|mode| (MetaVerb::Set, mode)),
        Just((MetaVerb::Delete, "")),
        prop::sample::select(&["", "MI", "MD", "M+", "M-"][..]).prop_map(|mode| (MetaVerb::Arithmetic, mode)),
        Just((MetaVerb::Debug, "")),
    ];
    (key(), prop::collection::vec(any::<u8>(), 1..=186), verb, meta_flags(), value()).prop_map(
        |(text_key, any_key, (verb, mode), mut flags, value)| {
            let mut key = text_key;
            if flags.iter().any(|flag| flag == "b") {
                key.clear();
                encode_key(&any_key, &mut key);
            }
            flags.extend((!mode.is_empty()).then(|| mode.to_string()));
            let value = (verb == MetaVerb::Set).then_some(value);
            Request { key, operation: Operation::Meta(MetaOperation { verb, flags: flags.join(" ").into(), value }) }
        },
    )
}

/// Any request.
pub fn request() -> impl Strategy<Value = Request<Vec<u8>>> {
    prop_oneof![
        2 => (key(), text_operation()).prop_map(|(key, operation)| Request { key, operation }),
        1 => meta_request(),
    ]
}

fn why() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![b' '..=b'~', 0x80..=0xffu8], 0..60)
}

fn meta_reply() -> impl Strategy<Value = MetaReply<Vec<u8>>> {
    let status = prop::sample::select(
        &[
            MetaStatus::Done,
            MetaStatus::Value,
            MetaStatus::Miss,
            MetaStatus::NotFound,
            MetaStatus::NotStored,
            MetaStatus::Exists,
            MetaStatus::Debug,
        ][..],
    );
    (status, meta_flags(), value()).prop_map(|(status, flags, value)| MetaReply {
        status,
        flags: flags.join(" ").into(),
        value: (status == MetaStatus::Value).then_some(value),
    })
}

/// Any reply that has bytes: a miss has none, and an empty stale value is parsed as none.
pub fn reply() -> impl Strategy<Value = Reply<Vec<u8>>> {
    let value_reply = (any::<u32>(), prop::option::of(any::<u64>()), value())
        .prop_map(|(flags, cas, value)| Reply::Value { flags, cas: cas.map(Cas), value });
    let lease = (any::<u64>(), any::<u32>(), prop::option::of(value())).prop_map(|(token, flags, stale)| {
        Reply::Lease { token: LeaseToken(token), flags, stale: stale.filter(|stale| !stale.is_empty()) }
    });
    let line = prop::sample::select(vec![
        Reply::Stored,
        Reply::StaleStored,
        Reply::NotStored,
        Reply::Exists,
        Reply::NotFound,
        Reply::Deleted,
        Reply::Touched,
        Reply::Ok,
        Reply::Error(ErrorReply::Unknown),
    ]);
    prop_oneof![
        value_reply,
        lease,
        line,
        any::<u64>().prop_map(Reply::Number),
        why().prop_map(|why| Reply::Error(ErrorReply::Client(why))),
        why().prop_map(|why| Reply::Error(ErrorReply::Server(why))),
        meta_reply().prop_map(Reply::Meta),
    ]
}

/// Complete commands, damaged ones, and pieces of both.
pub fn nearly_commands() -> impl Strategy<Value = Vec<u8>> {
    let whole = request().prop_map(|request| {
        let mut out = Vec::new();
        compose_request(&request, &mut out);
        out
    });
    let piece = prop::sample::select(&COMMAND_PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec());
    stream(whole, piece)
}

/// Complete replies, damaged ones, and pieces of both.
pub fn nearly_replies() -> impl Strategy<Value = Vec<u8>> {
    let whole = (key(), reply()).prop_map(|(key, reply)| {
        let mut out = Vec::new();
        compose_reply(&key, &reply, &mut out);
        out
    });
    let piece = prop::sample::select(&REPLY_PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec());
    stream(whole, piece)
}

fn stream(
    whole: impl Strategy<Value = Vec<u8>>,
    piece: impl Strategy<Value = Vec<u8>>,
) -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![4 => whole, 4 => piece, 1 => prop::collection::vec(any::<u8>(), 0..20)];
    let damage = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (prop::collection::vec(part, 0..8), damage).prop_map(|(parts, damage)| {
        let mut bytes = parts.concat();
        if let Some((at, byte)) = damage
            && !bytes.is_empty()
        {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

const COMMAND_PIECES: [&str; 32] = [
    "\r\n",
    "\n",
    " ",
    "\r",
    " noreply",
    "get",
    "get a b",
    "gat 1 a",
    "set",
    "set a 0 0 3\r\n",
    "set a x 0 3\r\n",
    "set a 0 0 301\r\n",
    "set a 0 0 -1\r\n",
    "set a 0 0 99999999999999999999\r\n",
    "xyz\r\n",
    "xyz",
    "cas a 0 0 3 9\r\n",
    "lease-set a 9 0 0 3\r\n",
    "delete a 0.5",
    "incr a 1",
    "touch a 5",
    "flush_all",
    "verbosity 1",
    "stats items",
    "version\r\n",
    "quit\r\n",
    "mn\r\n",
    "mg a v t",
    "ms a 3 c\r\n",
    "ms a 3 Q\r\n",
    "ms a 301\r\n",
    "ma a N0 J5",
];

const REPLY_PIECES: [&str; 20] = [
    "\r\n",
    "\n",
    " ",
    "VALUE a 0 3\r\n",
    "VALUE a 0 301\r\n",
    "VALUE a 0 x\r\n",
    "VALUE",
    "xyz\r\n",
    "xyz",
    "LVALUE a 9 0 3\r\n",
    "LVALUE a 9 0 0\r\n",
    "END\r\n",
    "STORED\r\n",
    "12\r\n",
    "STAT a b\r\n",
    "VERSION 1\r\n",
    "MN\r\n",
    "VA 3 t5\r\n",
    "HD k1\r\n",
    "SERVER_ERROR x\r\n",
];

/// Borrows an operation's bytes.
pub fn borrow_operation(operation: &Operation<Vec<u8>>) -> Operation<&[u8]> {
    match operation {
        Operation::Get { cas } => Operation::Get { cas: *cas },
        Operation::GetAndTouch { exptime, cas } => Operation::GetAndTouch { exptime: *exptime, cas: *cas },
        Operation::LeaseGet => Operation::LeaseGet,
        Operation::Store { mode, flags, exptime, value, .. } => {
            Operation::Store { mode: *mode, flags: *flags, exptime: *exptime, value, cas: false }
        }
        Operation::LeaseSet { token, flags, exptime, value } => {
            Operation::LeaseSet { token: *token, flags: *flags, exptime: *exptime, value }
        }
        Operation::Delete { hold_off_ms } => Operation::Delete { hold_off_ms: *hold_off_ms },
        Operation::Arithmetic { direction, delta } => Operation::Arithmetic { direction: *direction, delta: *delta },
        Operation::Touch { exptime } => Operation::Touch { exptime: *exptime },
        Operation::Meta(MetaOperation { verb, flags, value }) => {
            Operation::Meta(MetaOperation { verb: *verb, flags, value: value.as_deref() })
        }
    }
}
