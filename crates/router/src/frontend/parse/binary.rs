//! Batches of clients that speak the binary dialect: the same requests as those of the text dialect, since servers are
//! asked in that.
//!
//! | | asked as | what the client does without |
//! |---|---|---|
//! | get, gat in all forms | `gets`, `gats` | |
//! | touch | `touch` | flags and CAS unique in the answer |
//! | set, add, replace, and with a CAS unique | the same, `cas` | the new CAS unique |
//! | append, prepend, delete, incr, decr | the same | the new CAS unique |
//! | the same, comparing with a CAS unique | `ms`, `md`, `ma` with `C` | |
//! | incr, decr that make a number | `incr`, and an `add` if nothing is there | |
//! | a key with white space or control characters | meta commands with the key in base64 | keys of more than 186 bytes: `Invalid arguments` |
//!
//! Classic commands where they will do: routes see into them, and old servers know them.
//!
//! Leases are the text dialect's: this one has no words for them. Passwords (SASL) are `Unknown command`, as of a server
//! that asks for none.

use super::{Asked, AskedKey, Intake, Local, Place, Tallied, cut, is_admin, place_in};
use bytes::{Buf, Bytes, BytesMut};
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, BinaryRequest, ResponseTag, Status, Vivify, opcode, parse_request,
};
use lookaside_protocol::meta::{MetaOperation, MetaVerb, encode_key};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, Direction, KEY_BYTES_MAX, Operation, Request, StoreMode, check_key};

/// One request, reduced to what its response needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryAsked {
    /// What the response repeats.
    pub tag: ResponseTag,
    /// What the response says.
    pub said: Said,
}

/// What a response says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// What came of the batch's next request.
    Outcome {
        /// The key.
        key: AskedKey,
        /// What may come.
        expected: Expected,
    },
    /// What the router itself says of a key.
    Admin {
        /// The key.
        key: AskedKey,
        /// Whether the response repeats it.
        with_key: bool,
    },
    /// What the router itself answers.
    Local(Local),
    /// Good-bye.
    Quit,
    /// The request is refused.
    Refused(Status),
    /// A set was refused for its size; the batch has a delete in its place.
    Outdated {
        /// The key.
        key: AskedKey,
        /// Why it was refused.
        status: Status,
    },
}

/// Which outcomes a request may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A value or a miss.
    Item {
        /// Whether the response repeats the key.
        with_key: bool,
    },
    /// Touched or not found.
    Touch,
    /// Stored or not.
    Store(StoreMode),
    /// Deleted or not found.
    Delete,
    /// A number, which may have to be made.
    Number {
        /// Up or down.
        direction: Direction,
        /// By how much.
        delta: u64,
        /// What to make of nothing.
        vivify: Option<Vivify>,
    },
}

/// As [`super::take_batch`], in the binary dialect.
pub fn take_binary_batch(buffer: &mut BytesMut, limits: &Limits) -> Intake {
    let mut intake = Intake::default();
    while intake.has_room() && !buffer.is_empty() {
        let (draft, request_bytes) = match parse_request(buffer, limits) {
            BinaryParsed::Incomplete { needed_bytes } => {
                intake.needed_bytes = needed_bytes;
                break;
            }
            BinaryParsed::Foreign => {
                buffer.advance(buffer.len());
                intake.close = true;
                break;
            }
            BinaryParsed::Request { request, consumed } => {
                let is_alone = is_alone(&request.command);
                if is_alone && !intake.asked.is_empty() {
                    break;
                }
                intake.is_full = is_alone;
                intake.close = request.command == BinaryCommand::Quit;
                (BinaryDraft::of(buffer, &request), consumed)
            }
            BinaryParsed::Bad { tag, status, consumed, swallow, close, key_to_delete } => {
                intake.swallow_bytes = swallow;
                intake.close = close;
                (BinaryDraft::refused(buffer, tag, status, key_to_delete), consumed)
            }
        };
        draft.finish(buffer.split_to(request_bytes).freeze(), &mut intake);
        intake.swallow(buffer);
    }
    intake
}

/// Whether a request must see all that came before it carried out, and nothing that comes after. A number that may have
/// to be made takes two rounds.
fn is_alone(command: &BinaryCommand<'_>) -> bool {
    match command {
        BinaryCommand::FlushAll { .. } | BinaryCommand::Stats { .. } => true,
        BinaryCommand::Keyed { key, operation } => {
            let makes_number = matches!(operation, BinaryOperation::Arithmetic { vivify: Some(_), .. });
            makes_number || is_admin(key)
        }
        _ => false,
    }
}

/// A request whose bytes are still places in the buffer.
struct BinaryDraft {
    tag: ResponseTag,
    said: DraftSaid,
}

enum DraftSaid {
    Outcome {
        request: Request<Place>,
        expected: Expected,
    },
    Admin {
        key: Place,
        with_key: bool,
    },
    Stats(Place),
    /// What only the meta dialect has words for.
    Meta {
        key: Place,
        /// The key as servers are told it, if not as the client did.
        wire_key: Option<Bytes>,
        verb: MetaVerb,
        flags: String,
        value: Option<Place>,
        expected: Expected,
    },
    Outdated {
        key: Place,
        status: Status,
    },
    OutdatedOnWire {
        key: Place,
        wire_key: Bytes,
        status: Status,
    },
    Ready(Said),
}

