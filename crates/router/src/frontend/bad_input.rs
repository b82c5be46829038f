//! What clients see of text commands that cannot be executed, in mcrouter's words.
//!
//! | input | reply | connection |
//! |---|---|---|
//! | a key that is too long | `CLIENT_ERROR bad key`: a get has its other keys before; a data block is dropped | stays |
//! | `flush_regex` | `SERVER_ERROR Command not supported` | stays |
//! | a value over the limit; a wrong meta command, which mcrouter does not know | as memcached | stays |
//! | anything else | `CLIENT_ERROR malformed request` | closed; all behind it is dropped |
//!
//! A `metaget` with such a key is refused whole. Only lines that the parser has refused come here, so others cost
//! nothing. `stats` replies to unknown groups itself.

use lookaside_protocol::{KEY_BYTES_MAX, refusal};

pub(crate) const BAD_KEY: &str = "CLIENT_ERROR bad key";
pub(super) const MALFORMED: &str = "CLIENT_ERROR malformed request";
const NOT_SUPPORTED: &str = "SERVER_ERROR Command not supported";

/// A line that the parser has refused.
pub(super) struct RefusedLine<'a> {
    /// Without its end.
    pub(super) line: &'a [u8],
    /// The parser's reply, in memcached's words; `None` if the client wants none.
    pub(super) reply: Option<&'static str>,
    /// Whether a data block follows whose length is known, so that it can be dropped.
    pub(super) has_block: bool,
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadInput {
    /// This is the reply; `None` if the client wants none.
    Reply(Option<&'static str>),
    /// This get is executed, which is the line without the keys that are too long. Its reply ends with [`BAD_KEY`].
    GetOthers(Vec<u8>),
    /// The reply is [`MALFORMED`], and the connection is closed.
    Malformed,
}

impl RefusedLine<'_> {
    pub(super) fn classify(&self) -> BadInput {
        let words: Vec<&[u8]> = self.line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        let Some((&verb, arguments)) = words.split_first() else { return BadInput::Malformed };
        match verb {
            b"mg" | b"ms" | b"md" | b"ma" | b"me" | b"mn" => BadInput::Reply(self.reply),
            b"flush_regex" => BadInput::Reply(Some(NOT_SUPPORTED)),
            b"get" | b"gets" | b"lease-get" => get_others(&words, 1),
            b"gat" | b"gats" => get_others(&words, 2),
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"lease-set" => match self.reply {
                Some(refusal::TOO_LARGE) => BadInput::Reply(self.reply),
                _ if self.has_block && arguments.first().is_some_and(is_too_long) => self.bad_key(),
                _ => BadInput::Malformed,
            },
            b"metaget" if arguments.iter().any(is_too_long) => self.bad_key(),
            b"delete" | b"incr" | b"decr" | b"touch" if arguments.first().is_some_and(is_too_long) => self.bad_key(),
            _ => BadInput::Malformed,
        }
    }

    fn bad_key(&self) -> BadInput {
        BadInput::Reply(self.reply.map(|_| BAD_KEY))
    }
}

/// A get, whose keys begin at this word.
fn get_others(words: &[&[u8]], keys_at: usize) -> BadInput {
    let Some((beginning, keys)) = words.split_at_checked(keys_at) else { return BadInput::Malformed };
    if !keys.iter().any(is_too_long) {
        return BadInput::Malformed;
    }
    let others: Vec<&[u8]> = keys.iter().copied().filter(|key| !is_too_long(key)).collect();
    if others.is_empty() {
        return BadInput::Reply(Some(BAD_KEY));
    }
    let mut line = [beginning, &others].concat().join(&b' ');
    line.extend_from_slice(b"\r\n");
    BadInput::GetOthers(line)
}

fn is_too_long(key: &&[u8]) -> bool {
    key.len() > KEY_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(line: &str, has_block: bool) -> BadInput {
        RefusedLine { line: line.as_bytes(), reply: Some(refusal::BAD_FORMAT), has_block }.classify()
    }

    #[test]
    fn only_keys_that_are_too_long_leave_the_connection_open() {
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        for line in ["delete LONG", "incr LONG 1", "touch LONG 1", "get LONG", "gat 0 LONG LONG", "metaget a LONG"] {
            assert_eq!(classify(&line.replace("LONG", &long), false), BadInput::Reply(Some(BAD_KEY)), "{line}");
        }
        for line in ["set LONG 0 0 1", "lease-set LONG 2 0 0 1", "cas LONG 0 0 1 7"] {
            assert_eq!(classify(&line.replace("LONG", &long), true), BadInput::Reply(Some(BAD_KEY)), "{line}");
            assert_eq!(
                classify(&line.replace("LONG", &long), false),
                BadInput::Malformed,
                "{line}, of no known length"
            );
        }
        for line in ["", "get", "gat", "gat 0", "nonsense", "set k 0 0 x", "incr k", "statsfoo", "delete", "get a\x01"]
        {
            assert_eq!(classify(line, false), BadInput::Malformed, "{line}");
        }
    }

    #[test]
    fn a_get_has_its_other_keys() {
        let line = format!("gat 0 a {} b", "k".repeat(KEY_BYTES_MAX + 1));
        assert_eq!(classify(&line, false), BadInput::GetOthers(b"gat 0 a b\r\n".to_vec()));
    }

    #[test]
    fn a_client_that_wants_no_reply_gets_none_unless_it_is_disconnected() {
        let line = format!("delete {} noreply", "k".repeat(KEY_BYTES_MAX + 1));
        let refused = RefusedLine { line: line.as_bytes(), reply: None, has_block: false };
        assert_eq!(refused.classify(), BadInput::Reply(None));
        let refused = RefusedLine { line: b"incr k x noreply", ..refused };
        assert_eq!(refused.classify(), BadInput::Malformed);
    }
}
