//! From bytes to a batch: all whole commands at the front of a connection's buffer become one batch of requests.
//!
//! ```text
//!   buffer    |get a b\r\n|set c 0 0 1\r\nx\r\n|delete d\r\n|get e|........|
//!             '--------------- consumed ----------------------'
//!   replies    Retrieve "a b"  Single c           Single d      (the rest is incomplete)
//!   batch      Get a, Get b, Store c, Delete d
//! ```
//!
//! Nothing is copied: each command's part of the buffer is split off, and keys and values are slices of it. During
//! parsing they are ranges of the buffer ([`OffsetCommand`]), until the command's length is known.
//!
//! A command that reads or changes more than its own key (`flush_all`, `stats`, a get of the router's own keys) is a
//! batch of its own: it must see the effect of all commands before it, and of none after it.

mod binary;

pub(crate) use binary::to_text_exptime;
pub use binary::{BinaryPendingReply, BinaryReplyKind, ExpectedReply, parse_binary_batch};

use super::bad_input::{BadInput, MALFORMED, RefusedLine};
use super::metaget;
use crate::admin_key::{is_admin_key, may_have_admin_key};
use crate::stats::command_class::CommandClass;
use bytes::{Buf, Bytes, BytesMut};
use lookaside_protocol::meta::MetaVerb;
use lookaside_protocol::text::{CloseReason, Limits, Parsed, parse_command};
use lookaside_protocol::{Command, Keys, Operation, Request};
use lookaside_routing::{Batch, Verb};
use std::ops::Range;

/// The most requests in a batch, unless one get alone has more keys: the line limit bounds those. More would only
/// make the first wait longer for the last.
pub const BATCH_REQUESTS_MAX: usize = 1024;

/// How to reply to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReply {
    /// A get verb.
    Retrieve {
        /// Its keys as the client wrote them, separated by spaces. The batch has no request for a key that the router
        /// answers itself ([`is_admin_key`]).
        keys: Bytes,
        /// False if none of the keys is one that the router answers itself.
        may_have_admin_key: bool,
        /// The class that each key is counted in.
        class: CommandClass,
        /// Whether the client has named further keys, which cannot be read.
        has_bad_key: bool,
    },
    /// A `metaget`, with its keys as those of a get verb.
    Metaget(Bytes),
    /// One operation on one key.
    Single {
        /// The key.
        key: ReplyKey,
        /// Whether the client wants no reply.
        noreply: bool,
        /// The verb of a meta command with `q`, to which the client wants no reply of the expected kind.
        quiet: Option<MetaVerb>,
    },
    /// A command that the router executes itself.
    Local(LocalCommand),
    /// Not a command ([`super::bad_input`]). The reply is this line; `None` if the client wants none.
    Bad(Option<&'static str>),
    /// A set that was refused for its size. The batch has a delete instead, so that no reader gets the value that the
    /// writer believes replaced.
    RefusedStore {
        /// The key.
        key: ReplyKey,
        /// The reply; `None` if the client wants none.
        line: Option<&'static str>,
    },
    /// A request of the binary protocol.
    Binary(BinaryPendingReply),
}

/// A command that the router executes without routing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalCommand {
    /// `version`
    Version,
    /// `stats [arguments]`
    Stats(Bytes),
    /// `verbosity <level>`
    Verbosity {
        /// The level of the log.
        level: u32,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `flush_all [delay]`
    FlushAll {
        /// The delay in seconds, as the client gave it.
        delay_s: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `mn`
    MetaNoop,
}

/// The key of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyKey {
    /// The key as the client wrote it, with its routing prefix.
    pub bytes: Bytes,
    /// The class that its command is counted in.
    pub class: CommandClass,
}

/// The commands at the front of a buffer.
#[derive(Debug, Default)]
pub struct ParsedBatch {
    /// The requests to route.
    pub batch: Batch,
    /// How to reply to the commands, in order.
    pub replies: Vec<PendingReply>,
    /// The buffer must hold this many bytes before the next command can be whole.
    pub needed_bytes: usize,
    /// Bytes to drop as they arrive.
    pub swallow_bytes: usize,
    /// Whether the connection is closed after these replies.
    pub close: bool,
    /// Why, if the client has sent what no memcached client sends.
    pub close_reason: Option<CloseReason>,
    /// Whether no other command may join the batch.
    is_full: bool,
    /// No command joins the batch once it has as many requests.
    requests_max: usize,
}

