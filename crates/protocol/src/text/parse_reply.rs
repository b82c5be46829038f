//! Parses replies, for clients.
//!
//! ```text
//! VALUE <key> <flags> <bytes> [<cas unique>]      then the data block; END after the last
//! LVALUE <key> <token> <flags> <bytes>            then the stale value; no bytes when there is none
//! STORED  NOT_FOUND  DELETED  ...                 one line for everything else
//! ```
//!
//! After a malformed line the connection cannot be used: the next reply cannot be found in bytes that may belong to a
//! value.

use super::limits::Limits;
use crate::line::{self, FirstLine, Tokens};
use crate::{Cas, ErrorReply, LeaseToken, Reply, check_key, meta};

/// One part of a reply. Parsing it needs no knowledge of the request: the reply to a get is items and an `END`, every
/// other reply is one line. An error in place of a get's items is the whole reply; no `END` follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart<'a> {
    /// `VALUE` or `LVALUE` with its data block: the result for one key of a get; more may follow before the `END`.
    Item {
        /// The key as the server sent it.
        key: &'a [u8],
        /// `Reply::Value` or `Reply::Lease`.
        reply: Reply<&'a [u8]>,
    },
    /// `END`: the get (or the statistics) is complete; keys without an item are misses.
    End,
    /// The whole reply to any other command, and errors.
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

/// The result of parsing a part of a reply at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedReply<'a> {
    /// Not a whole part yet.
    Incomplete {
        /// The buffer holds no whole part below this length, in bytes.
        needed_bytes: usize,
    },
    /// One part.
    Part {
        /// The part.
        part: ReplyPart<'a>,
        /// Bytes of the buffer that it took.
        consumed: usize,
    },
    /// Not a reply: the connection cannot be used any more.
    Malformed {
        /// The reason.
        why: &'static str,
    },
}

/// Parses one part of a reply at the front of `buffer`.
///
/// ```
/// use lookaside_protocol::{Reply, text::{Limits, ParsedReply, ReplyPart, parse_reply}};
/// let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let bytes = b"VALUE user:1 0 5\r\nalice\r\nEND\r\n";
/// let ParsedReply::Part { part, consumed } = parse_reply(bytes, &limits) else { panic!("a part") };
/// let reply = Reply::Value { flags: 0, cas: None, value: &b"alice"[..] };
/// assert_eq!(part, ReplyPart::Item { key: b"user:1", reply });
/// assert_eq!(&bytes[consumed..], b"END\r\n");
/// ```
pub fn parse_reply<'a>(buffer: &'a [u8], limits: &Limits) -> ParsedReply<'a> {
    match line::split_first_line(buffer, limits.line_bytes_max) {
        FirstLine::Whole { line, consumed } => {
            parse_part(buffer, line, consumed, limits).unwrap_or_else(|why| ParsedReply::Malformed { why })
        }
        FirstLine::Incomplete => ParsedReply::Incomplete { needed_bytes: buffer.len() + 1 },
        FirstLine::TooLong => ParsedReply::Malformed { why: "a line over the limit" },
    }
}

/// Parses an item at the front of `buffer` if it is the value of `key`, without a CAS unique, as the next item of a get
/// usually is. `None` if it is anything else, or incomplete: then use [`parse_reply`].
///
/// ```
/// use lookaside_protocol::{Reply, text::{Limits, parse_value_of}};
/// let limits = Limits { value_bytes_max: 1 << 20, line_bytes_max: 8192 };
/// let bytes = b"VALUE user:1 0 5\r\nalice\r\nEND\r\n";
/// let reply = Reply::Value { flags: 0, cas: None, value: &b"alice"[..] };
/// assert_eq!(parse_value_of(b"user:1", bytes, &limits), Some((reply, 25)));
/// assert_eq!(parse_value_of(b"user:2", bytes, &limits), None);
/// ```
#[inline]
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

type PartResult<'a> = Result<ParsedReply<'a>, &'static str>;

