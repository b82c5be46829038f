//! From bytes to a batch: all whole commands at the front of a connection's buffer become one batch of requests.
//!
//! ```text
//!   buffer   |get a b\r\n|set c 0 0 1\r\nx\r\n|delete d\r\n|get e|........|
//!            '--------------- consumed ----------------------'
//!   asked     Retrieve[a b] Single c            Single d      (the rest waits for its end)
//!   batch     Get a, Get b, Store c, Delete d
//! ```
//!
//! Nothing is copied: the consumed part of the buffer is frozen and the batch's keys and values are slices of it.
//! While the front is being parsed the requests hold their bytes as places in the buffer; they become slices once it
//! is known how much of it is consumed.
//!
//! What reads or changes more than its own key (`flush_all`, `stats`, a get of the router's own keys) is a batch of
//! its own: it must see what came before it, and not what comes after.

mod binary;

pub(crate) use binary::textual;
pub use binary::{BinaryAsked, Expected, Said, take_binary_batch};

use bytes::{Bytes, BytesMut};
use lookaside_protocol::binary::Echo;
use lookaside_protocol::text::{Limits, Parsed, parse_command};
use lookaside_protocol::{Command, Operation, Request};
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
    /// A get verb with this many keys.
    Retrieve {
        /// How many of the batch's keys it asks for.
        keys: usize,
    },
    /// One operation on one key.
    Single {
        /// Whether the client wants no answer.
        noreply: bool,
        /// Whether the client wants no answer of the expected kind (the meta commands' `q`).
        quiet: bool,
    },
    /// Something that the router itself answers.
    Local(Local),
    /// Not a command; this line is the answer, if the client wants one.
    Bad(Option<&'static str>),
    /// A set that was refused for its size. The batch has a delete in its place, so that no reader goes on getting
    /// what the writer believes replaced; the answer is this line.
    Outdated(Option<&'static str>),
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

/// A key that was asked for, in the order of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedKey {
    /// The key as the client wrote it, routing prefix and all.
    pub key: Bytes,
    /// Whether the router answers it itself, so that the batch has no request for it.
    pub admin: bool,
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
    /// The keys of the commands that have any, in order.
    pub keys: Vec<AskedKey>,
    /// The buffer must hold this many bytes before it is worth looking at it again.
    pub needed_bytes: usize,
    /// How many bytes to drop as they arrive.
    pub swallow_bytes: usize,
    /// Whether the connection ends after these answers.
    pub close: bool,
}

type Place = Range<usize>;

/// Takes all whole commands off the front of `buffer`, up to [`BATCH_REQUESTS_MAX`] requests, or the first alone if it
/// is one that must be carried out in its place.
pub fn take_batch(buffer: &mut BytesMut, limits: &Limits) -> Intake {
    let mut draft = Draft::default();
    let mut intake = Intake::default();
    let mut consumed = 0;
    while draft.requests.len() < BATCH_REQUESTS_MAX && draft.asked.len() < BATCH_REQUESTS_MAX && !intake.close {
        let front = &buffer[consumed..];
        if front.is_empty() {
            break;
        }
        match parse_command(front, limits) {
            Parsed::Incomplete { needed_bytes } => {
                intake.needed_bytes = needed_bytes.max(front.len() + 1);
                break;
            }
            Parsed::Command { command: Command::Quit, consumed: bytes } => {
                consumed += bytes;
                intake.close = true;
            }
            Parsed::Command { command, consumed: bytes } => {
                let alone = is_alone(&command);
                if alone && !draft.asked.is_empty() {
                    break;
                }
                consumed += bytes;
                draft.take(buffer, command);
                if alone {
                    break;
                }
            }
            Parsed::Bad { line, consumed: bytes, swallow, close, outdated_key } => {
                draft.refuse(buffer, line, outdated_key);
                let available_bytes = front.len() - bytes;
                let dropped_bytes = swallow.min(available_bytes);
                consumed += bytes + dropped_bytes;
                intake.swallow_bytes = swallow - dropped_bytes;
                intake.close = close;
            }
        }
        if intake.swallow_bytes > 0 {
            break;
        }
    }
    let taken = buffer.split_to(consumed).freeze();
    draft.finish(&taken, &mut intake);
    intake
}

/// An intake whose bytes are still places in the buffer.
#[derive(Default)]
struct Draft {
    requests: Vec<Request<Place>>,
    asked: Vec<DraftAsked>,
    keys: Vec<(Place, bool, Tallied)>,
}

enum DraftAsked {
    Ready(Asked),
    Stats(Place),
    BinaryStats(Echo, Place),
}

impl Draft {
    fn take(&mut self, buffer: &[u8], command: Command<'_>) {
        let place = |bytes: &[u8]| place_in(buffer, bytes);
        let asked = match command {
            Command::Retrieve { keys, operation } => {
                let tallied = Tallied::of(&operation);
                let before = self.keys.len();
                for key in keys {
                    let admin = key.starts_with(ADMIN_KEY_PREFIX);
                    self.keys.push((place(key), admin, tallied));
                    if !admin {
                        let operation = operation.clone().map(place);
                        self.requests.push(Request { key: place(key), operation });
                    }
                }
                Asked::Retrieve { keys: self.keys.len() - before }
            }
            Command::Single { request, noreply } => {
                let quiet = match &request.operation {
                    Operation::Meta(meta) => is_quiet(meta.flags),
                    _ => false,
                };
                self.keys.push((place(request.key), false, Tallied::of(&request.operation)));
                self.requests.push(request.map(place));
                Asked::Single { noreply, quiet }
            }
            Command::Stats { arguments } => {
                self.asked.push(DraftAsked::Stats(place(arguments)));
                return;
            }
            Command::MetaNoop => Asked::Local(Local::MetaNoop),
            Command::FlushAll { delay_s, noreply } => Asked::Local(Local::FlushAll { delay_s, noreply }),
            Command::Version => Asked::Local(Local::Version),
            Command::Verbosity { noreply, .. } => Asked::Local(Local::Verbosity { noreply }),
            Command::Quit => unreachable!("taken before"),
        };
        self.asked.push(DraftAsked::Ready(asked));
    }

    fn refuse(&mut self, buffer: &[u8], line: Option<&'static str>, outdated_key: Option<&[u8]>) {
        let asked = match outdated_key {
            Some(key) => {
                let key = place_in(buffer, key);
                self.keys.push((key.clone(), false, Tallied::Delete));
                self.requests.push(Request { key, operation: Operation::Delete { hold_off_ms: 0 } });
                Asked::Outdated(line)
            }
            None => Asked::Bad(line),
        };
        self.asked.push(DraftAsked::Ready(asked));
    }

    fn finish(self, taken: &Bytes, intake: &mut Intake) {
        intake.batch =
            self.requests.into_iter().map(|request| speak_up(request.map(|place| taken.slice(place)))).collect();
        intake.keys = self
            .keys
            .into_iter()
            .map(|(place, admin, tallied)| AskedKey { key: taken.slice(place), admin, tallied })
            .collect();
        intake.asked = self
            .asked
            .into_iter()
            .map(|asked| match asked {
                DraftAsked::Ready(asked) => asked,
                DraftAsked::Stats(place) => Asked::Local(Local::Stats(taken.slice(place))),
                DraftAsked::BinaryStats(echo, place) => {
                    Asked::Binary(BinaryAsked { echo, said: Said::Local(Local::Stats(taken.slice(place))) })
                }
            })
            .collect();
    }
}

/// Whether a command must see all that came before it carried out, and nothing that comes after.
fn is_alone(command: &Command<'_>) -> bool {
    match command {
        Command::FlushAll { .. } | Command::Stats { .. } => true,
        Command::Retrieve { keys, .. } => keys.into_iter().any(|key| key.starts_with(ADMIN_KEY_PREFIX)),
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
