//! Answers, as a client reads them.
//!
//! ```text
//! VALUE <key> <flags> <bytes> [<cas unique>]      then the data block; END after the last
//! LVALUE <key> <token> <flags> <bytes>            then the stale value; no bytes when there is none
//! STORED  NOT_FOUND  DELETED  ...                 one line for everything else
//! ```
//!
//! A reader that cannot make sense of a line has lost its place for good: there is no way to find the next answer in
//! bytes that may be anybody's value.

use super::{
    Limits,
    line::{self, FirstLine, Tokens},
};
use crate::{Cas, ErrorReply, LeaseToken, Reply, check_key, meta};

/// One step of an answer, as the client's end of a connection reads them. Needs no memory of what was asked: a get is
/// answered by items and an end, everything else by one line. An error in place of a get's items is all of its answer;
/// no end follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart<'a> {
    /// `VALUE` or `LVALUE` with its data block: the answer for one key of a get; more may follow before the end.
    Item {
        /// The key as the server says it.
        key: &'a [u8],
        /// `Reply::Value` or `Reply::Lease`.
        reply: Reply<&'a [u8]>,
    },
    /// `END`: every key of the get (or every statistic) has been answered; those without an item are misses.
    End,
    /// The whole answer to anything else, errors included.
    Reply(Reply<&'a [u8]>),
    /// `STAT <name> <value>`
    Stat {
        /// The statistic's name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// `VERSION <version>`
    Version(&'a [u8]),
    /// `MN`
    MetaNoop,
}

/// What the front of a buffer of answers holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedReply<'a> {
    /// Not a whole step yet.
    Incomplete {
        /// The buffer must hold at least this many bytes before it is worth asking again.
        needed_bytes: usize,
    },
    /// One step.
    Part {
        /// The step, borrowing from the buffer.
        part: ReplyPart<'a>,
        /// How many bytes of the buffer it took.
        consumed: usize,
    },
    /// No server says this: the connection cannot be trusted any more.
    Malformed {
        /// What was wrong with it.
        why: &'static str,
    },
}

/// Reads one step of an answer off the front of `buffer`. Allocates nothing.
///
/// ```
/// use lookaside_protocol::{Reply, text::{Answer, Limits, ParsedAnswer, parse_answer}};
/// let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let bytes = b"VALUE user:1 0 5\r\nalice\r\nEND\r\n";
/// let ParsedAnswer::Answer { answer, consumed } = parse_answer(bytes, &limits) else { panic!("a step") };
/// let reply = Reply::Value { flags: 0, cas: None, value: &b"alice"[..] };
/// assert_eq!(answer, Answer::Item { key: b"user:1", reply });
/// assert_eq!(&bytes[consumed..], b"END\r\n");
/// ```
pub fn parse_reply<'a>(buffer: &'a [u8], limits: &Limits) -> ParsedReply<'a> {
    match line::first(buffer, limits.line_bytes_max) {
        FirstLine::Whole { line, consumed } => {
            step(buffer, line, consumed, limits).unwrap_or_else(|why| ParsedReply::Malformed { why })
        }
        FirstLine::Incomplete => ParsedReply::Incomplete { needed_bytes: buffer.len() + 1 },
        FirstLine::TooLong => ParsedReply::Malformed { why: "a line over the limit" },
    }
}

/// Reads an item off the front of `buffer` if it is the value of `key`, without a CAS unique: what the next item of a
/// get most often is. Nothing if it is anything else, or not whole: then [`parse_reply`] knows.
///
/// ```
/// use lookaside_protocol::{Reply, text::{Limits, parse_value_of}};
/// let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let bytes = b"VALUE user:1 0 5\r\nalice\r\nEND\r\n";
/// let reply = Reply::Value { flags: 0, cas: None, value: &b"alice"[..] };
/// assert_eq!(parse_value_of(b"user:1", bytes, &limits), Some((reply, 25)));
/// assert_eq!(parse_value_of(b"user:2", bytes, &limits), None);
/// ```
pub fn parse_value_of<'a>(key: &[u8], buffer: &'a [u8], limits: &Limits) -> Option<(Reply<&'a [u8]>, usize)> {
    let rest = buffer.strip_prefix(b"VALUE ")?.strip_prefix(key)?.strip_prefix(b" ")?;
    let (flags, rest) = line::leading_number(rest)?;
    let (value_bytes, rest) = line::leading_number(rest.strip_prefix(b" ")?)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    let line_bytes = buffer.len() - rest.len() - 1;
    let value_bytes = usize::try_from(value_bytes).ok().filter(|&bytes| bytes <= limits.value_bytes_max)?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    let rest = rest.strip_prefix(b"\r\n")?;
    let reply = Reply::Value { flags: u32::try_from(flags).ok()?, cas: None, value };
    (line_bytes <= limits.line_bytes_max).then_some((reply, buffer.len() - rest.len()))
}

type Step<'a> = Result<ParsedReply<'a>, &'static str>;

