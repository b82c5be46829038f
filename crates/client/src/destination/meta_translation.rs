//! Translates classic requests into meta commands, and meta replies back, for servers that are configured to use the
//! meta protocol, and stores whose CAS unique is requested for others that know it. Serves every path; sans-I/O.
//!
//! | request | sent as | reply |
//! |---|---|---|
//! | `get`, `gets` | `mg k v f`, with `c` | `VA`: a value; `EN`: a miss |
//! | `gat`, `gats` | the same with `T` | |
//! | `touch` | `mg k T` | `HD`: touched; `EN`: not found |
//! | `set add replace append prepend cas` | `ms k n F T`, with `ME`, `MR`, `MA`, `MP`, `C`; with `c` for the CAS unique | `HD`: stored; `NS`; `EX`; `NF` |
//! | `delete` | `md k` | `HD`: deleted; `NF` |
//! | `incr decr` | `ma k v D`, with `MD` | `VA`: the number; `NF` |
//! | meta commands | as they are | as they are |
//! | `lease-get lease-set`, `delete` with a hold-off | as they are: there are no meta commands for them | |
//!
//! Errors are the same lines in both protocols.
//!
//! Deliberately absent: quiet gets of many keys, whose missing replies could not be matched to requests.
//!
//! An item that `md I` made stale gives the first `mg` the right to recache it (`W`). A classic get through here
//! consumes that right unknowingly: if both kinds of clients share such items, use the text protocol.

use bytes::Bytes;
use lookaside_protocol::{
    Cas, Direction, Operation, Reply, Request, StoreMode,
    meta::{MetaOperation, MetaReply, MetaStatus, MetaVerb},
};
use std::fmt::Write as _;

pub(super) fn is_translated(operation: &Operation<Bytes>) -> bool {
    match operation {
        Operation::Delete { hold_off_ms } => *hold_off_ms == 0,
        Operation::LeaseGet | Operation::LeaseSet { .. } | Operation::Meta(_) => false,
        _ => true,
    }
}

/// The request to send; the same if it is not translated.
pub(super) fn to_meta(request: &Request<Bytes>) -> Request<Bytes> {
    let fixed =
        |verb, flags: &'static str| MetaOperation { verb, flags: Bytes::from_static(flags.as_bytes()), value: None };
    let made = |verb, flags: String| MetaOperation { verb, flags: flags.into(), value: None };
    let meta = match &request.operation {
        Operation::Get { cas: false } => fixed(MetaVerb::Get, "v f"),
        Operation::Get { cas: true } => fixed(MetaVerb::Get, "v f c"),
        Operation::GetAndTouch { exptime, cas } => {
            made(MetaVerb::Get, format!("v f{} T{exptime}", if *cas { " c" } else { "" }))
        }
        Operation::Touch { exptime } => made(MetaVerb::Get, format!("T{exptime}")),
        Operation::Store { mode, flags, exptime, value, cas } => {
            let meta = made(MetaVerb::Set, store_flags(*mode, *flags, *exptime, *cas));
            MetaOperation { value: Some(value.clone()), ..meta }
        }
        Operation::Delete { hold_off_ms: 0 } => fixed(MetaVerb::Delete, ""),
        Operation::Arithmetic { direction: Direction::Up, delta } => made(MetaVerb::Arithmetic, format!("v D{delta}")),
        Operation::Arithmetic { direction: Direction::Down, delta } => {
            made(MetaVerb::Arithmetic, format!("v D{delta} MD"))
        }
        Operation::Delete { .. } | Operation::LeaseGet | Operation::LeaseSet { .. } | Operation::Meta(_) => {
            return request.clone();
        }
    };
    Request { key: request.key.clone(), operation: Operation::Meta(meta) }
}

