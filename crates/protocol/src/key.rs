//! What may be a key: 1 to 250 bytes, no white space, no control characters (memcached's `protocol.txt`, "Keys").

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// Why some bytes cannot be a key.
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

/// Says whether `key` can be sent to a server. Bytes above 0x7f are fine; those below 0x21 and 0x7f are not.
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
    match key.iter().position(|&byte| byte <= b' ' || byte == 0x7f) {
        Some(at) => Err(KeyError::BadByte { byte: key[at], at }),
        None => Ok(()),
    }
}
