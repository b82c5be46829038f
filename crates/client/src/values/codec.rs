//! A codec: content to a value with flags, and back.

use super::{
    Compression, Content, DecodeError, EncodeError, Format, FromContent, ToContent, ValueFlags,
    compression::{compress, decompress},
};
use bytes::Bytes;

/// The default of [`Codec::decoded_bytes_max`]: as large as memcached allows an item to be configured on most hosts.
const DECODED_BYTES_MAX: usize = 64 << 20;

/// A value as a server stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The bytes.
    pub value: Bytes,
    /// What they are.
    pub flags: u32,
}

macro_rules! bytes_without_a_format {
    ($($bytes:ty),*) => {$(
        /// Bytes without a format.
        impl From<$bytes> for Encoded {
            fn from(value: $bytes) -> Encoded {
                Encoded { value: value.into(), flags: 0 }
            }
        }
    )*};
}

bytes_without_a_format!(Bytes, Vec<u8>, String, &'static str);

/// Encodes and decodes values. The default does not compress, and decompresses everything.
///
/// ```
/// use lookaside_client::{Codec, Compression};
/// # #[cfg(feature = "zstd")] {
/// let codec = Codec::default().with_compression(Compression::Zstd, 1_000);
/// let text = "All work and no play makes Jack a dull boy. ".repeat(100);
/// let encoded = codec.encode(&text)?;
/// assert!(encoded.value.len() < 200);
/// assert_eq!(codec.decode::<String>(encoded.value, encoded.flags)?, text);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    /// The compression, and the size from which on it is used; `None` if values are not compressed.
    compression: Option<(Compression, usize)>,
    decoded_bytes_max: usize,
}

impl Default for Codec {
    fn default() -> Codec {
        Codec { compression: None, decoded_bytes_max: DECODED_BYTES_MAX }
    }
}

impl Codec {
    /// Compresses values of at least `bytes_min` bytes, if they get smaller by it.
    pub fn with_compression(self, compression: Compression, bytes_min: usize) -> Codec {
        Codec { compression: Some((compression, bytes_min)), ..self }
    }

    /// Sets [`Codec::decoded_bytes_max`].
    pub fn with_decoded_bytes_max(self, decoded_bytes_max: usize) -> Codec {
        Codec { decoded_bytes_max, ..self }
    }

    /// The largest size to which a value may decompress. Default 64 MiB.
    pub fn decoded_bytes_max(&self) -> usize {
        self.decoded_bytes_max
    }

    /// The value to store.
    pub fn encode<T: ToContent + ?Sized>(&self, value: &T) -> Result<Encoded, EncodeError> {
        let Content { format, bytes } = value.to_content()?;
        if let Some((compression, bytes_min)) = self.compression
            && bytes.len() >= bytes_min
            && !matches!(format, Format::Integer | Format::Absent)
        {
            let compressed = compress(&bytes, compression)?;
            if compressed.len() < bytes.len() {
                let flags = ValueFlags { format, compression: Some(compression) };
                return Ok(Encoded { value: compressed.into(), flags: flags.bits() });
            }
        }
        Ok(Encoded { value: bytes, flags: ValueFlags { format, compression: None }.bits() })
    }

    /// The value that was stored.
    pub fn decode<T: FromContent>(&self, value: Bytes, flags: u32) -> Result<T, DecodeError> {
        let ValueFlags { format, compression } = ValueFlags::parse(flags)?;
        let bytes = match compression {
            None => value,
            Some(compression) => decompress(&value, compression, self.decoded_bytes_max)?,
        };
        T::from_content(Content { format, bytes })
    }
}

#[cfg(all(test, feature = "json", feature = "messagepack", feature = "zlib"))]
mod tests {
    use super::super::{Json, MessagePack};
    use super::*;
    use std::{collections::BTreeMap, fmt::Debug};

    #[track_caller]
    fn check<T: ToContent + FromContent + PartialEq + Debug>(value: T, bytes: &[u8], flags: u32) {
        let codec = Codec::default();
        let encoded = codec.encode(&value).expect("it can be stored");
        assert_eq!((&encoded.value[..], encoded.flags), (bytes, flags));
        assert_eq!(codec.decode::<T>(encoded.value, encoded.flags), Ok(value));
    }

