//! Commands: one line and its data block, with an operation on one key or many, or on the server itself.

use crate::{Operation, Request, key::are_keys, line::Tokens};

/// A parsed command, borrowing from the connection's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// A get verb with its keys: `get`, `gets`, `gat`, `gats`, `lease-get`. The reply ends with `END`.
    Retrieve {
        /// At least one key; all are valid.
        keys: Keys<'a>,
        /// The same for every key; one of `Get`, `GetAndTouch`, `LeaseGet`.
        operation: Operation<&'a [u8]>,
    },
    /// Any other operation on one key.
    Single {
        /// The key and the operation.
        request: Request<&'a [u8]>,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `mn`: the reply is `MN`, which tells a client that all its quiet commands before it are done.
    MetaNoop,
    /// `flush_all [delay]`
    FlushAll {
        /// Seconds from now (or a Unix time, as an exptime); 0 at once.
        delay_s: i64,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `stats [arguments]`
    Stats {
        /// The rest of the line after the verb, without its end.
        arguments: &'a [u8],
    },
    /// `version`
    Version,
    /// `verbosity <level>`
    Verbosity {
        /// The level.
        level: u32,
        /// Whether the client wants no reply.
        noreply: bool,
    },
    /// `quit`
    Quit,
}

/// The keys of a get, as a slice of its line.
#[derive(Clone, Copy)]
pub struct Keys<'a>(pub(crate) &'a [u8]);

impl<'a> Keys<'a> {
    /// The keys in a text: one or more, separated by spaces. `None` if any is invalid ([`crate::check_key`]).
    pub fn parse(text: &'a [u8]) -> Option<Keys<'a>> {
        are_keys(text).then_some(Keys(text))
    }

    /// The keys in a text that [`Keys::text`] has returned: it is not checked again.
    pub fn from_checked(text: &'a [u8]) -> Keys<'a> {
        debug_assert!(are_keys(text), "they were parsed as keys");
        Keys(text)
    }

    /// The remaining keys, with all spaces between them.
    pub fn text(&self) -> &'a [u8] {
        self.0
    }
}

/// Equal keys in the same order, whatever the number of spaces between them.
impl PartialEq for Keys<'_> {
    fn eq(&self, other: &Keys<'_>) -> bool {
        Iterator::eq(*self, *other)
    }
}

impl Eq for Keys<'_> {}

impl std::fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.map(|key| key.escape_ascii().to_string())).finish()
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut tokens = Tokens(self.0);
        let key = tokens.token();
        self.0 = tokens.0;
        key
    }
}
