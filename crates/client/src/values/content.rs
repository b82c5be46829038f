//! Types that can be values: how each becomes bytes with a [`Format`], and back.
//!
//! | type | is stored as | is read from |
//! |---|---|---|
//! | `Bytes`, `Vec<u8>` | bytes | bytes |
//! | `String`, `&str` | text | text; bytes that are UTF-8 |
//! | `i64`, `u64` | an integer | an integer; bytes or text that are decimal digits, as `incr` leaves them |
//! | [`Json<T>`] | JSON | JSON; text that is JSON |
//! | [`MessagePack<T>`] | MessagePack, structs as maps | MessagePack |
//! | `Option<T>` | `None` as the mark of an absent row, else as `T` | that mark as `None`, else as `T` |
//! | [`Content`] | as it is | anything |
//!
//! MessagePack and not postcard, which is smaller and faster: MessagePack describes itself. Two releases of an
//! application share a cache while one replaces the other. A struct that has got a field is then an error with postcard
//! if all goes well, and otherwise a wrong value; with MessagePack the names of the fields are stored, a new field may
//! have a default, and a removed one is ignored. Other languages read it without the Rust type.

use super::{DecodeError, EncodeError, Format};
use bytes::Bytes;
use std::str::FromStr;

/// `None` as Python pickles it with protocol 2, for [`Format::Absent`].
const PICKLED_NONE: &[u8] = b"\x80\x02N.";

/// A value before compression: bytes, and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What the bytes are.
    pub format: Format,
    /// The bytes.
    pub bytes: Bytes,
}

impl Content {
    /// The mark of an absent row.
    pub fn absent() -> Content {
        Content { format: Format::Absent, bytes: Bytes::from_static(PICKLED_NONE) }
    }

    fn wrong_format(&self, expected: Format) -> DecodeError {
        DecodeError::WrongFormat { expected, found: self.format }
    }
}

/// A type whose values can be stored.
pub trait ToContent {
    /// The value as bytes.
    fn to_content(&self) -> Result<Content, EncodeError>;
}

/// A type whose values can be read.
pub trait FromContent: Sized {
    /// The value that was stored as `content`.
    fn from_content(content: Content) -> Result<Self, DecodeError>;
}

/// A value that is stored as JSON. Feature `json`.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

/// A value that is stored as MessagePack, with the names of its fields. Feature `messagepack`.
#[cfg(feature = "messagepack")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePack<T>(pub T);

impl ToContent for Content {
    fn to_content(&self) -> Result<Content, EncodeError> {
        Ok(self.clone())
    }
}

impl FromContent for Content {
    fn from_content(content: Content) -> Result<Content, DecodeError> {
        Ok(content)
    }
}

impl ToContent for Bytes {
    fn to_content(&self) -> Result<Content, EncodeError> {
        Ok(Content { format: Format::Bytes, bytes: self.clone() })
    }
}

impl FromContent for Bytes {
    fn from_content(content: Content) -> Result<Bytes, DecodeError> {
        match content.format {
            Format::Bytes => Ok(content.bytes),
            _ => Err(content.wrong_format(Format::Bytes)),
        }
    }
}

impl ToContent for Vec<u8> {
    fn to_content(&self) -> Result<Content, EncodeError> {
        Ok(Content { format: Format::Bytes, bytes: Bytes::copy_from_slice(self) })
    }
}

impl FromContent for Vec<u8> {
    fn from_content(content: Content) -> Result<Vec<u8>, DecodeError> {
        Bytes::from_content(content).map(Vec::from)
    }
}

impl ToContent for str {
    fn to_content(&self) -> Result<Content, EncodeError> {
        Ok(Content { format: Format::Text, bytes: Bytes::copy_from_slice(self.as_bytes()) })
    }
}

impl ToContent for String {
    fn to_content(&self) -> Result<Content, EncodeError> {
        self.as_str().to_content()
    }
}