fn parse_part<'a>(buffer: &'a [u8], line: &'a [u8], consumed: usize, limits: &Limits) -> PartResult<'a> {
    let (word, rest) = line.split_at(line::next_space(line));
    let block = Block { buffer, start: consumed, limits };
    let part = match word {
        b"VALUE" => return parse_value(Tokens(rest), &block),
        b"LVALUE" => return parse_lease_value(Tokens(rest), &block),
        b"END" => ReplyPart::End,
        b"STORED" => ReplyPart::Reply(Reply::Stored),
        b"STALE_STORED" => ReplyPart::Reply(Reply::StaleStored),
        b"NOT_STORED" => ReplyPart::Reply(Reply::NotStored),
        b"EXISTS" => ReplyPart::Reply(Reply::Exists),
        b"NOT_FOUND" => ReplyPart::Reply(Reply::NotFound),
        b"DELETED" => ReplyPart::Reply(Reply::Deleted),
        b"TOUCHED" => ReplyPart::Reply(Reply::Touched),
        b"OK" if rest.is_empty() => ReplyPart::Reply(Reply::Ok),
        b"STAT" => parse_stat(rest)?,
        b"VERSION" => ReplyPart::Version(rest.strip_prefix(b" ").unwrap_or(rest)),
        b"MN" => ReplyPart::MetaNoop,
        b"VA" => return parse_meta_value(Tokens(rest), &block),
        _ => match meta::parse_status_line(word, rest) {
            Some(reply) => ReplyPart::Reply(Reply::Meta(reply)),
            None => parse_error_or_number(line)?,
        },
    };
    Ok(ParsedReply::Part { part, consumed })
}

fn parse_error_or_number(line: &[u8]) -> Result<ReplyPart<'_>, &'static str> {
    let why = |prefix: &[u8]| line.strip_prefix(prefix).map(|why| why.strip_prefix(b" ").unwrap_or(why));
    let error = if line == b"ERROR" {
        ErrorReply::Unknown
    } else if let Some(why) = why(b"CLIENT_ERROR") {
        ErrorReply::Client(why)
    } else if let Some(why) = why(b"SERVER_ERROR").or_else(|| why(b"ERROR ")) {
        // memcached replies `ERROR Too many open connections` to a connection that it refuses.
        ErrorReply::Server(why)
    } else {
        // memcached pads a decremented number with spaces.
        let number = line::unsigned(line.trim_ascii_end()).ok_or("not a reply")?;
        return Ok(ReplyPart::Reply(Reply::Number(number)));
    };
    Ok(ReplyPart::Reply(Reply::Error(error)))
}

fn parse_stat(rest: &[u8]) -> Result<ReplyPart<'_>, &'static str> {
    let mut tokens = Tokens(rest);
    let name = tokens.token().ok_or("a statistic without a name")?;
    Ok(ReplyPart::Stat { name, value: tokens.0.strip_prefix(b" ").unwrap_or(tokens.0) })
}

fn parse_value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> PartResult<'a> {
    let key = parse_key(&mut tokens)?;
    let flags = tokens.flags().ok_or("a VALUE without flags")?;
    let value_bytes = tokens.unsigned().ok_or("a VALUE without a length")?;
    let cas = match tokens.token() {
        None => None,
        Some(cas) => Some(Cas(line::unsigned(cas).ok_or("a CAS unique that is not a number")?)),
    };
    block.parse(value_bytes, |value| ReplyPart::Item { key, reply: Reply::Value { flags, cas, value } })
}

fn parse_lease_value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> PartResult<'a> {
    let key = parse_key(&mut tokens)?;
    let token = LeaseToken(tokens.unsigned().ok_or("an LVALUE without a token")?);
    let flags = tokens.flags().ok_or("an LVALUE without flags")?;
    let stale_bytes = tokens.unsigned().ok_or("an LVALUE without a length")?;
    block.parse(stale_bytes, |stale| {
        let stale = (!stale.is_empty()).then_some(stale);
        ReplyPart::Item { key, reply: Reply::Lease { token, flags, stale } }
    })
}

fn parse_meta_value<'a>(mut tokens: Tokens<'a>, block: &Block<'a, '_>) -> PartResult<'a> {
    let value_bytes = tokens.unsigned().ok_or("a VA without a length")?;
    block.parse(value_bytes, |value| ReplyPart::Reply(Reply::Meta(meta::parse_value_line(tokens.0, value))))
}

fn parse_key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    tokens.token().filter(|key| check_key(key).is_ok()).ok_or("an item without a valid key")
}

struct Block<'a, 'l> {
    buffer: &'a [u8],
    /// The start of the block: the end of the line.
    start: usize,
    limits: &'l Limits,
}

impl<'a> Block<'a, '_> {
    /// The part with its value, once the block is complete.
    fn parse(&self, value_bytes: u64, part: impl FnOnce(&'a [u8]) -> ReplyPart<'a>) -> PartResult<'a> {
        let value_bytes = usize::try_from(value_bytes)
            .ok()
            .filter(|&bytes| bytes <= self.limits.value_bytes_max)
            .ok_or("a value over the limit")?;
        let consumed = self.start + value_bytes + 2;
        let Some(block) = self.buffer.get(self.start..consumed) else {
            return Ok(ParsedReply::Incomplete { needed_bytes: consumed });
        };
        let value = block.strip_suffix(b"\r\n").ok_or("a data block longer than its length")?;
        Ok(ParsedReply::Part { part: part(value), consumed })
    }
}