fn store_flags(mode: StoreMode, flags: u32, exptime: i64, returns_cas: bool) -> String {
    let mut text = format!("F{flags} T{exptime}{}", if returns_cas { " c" } else { "" });
    match mode {
        StoreMode::Set => {}
        StoreMode::Add => text.push_str(" ME"),
        StoreMode::Replace => text.push_str(" MR"),
        StoreMode::Append => text.push_str(" MA"),
        StoreMode::Prepend => text.push_str(" MP"),
        StoreMode::Cas(Cas(cas)) => write!(text, " C{cas}").expect("writing to a String does not fail"),
    }
    text
}

/// The classic reply to `operation`; `None` if the meta reply does not belong to it.
pub(super) fn to_classic(operation: &Operation<Bytes>, reply: MetaReply<Bytes>) -> Option<Reply<Bytes>> {
    let status = reply.status;
    Some(match (operation, status) {
        (Operation::Get { .. } | Operation::GetAndTouch { .. }, MetaStatus::Value) => Reply::Value {
            flags: number(&reply, b'f')?.try_into().ok()?,
            cas: match operation {
                Operation::Get { cas: true } | Operation::GetAndTouch { cas: true, .. } => {
                    Some(Cas(number(&reply, b'c')?))
                }
                _ => None,
            },
            value: reply.value?,
        },
        (Operation::Get { .. } | Operation::GetAndTouch { .. }, MetaStatus::Miss) => Reply::Miss,
        (Operation::Touch { .. }, MetaStatus::Done) => Reply::Touched,
        (Operation::Touch { .. }, MetaStatus::Miss) => Reply::NotFound,
        (Operation::Store { cas, .. }, MetaStatus::Done) => {
            number(&reply, b'c').filter(|_| *cas).map_or(Reply::Stored, |cas| Reply::StoredAs(Cas(cas)))
        }
        (Operation::Store { .. }, MetaStatus::NotStored) => Reply::NotStored,
        (Operation::Store { .. }, MetaStatus::Exists) => Reply::Exists,
        (Operation::Delete { .. }, MetaStatus::Done) => Reply::Deleted,
        (Operation::Arithmetic { .. }, MetaStatus::Value) => {
            Reply::Number(str::from_utf8(reply.value?.trim_ascii()).ok()?.parse().ok()?)
        }
        (Operation::Store { .. } | Operation::Delete { .. } | Operation::Arithmetic { .. }, MetaStatus::NotFound) => {
            Reply::NotFound
        }
        _ => return None,
    })
}

