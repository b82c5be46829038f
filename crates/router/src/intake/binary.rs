//! Batches of clients that speak the binary dialect: the same requests as those of the text dialect, since servers are
//! asked in that.
//!
//! | | asked as | what the client does without |
//! |---|---|---|
//! | get, gat in all forms | `gets`, `gats` | |
//! | touch | `touch` | flags and CAS unique in the answer |
//! | set, add, replace, and with a CAS unique | the same, `cas` | the new CAS unique |
//! | append, prepend, delete, incr, decr | the same | the new CAS unique; comparing with one is `Not supported.` |
//! | incr, decr that make a number | `incr`, and an `add` if nothing is there | |
//!
//! Leases are the text dialect's: this one has no words for them. A key that the text dialect cannot hold (white space,
//! control characters) is refused, `Invalid arguments`, and the connection goes on.

use super::{Asked, AskedKey, Intake, Local, Place, Tallied, cut, is_admin, place_in};
use bytes::{Buf, Bytes, BytesMut};
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, BinaryRequest, Echo, Status, Vivify, opcode, parse_request,
};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Direction, Operation, Request, StoreMode, check_key};

/// One request, reduced to what its response needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryAsked {
    /// What the response repeats.
    pub echo: Echo,
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
            BinaryParsed::Bad { echo, status, consumed, swallow, close, outdated_key } => {
                intake.swallow_bytes = swallow;
                intake.close = close;
                (BinaryDraft::refused(buffer, echo, status, outdated_key), consumed)
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
    echo: Echo,
    said: DraftSaid,
}

enum DraftSaid {
    Outcome { request: Request<Place>, expected: Expected },
    Admin { key: Place, with_key: bool },
    Stats(Place),
    Outdated { key: Place, status: Status },
    Ready(Said),
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
                Some(_) => DraftSaid::Ready(Said::Refused(Status::InvalidArguments)),
                None => DraftSaid::Ready(Said::Refused(Status::NotSupported)),
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
        BinaryDraft { echo: request.echo, said }
    }

    fn refused(buffer: &[u8], echo: Echo, status: Status, outdated_key: Option<&[u8]>) -> BinaryDraft {
        let said = match outdated_key.filter(|key| check_key(key).is_ok()) {
            Some(key) => DraftSaid::Outdated { key: place_in(buffer, key), status },
            None => DraftSaid::Ready(Said::Refused(status)),
        };
        BinaryDraft { echo, said }
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
            DraftSaid::Outdated { key, status } => Said::Outdated { key: intake.delete(cut(taken, key)), status },
            DraftSaid::Ready(said) => said,
        };
        intake.asked.push(Asked::Binary(BinaryAsked { echo: self.echo, said }));
    }
}

/// What a server is asked, and what may come of it; nothing if the text dialect has no words for it.
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

/// An exptime that the text dialect reads as it was meant: there, 32 bits have a sign. What lies beyond 2038 is for ever,
/// as far as a cache goes.
pub(crate) fn textual(exptime: i64) -> i64 {
    exptime.min(i64::from(i32::MAX))
}

impl BinaryAsked {
    /// Whether the client wants to hear nothing of what is to be expected.
    pub fn is_quiet(&self) -> bool {
        opcode::is_quiet(self.echo.opcode)
    }
}