/// The commands that may become a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// All.
    All,
    /// Deletes. The first other command stays in the buffer, and so does all behind it.
    Deletes,
}

type Span = Range<usize>;

/// Takes all whole commands off the front of `buffer`, up to `requests_max` and [`BATCH_REQUESTS_MAX`] requests, or the
/// first alone if it needs a batch of its own. `expected` is how many requests to reserve memory for.
pub fn parse_batch(
    buffer: &mut BytesMut,
    limits: &Limits,
    expected: usize,
    requests_max: usize,
    accepted: Accepted,
) -> ParsedBatch {
    let requests_max = requests_max.min(BATCH_REQUESTS_MAX);
    let batch = Batch::with_capacity(expected.min(requests_max));
    let mut parsed = ParsedBatch { batch, requests_max, ..ParsedBatch::default() };
    while parsed.has_capacity() && !buffer.is_empty() {
        let (command, command_bytes) = match parse_command(buffer, limits) {
            Parsed::Incomplete { needed_bytes } => {
                parsed.needed_bytes = needed_bytes.max(buffer.len() + 1);
                break;
            }
            command if accepted == Accepted::Deletes && !is_delete(&command) => {
                parsed.is_full = true;
                break;
            }
            Parsed::Command { command: Command::Quit, consumed } => {
                buffer.advance(consumed);
                parsed.close = true;
                break;
            }
            // Nearly all commands are such gets: their keys need no other look.
            Parsed::Command { command: Command::Retrieve { keys, operation: Operation::Get { cas } }, consumed }
                if !may_have_admin_key(keys.text()) =>
            {
                let keys = span_in(buffer, keys.text());
                parsed.push_get(slice_span(buffer.split_to(consumed).freeze(), keys), cas);
                continue;
            }
            Parsed::Command { command, consumed } => {
                let needs_own_batch = needs_own_batch(&command);
                if needs_own_batch && !parsed.replies.is_empty() {
                    break;
                }
                parsed.is_full = needs_own_batch;
                (OffsetCommand::of(buffer, command), consumed)
            }
            Parsed::Bad { line, consumed, swallow, close: Some(reason), .. } => {
                parsed.swallow_bytes = swallow;
                parsed.close = true;
                parsed.close_reason = Some(reason);
                (OffsetCommand::Other(PendingReply::Bad(line)), consumed)
            }
            Parsed::Bad { line, consumed, swallow, key_to_delete: Some(key), .. } => {
                parsed.swallow_bytes = swallow;
                (OffsetCommand::RefusedStore { key: span_in(buffer, key), line }, consumed)
            }
            Parsed::Bad { line: reply, consumed, swallow, is_too_large, .. } => {
                if let Some(keys) = metaget::keys_of(&buffer[..consumed]) {
                    let keys = span_in(buffer, keys.text());
                    OffsetCommand::Metaget(keys).push_to(&mut parsed, buffer.split_to(consumed).freeze());
                    continue;
                }
                let end = buffer.iter().position(|&byte| byte == b'\n').unwrap_or(buffer.len());
                let refused = RefusedLine { line: buffer[..end].trim_ascii_end(), reply, has_block: swallow > 0 };
                let bad_input = if is_too_large { BadInput::Reply(reply) } else { refused.classify() };
                match bad_input {
                    BadInput::GetOthers(ref line) if parsed.push_get_of_others(line, limits) => {
                        buffer.advance(consumed);
                        continue;
                    }
                    BadInput::GetOthers(_) if !parsed.replies.is_empty() => break,
                    BadInput::Reply(line) => {
                        parsed.swallow_bytes = swallow;
                        (OffsetCommand::Other(PendingReply::Bad(line)), consumed)
                    }
                    BadInput::GetOthers(_) | BadInput::Malformed => {
                        parsed.close = true;
                        (OffsetCommand::Other(PendingReply::Bad(Some(MALFORMED))), buffer.len())
                    }
                }
            }
        };
        command.push_to(&mut parsed, buffer.split_to(command_bytes).freeze());
        parsed.swallow(buffer);
    }
    parsed
}

