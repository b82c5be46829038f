//! Batches of clients that speak the binary protocol. They become the same requests as those of the text protocol,
//! which servers are sent.
//!
//! | command | sent as | not available to the client |
//! |---|---|---|
//! | get, gat in all forms | `gets`, `gats` | |
//! | touch | `touch` | flags and CAS unique in the response |
//! | set, add, replace, append, prepend, and with a CAS unique | the same, `cas`; `ms` to a server that knows it, for the new CAS unique | the new CAS unique, of other servers |
//! | delete, incr, decr | the same | the new CAS unique |
//! | append, prepend, delete, incr, decr, comparing with a CAS unique | `ms`, `md`, `ma` with `C` | |
//! | incr, decr that create a number | `incr`, and an `add` if the key is missing | |
//! | a key with white space or control characters | meta commands with the key in base64 | keys of more than 186 bytes: `Invalid arguments` |
//!
//! Classic commands are used where they suffice: routes can inspect them, and old servers know them. Whether a store is
//! sent as `ms` is decided at the server's connection, so to routes it is a classic one, too.
//!
//! Leases exist in the text protocol only. Authentication (SASL) is `Unknown command` here, as with a server that
//! requires none; if the router requires it, such a request never comes here, so it begins a batch.

use super::{
    Accepted, BATCH_REQUESTS_MAX, LocalCommand, ParsedBatch, PendingReply, ReplyKey, Span, slice_span, span_in,
};
use crate::admin_key::is_admin_key;
use crate::stats::command_class::CommandClass;
use bytes::{Buf, Bytes, BytesMut};
use lookaside_authentication::sasl::is_authentication;
use lookaside_protocol::binary::{
    BinaryCommand, BinaryOperation, BinaryParsed, BinaryRequest, ResponseTag, Status, Vivify, opcode, parse_request,
};
use lookaside_protocol::meta::{MetaOperation, MetaVerb, encode_key};
use lookaside_protocol::text::Limits;
use lookaside_protocol::{Cas, Direction, KEY_BYTES_MAX, Operation, Request, StoreMode, check_key};
use lookaside_routing::Verb;

/// How to respond to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryPendingReply {
    /// The opcode and opaque, which the response repeats.
    pub tag: ResponseTag,
    /// The kind of response.
    pub kind: BinaryReplyKind,
}

/// A kind of response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinaryReplyKind {
    /// The outcome of the batch's next request.
    Outcome {
        /// The key.
        key: ReplyKey,
        /// The outcomes that it may have.
        expected: ExpectedReply,
    },
    /// The value of a key that the router answers itself.
    Admin {
        /// The key.
        key: ReplyKey,
        /// Whether the response repeats it.
        with_key: bool,
    },
    /// A command that the router executes itself.
    Local(LocalCommand),
    /// The reply to `quit`.
    Quit,
    /// The request is refused.
    Refused(Status),
    /// A set was refused for its size. The batch has a delete instead.
    RefusedStore {
        /// The key.
        key: ReplyKey,
        /// Why it was refused.
        status: Status,
    },
}

/// The outcomes that a request may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedReply {
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
    /// A number, which may have to be created.
    Number {
        /// Increment or decrement.
        direction: Direction,
        /// The amount.
        delta: u64,
        /// The number to create if the key is missing; `None` if it is not to be created.
        vivify: Option<Vivify>,
    },
}

/// As [`super::parse_batch`], for the binary protocol.
pub fn parse_binary_batch(
    buffer: &mut BytesMut,
    limits: &Limits,
    requests_max: usize,
    accepted: Accepted,
) -> ParsedBatch {
    let mut parsed = ParsedBatch { requests_max: requests_max.min(BATCH_REQUESTS_MAX), ..ParsedBatch::default() };
    while parsed.has_capacity() && !buffer.is_empty() {
        let (request, request_bytes) = match parse_request(buffer, limits) {
            BinaryParsed::Incomplete { needed_bytes } => {
                parsed.needed_bytes = needed_bytes;
                break;
            }
            request if accepted == Accepted::Deletes && !is_delete(&request) => {
                parsed.is_full = true;
                break;
            }
            BinaryParsed::NotBinary => {
                buffer.advance(buffer.len());
                parsed.close = true;
                break;
            }
            BinaryParsed::Request { request, consumed } => {
                let needs_own_batch = needs_own_batch(&request.command);
                if needs_own_batch && !parsed.replies.is_empty() {
                    break;
                }
                parsed.is_full = needs_own_batch;
                parsed.close = request.command == BinaryCommand::Quit;
                (OffsetRequest::of(buffer, &request), consumed)
            }
            BinaryParsed::Bad { tag, status, consumed, swallow, close, key_to_delete } => {
                parsed.swallow_bytes = swallow;
                parsed.close = close;
                (OffsetRequest::from_refusal(buffer, tag, status, key_to_delete), consumed)
            }
        };
        request.push_to(&mut parsed, buffer.split_to(request_bytes).freeze());
        parsed.swallow(buffer);
    }
    parsed
}

