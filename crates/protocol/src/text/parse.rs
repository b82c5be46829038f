//! Parses commands, for servers and routers.
//!
//! ```text
//! get <key>*            gat <exptime> <key>*          lease-get <key>*
//! set <key> <flags> <exptime> <bytes> [noreply]       and add replace append prepend; cas has one number more
//! lease-set <key> <token> <flags> <exptime> <bytes> [noreply]
//! delete <key> [<hold-off>] [noreply]                 the hold-off in seconds, fractions allowed (§4.3)
//! incr <key> <delta> [noreply]   touch <key> <exptime> [noreply]   flush_all [<delay>] [noreply]  ...
//! ```
//!
//! `noreply` can only be the last token. As in memcached, a command that ends with it gets no error either, and tokens
//! between the last one that a verb knows and the end are ignored.

use super::{
    block::{Block, BlockVerb, parse_meta_store, parse_store},
    foreign::{ends_like_request_line, is_http, is_tls},
    limits::Limits,
    parsed::{CloseReason, Parsed, bad, close, parse_key, single},
};
use crate::line::{self, FirstLine, Tokens};
use crate::meta::{MetaVerb, parse_operation, remap_error};
use crate::refusal;
use crate::{Command, Direction, Keys, Operation, StoreMode, check_key};

/// The shortest line with its end, in bytes: memcached refuses shorter ones, even `mn\n`.
const LINE_BYTES_MIN: usize = 4;

/// The longest line of a command that is no multiget, in bytes: as memcached has it, and four times what the longest
/// meta command needs. A client that sends more without a line feed holds memory for nothing.
const SINGLE_LINE_BYTES_MAX: usize = 2048;

/// The verbs whose lines may be as long as [`Limits::line_bytes_max`].
const MULTIGET_VERBS: [&[u8]; 5] = [b"get ", b"gets ", b"gat ", b"gats ", b"lease-get "];

/// memcached skips this many spaces before it looks for the verb of a long line.
const LEADING_SPACES_MAX: usize = 100;

/// Parses one command at the front of `buffer`: text, lease and meta verbs.
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
    match line::split_first_line(buffer, limits.line_bytes_max) {
        FirstLine::Whole { line, consumed } => parse_line(buffer, line, consumed, limits),
        FirstLine::Incomplete | FirstLine::TooLong if is_tls(buffer) => {
            close(CloseReason::ForeignProtocol, None, buffer)
        }
        FirstLine::Incomplete if !is_too_long(buffer) => Parsed::Incomplete { needed_bytes: buffer.len() + 1 },
        FirstLine::Incomplete | FirstLine::TooLong => {
            close(CloseReason::LineTooLong, Some(refusal::LINE_TOO_LONG), buffer)
        }
    }
}

/// Whether a line, or the part of one that has arrived, is longer than its verb allows. A line is refused for its
/// length even if it has arrived whole, so that the result does not depend on where the bytes were cut.
fn is_too_long(line: &[u8]) -> bool {
    line.len() > SINGLE_LINE_BYTES_MAX && !is_multiget(line)
}

fn is_multiget(line: &[u8]) -> bool {
    let spaces = line.iter().take(LEADING_SPACES_MAX).take_while(|&&byte| byte == b' ').count();
    MULTIGET_VERBS.iter().any(|verb| line[spaces..].starts_with(verb))
}

fn parse_line<'a>(buffer: &'a [u8], line: &'a [u8], consumed: usize, limits: &Limits) -> Parsed<'a> {
    if consumed < LINE_BYTES_MIN && !is_tls(line) {
        return bad(refusal::BAD_FORMAT, consumed, 0, false);
    }
    // Most lines are gets: they are tried first.
    if let Some(keys) = line.strip_prefix(b"get ") {
        return to_parsed(parse_retrieve(Operation::Get { cas: false }, Tokens(keys)), consumed, false);
    }
    if is_too_long(&buffer[..consumed - 1]) && !is_tls(line) {
        return close(CloseReason::LineTooLong, Some(refusal::LINE_TOO_LONG), buffer);
    }
    let (verb, rest) = line.split_at(line::next_space(line));
    let mut tokens = Tokens(rest);
    let noreply = has_noreply(rest);
    let block = Block { buffer, start: consumed, limits, noreply };
    let command = match verb {
        b"get" => return to_parsed(parse_retrieve(Operation::Get { cas: false }, tokens), consumed, false),
        b"gets" => return to_parsed(parse_retrieve(Operation::Get { cas: true }, tokens), consumed, false),
        // Of the verbs that a page can choose, the others change nothing with such arguments.
        b"lease-get" if ends_like_request_line(line) => return close(CloseReason::ForeignProtocol, None, buffer),
        b"lease-get" => return to_parsed(parse_retrieve(Operation::LeaseGet, tokens), consumed, false),
        b"gat" => return to_parsed(parse_retrieve_and_touch(false, tokens), consumed, false),
        b"gats" => return to_parsed(parse_retrieve_and_touch(true, tokens), consumed, false),
        b"set" => return parse_store(BlockVerb::Store(StoreMode::Set), tokens, &block),
        b"add" => return parse_store(BlockVerb::Store(StoreMode::Add), tokens, &block),
        b"replace" => return parse_store(BlockVerb::Store(StoreMode::Replace), tokens, &block),
        b"append" => return parse_store(BlockVerb::Store(StoreMode::Append), tokens, &block),
        b"prepend" => return parse_store(BlockVerb::Store(StoreMode::Prepend), tokens, &block),
        b"cas" => return parse_store(BlockVerb::Cas, tokens, &block),
        b"lease-set" => return parse_store(BlockVerb::LeaseSet, tokens, &block),
        b"ms" => return parse_meta_store(tokens, &Block { noreply: false, ..block }),
        b"mg" => return to_parsed(parse_meta(MetaVerb::Get, tokens), consumed, false),
        b"md" => return to_parsed(parse_meta(MetaVerb::Delete, tokens), consumed, false),
        b"ma" => return to_parsed(parse_meta(MetaVerb::Arithmetic, tokens), consumed, false),
        b"me" => return to_parsed(parse_meta(MetaVerb::Debug, tokens), consumed, false),
        b"delete" => parse_delete(tokens, noreply),
        b"incr" => parse_arithmetic(Direction::Up, tokens, noreply),
        b"decr" => parse_arithmetic(Direction::Down, tokens, noreply),
        b"touch" => parse_touch(tokens, noreply),
        b"flush_all" => parse_flush_all(tokens, noreply),
        b"verbosity" => parse_verbosity(&mut tokens, noreply),
        b"stats" => Ok(Command::Stats { arguments: line::trim(rest) }),
        b"version" => Ok(Command::Version),
        b"mn" => Ok(Command::MetaNoop),
        b"quit" => Ok(Command::Quit),
        // memcached looks for `noreply` in the last word of any line.
        b"noreply" if line::trim(rest).is_empty() => return bad(refusal::UNKNOWN, consumed, 0, true),
        _ if is_http(line) || is_tls(line) => return close(CloseReason::ForeignProtocol, None, buffer),
        _ => Err(refusal::UNKNOWN),
    };
    to_parsed(command, consumed, noreply)
}

