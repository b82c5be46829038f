//! The result of parsing a command, and the parts that all commands with one key share.

use crate::line::Tokens;
use crate::refusal;
use crate::{Command, Operation, Request, check_key};

/// The result of parsing a command at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole command yet.
    Incomplete {
        /// The buffer holds no whole command below this length, in bytes.
        needed_bytes: usize,
    },
    /// A command.
    Command {
        /// The command, borrowing from the buffer.
        command: Command<'a>,
        /// Bytes of the buffer that it took.
        consumed: usize,
    },
    /// A refused command.
    Bad {
        /// The reply, without its line end; `None` if the command had `noreply`.
        line: Option<&'static str>,
        /// Bytes of the buffer to drop now.
        consumed: usize,
        /// Further bytes to drop as they arrive (the data block of a refused store).
        swallow: usize,
        /// Why the connection must be closed once `line` is sent; `None` if it stays open. Then `consumed` covers the
        /// buffer: nothing behind the command may be executed.
        close: Option<CloseReason>,
        /// The key of a `set` that was refused for its size. Its old value must be deleted: otherwise readers would
        /// still get the value that the writer tried to replace.
        key_to_delete: Option<&'a [u8]>,
        /// It is a store that was refused for its size, whether or not it had `noreply`.
        is_too_large: bool,
    },
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client does not speak memcached's protocol (`text::foreign`).
    ForeignProtocol,
    /// A line is over its limit: the start of the next command is unknown.
    LineTooLong,
}

/// Refuses `buffer` as a whole, with `line` as the reply.
pub(super) fn close<'a>(reason: CloseReason, line: Option<&'static str>, buffer: &[u8]) -> Parsed<'a> {
    let consumed = buffer.len();
    Parsed::Bad { line, consumed, swallow: 0, close: Some(reason), key_to_delete: None, is_too_large: false }
}

pub(super) fn bad<'a>(line: &'static str, consumed: usize, swallow: usize, noreply: bool) -> Parsed<'a> {
    let line = (!noreply).then_some(line);
    Parsed::Bad { line, consumed, swallow, close: None, key_to_delete: None, is_too_large: false }
}

pub(super) fn parse_key<'a>(tokens: &mut Tokens<'a>) -> Result<&'a [u8], &'static str> {
    tokens.token().filter(|key| check_key(key).is_ok()).ok_or(refusal::BAD_FORMAT)
}

pub(super) fn single<'a>(key: &'a [u8], operation: Operation<&'a [u8]>, noreply: bool) -> Command<'a> {
    Command::Single { request: Request { key, operation }, noreply }
}