/// A delete that is sent as such: without a CAS unique, and of a key that the text protocol can express.
fn is_delete(parsed: &BinaryParsed<'_>) -> bool {
    let BinaryParsed::Request { request, .. } = parsed else { return false };
    let BinaryCommand::Keyed { key, operation: BinaryOperation::Delete { cas: None } } = &request.command else {
        return false;
    };
    check_key(key).is_ok()
}

/// Whether a request must see the effect of all requests before it, and of none after it. A number that may have to be
/// created takes two rounds.
fn needs_own_batch(command: &BinaryCommand<'_>) -> bool {
    match command {
        BinaryCommand::FlushAll { .. } | BinaryCommand::Stats { .. } => true,
        command if is_authentication(command) => true,
        BinaryCommand::Keyed { key, operation } => {
            let creates_number = matches!(operation, BinaryOperation::Arithmetic { vivify: Some(_), .. });
            creates_number || is_admin_key(key)
        }
        _ => false,
    }
}

struct OffsetRequest {
    tag: ResponseTag,
    kind: OffsetReplyKind,
}

enum OffsetReplyKind {
    Outcome {
        request: Request<Span>,
        expected: ExpectedReply,
    },
    Admin {
        key: Span,
        with_key: bool,
    },
    Stats(Span),
    /// An operation that only a meta command can express.
    Meta {
        key: Span,
        /// The key as it is sent to servers; `None` if that is the client's.
        wire_key: Option<Bytes>,
        verb: MetaVerb,
        flags: String,
        value: Option<Span>,
        expected: ExpectedReply,
    },
    RefusedStore {
        key: Span,
        status: Status,
    },
    RefusedStoreOnWire {
        key: Span,
        wire_key: Bytes,
        status: Status,
    },
    Other(BinaryReplyKind),
}

impl OffsetReplyKind {
    /// A condition by CAS unique, or a key with separators in it. `None` if such a key is empty, or too long for
    /// base64.
    fn meta(buffer: &[u8], key: &[u8], operation: &BinaryOperation<'_>) -> Option<OffsetReplyKind> {
        let (expected, verb, mut flags, value) = to_meta(operation);
        let wire_key = match check_key(key) {
            Ok(()) => None,
            Err(_) => Some(encode_wire_key(key)?),
        };
        if wire_key.is_some() {
            let space = if flags.is_empty() { "" } else { " " };
            flags.push_str(space);
            flags.push('b');
        }
        let (key, value) = (span_in(buffer, key), value.map(|value| span_in(buffer, value)));
        Some(OffsetReplyKind::Meta { key, wire_key, verb, flags, value, expected })
    }

    /// A set that was refused for its size: the key's old value must be deleted. `None` if the key cannot be sent.
    fn refused_store(buffer: &[u8], key: &[u8], status: Status) -> Option<OffsetReplyKind> {
        let span = span_in(buffer, key);
        match check_key(key) {
            Ok(()) => Some(OffsetReplyKind::RefusedStore { key: span, status }),
            Err(_) => Some(OffsetReplyKind::RefusedStoreOnWire { key: span, wire_key: encode_wire_key(key)?, status }),
        }
    }
}

/// A key in base64; `None` if it is empty or too long.
fn encode_wire_key(key: &[u8]) -> Option<Bytes> {
    let mut wire_key = Vec::new();
    encode_key(key, &mut wire_key);
    (1..=KEY_BYTES_MAX).contains(&wire_key.len()).then(|| wire_key.into())
}