impl<T: ToContent + ?Sized> ToContent for &T {
    fn to_content(&self) -> Result<Content, EncodeError> {
        (**self).to_content()
    }
}

impl FromContent for String {
    fn from_content(content: Content) -> Result<String, DecodeError> {
        match content.format {
            Format::Text | Format::Bytes => String::from_utf8(content.bytes.into())
                .map_err(|error| DecodeError::Malformed { what: "text", why: error.utf8_error().to_string() }),
            _ => Err(content.wrong_format(Format::Text)),
        }
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl ToContent for $integer {
            fn to_content(&self) -> Result<Content, EncodeError> {
                Ok(Content { format: Format::Integer, bytes: self.to_string().into() })
            }
        }

        impl FromContent for $integer {
            fn from_content(content: Content) -> Result<$integer, DecodeError> {
                match content.format {
                    Format::Integer | Format::Bytes | Format::Text => parse_integer(&content.bytes),
                    _ => Err(content.wrong_format(Format::Integer)),
                }
            }
        }
    )*};
}

integers!(i64, u64);

/// memcached's `decr` leaves spaces behind a number that has got shorter.
fn parse_integer<T: FromStr>(digits: &[u8]) -> Result<T, DecodeError> {
    let malformed = || DecodeError::Malformed {
        what: "integer",
        why: format!("{:?} is not one, or too large", digits[..digits.len().min(40)].escape_ascii().to_string()),
    };
    let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
    digits.trim_end_matches(' ').parse().map_err(|_| malformed())
}

#[cfg(feature = "json")]
impl<T: serde::Serialize> ToContent for Json<T> {
    fn to_content(&self) -> Result<Content, EncodeError> {
        let json = serde_json::to_vec(&self.0)
            .map_err(|error| EncodeError::Failed { what: "JSON", why: error.to_string() })?;
        Ok(Content { format: Format::Json, bytes: json.into() })
    }
}

#[cfg(feature = "json")]
impl<T: serde::de::DeserializeOwned> FromContent for Json<T> {
    fn from_content(content: Content) -> Result<Json<T>, DecodeError> {
        match content.format {
            Format::Json | Format::Text => serde_json::from_slice(&content.bytes)
                .map(Json)
                .map_err(|error| DecodeError::Malformed { what: "JSON", why: error.to_string() }),
            _ => Err(content.wrong_format(Format::Json)),
        }
    }
}

#[cfg(feature = "messagepack")]
impl<T: serde::Serialize> ToContent for MessagePack<T> {
    fn to_content(&self) -> Result<Content, EncodeError> {
        let packed = rmp_serde::to_vec_named(&self.0)
            .map_err(|error| EncodeError::Failed { what: "MessagePack", why: error.to_string() })?;
        Ok(Content { format: Format::MessagePack, bytes: packed.into() })
    }
}

#[cfg(feature = "messagepack")]
impl<T: serde::de::DeserializeOwned> FromContent for MessagePack<T> {
    fn from_content(content: Content) -> Result<MessagePack<T>, DecodeError> {
        match content.format {
            Format::MessagePack => {
                let malformed = |why| DecodeError::Malformed { what: "MessagePack", why };
                let mut bytes = &content.bytes[..];
                let value = rmp_serde::from_read(&mut bytes).map_err(|error| malformed(error.to_string()))?;
                if bytes.is_empty() { Ok(MessagePack(value)) } else { Err(malformed("bytes follow it".to_owned())) }
            }
            _ => Err(content.wrong_format(Format::MessagePack)),
        }
    }
}

impl<T: ToContent> ToContent for Option<T> {
    fn to_content(&self) -> Result<Content, EncodeError> {
        self.as_ref().map_or_else(|| Ok(Content::absent()), T::to_content)
    }
}

impl<T: FromContent> FromContent for Option<T> {
    fn from_content(content: Content) -> Result<Option<T>, DecodeError> {
        match content.format {
            Format::Absent => Ok(None),
            _ => T::from_content(content).map(Some),
        }
    }
}