impl ParsedBatch {
    /// Whether it has deletes, and nothing else. Replies then need no more than the outcomes.
    pub fn has_only_deletes(&self) -> bool {
        let is_delete = |request: &Request<Bytes>| matches!(request.operation, Operation::Delete { .. });
        !self.batch.is_empty() && self.batch.iter().all(is_delete) && self.replies.len() == self.batch.len()
    }

    /// Whether the buffer begins with a command that may not join the batch.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    fn has_capacity(&self) -> bool {
        let is_small = self.batch.len() < self.requests_max && self.replies.len() < self.requests_max;
        is_small && !self.is_full && !self.close && self.swallow_bytes == 0
    }

    /// Drops the part of a refused data block that has arrived.
    fn swallow(&mut self, buffer: &mut BytesMut) {
        let dropped_bytes = self.swallow_bytes.min(buffer.len());
        buffer.advance(dropped_bytes);
        self.swallow_bytes -= dropped_bytes;
    }

    /// Adds a `get` or `gets` of `keys`, none of which the router answers itself.
    fn push_get(&mut self, keys: Bytes, cas: bool) {
        let class = CommandClass::Verb(if cas { Verb::Gets } else { Verb::Get });
        for key in Keys::from_checked(&keys) {
            self.batch.push(Request { key: keys.slice(span_in(&keys, key)), operation: Operation::Get { cas } });
        }
        self.replies.push(PendingReply::Retrieve { keys, may_have_admin_key: false, class, has_bad_key: false });
    }

    /// Adds a request for each of `keys` that the router does not answer itself.
    fn push_keys(&mut self, keys: &Bytes, operation: &Operation<Bytes>) {
        for key in Keys::from_checked(keys).filter(|key| !is_admin_key(key)) {
            self.batch.push(Request { key: keys.slice_ref(key), operation: operation.clone() });
        }
    }

    /// Adds a get, the line without the keys that cannot be read. False if `line` is none, or must be a batch of its
    /// own and there are others before it.
    fn push_get_of_others(&mut self, line: &[u8], limits: &Limits) -> bool {
        let Parsed::Command { command: command @ Command::Retrieve { .. }, .. } = parse_command(line, limits) else {
            return false;
        };
        let needs_own_batch = needs_own_batch(&command);
        if needs_own_batch && !self.replies.is_empty() {
            return false;
        }
        self.is_full = needs_own_batch;
        OffsetCommand::of(line, command).push_to(self, Bytes::copy_from_slice(line));
        if let Some(PendingReply::Retrieve { has_bad_key, .. }) = self.replies.last_mut() {
            *has_bad_key = true;
        }
        true
    }

    /// Adds a delete to the batch, in place of a set that was refused.
    fn push_delete(&mut self, key: Bytes) -> ReplyKey {
        self.batch.push(Request { key: key.clone(), operation: Operation::Delete { hold_off_ms: 0 } });
        ReplyKey { bytes: key, class: CommandClass::Verb(Verb::Delete) }
    }
}

enum OffsetCommand {
    Retrieve { keys: Span, operation: Operation<Bytes> },
    Metaget(Span),
    Single { request: Request<Span>, noreply: bool, quiet: Option<MetaVerb> },
    RefusedStore { key: Span, line: Option<&'static str> },
    Stats(Span),
    Other(PendingReply),
}

impl OffsetCommand {
    fn of(buffer: &[u8], command: Command<'_>) -> OffsetCommand {
        let span = |bytes: &[u8]| span_in(buffer, bytes);
        let local = |command| OffsetCommand::Other(PendingReply::Local(command));
        match command {
            Command::Retrieve { keys, operation } => {
                // None of the get verbs has bytes besides its keys.
                OffsetCommand::Retrieve { keys: span(keys.text()), operation: operation.map(Bytes::copy_from_slice) }
            }
            Command::Single { request, noreply } => {
                let quiet = match &request.operation {
                    Operation::Meta(meta) if is_quiet(meta.flags) => Some(meta.verb),
                    _ => None,
                };
                OffsetCommand::Single { request: request.map(span), noreply, quiet }
            }
            Command::Stats { arguments } => OffsetCommand::Stats(span(arguments)),
            Command::MetaNoop => local(LocalCommand::MetaNoop),
            Command::FlushAll { delay_s, noreply } => local(LocalCommand::FlushAll { delay_s, noreply }),
            Command::Version => local(LocalCommand::Version),
            Command::Verbosity { level, noreply } => local(LocalCommand::Verbosity { level, noreply }),
            Command::Quit => unreachable!("handled by the caller"),
        }
    }

