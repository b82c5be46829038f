//! Commands, as a server reads them.
//!
//! ```text
//! get <key>*            gat <exptime> <key>*          lease-get <key>*
//! set <key> <flags> <exptime> <bytes> [noreply]       and add replace append prepend; cas has one number more
//! lease-set <key> <token> <flags> <exptime> <bytes> [noreply]
//! delete <key> [<hold-off>] [noreply]                 the hold-off in seconds, fractions allowed (§4.3)
//! incr <key> <delta> [noreply]   touch <key> <exptime> [noreply]   flush_all [<delay>] [noreply]  ...
//! ```
//!
//! `noreply` is the last token or is not there. As in memcached, a command that ends with it is not told even that it
//! was wrong, and tokens between the last one a verb knows and the end are ignored.

use super::{
    Limits,
    block::{Block, BlockVerb, store, store_meta},
    line::{self, FirstLine, Tokens},
    refusal,
};
use crate::meta::{MetaVerb, checked_operation, reworded};
use crate::{Command, Direction, Keys, Operation, Request, StoreMode, check_key};

/// A line with its end is at least this long, in bytes: memcached takes a shorter one for no command, even `mn\n`.
const LINE_BYTES_MIN: usize = 4;

/// What the front of a buffer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole command yet.
    Incomplete {
        /// The buffer must hold at least this many bytes before it is worth asking again.
        needed_bytes: usize,
    },
    /// A command.
    Command {
        /// The command, borrowing from the buffer.
        command: Command<'a>,
        /// How many bytes of the buffer it took.
        consumed: usize,
    },
    /// Not a command; the sender gets this line and the connection goes on, or ends.
    Bad {
        /// What the sender is told, without the line's end; nothing when it asked for no reply.
        line: Option<&'static str>,
        /// How many bytes of the buffer to drop now.
        consumed: usize,
        /// How many bytes more to drop as they arrive (the data block of a refused store).
        swallow: usize,
        /// Whether nothing sensible can follow, so that the connection must end.
        close: bool,
        /// The key of a `set` that was refused for its size. Its old value must go, or readers would go on getting
        /// what the writer believes replaced.
        key_to_delete: Option<&'a [u8]>,
    },
}

/// Reads one command off the front of `buffer`: text, lease and meta verbs. Allocates nothing.
///
/// ```
/// use lookaside_protocol::{Command, text::{Limits, Parsed, parse_command}};
/// let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let Parsed::Command { command: Command::Retrieve { keys, .. }, consumed } =
///     parse_command(b"get user:1 user:2\r\nversion\r\n", &limits) else { panic!("a command") };
/// assert_eq!(keys.collect::<Vec<_>>(), [b"user:1", b"user:2"]);
/// assert_eq!(consumed, 19);
/// ```
pub fn parse_command<'a>(buffer: &'a [u8], limits: &Limits) -> Parsed<'a> {
    match line::first(buffer, limits.line_bytes_max) {
        FirstLine::Whole { line, consumed } => command_of_line(buffer, line, consumed, limits),
        FirstLine::Incomplete => Parsed::Incomplete { needed_bytes: buffer.len() + 1 },
        FirstLine::TooLong => Parsed::Bad {
            line: Some(refusal::LINE_TOO_LONG),
            consumed: buffer.len(),
            swallow: 0,
            close: true,
            key_to_delete: None,
        },
    }
}

fn command_of_line<'a>(buffer: &'a [u8], line: &'a [u8], consumed: usize, limits: &Limits) -> Parsed<'a> {
    if consumed < LINE_BYTES_MIN {
        return bad(refusal::BAD_FORMAT, consumed, 0, false);
    }
    // Most lines are gets: they shall not wait for the others to be ruled out.
    if let Some(keys) = line.strip_prefix(b"get ") {
        return whole(retrieve(Operation::Get { cas: false }, Tokens(keys)), consumed, false);
    }
    let (verb, rest) = line.split_at(line::next_space(line));
    let mut tokens = Tokens(rest);
    let noreply = noreply(rest);
    let block = Block { buffer, start: consumed, limits, noreply };
    let answered = match verb {
        b"get" => return whole(retrieve(Operation::Get { cas: false }, tokens), consumed, false),
        b"gets" => return whole(retrieve(Operation::Get { cas: true }, tokens), consumed, false),
        b"lease-get" => return whole(retrieve(Operation::LeaseGet, tokens), consumed, false),
        b"gat" => return whole(retrieve_and_touch(false, tokens), consumed, false),
        b"gats" => return whole(retrieve_and_touch(true, tokens), consumed, false),
        b"set" => return store(BlockVerb::Store(StoreMode::Set), tokens, &block),
        b"add" => return store(BlockVerb::Store(StoreMode::Add), tokens, &block),
        b"replace" => return store(BlockVerb::Store(StoreMode::Replace), tokens, &block),
        b"append" => return store(BlockVerb::Store(StoreMode::Append), tokens, &block),
        b"prepend" => return store(BlockVerb::Store(StoreMode::Prepend), tokens, &block),
        b"cas" => return store(BlockVerb::Cas, tokens, &block),
        b"lease-set" => return store(BlockVerb::LeaseSet, tokens, &block),
        b"ms" => return store_meta(tokens, &Block { noreply: false, ..block }),
        b"mg" => return whole(meta(MetaVerb::Get, tokens), consumed, false),
        b"md" => return whole(meta(MetaVerb::Delete, tokens), consumed, false),
        b"ma" => return whole(meta(MetaVerb::Arithmetic, tokens), consumed, false),
        b"me" => return whole(meta(MetaVerb::Debug, tokens), consumed, false),
        b"delete" => delete(tokens, noreply),
        b"incr" => arithmetic(Direction::Up, tokens, noreply),
        b"decr" => arithmetic(Direction::Down, tokens, noreply),
        b"touch" => touch(tokens, noreply),
        b"flush_all" => flush_all(tokens, noreply),
        b"verbosity" => verbosity(&mut tokens, noreply),
        b"stats" => Ok(Command::Stats { arguments: line::trim(rest) }),
        b"version" => Ok(Command::Version),
        b"mn" => Ok(Command::MetaNoop),
        b"quit" => Ok(Command::Quit),
        // memcached looks for `noreply` in any line's last word.
        b"noreply" if line::trim(rest).is_empty() => return bad(refusal::UNKNOWN, consumed, 0, true),
        _ => Err(refusal::UNKNOWN),
    };
    whole(answered, consumed, noreply)
}

