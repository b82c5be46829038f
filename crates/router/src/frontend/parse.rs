//! From bytes to a batch: all whole commands at the front of a connection's buffer become one batch of requests.
//!
//! ```text
//!   buffer   |get a b\r\n|set c 0 0 1\r\nx\r\n|delete d\r\n|get e|........|
//!            '--------------- consumed ----------------------'
//!   asked     Retrieve "a b"  Single c           Single d      (the rest waits for its end)
//!   batch     Get a, Get b, Store c, Delete d
//! ```
//!
//! Nothing is copied: each command's part of the buffer is split off, and keys and values are slices of it. While a
//! command is being parsed its bytes are places in the buffer ([`Draft`]); they become slices once it is known how much
//! of the buffer it takes.
//!
//! What reads or changes more than its own key (`flush_all`, `stats`, a get of the router's own keys) is a batch of
//! its own: it must see what came before it, and not what comes after.

mod binary;

pub(crate) use binary::textual;
pub use binary::{BinaryAsked, Expected, Said, take_binary_batch};

use bytes::{Buf, Bytes, BytesMut};
use lookaside_protocol::meta::MetaVerb;
use lookaside_protocol::text::{Limits, Parsed, parse_command};
use lookaside_protocol::{Command, Keys, Operation, Request};
use lookaside_routing::Batch;
use std::ops::Range;

/// The most requests in a batch, unless one get alone has more keys: the line limit bounds those. More would only
/// make the first wait longer for the last.
pub const BATCH_REQUESTS_MAX: usize = 1024;

/// Keys that begin so are answered by the router itself.
pub const ADMIN_KEY_PREFIX: &[u8] = b"__mcrouter__.";

/// One command, reduced to what its reply needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A get verb.
    Retrieve {
        /// Its keys as the client wrote them, separated by spaces. The batch has no request for a key that the router
        /// answers itself ([`is_admin`]).
        keys: Bytes,
        /// What each key is counted as.
        tallied: Tallied,
    },
    /// One operation on one key.
    Single {
        /// The key.
        key: AskedKey,
        /// Whether the client wants no answer.
        noreply: bool,
        /// Whether the client wants no answer of the expected kind (the meta commands' `q`).
        quiet: Option<MetaVerb>,
    },
    /// Something that the router itself answers.
    Local(Local),
    /// Not a command; this line is the answer, if the client wants one.
    Bad(Option<&'static str>),
    /// A set that was refused for its size. The batch has a delete in its place, so that no reader goes on getting
    /// what the writer believes replaced; the answer is this line.
    Outdated {
        /// The key.
        key: AskedKey,
        /// The answer.
        line: Option<&'static str>,
    },
    /// A request of the binary dialect.
    Binary(BinaryAsked),
}

/// What the router answers without asking a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// `version`
    Version,
    /// `stats [arguments]`
    Stats(Bytes),
    /// `verbosity <level>`
    Verbosity {
        /// How much the log is to say.
        level: u32,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `flush_all [delay]`
    FlushAll {
        /// The delay, as the client gave it.
        delay_s: i64,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `mn`
    MetaNoop,
}

/// The kinds of operation that `stats` counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tallied {
    /// `get`, `gets`
    Get,
    /// `gat`, `gats`
    GetAndTouch,
    /// `lease-get`
    LeaseGet,
    /// `set` and its kin
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

impl Tallied {
    /// All, in the order of their numbers.
    pub const ALL: [Tallied; 9] = [
        Tallied::Get,
        Tallied::GetAndTouch,
        Tallied::LeaseGet,
        Tallied::Store,
        Tallied::LeaseSet,
        Tallied::Delete,
        Tallied::Arithmetic,
        Tallied::Touch,
        Tallied::Meta,
    ];

    /// The word for it in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Tallied::Get => "get",
            Tallied::GetAndTouch => "gat",
            Tallied::LeaseGet => "lease_get",
            Tallied::Store => "set",
            Tallied::LeaseSet => "lease_set",
            Tallied::Delete => "delete",
            Tallied::Arithmetic => "incr",
            Tallied::Touch => "touch",
            Tallied::Meta => "meta",
        }
    }

    /// What an operation is counted as.
    pub fn of<B>(operation: &Operation<B>) -> Tallied {
        match operation {
            Operation::Get { .. } => Tallied::Get,
            Operation::GetAndTouch { .. } => Tallied::GetAndTouch,
            Operation::LeaseGet => Tallied::LeaseGet,
            Operation::Store { .. } => Tallied::Store,
            Operation::LeaseSet { .. } => Tallied::LeaseSet,
            Operation::Delete { .. } => Tallied::Delete,
            Operation::Arithmetic { .. } => Tallied::Arithmetic,
            Operation::Touch { .. } => Tallied::Touch,
            Operation::Meta(_) => Tallied::Meta,
        }
    }
}