    #[test]
    fn values_are_read_as_they_were_stored() {
        check(Bytes::from_static(b"\0\xff"), b"\0\xff", 0);
        check(vec![1u8, 2], b"\x01\x02", 0);
        check("grün".to_owned(), "grün".as_bytes(), 16);
        check(-5i64, b"-5", 2);
        check(u64::MAX, b"18446744073709551615", 2);
        check(Json(BTreeMap::from([("a", 1)].map(|(key, value)| (key.to_owned(), value)))), br#"{"a":1}"#, 65_552);
        check(MessagePack((1, "x".to_owned())), b"\x92\x01\xa1x", 131_072);
        check(Some(3i64), b"3", 2);
        check(None::<String>, b"\x80\x02N.", 262_145);
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct OldUser {
        name: String,
        removed: u32,
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct NewUser {
        #[serde(default)]
        is_admin: bool,
        name: String,
    }

    #[test]
    fn releases_of_an_application_read_each_others_structs() {
        let codec = Codec::default();
        let old = MessagePack(OldUser { name: "ada".to_owned(), removed: 1 });
        let Encoded { value, flags } = codec.encode(&old).expect("stored");
        let new: MessagePack<NewUser> = codec.decode(value, flags).expect("fields have names");
        assert_eq!(new.0, NewUser { is_admin: false, name: "ada".to_owned() });
        let Encoded { value, flags } = codec.encode(&new).expect("stored");
        assert!(matches!(
            codec.decode::<MessagePack<OldUser>>(value, flags),
            Err(DecodeError::Malformed { what: "MessagePack", why }) if why.contains("removed")
        ));
    }

    #[test]
    fn a_value_of_another_format_is_an_error() {
        let codec = Codec::default();
        let wrong = |expected, found| DecodeError::WrongFormat { expected, found };
        let value = Bytes::from_static(b"12");
        assert_eq!(codec.decode::<Bytes>(value.clone(), 16), Err(wrong(Format::Bytes, Format::Text)));
        assert_eq!(codec.decode::<String>(value.clone(), 2), Err(wrong(Format::Text, Format::Integer)));
        assert_eq!(codec.decode::<i64>(value.clone(), 1), Err(wrong(Format::Integer, Format::Pickle)));
        assert_eq!(codec.decode::<Json<u8>>(value.clone(), 131_072), Err(wrong(Format::Json, Format::MessagePack)));
        assert_eq!(codec.decode::<Bytes>(value.clone(), 262_145), Err(wrong(Format::Bytes, Format::Absent)));
        assert_eq!(codec.decode::<Bytes>(value.clone(), 32), Err(DecodeError::UnknownFlags { flags: 32 }));
        let longer = codec.decode::<MessagePack<u8>>(value.clone(), 131_072);
        assert!(matches!(longer, Err(DecodeError::Malformed { what: "MessagePack", .. })), "{longer:?}");
        assert_eq!(codec.decode::<String>(value.clone(), 0), Ok("12".to_owned()), "clients that set no flags");
        assert_eq!(codec.decode::<i64>(Bytes::from_static(b"9 "), 0), Ok(9), "after a decr");
        assert_eq!(codec.decode::<Json<u8>>(value, 16), Ok(Json(12)));
        let not_text = codec.decode::<String>(Bytes::from_static(b"\xff"), 16);
        assert!(matches!(not_text, Err(DecodeError::Malformed { what: "text", .. })), "{not_text:?}");
        let not_a_number = codec.decode::<i64>(Bytes::from_static(b"1x\r"), 2);
        let why = r#""1x\\r" is not one, or too large"#.to_owned();
        assert_eq!(not_a_number, Err(DecodeError::Malformed { what: "integer", why }));
    }

    #[test]
    fn only_large_values_that_get_smaller_are_compressed() {
        let codec = Codec::default().with_compression(Compression::Zlib, 100);
        let flags_of = |content: &dyn ToContent| codec.encode(content).expect("stored").flags;
        assert_eq!(flags_of(&"a".repeat(99)), 16);
        assert_eq!(flags_of(&"a".repeat(100)), 16 + 8);
        let mut random = fastrand::Rng::with_seed(1);
        let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1_000).collect();
        assert_eq!(flags_of(&noise), 0);
        let integer = Content { format: Format::Integer, bytes: "1".repeat(200).into() };
        assert_eq!(flags_of(&integer), 2);
    }

    /// Bytes that the Python clients wrote: see `tests/test_client_flags.py`.
    #[test]
    fn values_of_python_clients_are_read() {
        let codec = Codec::default();
        let compressed = compress("grün ".repeat(100).as_bytes(), Compression::Zlib).expect("compressed");
        assert_eq!(codec.decode::<String>(compressed.into(), 16 | 8), Ok("grün ".repeat(100)));
        assert_eq!(codec.decode::<i64>(Bytes::from_static(b"-7"), 4), Ok(-7), "pylibmc");
        assert_eq!(codec.decode::<i64>(Bytes::from_static(b"-7"), 2), Ok(-7), "pymemcache");
        let pickled = Bytes::from_static(b"\x80\x05\x88.");
        let content = codec.decode::<Content>(pickled.clone(), 1);
        assert_eq!(content, Ok(Content { format: Format::Pickle, bytes: pickled }));
    }
}
