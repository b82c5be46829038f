//! The text dialect (memcached's `protocol.txt`): parse and compose, for both ends of a connection.

use crate::{Command, Reply, Request};

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
        /// What the sender is told, without the line's end.
        line: &'static str,
        /// How many bytes of the buffer to drop now.
        consumed: usize,
        /// How many bytes more to drop as they arrive (the data block of a refused store).
        swallow: usize,
        /// Whether nothing sensible can follow, so that the connection must end.
        close: bool,
    },
}

/// What a parser of requests refuses.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest value, in bytes (memcached's `-I`).
    pub value_bytes_max: usize,
    /// The longest command line, in bytes; a get of many keys may be this long.
    pub line_bytes_max: usize,
}

/// Reads one command off the front of `buffer`: text, lease and meta verbs. Allocates nothing.
pub fn parse_command<'a>(buffer: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let _ = (buffer, limits);
    todo!()
}

/// Appends `request` as a client sends it.
pub fn compose_request<B: AsRef<[u8]>>(request: &Request<B>, out: &mut Vec<u8>) {
    let _ = (request, out);
    todo!()
}

/// Appends the reply to `request` as a server sends it. For the get verbs the caller adds [`END`] after the last key.
pub fn compose_reply<B: AsRef<[u8]>>(key: &[u8], reply: &Reply<B>, out: &mut Vec<u8>) {
    let _ = (key, reply, out);
    todo!()
}

/// One step of an answer, as the client's end of a connection reads them. Needs no memory of what was asked: a get is
/// answered by items and an end, everything else by one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
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
pub enum ParsedAnswer<'a> {
    /// Not a whole step yet.
    Incomplete {
        /// The buffer must hold at least this many bytes before it is worth asking again.
        needed_bytes: usize,
    },
    /// One step.
    Answer {
        /// The step, borrowing from the buffer.
        answer: Answer<'a>,
        /// How many bytes of the buffer it took.
        consumed: usize,
    },
    /// No server says this: the connection cannot be trusted any more.
    Malformed {
        /// What was wrong with it.
        why: &'static str,
    },
}

/// Reads one step of an answer off the front of `buffer`.
pub fn parse_answer<'a>(buffer: &'a [u8], limits: &Limits) -> ParsedAnswer<'a> {
    let _ = (buffer, limits);
    todo!()
}

/// Ends the reply to a get of one or many keys.
pub const END: &[u8] = b"END\r\n";