impl OffsetRequest {
    fn of(buffer: &[u8], request: &BinaryRequest<'_>) -> OffsetRequest {
        let noreply = request.is_quiet();
        let kind = match &request.command {
            // The response to a quiet store is left out.
            BinaryCommand::Keyed { key, operation } => match to_classic(operation, !noreply) {
                Some((ExpectedReply::Item { with_key }, _)) if is_admin_key(key) && check_key(key).is_ok() => {
                    OffsetReplyKind::Admin { key: span_in(buffer, key), with_key }
                }
                Some((expected, operation)) if check_key(key).is_ok() => {
                    let request = Request { key: *key, operation }.map(|bytes| span_in(buffer, bytes));
                    OffsetReplyKind::Outcome { request, expected }
                }
                _ => OffsetReplyKind::meta(buffer, key, operation)
                    .unwrap_or(OffsetReplyKind::Other(BinaryReplyKind::Refused(Status::InvalidArguments))),
            },
            BinaryCommand::Stats { arguments } => OffsetReplyKind::Stats(span_in(buffer, arguments)),
            BinaryCommand::FlushAll { delay_s } => {
                OffsetReplyKind::Other(BinaryReplyKind::Local(LocalCommand::FlushAll { delay_s: *delay_s, noreply }))
            }
            BinaryCommand::Noop => OffsetReplyKind::Other(BinaryReplyKind::Local(LocalCommand::MetaNoop)),
            BinaryCommand::Version => OffsetReplyKind::Other(BinaryReplyKind::Local(LocalCommand::Version)),
            BinaryCommand::Quit => OffsetReplyKind::Other(BinaryReplyKind::Quit),
            BinaryCommand::Mechanisms | BinaryCommand::Authenticate { .. } | BinaryCommand::AuthenticateStep { .. } => {
                OffsetReplyKind::Other(BinaryReplyKind::Refused(Status::UnknownCommand))
            }
        };
        OffsetRequest { tag: request.tag, kind }
    }

    fn from_refusal(buffer: &[u8], tag: ResponseTag, status: Status, key_to_delete: Option<&[u8]>) -> OffsetRequest {
        let kind = key_to_delete.and_then(|key| OffsetReplyKind::refused_store(buffer, key, status));
        let kind = kind.unwrap_or(OffsetReplyKind::Other(BinaryReplyKind::Refused(status)));
        OffsetRequest { tag, kind }
    }

    /// Adds the request to `parsed`; `bytes` is its part of the buffer.
    fn push_to(self, parsed: &mut ParsedBatch, bytes: Bytes) {
        let kind = match self.kind {
            OffsetReplyKind::Outcome { request, expected } => {
                let request = request.map(|span| bytes.slice(span));
                let key = ReplyKey { bytes: request.key.clone(), class: CommandClass::of(&request.operation) };
                parsed.batch.push(request);
                BinaryReplyKind::Outcome { key, expected }
            }
            OffsetReplyKind::Admin { key, with_key } => BinaryReplyKind::Admin {
                key: ReplyKey { bytes: slice_span(bytes, key), class: CommandClass::Verb(Verb::Get) },
                with_key,
            },
            OffsetReplyKind::Stats(arguments) => {
                BinaryReplyKind::Local(LocalCommand::Stats(slice_span(bytes, arguments)))
            }
            OffsetReplyKind::Meta { key, wire_key, verb, flags, value, expected } => {
                let value = value.map(|span| bytes.slice(span));
                let bytes = slice_span(bytes, key);
                let operation = Operation::Meta(MetaOperation { verb, flags: flags.into(), value });
                parsed.batch.push(Request { key: wire_key.unwrap_or_else(|| bytes.clone()), operation });
                BinaryReplyKind::Outcome { key: ReplyKey { bytes, class: class_of(&expected) }, expected }
            }
            OffsetReplyKind::RefusedStoreOnWire { key, wire_key, status } => {
                let meta = MetaOperation { verb: MetaVerb::Delete, flags: Bytes::from_static(b"b"), value: None };
                parsed.batch.push(Request { key: wire_key, operation: Operation::Meta(meta) });
                BinaryReplyKind::RefusedStore {
                    key: ReplyKey { bytes: slice_span(bytes, key), class: CommandClass::Verb(Verb::Delete) },
                    status,
                }
            }
            OffsetReplyKind::RefusedStore { key, status } => {
                BinaryReplyKind::RefusedStore { key: parsed.push_delete(slice_span(bytes, key)), status }
            }
            OffsetReplyKind::Other(kind) => kind,
        };
        parsed.replies.push(PendingReply::Binary(BinaryPendingReply { tag: self.tag, kind }));
    }
}

