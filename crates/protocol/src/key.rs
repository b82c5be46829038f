//! Valid keys: 1 to 250 bytes, no white space, no control characters (memcached's `protocol.txt`, "Keys").

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// Why a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// A key has at least one byte.
    Empty,
    /// The key is longer than [`KEY_BYTES_MAX`].
    TooLong {
        /// Its length in bytes.
        key_bytes: usize,
    },
    /// White space or a control character.
    BadByte {
        /// The byte itself.
        byte: u8,
        /// Its index in the key.
        at: usize,
    },
}

impl std::error::Error for KeyError {}

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeyError::Empty => write!(f, "a key has at least one byte"),
            KeyError::TooLong { key_bytes } => {
                write!(f, "a key of {key_bytes} bytes is over the limit of {KEY_BYTES_MAX}")
            }
            KeyError::BadByte { byte, at } => {
                write!(f, "byte {byte:#04x} at index {at} cannot be in a key: no white space, no control characters")
            }
        }
    }
}

/// Checks that `key` can be sent to a server. Bytes above 0x7f are valid; 0x7f and those below 0x21 are not.
///
/// ```
/// use lookaside_protocol::{KeyError, check_key};
/// assert_eq!(check_key(b"user:42"), Ok(()));
/// assert_eq!(check_key(b"two words"), Err(KeyError::BadByte { byte: b' ', at: 3 }));
/// ```
pub fn check_key(key: &[u8]) -> Result<(), KeyError> {
    if key.is_empty() {
        return Err(KeyError::Empty);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(KeyError::TooLong { key_bytes: key.len() });
    }
    if !has_bad_byte(key) {
        return Ok(());
    }
    match key.iter().position(|&byte| is_bad(byte)) {
        Some(at) => Err(KeyError::BadByte { byte: key[at], at }),
        None => Ok(()),
    }
}

fn is_bad(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

/// Whether any byte is invalid, eight bytes per step; the last step may check some bytes again.
fn has_bad_byte(key: &[u8]) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let Some(last) = key.last_chunk::<8>() else { return key.iter().any(|&byte| is_bad(byte)) };
    let is_bad_word = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        // The subtraction sets a byte's high bit, if it was not set before, exactly where the byte is below what is
        // subtracted; a borrow can only add marks beside a true one.
        let below = word.wrapping_sub(LOW * 0x21) & !word;
        let delete = word ^ (LOW * 0x7f);
        (below | (delete.wrapping_sub(LOW) & !delete)) & HIGH != 0
    };
    key.chunks_exact(8).any(|word| is_bad_word(word.try_into().expect("eight bytes"))) || is_bad_word(last)
}

/// Whether a text is one or more keys separated by spaces: one pass over the bytes, and at most one search per key for
/// the lengths, so that the cost of a get of many keys is little more than that of its bytes.
#[inline]
pub(crate) fn are_keys(text: &[u8]) -> bool {
    // No early exit: vector steps over the whole text are faster than stopping at a bad byte, which is rare.
    let bad = text.iter().fold(false, |bad, &byte| bad | (byte < b' ') | (byte == 0x7f));
    !bad && text.iter().any(|&byte| byte != b' ') && no_key_too_long(text)
}

/// Whether every run without a space is short enough. Searches backwards from the end of the longest valid run, and so
/// steps over many keys at a time.
fn no_key_too_long(mut text: &[u8]) -> bool {
    while let Some(window) = text.get(..=KEY_BYTES_MAX) {
        match memchr::memrchr(b' ', window) {
            Some(space) => text = &text[space + 1..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_bytes_are_limited() {
        assert_eq!(check_key(b""), Err(KeyError::Empty));
        assert_eq!(check_key(&[b'k'; 250]), Ok(()));
        assert_eq!(check_key(&[b'k'; 251]), Err(KeyError::TooLong { key_bytes: 251 }));
        assert_eq!(check_key(b"a\x7f"), Err(KeyError::BadByte { byte: 0x7f, at: 1 }));
        assert_eq!(check_key("schlüssel".as_bytes()), Ok(()));
    }

    #[test]
    fn bad_byte_is_found_at_every_index_and_with_every_neighbour() {
        for length in 1..40 {
            for neighbour in [b'!', b'a', 0x7e, 0x80, 0xa0, 0xff] {
                let key = vec![neighbour; length];
                assert_eq!(check_key(&key), Ok(()));
                for (at, byte) in (0..length).flat_map(|at| [0, b' ', 0x7f, 0x1f, b'\n'].map(|byte| (at, byte))) {
                    let mut key = key.clone();
                    key[at] = byte;
                    assert_eq!(check_key(&key), Err(KeyError::BadByte { byte, at }), "length {length}, {neighbour:#x}");
                }
            }
        }
    }

    /// The fast check of a whole line agrees with `check_key` of each key.
    #[test]
    fn many_keys_are_checked_as_each_key_alone() {
        let long = "k".repeat(250);
        let texts = [
            String::new(),
            "   ".into(),
            "a".into(),
            " a  b ".into(),
            long.clone(),
            format!("{long}k"),
            format!("{long} {long} a {long}"),
            format!("{long} {long} a {long}k"),
            format!("a {long}k {long}"),
            format!("a b c {long} "),
            "a\tb".into(),
            "a\u{7f}".into(),
            "a\0 b".into(),
            "é ü".into(),
        ];
        for text in texts {
            let mut keys = text.split(' ').filter(|key| !key.is_empty()).peekable();
            let expected = keys.peek().is_some() && keys.all(|key| check_key(key.as_bytes()).is_ok());
            assert_eq!(are_keys(text.as_bytes()), expected, "{text:?}");
        }
    }
}