/// A key that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedKey {
    /// The key as the client wrote it, routing prefix and all.
    pub bytes: Bytes,
    /// What it is counted as.
    pub tallied: Tallied,
}

/// What was taken off the front of a buffer.
#[derive(Debug, Default)]
pub struct Intake {
    /// The requests to route.
    pub batch: Batch,
    /// The commands to answer, in order.
    pub asked: Vec<Asked>,
    /// The buffer must hold this many bytes before it is worth looking at it again.
    pub needed_bytes: usize,
    /// How many bytes to drop as they arrive.
    pub swallow_bytes: usize,
    /// Whether the connection ends after these answers.
    pub close: bool,
    /// Whether nothing may join what is there.
    is_full: bool,
}

type Place = Range<usize>;

/// Takes all whole commands off the front of `buffer`, up to [`BATCH_REQUESTS_MAX`] requests, or the first alone if it
/// is one that must be carried out in its place. `expected` is how many requests to make room for.
pub fn take_batch(buffer: &mut BytesMut, limits: &Limits, expected: usize) -> Intake {
    let mut intake = Intake { batch: Batch::with_capacity(expected.min(BATCH_REQUESTS_MAX)), ..Intake::default() };
    while intake.has_room() && !buffer.is_empty() {
        let (draft, command_bytes) = match parse_command(buffer, limits) {
            Parsed::Incomplete { needed_bytes } => {
                intake.needed_bytes = needed_bytes.max(buffer.len() + 1);
                break;
            }
            Parsed::Command { command: Command::Quit, consumed } => {
                buffer.advance(consumed);
                intake.close = true;
                break;
            }
            Parsed::Command { command, consumed } => {
                let is_alone = is_alone(&command);
                if is_alone && !intake.asked.is_empty() {
                    break;
                }
                intake.is_full = is_alone;
                (Draft::of(buffer, command), consumed)
            }
            Parsed::Bad { line, consumed, swallow, close, key_to_delete } => {
                intake.swallow_bytes = swallow;
                intake.close = close;
                (Draft::refused(buffer, line, key_to_delete), consumed)
            }
        };
        draft.finish(buffer.split_to(command_bytes).freeze(), &mut intake);
        intake.swallow(buffer);
    }
    intake
}

impl Intake {
    /// Whether another command may join the batch.
    fn has_room(&self) -> bool {
        let is_small = self.batch.len() < BATCH_REQUESTS_MAX && self.asked.len() < BATCH_REQUESTS_MAX;
        is_small && !self.is_full && !self.close && self.swallow_bytes == 0
    }

    /// Drops what has arrived of a data block that was refused.
    fn swallow(&mut self, buffer: &mut BytesMut) {
        let dropped_bytes = self.swallow_bytes.min(buffer.len());
        buffer.advance(dropped_bytes);
        self.swallow_bytes -= dropped_bytes;
    }
}

/// A command whose bytes are still places in the buffer.
enum Draft {
    Retrieve { keys: Place, operation: Operation<Bytes> },
    Single { request: Request<Place>, noreply: bool, quiet: Option<MetaVerb> },
    Outdated { key: Place, line: Option<&'static str> },
    Stats(Place),
    Ready(Asked),
}

impl Draft {
    fn of(buffer: &[u8], command: Command<'_>) -> Draft {
        let place = |bytes: &[u8]| place_in(buffer, bytes);
        match command {
            Command::Retrieve { keys, operation } => {
                // None of the get verbs has bytes beside its keys.
                Draft::Retrieve { keys: place(keys.text()), operation: operation.map(Bytes::copy_from_slice) }
            }
            Command::Single { request, noreply } => {
                let quiet = match &request.operation {
                    Operation::Meta(meta) if is_quiet(meta.flags) => Some(meta.verb),
                    _ => None,
                };
                Draft::Single { request: request.map(place), noreply, quiet }
            }
            Command::Stats { arguments } => Draft::Stats(place(arguments)),
            Command::MetaNoop => Draft::Ready(Asked::Local(Local::MetaNoop)),
            Command::FlushAll { delay_s, noreply } => Draft::Ready(Asked::Local(Local::FlushAll { delay_s, noreply })),
            Command::Version => Draft::Ready(Asked::Local(Local::Version)),
            Command::Verbosity { level, noreply } => Draft::Ready(Asked::Local(Local::Verbosity { level, noreply })),
            Command::Quit => unreachable!("taken before"),
        }
    }