fn step<'a>(buffer: &'a [u8], line: &'a [u8], consumed: usize, limits: &Limits) -> Step<'a> {
    let (word, rest) = line.split_at(line::next_space(line));
    let block = Block { buffer, start: consumed, limits };
    let part = match word {
        b"VALUE" => return value(Tokens(rest), &block),
        b"LVALUE" => return lease_value(Tokens(rest), &block),
        b"END" => ReplyPart::End,
        b"STORED" => ReplyPart::Reply(Reply::Stored),
        b"STALE_STORED" => ReplyPart::Reply(Reply::StaleStored),
        b"NOT_STORED" => ReplyPart::Reply(Reply::NotStored),
        b"EXISTS" => ReplyPart::Reply(Reply::Exists),
        b"NOT_FOUND" => ReplyPart::Reply(Reply::NotFound),
        b"DELETED" => ReplyPart::Reply(Reply::Deleted),
        b"TOUCHED" => ReplyPart::Reply(Reply::Touched),
        b"OK" => ReplyPart::Reply(Reply::Ok),
        b"STAT" => stat(rest)?,
        b"VERSION" => ReplyPart::Version(rest.strip_prefix(b" ").unwrap_or(rest)),
        b"MN" => ReplyPart::MetaNoop,
        b"VA" => return meta_value(Tokens(rest), &block),
        _ => match meta::status_line(word, rest) {
            Some(reply) => ReplyPart::Reply(Reply::Meta(reply)),
            None => error_or_number(line)?,
        },
    };
    Ok(ParsedReply::Part { part, consumed })
}

fn error_or_number(line: &[u8]) -> Result<ReplyPart<'_>, &'static str> {
    let why = |prefix: &[u8]| line.strip_prefix(prefix).map(|why| why.strip_prefix(b" ").unwrap_or(why));
    let error = if line == b"ERROR" {
        ErrorReply::Unknown
    } else if let Some(why) = why(b"CLIENT_ERROR") {
        ErrorReply::Client(why)
    } else if let Some(why) = why(b"SERVER_ERROR").or_else(|| why(b"ERROR ")) {
        // `ERROR Too many open connections` is what memcached says to a connection it will not serve.
        ErrorReply::Server(why)
    } else {
        // memcached pads a decremented number with spaces.
        let number = line::unsigned(line.trim_ascii_end()).ok_or("a line that no server says")?;
        return Ok(ReplyPart::Reply(Reply::Number(number)));
    };
    Ok(ReplyPart::Reply(Reply::Error(error)))
}

fn stat(rest: &[u8]) -> Result<ReplyPart<'_>, &'static str> {
    let mut tokens = Tokens(rest);
    let name = tokens.token().ok_or("a statistic without a name")?;
    Ok(ReplyPart::Stat { name, value: tokens.0.strip_prefix(b" ").unwrap_or(tokens.0) })
}

fn value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Step<'a> {
    let key = key(&mut tokens)?;
    let flags = tokens.flags().ok_or("a VALUE without flags")?;
    let value_bytes = tokens.unsigned().ok_or("a VALUE without a length")?;
    let cas = match tokens.token() {
        None => None,
        Some(cas) => Some(Cas(line::unsigned(cas).ok_or("a CAS unique that is not a number")?)),
    };
    block.step(value_bytes, |value| ReplyPart::Item { key, reply: Reply::Value { flags, cas, value } })
}

fn lease_value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Step<'a> {
    let key = key(&mut tokens)?;
    let token = LeaseToken(tokens.unsigned().ok_or("an LVALUE without a token")?);
    let flags = tokens.flags().ok_or("an LVALUE without flags")?;
    let stale_bytes = tokens.unsigned().ok_or("an LVALUE without a length")?;
    block.step(stale_bytes, |stale| {
        let stale = (!stale.is_empty()).then_some(stale);
        ReplyPart::Item { key, reply: Reply::Lease { token, flags, stale } }
    })
}

fn meta_value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> Step<'a> {
    let value_bytes = tokens.unsigned().ok_or("a VA without a length")?;
    block.step(value_bytes, |value| ReplyPart::Reply(Reply::Meta(meta::value_line(tokens.0, value))))
}

fn key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    tokens.token().filter(|key| check_key(key).is_ok()).ok_or("an item without a valid key")
}

/// Where a data block is to be found.
struct Block<'a, 'l> {
    buffer: &'a [u8],
    /// Where the block begins: behind the line.
    start: usize,
    limits: &'l Limits,
}

impl<'a> Block<'a, '_> {
    fn step(&self, value_bytes: u64, with: impl FnOnce(&'a [u8]) -> ReplyPart<'a>) -> Step<'a> {
        let value_bytes = usize::try_from(value_bytes)
            .ok()
            .filter(|&bytes| bytes <= self.limits.value_bytes_max)
            .ok_or("a value over the limit")?;
        let consumed = self.start + value_bytes + 2;
        let Some(block) = self.buffer.get(self.start..consumed) else {
            return Ok(ParsedReply::Incomplete { needed_bytes: consumed });
        };
        let value = block.strip_suffix(b"\r\n").ok_or("a data block longer than its length")?;
        Ok(ParsedReply::Part { part: with(value), consumed })
    }
}