    /// Adds the command to `parsed`; `bytes` is its part of the buffer.
    fn push_to(self, parsed: &mut ParsedBatch, bytes: Bytes) {
        let reply = match self {
            OffsetCommand::Retrieve { keys, operation } => {
                let (class, keys) = (CommandClass::of(&operation), slice_span(bytes, keys));
                parsed.push_keys(&keys, &operation);
                let may_have_admin_key = may_have_admin_key(&keys);
                PendingReply::Retrieve { keys, may_have_admin_key, class, has_bad_key: false }
            }
            OffsetCommand::Metaget(keys) => {
                let keys = slice_span(bytes, keys);
                parsed.push_keys(&keys, &metaget::operation());
                PendingReply::Metaget(keys)
            }
            OffsetCommand::Single { request, noreply, quiet } => {
                let request = strip_quiet_flag(request.map(|span| bytes.slice(span)));
                let key = ReplyKey { bytes: request.key.clone(), class: CommandClass::of(&request.operation) };
                parsed.batch.push(request);
                PendingReply::Single { key, noreply, quiet }
            }
            OffsetCommand::RefusedStore { key, line } => {
                PendingReply::RefusedStore { key: parsed.push_delete(slice_span(bytes, key)), line }
            }
            OffsetCommand::Stats(arguments) => PendingReply::Local(LocalCommand::Stats(slice_span(bytes, arguments))),
            OffsetCommand::Other(reply) => reply,
        };
        parsed.replies.push(reply);
    }
}

fn slice_span(mut bytes: Bytes, span: Span) -> Bytes {
    bytes.truncate(span.end);
    bytes.advance(span.start);
    bytes
}

/// A meta command (`md`) is none: with its flags it may do other things than delete.
fn is_delete(parsed: &Parsed<'_>) -> bool {
    matches!(
        parsed,
        Parsed::Command {
            command: Command::Single { request: Request { operation: Operation::Delete { .. }, .. }, .. },
            ..
        }
    )
}

/// Whether a command must see the effect of all commands before it, and of none after it.
fn needs_own_batch(command: &Command<'_>) -> bool {
    match command {
        Command::FlushAll { .. } | Command::Stats { .. } => true,
        Command::Retrieve { keys, .. } => may_have_admin_key(keys.text()) && keys.into_iter().any(is_admin_key),
        _ => false,
    }
}

/// Whether a meta command's flags have `q`.
fn is_quiet(flags: &[u8]) -> bool {
    flags.split(|&byte| byte == b' ').any(|flag| flag == b"q")
}

/// Removes `q` from a meta command: a server must reply to every command on a shared connection. The session leaves the
/// reply out.
fn strip_quiet_flag(mut request: Request<Bytes>) -> Request<Bytes> {
    if let Operation::Meta(meta) = &mut request.operation
        && is_quiet(&meta.flags)
    {
        let others: Vec<_> = meta.flags.split(|&byte| byte == b' ').filter(|flag| *flag != b"q").collect();
        meta.flags = others.join(&b' ').into();
    }
    request
}

/// The range of `buffer` that its slice `bytes` covers. An empty slice has none.
fn span_in(buffer: &[u8], bytes: &[u8]) -> Span {
    if bytes.is_empty() {
        return 0..0;
    }
    let start = (bytes.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
    assert!(start < buffer.len() && bytes.len() <= buffer.len() - start, "the parser borrows from the buffer");
    start..start + bytes.len()
}