impl DraftSaid {
    /// A condition by CAS unique, or a key with separators in it. Nothing if such a key is none, or too long for base64.
    fn meta(buffer: &[u8], key: &[u8], operation: &BinaryOperation<'_>) -> Option<DraftSaid> {
        let (expected, verb, mut flags, value) = in_meta(operation);
        let wire_key = match check_key(key) {
            Ok(()) => None,
            Err(_) => Some(encoded(key)?),
        };
        if wire_key.is_some() {
            let space = if flags.is_empty() { "" } else { " " };
            flags.push_str(space);
            flags.push('b');
        }
        let (key, value) = (place_in(buffer, key), value.map(|value| place_in(buffer, value)));
        Some(DraftSaid::Meta { key, wire_key, verb, flags, value, expected })
    }

    /// A set that was refused for its size: its key's value must go.
    fn outdated(buffer: &[u8], key: &[u8], status: Status) -> Option<DraftSaid> {
        let place = place_in(buffer, key);
        match check_key(key) {
            Ok(()) => Some(DraftSaid::Outdated { key: place, status }),
            Err(_) => Some(DraftSaid::OutdatedOnWire { key: place, wire_key: encoded(key)?, status }),
        }
    }
}

/// A key in base64, if it is one that can be said so.
fn encoded(key: &[u8]) -> Option<Bytes> {
    let mut wire_key = Vec::new();
    encode_key(key, &mut wire_key);
    (1..=KEY_BYTES_MAX).contains(&wire_key.len()).then(|| wire_key.into())
}

impl BinaryDraft {
    fn of(buffer: &[u8], request: &BinaryRequest<'_>) -> BinaryDraft {
        let noreply = request.is_quiet();
        let said = match &request.command {
            BinaryCommand::Keyed { key, operation } => match translated(operation) {
                Some((Expected::Item { with_key }, _)) if is_admin(key) && check_key(key).is_ok() => {
                    DraftSaid::Admin { key: place_in(buffer, key), with_key }
                }
                Some((expected, operation)) if check_key(key).is_ok() => {
                    let request = Request { key: *key, operation }.map(|bytes| place_in(buffer, bytes));
                    DraftSaid::Outcome { request, expected }
                }
                _ => DraftSaid::meta(buffer, key, operation)
                    .unwrap_or(DraftSaid::Ready(Said::Refused(Status::InvalidArguments))),
            },
            BinaryCommand::Stats { arguments } => DraftSaid::Stats(place_in(buffer, arguments)),
            BinaryCommand::FlushAll { delay_s } => {
                DraftSaid::Ready(Said::Local(Local::FlushAll { delay_s: *delay_s, noreply }))
            }
            BinaryCommand::Noop => DraftSaid::Ready(Said::Local(Local::MetaNoop)),
            BinaryCommand::Version => DraftSaid::Ready(Said::Local(Local::Version)),
            BinaryCommand::Quit => DraftSaid::Ready(Said::Quit),
            BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. } => {
                DraftSaid::Ready(Said::Refused(Status::UnknownCommand))
            }
        };
        BinaryDraft { tag: request.tag, said }
    }

    fn refused(buffer: &[u8], tag: ResponseTag, status: Status, key_to_delete: Option<&[u8]>) -> BinaryDraft {
        let said = key_to_delete.and_then(|key| DraftSaid::outdated(buffer, key, status));
        let said = said.unwrap_or(DraftSaid::Ready(Said::Refused(status)));
        BinaryDraft { tag, said }
    }

    /// Adds the request to `intake`; `taken` is its part of the buffer.
    fn finish(self, taken: Bytes, intake: &mut Intake) {
        let said = match self.said {
            DraftSaid::Outcome { request, expected } => {
                let request = request.map(|place| taken.slice(place));
                let key = AskedKey { bytes: request.key.clone(), tallied: Tallied::of(&request.operation) };
                intake.batch.push(request);
                Said::Outcome { key, expected }
            }
            DraftSaid::Admin { key, with_key } => {
                Said::Admin { key: AskedKey { bytes: cut(taken, key), tallied: Tallied::Get }, with_key }
            }
            DraftSaid::Stats(arguments) => Said::Local(Local::Stats(cut(taken, arguments))),
            DraftSaid::Meta { key, wire_key, verb, flags, value, expected } => {
                let value = value.map(|place| taken.slice(place));
                let bytes = cut(taken, key);
                let operation = Operation::Meta(MetaOperation { verb, flags: flags.into(), value });
                intake.batch.push(Request { key: wire_key.unwrap_or_else(|| bytes.clone()), operation });
                Said::Outcome { key: AskedKey { bytes, tallied: tallied_as(&expected) }, expected }
            }
            DraftSaid::OutdatedOnWire { key, wire_key, status } => {
                let meta = MetaOperation { verb: MetaVerb::Delete, flags: Bytes::from_static(b"b"), value: None };
                intake.batch.push(Request { key: wire_key, operation: Operation::Meta(meta) });
                Said::Outdated { key: AskedKey { bytes: cut(taken, key), tallied: Tallied::Delete }, status }
            }
            DraftSaid::Outdated { key, status } => Said::Outdated { key: intake.delete(cut(taken, key)), status },
            DraftSaid::Ready(said) => said,
        };
        intake.asked.push(Asked::Binary(BinaryAsked { tag: self.tag, said }));
    }
}