fn number(reply: &MetaReply<Bytes>, letter: u8) -> Option<u64> {
    str::from_utf8(reply.flag(letter)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::{LeaseToken, text::compose_request};

    fn compose(operation: Operation<Bytes>) -> String {
        let mut out = Vec::new();
        compose_request(&to_meta(&Request { key: "k".into(), operation }), &mut out);
        String::from_utf8(out).expect("text")
    }

    fn store(mode: StoreMode) -> Operation<Bytes> {
        Operation::Store { mode, flags: 5, exptime: 30, value: "abc".into(), cas: false }
    }

    fn store_for_cas(mode: StoreMode) -> Operation<Bytes> {
        Operation::Store { mode, flags: 5, exptime: 30, value: "abc".into(), cas: true }
    }

    #[test]
    fn every_classic_operation_has_a_meta_command() {
        for (operation, expected) in [
            (Operation::Get { cas: false }, "mg k v f\r\n"),
            (Operation::Get { cas: true }, "mg k v f c\r\n"),
            (Operation::GetAndTouch { exptime: 9, cas: false }, "mg k v f T9\r\n"),
            (Operation::GetAndTouch { exptime: -1, cas: true }, "mg k v f c T-1\r\n"),
            (Operation::Touch { exptime: 9 }, "mg k T9\r\n"),
            (store(StoreMode::Set), "ms k 3 F5 T30\r\nabc\r\n"),
            (store(StoreMode::Add), "ms k 3 F5 T30 ME\r\nabc\r\n"),
            (store(StoreMode::Replace), "ms k 3 F5 T30 MR\r\nabc\r\n"),
            (store(StoreMode::Append), "ms k 3 F5 T30 MA\r\nabc\r\n"),
            (store(StoreMode::Prepend), "ms k 3 F5 T30 MP\r\nabc\r\n"),
            (store(StoreMode::Cas(Cas(7))), "ms k 3 F5 T30 C7\r\nabc\r\n"),
            (store_for_cas(StoreMode::Append), "ms k 3 F5 T30 c MA\r\nabc\r\n"),
            (Operation::Delete { hold_off_ms: 0 }, "md k\r\n"),
            (Operation::Arithmetic { direction: Direction::Up, delta: 5 }, "ma k v D5\r\n"),
            (Operation::Arithmetic { direction: Direction::Down, delta: 5 }, "ma k v D5 MD\r\n"),
        ] {
            assert!(is_translated(&operation));
            assert_eq!(compose(operation), expected);
        }
    }

    #[test]
    fn operations_without_a_meta_command_are_not_translated() {
        let meta = MetaOperation { verb: MetaVerb::Get, flags: "v k O1".into(), value: None };
        for (operation, expected) in [
            (Operation::LeaseGet, "lease-get k\r\n"),
            (
                Operation::LeaseSet { token: LeaseToken(9), flags: 0, exptime: 0, value: "v".into() },
                "lease-set k 9 0 0 1\r\nv\r\n",
            ),
            (Operation::Delete { hold_off_ms: 2_000 }, "delete k 2\r\n"),
            (Operation::Meta(meta), "mg k v k O1\r\n"),
        ] {
            assert!(!is_translated(&operation));
            assert_eq!(compose(operation), expected);
        }
    }

    #[test]
    fn reply_of_another_command_is_none() {
        use MetaStatus::{Done, Exists, Miss, NotFound, NotStored, Value};
        let get = Operation::Get { cas: true };
        let reply = |status, flags: &'static str, value: Option<&'static str>| MetaReply {
            status,
            flags: flags.into(),
            value: value.map(Bytes::from),
        };
        let hit = Reply::Value { flags: 5, cas: Some(Cas(7)), value: "abc".into() };
        assert_eq!(to_classic(&get, reply(Value, "f5 c7", Some("abc"))), Some(hit));
        for (flags, value) in [("f5", Some("abc")), ("c7", Some("abc")), ("f5 cx", Some("abc")), ("f5 c7", None)] {
            assert_eq!(to_classic(&get, reply(Value, flags, value)), None, "{flags}");
        }
        let (stored, set) = (Reply::StoredAs(Cas(7)), store_for_cas(StoreMode::Set));
        assert_eq!(to_classic(&set, reply(Done, "c7", None)), Some(stored));
        assert_eq!(to_classic(&set, reply(Done, "", None)), Some(Reply::Stored));
        assert_eq!(to_classic(&store(StoreMode::Set), reply(Done, "c7", None)), Some(Reply::Stored));
        let count = Operation::Arithmetic { direction: Direction::Up, delta: 1 };
        assert_eq!(to_classic(&count, reply(Value, "", Some("12 "))), Some(Reply::Number(12)));
        assert_eq!(to_classic(&count, reply(Value, "", Some("x"))), None);
        let touch = Operation::Touch { exptime: 1 };
        for (operation, status, expected) in [
            (&touch, Done, Some(Reply::Touched)),
            (&touch, Miss, Some(Reply::NotFound)),
            (&touch, Value, None),
            (&get, Miss, Some(Reply::Miss)),
            (&get, NotFound, None),
            (&store(StoreMode::Add), NotStored, Some(Reply::NotStored)),
            (&store(StoreMode::Cas(Cas(1))), Exists, Some(Reply::Exists)),
            (&store(StoreMode::Cas(Cas(1))), NotFound, Some(Reply::NotFound)),
            (&Operation::Delete { hold_off_ms: 0 }, Exists, None),
            (&count, NotFound, Some(Reply::NotFound)),
        ] {
            assert_eq!(to_classic(operation, reply(status, "", None)), expected, "{operation:?} {status:?}");
        }
    }
}