fn to_parsed<'a>(command: Result<Command<'a>, &'static str>, consumed: usize, noreply: bool) -> Parsed<'a> {
    match command {
        Ok(command) => Parsed::Command { command, consumed },
        Err(line) => bad(line, consumed, 0, noreply),
    }
}

fn has_noreply(mut arguments: &[u8]) -> bool {
    while let [rest @ .., b' '] = arguments {
        arguments = rest;
    }
    arguments.ends_with(b" noreply")
}

fn parse_retrieve<'a>(operation: Operation<&'a [u8]>, tokens: Tokens<'a>) -> Result<Command<'a>, &'static str> {
    let keys = Keys::parse(tokens.0).ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Retrieve { keys, operation })
}

fn parse_retrieve_and_touch(cas: bool, mut tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let exptime = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    if line::trim(tokens.0).is_empty() {
        return Err(refusal::BAD_FORMAT);
    }
    let exptime = parse_seconds(exptime)?;
    let keys = Keys::parse(tokens.0).ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Retrieve { keys, operation: Operation::GetAndTouch { exptime, cas } })
}

fn parse_delete(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = parse_key(&mut tokens)?;
    let hold_off_ms = match tokens.token() {
        None | Some(b"noreply") => 0,
        Some(seconds) => parse_milliseconds(seconds).ok_or(refusal::BAD_FORMAT)?,
    };
    Ok(single(key, Operation::Delete { hold_off_ms }, noreply))
}

/// Parses seconds with an optional fraction, as milliseconds. Fractions of a millisecond are rounded up: a hold-off
/// may be too long, never too short.
fn parse_milliseconds(seconds: &[u8]) -> Option<u32> {
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

fn parse_arithmetic(direction: Direction, mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = parse_key(&mut tokens)?;
    let delta = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    let delta = line::unsigned(delta).ok_or(refusal::INVALID_DELTA)?;
    Ok(single(key, Operation::Arithmetic { direction, delta }, noreply))
}

fn parse_touch(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let key = parse_key(&mut tokens)?;
    let exptime = parse_seconds(tokens.token().ok_or(refusal::BAD_FORMAT)?)?;
    Ok(single(key, Operation::Touch { exptime }, noreply))
}

/// Parses an exptime of 32 bits, as memcached has it.
fn parse_seconds(token: &[u8]) -> Result<i64, &'static str> {
    let seconds = line::signed(token).and_then(|seconds| i32::try_from(seconds).ok());
    seconds.map(i64::from).ok_or(refusal::INVALID_EXPTIME)
}

fn parse_flush_all(mut tokens: Tokens<'_>, noreply: bool) -> Result<Command<'_>, &'static str> {
    let delay_s = match tokens.token() {
        None => 0,
        Some(b"noreply") if tokens.token().is_none() => 0,
        Some(delay) => parse_seconds(delay)?,
    };
    Ok(Command::FlushAll { delay_s, noreply })
}

fn parse_verbosity<'a>(tokens: &mut Tokens<'_>, noreply: bool) -> Result<Command<'a>, &'static str> {
    let level = tokens.flags().ok_or(refusal::BAD_FORMAT)?;
    Ok(Command::Verbosity { level, noreply })
}

fn parse_meta(verb: MetaVerb, mut tokens: Tokens<'_>) -> Result<Command<'_>, &'static str> {
    let key = tokens.token().ok_or(refusal::BAD_FORMAT)?;
    check_key(key).map_err(|_| remap_error(verb, refusal::BAD_FORMAT))?;
    let (operation, _) = parse_operation(verb, key, line::trim(tokens.0))?;
    Ok(single(key, Operation::Meta(operation), false))
}