/// What a server is asked, and what may come of it; nothing if the classic commands have no words for it.
fn translated<'a>(operation: &BinaryOperation<'a>) -> Option<(Expected, Operation<&'a [u8]>)> {
    let translation = match *operation {
        BinaryOperation::Get { exptime, with_key, with_value: true } => {
            let operation = match exptime {
                None => Operation::Get { cas: true },
                Some(exptime) => Operation::GetAndTouch { exptime: textual(exptime), cas: true },
            };
            (Expected::Item { with_key }, operation)
        }
        BinaryOperation::Get { exptime, with_value: false, .. } => {
            (Expected::Touch, Operation::Touch { exptime: textual(exptime.unwrap_or(0)) })
        }
        BinaryOperation::Store { mode, flags, exptime, value } => {
            (Expected::Store(mode), Operation::Store { mode, flags, exptime: textual(exptime), value })
        }
        BinaryOperation::Extend { mode, cas: None, value } => {
            (Expected::Store(mode), Operation::Store { mode, flags: 0, exptime: 0, value })
        }
        BinaryOperation::Delete { cas: None } => (Expected::Delete, Operation::Delete { hold_off_ms: 0 }),
        BinaryOperation::Arithmetic { direction, delta, vivify, cas: None } => {
            (Expected::Number { direction, delta, vivify }, Operation::Arithmetic { direction, delta })
        }
        BinaryOperation::Extend { .. } | BinaryOperation::Delete { .. } | BinaryOperation::Arithmetic { .. } => {
            return None;
        }
    };
    Some(translation)
}

/// What a server is asked in the meta dialect, and what may come of it.
fn in_meta<'a>(operation: &BinaryOperation<'a>) -> (Expected, MetaVerb, String, Option<&'a [u8]>) {
    let condition = |cas: Option<Cas>| cas.map(|Cas(cas)| format!(" C{cas}")).unwrap_or_default();
    match *operation {
        BinaryOperation::Get { exptime, with_key, with_value } => {
            let touch = exptime.map(|exptime| format!(" T{}", textual(exptime))).unwrap_or_default();
            let expected = if with_value { Expected::Item { with_key } } else { Expected::Touch };
            let wanted = if with_value { "v f c" } else { "f c" };
            (expected, MetaVerb::Get, format!("{wanted}{touch}"), None)
        }
        BinaryOperation::Store { mode, flags, exptime, value } => {
            let how = match mode {
                StoreMode::Add => " ME".to_owned(),
                StoreMode::Replace => " MR".to_owned(),
                StoreMode::Cas(cas) => condition(Some(cas)),
                _ => String::new(),
            };
            let flags = format!("F{flags} T{} c{how}", textual(exptime));
            (Expected::Store(mode), MetaVerb::Set, flags, Some(value))
        }
        BinaryOperation::Extend { mode, cas, value } => {
            let how = if mode == StoreMode::Append { "MA" } else { "MP" };
            (Expected::Store(mode), MetaVerb::Set, format!("{how} c{}", condition(cas)), Some(value))
        }
        BinaryOperation::Delete { cas } => {
            (Expected::Delete, MetaVerb::Delete, condition(cas).trim_start().to_owned(), None)
        }
        BinaryOperation::Arithmetic { direction, delta, vivify, cas } => {
            let how = if direction == Direction::Up { "" } else { " MD" };
            let make = vivify.map(|vivify| format!(" N{} J{}", textual(vivify.exptime), vivify.initial));
            let flags = format!("v c D{delta}{how}{}{}", make.unwrap_or_default(), condition(cas));
            // Made in the same step: nothing is left to be made afterwards.
            (Expected::Number { direction, delta, vivify: None }, MetaVerb::Arithmetic, flags, None)
        }
    }
}

fn tallied_as(expected: &Expected) -> Tallied {
    match expected {
        Expected::Item { .. } => Tallied::Get,
        Expected::Touch => Tallied::Touch,
        Expected::Store(_) => Tallied::Store,
        Expected::Delete => Tallied::Delete,
        Expected::Number { .. } => Tallied::Arithmetic,
    }
}

/// An exptime that the text dialect reads as it was meant: there, 32 bits have a sign. What lies beyond 2038 is for ever,
/// as far as a cache goes.
pub(crate) fn textual(exptime: i64) -> i64 {
    exptime.min(i64::from(i32::MAX))
}

impl BinaryAsked {
    /// Whether the client wants to hear nothing of what is to be expected.
    pub fn is_quiet(&self) -> bool {
        opcode::is_quiet(self.tag.opcode)
    }
}