/// The operation to send to a server, and the outcomes that it may have. `None` if no classic command can express it.
/// With `returns_cas` the reply to a store has the new CAS unique, if the server's protocol can.
fn to_classic<'a>(operation: &BinaryOperation<'a>, returns_cas: bool) -> Option<(ExpectedReply, Operation<&'a [u8]>)> {
    let translation = match *operation {
        BinaryOperation::Get { exptime, with_key, with_value: true } => {
            let operation = match exptime {
                None => Operation::Get { cas: true },
                Some(exptime) => Operation::GetAndTouch { exptime: to_text_exptime(exptime), cas: true },
            };
            (ExpectedReply::Item { with_key }, operation)
        }
        BinaryOperation::Get { exptime, with_value: false, .. } => {
            (ExpectedReply::Touch, Operation::Touch { exptime: to_text_exptime(exptime.unwrap_or(0)) })
        }
        BinaryOperation::Store { mode, flags, exptime, value } => {
            let exptime = to_text_exptime(exptime);
            (ExpectedReply::Store(mode), Operation::Store { mode, flags, exptime, value, cas: returns_cas })
        }
        BinaryOperation::Extend { mode, cas: None, value } => {
            (ExpectedReply::Store(mode), Operation::Store { mode, flags: 0, exptime: 0, value, cas: returns_cas })
        }
        BinaryOperation::Delete { cas: None } => (ExpectedReply::Delete, Operation::Delete { hold_off_ms: 0 }),
        BinaryOperation::Arithmetic { direction, delta, vivify, cas: None } => {
            (ExpectedReply::Number { direction, delta, vivify }, Operation::Arithmetic { direction, delta })
        }
        BinaryOperation::Extend { .. } | BinaryOperation::Delete { .. } | BinaryOperation::Arithmetic { .. } => {
            return None;
        }
    };
    Some(translation)
}

/// The meta command to send to a server, and the outcomes that it may have.
fn to_meta<'a>(operation: &BinaryOperation<'a>) -> (ExpectedReply, MetaVerb, String, Option<&'a [u8]>) {
    let condition = |cas: Option<Cas>| cas.map(|Cas(cas)| format!(" C{cas}")).unwrap_or_default();
    match *operation {
        BinaryOperation::Get { exptime, with_key, with_value } => {
            let touch = exptime.map(|exptime| format!(" T{}", to_text_exptime(exptime))).unwrap_or_default();
            let expected = if with_value { ExpectedReply::Item { with_key } } else { ExpectedReply::Touch };
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
            let flags = format!("F{flags} T{} c{how}", to_text_exptime(exptime));
            (ExpectedReply::Store(mode), MetaVerb::Set, flags, Some(value))
        }
        BinaryOperation::Extend { mode, cas, value } => {
            let how = if mode == StoreMode::Append { "MA" } else { "MP" };
            (ExpectedReply::Store(mode), MetaVerb::Set, format!("{how} c{}", condition(cas)), Some(value))
        }
        BinaryOperation::Delete { cas } => {
            (ExpectedReply::Delete, MetaVerb::Delete, condition(cas).trim_start().to_owned(), None)
        }
        BinaryOperation::Arithmetic { direction, delta, vivify, cas } => {
            let how = if direction == Direction::Up { "" } else { " MD" };
            let make = vivify.map(|vivify| format!(" N{} J{}", to_text_exptime(vivify.exptime), vivify.initial));
            let flags = format!("v c D{delta}{how}{}{}", make.unwrap_or_default(), condition(cas));
            // The server creates the number in the same step.
            (ExpectedReply::Number { direction, delta, vivify: None }, MetaVerb::Arithmetic, flags, None)
        }
    }
}

fn class_of(expected: &ExpectedReply) -> CommandClass {
    CommandClass::Verb(match expected {
        ExpectedReply::Item { .. } => Verb::Get,
        ExpectedReply::Touch => Verb::Touch,
        ExpectedReply::Store(mode) => Verb::of_store(*mode),
        ExpectedReply::Delete => Verb::Delete,
        ExpectedReply::Number { direction: Direction::Up, .. } => Verb::Incr,
        ExpectedReply::Number { direction: Direction::Down, .. } => Verb::Decr,
    })
}

/// An exptime with the same meaning in the text protocol, where its 32 bits have a sign. An expiry beyond 2038 never
/// comes, for a cache.
pub(crate) fn to_text_exptime(exptime: i64) -> i64 {
    exptime.min(i64::from(i32::MAX))
}

impl BinaryPendingReply {
    /// Whether the client wants no response of the expected kind.
    pub fn is_quiet(&self) -> bool {
        opcode::is_quiet(self.tag.opcode)
    }
}