/// A command that is all in its line.
fn whole<'a>(command: Result<Command<'a>, &'static str>, consumed: usize, noreply: bool) -> Parsed<'a> {
    match command {
        Ok(command) => Parsed::Command { command, consumed },
        Err(line) => bad(line, consumed, 0, noreply),
    }
}

pub(super) fn bad<'a>(line: &'static str, consumed: usize, swallow: usize, noreply: bool) -> Parsed<'a> {
    Parsed::Bad { line: (!noreply).then_some(line), consumed, swallow, close: false, key_to_delete: None }
}

/// Whether the arguments end with `noreply`.
fn noreply(mut arguments: &[u8]) -> bool {
    while let [rest @ .., b' '] = arguments {
        arguments = rest;
    }
    arguments.ends_with(b" noreply")
}

fn retrieve<'a>(operation: Operation<&'a [u8]>, tokens: Tokens<'a>) -> Result<Command<'a>, &'static str> {
    let keys = Keys::checked(tokens.0).ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Retrieve { keys, operation })
}

fn retrieve_and_touch(cas: bool, mut tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let exptime = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    if line::trim(tokens.0).is_empty() {
        return Err(refusal::BAD_FORMAT);
    }
    let exptime = seconds(exptime)?;
    let keys = Keys::checked(tokens.0).ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Retrieve { keys, operation: Operation::GetAndTouch { exptime, cas } })
}

pub(super) fn checked_key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    tokens.token().filter(|key| check_key(key).is_ok()).ok_or(refusal::BAD_FORMAT)
}

pub(super) fn single<'a>(key: &'a [u8], operation: Operation<&'a [u8]>, noreply: bool) -> Command<'a> {
    Command::Single { request: Request { key, operation }, noreply }
}

fn delete(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = checked_key(&mut tokens)?;
    let hold_off_ms = match tokens.token() {
        None | Some(b"noreply") => 0,
        Some(seconds) => milliseconds(seconds).ok_or(refusal::BAD_FORMAT)?,
    };
    Ok(single(key, Operation::Delete { hold_off_ms }, noreply))
}

/// Seconds with an optional fraction, in milliseconds. What is finer than a millisecond is rounded up: a hold-off may
/// last too long, never too short.
fn milliseconds(seconds: &[u8]) -> Option<u32> {
    let (whole, fraction) = match memchr::memchr(b'.', seconds) {
        Some(dot) => (&seconds[..dot], &seconds[dot + 1..]),
        None => (seconds, &b"0"[..]),
    };
    if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| u64::from(fraction.get(at).map_or(0, |digit| digit - b'0'));
    let finer = fraction.iter().skip(3).any(|&digit| digit != b'0');
    let thousandths = digit(0) * 100 + digit(1) * 10 + digit(2) + u64::from(finer);
    u32::try_from(line::unsigned(whole)?.checked_mul(1000)?.checked_add(thousandths)?).ok()
}

fn arithmetic(direction: Direction, mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = checked_key(&mut tokens)?;
    let delta = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    let delta = line::unsigned(delta).ok_or(refusal::INVALID_DELTA)?;
    Ok(single(key, Operation::Arithmetic { direction, delta }, noreply))
}

fn touch(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = checked_key(&mut tokens)?;
    let exptime = seconds(tokens.token().ok_or(refusal::BAD_FORMAT)?)?;
    Ok(single(key, Operation::Touch { exptime }, noreply))
}

/// An exptime of 32 bits, as memcached has it.
fn seconds(token: &[u8]) -> Result<i64, &'static str> {
    let seconds = line::signed(token).and_then(|seconds| i32::try_from(seconds).ok());
    seconds.map(i64::from).ok_or(refusal::INVALID_EXPTIME)
}

fn flush_all(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let delay_s = match tokens.token() {
        None => 0,
        Some(b"noreply") if tokens.token().is_none() => 0,
        Some(delay) => seconds(delay)?,
    };
    Ok(Command::FlushAll { delay_s, noreply })
}

fn verbosity<'a>(tokens: &mut Tokens<'_>, noreply: bool) -> Result<Command<'a>, &'static str> {
    let level = tokens.flags().ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Verbosity { level, noreply })
}

fn meta(verb: MetaVerb, mut tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let key = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    check_key(key).map_err(|_| reworded(verb, refusal::BAD_FORMAT))?;
    let (operation, _) = checked_operation(verb, key, line::trim(tokens.0))?;
    Ok(single(key, Operation::Meta(operation), false))
}
