//! The flags that are stored with a value: its format and its compression. Serves reads and writes of
//! [`TypedClient`](crate::TypedClient).
//!
//! The low bits are those of pymemcache, pylibmc and python-memcached; the bits from 16 on are this library's own.
//! `docs/clients.md` has the table for users of other clients.
//!
//! | flags | content | pymemcache and pylibmc read it as |
//! |---|---|---|
//! | 0 | bytes | bytes |
//! | 1 | a pickled Python object | the object |
//! | 2, 4 | a decimal integer; 2 is written | int |
//! | 8, with one of the others | the same, compressed by zlib | the same (pymemcache with a `CompressedSerde`) |
//! | 16 | UTF-8 text | str |
//! | 65,536 + 16 | JSON | str |
//! | 131,072 | MessagePack | bytes |
//! | 262,144 + 1 | no such row: a pickled `None` | None |
//! | 524,288, with one of the others | the same, compressed by zstd | not readable |
//! | 1,048,576, with one of the others | the same, compressed by lz4 | not readable |
//!
//! Any other combination is an error: a value that was not understood must not be taken for another one.

use super::DecodeError;
use std::fmt;

const PICKLE: u32 = 1 << 0;
const INTEGER: u32 = 1 << 1;
const LONG: u32 = 1 << 2;
const ZLIB: u32 = 1 << 3;
const TEXT: u32 = 1 << 4;
/// With [`TEXT`], so that clients that do not know it return the text.
const JSON: u32 = 1 << 16 | TEXT;
const MESSAGE_PACK: u32 = 1 << 17;
/// With [`PICKLE`], so that Python clients return `None`.
const ABSENT: u32 = 1 << 18 | PICKLE;
const ZSTD: u32 = 1 << 19;
const LZ4: u32 = 1 << 20;

/// What the bytes of a value are, once decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Bytes without a meaning to this library.
    Bytes,
    /// UTF-8 text.
    Text,
    /// A decimal integer, which `incr` and `decr` understand too.
    Integer,
    /// A pickled Python object. This library passes it on and does not interpret it.
    Pickle,
    /// JSON.
    Json,
    /// MessagePack.
    MessagePack,
    /// No such row: the loader found nothing.
    Absent,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Bytes => "bytes",
            Format::Text => "text",
            Format::Integer => "an integer",
            Format::Pickle => "a pickled Python object",
            Format::Json => "JSON",
            Format::MessagePack => "MessagePack",
            Format::Absent => "the mark of an absent row",
        })
    }
}

/// How a value is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// zlib, which pylibmc and pymemcache read, too. Slower, and larger results, than zstd.
    Zlib,
    /// zstd: the smallest values.
    Zstd,
    /// lz4, a block after its size (4 bytes, little-endian): the least processor time.
    Lz4,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Zlib => "zlib",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
        })
    }
}

/// The meaning of the flags of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueFlags {
    /// What the value is.
    pub format: Format,
    /// How it is compressed; `None` if it is not.
    pub compression: Option<Compression>,
}

impl ValueFlags {
    /// The flags to store with the value.
    pub fn bits(self) -> u32 {
        let format = match self.format {
            Format::Bytes => 0,
            Format::Text => TEXT,
            Format::Integer => INTEGER,
            Format::Pickle => PICKLE,
            Format::Json => JSON,
            Format::MessagePack => MESSAGE_PACK,
            Format::Absent => ABSENT,
        };
        let compression = match self.compression {
            None => 0,
            Some(Compression::Zlib) => ZLIB,
            Some(Compression::Zstd) => ZSTD,
            Some(Compression::Lz4) => LZ4,
        };
        format | compression
    }

    /// What `flags` mean. Unknown flags are an error.
    pub fn parse(flags: u32) -> Result<ValueFlags, DecodeError> {
        let compression = match flags & (ZLIB | ZSTD | LZ4) {
            0 => None,
            ZLIB => Some(Compression::Zlib),
            ZSTD => Some(Compression::Zstd),
            LZ4 => Some(Compression::Lz4),
            _ => return Err(DecodeError::UnknownFlags { flags }),
        };
        let format = match flags & !(ZLIB | ZSTD | LZ4) {
            0 => Format::Bytes,
            TEXT => Format::Text,
            INTEGER | LONG => Format::Integer,
            PICKLE => Format::Pickle,
            JSON => Format::Json,
            MESSAGE_PACK => Format::MessagePack,
            ABSENT => Format::Absent,
            _ => return Err(DecodeError::UnknownFlags { flags }),
        };
        Ok(ValueFlags { format, compression })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_python_clients_and_ours() {
        use Format::*;
        let plain = [(Bytes, 0), (Pickle, 1), (Integer, 2), (Text, 16), (Json, 65_552), (MessagePack, 131_072)];
        for (format, bits) in plain.into_iter().chain([(Absent, 262_145)]) {
            for (compression, added) in [
                (None, 0),
                (Some(Compression::Zlib), 8),
                (Some(Compression::Zstd), 524_288),
                (Some(Compression::Lz4), 1_048_576),
            ] {
                let flags = ValueFlags { format, compression };
                assert_eq!(flags.bits(), bits + added);
                assert_eq!(ValueFlags::parse(bits + added), Ok(flags));
            }
        }
        let integer = ValueFlags { format: Integer, compression: None };
        assert_eq!(ValueFlags::parse(4), Ok(integer), "pylibmc writes integers as long ones");
    }

    #[test]
    fn other_flags_are_refused() {
        for flags in [3, 5, 6, 17, 32, 64, 1 << 8, 1 << 15, 1 << 16, 1 << 18, 8 | 1 << 19, 3 << 19, 1 << 21, u32::MAX] {
            assert_eq!(ValueFlags::parse(flags), Err(DecodeError::UnknownFlags { flags }));
        }
    }
}