    fn refused(buffer: &[u8], line: Option<&'static str>, key_to_delete: Option<&[u8]>) -> Draft {
        match key_to_delete {
            Some(key) => Draft::Outdated { key: place_in(buffer, key), line },
            None => Draft::Ready(Asked::Bad(line)),
        }
    }

    /// Adds the command to `intake`; `taken` is its part of the buffer.
    fn finish(self, taken: Bytes, intake: &mut Intake) {
        let asked = match self {
            Draft::Retrieve { keys, operation } => {
                let (tallied, keys) = (Tallied::of(&operation), cut(taken, keys));
                for key in Keys::checked(&keys).expect("they were parsed as keys").filter(|key| !is_admin(key)) {
                    intake.batch.push(Request { key: keys.slice_ref(key), operation: operation.clone() });
                }
                Asked::Retrieve { keys, tallied }
            }
            Draft::Single { request, noreply, quiet } => {
                let request = speak_up(request.map(|place| taken.slice(place)));
                let key = AskedKey { bytes: request.key.clone(), tallied: Tallied::of(&request.operation) };
                intake.batch.push(request);
                Asked::Single { key, noreply, quiet }
            }
            Draft::Outdated { key, line } => Asked::Outdated { key: intake.delete(cut(taken, key)), line },
            Draft::Stats(arguments) => Asked::Local(Local::Stats(cut(taken, arguments))),
            Draft::Ready(asked) => asked,
        };
        intake.asked.push(asked);
    }
}

impl Intake {
    /// Adds a delete to the batch, in the place of a set that was refused.
    fn delete(&mut self, key: Bytes) -> AskedKey {
        self.batch.push(Request { key: key.clone(), operation: Operation::Delete { hold_off_ms: 0 } });
        AskedKey { bytes: key, tallied: Tallied::Delete }
    }
}

/// The part of `bytes` at `place`.
fn cut(mut bytes: Bytes, place: Place) -> Bytes {
    bytes.truncate(place.end);
    bytes.advance(place.start);
    bytes
}

/// Whether the router answers a get of this key itself.
pub(crate) fn is_admin(key: &[u8]) -> bool {
    key.starts_with(ADMIN_KEY_PREFIX)
}

/// Whether a command must see all that came before it carried out, and nothing that comes after.
fn is_alone(command: &Command<'_>) -> bool {
    match command {
        Command::FlushAll { .. } | Command::Stats { .. } => true,
        Command::Retrieve { keys, .. } => keys.into_iter().any(is_admin),
        _ => false,
    }
}

/// Whether a meta command's flags have `q`.
fn is_quiet(flags: &[u8]) -> bool {
    flags.split(|&byte| byte == b' ').any(|flag| flag == b"q")
}

/// Takes `q` from a meta command: a server must answer everything on a shared connection. The session keeps quiet.
fn speak_up(mut request: Request<Bytes>) -> Request<Bytes> {
    if let Operation::Meta(meta) = &mut request.operation
        && is_quiet(&meta.flags)
    {
        let loud: Vec<_> = meta.flags.split(|&byte| byte == b' ').filter(|flag| *flag != b"q").collect();
        meta.flags = loud.join(&b' ').into();
    }
    request
}

/// Where in `buffer` the slice `bytes` of it lies. An empty slice has no place of its own.
fn place_in(buffer: &[u8], bytes: &[u8]) -> Place {
    if bytes.is_empty() {
        return 0..0;
    }
    let start = (bytes.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
    assert!(start < buffer.len() && bytes.len() <= buffer.len() - start, "the parser borrows from the buffer");
    start..start + bytes.len()
}
