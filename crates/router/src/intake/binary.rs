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

use super::{ADMIN_KEY_PREFIX, Asked, BATCH_REQUESTS_MAX, Draft, DraftAsked, Intake, Local, Tallied, place_in};
use bytes::BytesMut;
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
    Outcome(Expected),
    /// What the router itself answers.
    Local(Local),
    /// Good-bye.
    Quit,
    /// The request is refused.
    Refused(Status),
    /// A set was refused for its size; the batch has a delete in its place.
    Outdated(Status),
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
    let (mut draft, mut intake, mut consumed) = (Draft::default(), Intake::default(), 0);
    while draft.asked.len() < BATCH_REQUESTS_MAX && !intake.close && intake.swallow_bytes == 0 {
        let front = &buffer[consumed..];
        if front.is_empty() {
            break;
        }
        match parse_request(front, limits) {
            BinaryParsed::Incomplete { needed_bytes } => {
                intake.needed_bytes = needed_bytes;
                break;
            }
            BinaryParsed::Foreign => {
                consumed = buffer.len();
                intake.close = true;
            }
            BinaryParsed::Request { request, consumed: bytes } => {
                let is_alone = is_alone(&request.command);
                if is_alone && !draft.asked.is_empty() {
                    break;
                }
                consumed += bytes;
                intake.close = request.command == BinaryCommand::Quit;
                draft.take_binary(buffer, &request);
                if is_alone {
                    break;
                }
            }
            BinaryParsed::Bad { echo, status, consumed: bytes, swallow, close, outdated_key } => {
                draft.refuse_binary(buffer, echo, status, outdated_key);
                let dropped_bytes = swallow.min(front.len() - bytes);
                consumed += bytes + dropped_bytes;
                intake.swallow_bytes = swallow - dropped_bytes;
                intake.close = close;
            }
        }
    }
    let taken = buffer.split_to(consumed).freeze();
    draft.finish(&taken, &mut intake);
    intake
}

/// Whether a request must see all that came before it carried out, and nothing that comes after. A number that may have
/// to be made takes two rounds.
fn is_alone(command: &BinaryCommand<'_>) -> bool {
    match command {
        BinaryCommand::FlushAll { .. } | BinaryCommand::Stats { .. } => true,
        BinaryCommand::Keyed { key, operation } => {
            let makes_number = matches!(operation, BinaryOperation::Arithmetic { vivify: Some(_), .. });
            makes_number || key.starts_with(ADMIN_KEY_PREFIX)
        }
        _ => false,
    }
}

impl Draft {
    fn take_binary(&mut self, buffer: &[u8], request: &BinaryRequest<'_>) {
        let echo = request.echo;
        let noreply = request.is_quiet();
        let said = match &request.command {
            BinaryCommand::Keyed { key, operation } => match translated(operation) {
                Some((expected, operation)) if check_key(key).is_ok() => {
                    let is_get = matches!(operation, Operation::Get { .. } | Operation::GetAndTouch { .. });
                    let admin = is_get && key.starts_with(ADMIN_KEY_PREFIX);
                    let place = |bytes: &[u8]| place_in(buffer, bytes);
                    self.keys.push((place(key), admin, Tallied::of(&operation)));
                    if !admin {
                        self.requests.push(Request { key: place(key), operation: operation.map(place) });
                    }
                    Said::Outcome(expected)
                }
                Some(_) => Said::Refused(Status::InvalidArguments),
                None => Said::Refused(Status::NotSupported),
            },
            BinaryCommand::FlushAll { delay_s } => Said::Local(Local::FlushAll { delay_s: *delay_s, noreply }),
            BinaryCommand::Noop => Said::Local(Local::MetaNoop),
            BinaryCommand::Version => Said::Local(Local::Version),
            BinaryCommand::Stats { arguments } => {
                return self.asked.push(DraftAsked::BinaryStats(echo, place_in(buffer, arguments)));
            }
            BinaryCommand::Quit => Said::Quit,
            BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. } => {
                Said::Refused(Status::UnknownCommand)
            }
        };
        self.asked.push(DraftAsked::Ready(Asked::Binary(BinaryAsked { echo, said })));
    }

    fn refuse_binary(&mut self, buffer: &[u8], echo: Echo, status: Status, outdated_key: Option<&[u8]>) {
        let said = match outdated_key.filter(|key| check_key(key).is_ok()) {
            Some(key) => {
                let key = place_in(buffer, key);
                self.keys.push((key.clone(), false, Tallied::Delete));
                self.requests.push(Request { key, operation: Operation::Delete { hold_off_ms: 0 } });
                Said::Outdated(status)
            }
            None => Said::Refused(status),
        };
        self.asked.push(DraftAsked::Ready(Asked::Binary(BinaryAsked { echo, said })));
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
