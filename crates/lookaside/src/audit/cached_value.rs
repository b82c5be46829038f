//! What a cached value says, whichever of the project's clients has written it.
//!
//! Its flags tell the format and the compression ([`ValueFlags`](lookaside_client::ValueFlags)); those of pymemcache,
//! pylibmc and python-memcached are among them. A value with other flags is of a client that this audit does not know.
//! It is read without its flags if the query's `flags` says so. A pickle is never read: that would run what is in it.

use super::queries::FlagsMeaning;
use bytes::Bytes;
use lookaside_client::{Codec, Content, DecodeError, Format, FromContent as _, MessagePack};
use serde_json::Value;

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedValue {
    /// Text or bytes, which may be JSON.
    Text(Bytes),
    /// JSON or MessagePack, as the flags say.
    Document(Value),
    /// The mark of an absent row.
    Absent,
    /// It cannot be decoded.
    Unreadable,
}

impl CachedValue {
    /// Decodes a value that was stored with `flags`.
    pub fn decode(value: Bytes, flags: u32, meaning: FlagsMeaning) -> CachedValue {
        match meaning {
            FlagsMeaning::Ignored => CachedValue::Text(value),
            FlagsMeaning::Clients => decode(value, flags).unwrap_or(CachedValue::Unreadable),
        }
    }

    /// The value as JSON; `None` if it is none.
    pub fn to_document(&self) -> Option<Value> {
        match self {
            CachedValue::Text(text) => serde_json::from_slice(text).ok(),
            CachedValue::Document(document) => Some(document.clone()),
            CachedValue::Absent | CachedValue::Unreadable => None,
        }
    }

    /// The bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        match self {
            CachedValue::Text(text) => text.len(),
            CachedValue::Document(document) => document_bytes(document),
            CachedValue::Absent | CachedValue::Unreadable => 0,
        }
    }
}

fn document_bytes(document: &Value) -> usize {
    size_of::<Value>()
        + match document {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(document_bytes).sum(),
            Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + document_bytes(value)).sum(),
        }
}

fn decode(value: Bytes, flags: u32) -> Result<CachedValue, DecodeError> {
    let content: Content = Codec::default().decode(value, flags)?;
    Ok(match content.format {
        Format::Bytes | Format::Text => CachedValue::Text(content.bytes),
        Format::Integer => {
            // `decr` leaves spaces behind a number that has become shorter.
            let number = content.bytes.trim_ascii_end();
            let digits = number.strip_prefix(b"-").unwrap_or(number);
            match !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
                true => CachedValue::Text(content.bytes.slice(..number.len())),
                false => CachedValue::Unreadable,
            }
        }
        Format::Json => serde_json::from_slice(&content.bytes).map_or(CachedValue::Unreadable, CachedValue::Document),
        Format::MessagePack => CachedValue::Document(MessagePack::from_content(content)?.0),
        Format::Absent => CachedValue::Absent,
        Format::Pickle => CachedValue::Unreadable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_client::{Compression, Encoded, Json, ToContent};
    use serde_json::json;

    fn read(value: &'static [u8], flags: u32) -> CachedValue {
        CachedValue::decode(Bytes::from_static(value), flags, FlagsMeaning::Clients)
    }

    fn read_compressed(content: &dyn ToContent, compression: Compression) -> CachedValue {
        let Encoded { value, flags } =
            Codec::default().with_compression(compression, 1).encode(content).expect("valid");
        assert_ne!(flags & !(16 | 65_536 | 131_072), 0, "it is compressed");
        CachedValue::decode(value, flags, FlagsMeaning::Clients)
    }

    #[test]
    fn values_of_the_projects_clients_are_read() {
        let text = "the same words again. ".repeat(20);
        let document = json!({ "name": text, "visits": 7, "email": null });
        for compression in [Compression::Zlib, Compression::Zstd, Compression::Lz4] {
            assert_eq!(read_compressed(&text, compression), CachedValue::Text(text.clone().into()));
            for found in
                [read_compressed(&Json(&document), compression), read_compressed(&MessagePack(&document), compression)]
            {
                assert_eq!(found, CachedValue::Document(document.clone()), "{compression}");
            }
        }
        assert!(CachedValue::Document(document).bytes() > text.len());
        assert_eq!(read(b"-5", 2), CachedValue::Text(Bytes::from_static(b"-5")));
        assert_eq!(read(b"9  ", 2), CachedValue::Text(Bytes::from_static(b"9")), "after a decr");
        assert_eq!(read(b"\x80\x02N.", 262_145), CachedValue::Absent);
    }

    #[test]
    fn what_is_not_understood_is_no_value() {
        // A pickle; flags of another client; text that is no number, as a client may compress that has the flag 2 for
        // it.
        for (value, flags) in [(&b"\x80\x05\x88."[..], 1), (b"x", 32), (b"x\x9c", 2), (b"", 2), (b"-", 2), (b"1-2", 2)]
        {
            assert_eq!(read(value, flags), CachedValue::Unreadable, "{value:?}");
        }
        for (value, flags) in [(&b"not JSON"[..], 65_552), (b"\xc1", 131_072), (b"not zlib", 16 | 8)] {
            assert_eq!(read(value, flags), CachedValue::Unreadable, "{value:?}");
        }
        let ignored = CachedValue::decode(Bytes::from_static(b"x"), 32, FlagsMeaning::Ignored);
        assert_eq!(ignored, CachedValue::Text(Bytes::from_static(b"x")));
    }
}
