//! What one line (and its data block) asks of a server: an operation on a key or on many, or something about the
//! server itself.

use crate::{Operation, Request};

/// A parsed command, borrowing from the connection's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// A get verb with its keys: `get`, `gets`, `gat`, `gats`, `lease-get`. The reply ends with `END`.
    Retrieve {
        /// At least one key; each has been checked.
        keys: Keys<'a>,
        /// The same for every key; one of `Get`, `GetAndTouch`, `LeaseGet`.
        operation: Operation<&'a [u8]>,
    },
    /// Any other operation on one key.
    Single {
        /// The key and what to do.
        request: Request<&'a [u8]>,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `mn`: answered with `MN`; a client that sends quiet commands learns from it that all are done.
    MetaNoop,
    /// `flush_all [delay]`
    FlushAll {
        /// Seconds from now (or a Unix time, as an exptime); 0 at once.
        delay_s: i64,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `stats [arguments]`
    Stats {
        /// All that follows the verb, without the line's end.
        arguments: &'a [u8],
    },
    /// `version`
    Version,
    /// `verbosity <level>`
    Verbosity {
        /// The level.
        level: u32,
        /// Whether the client wants no answer.
        noreply: bool,
    },
    /// `quit`
    Quit,
}

/// The keys of a get, still in the line they came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|&byte| byte != b' ')?;
        let rest = &self.0[start..];
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let (key, rest) = rest.split_at(end);
        self.0 = rest;
        Some(key)
    }
}
