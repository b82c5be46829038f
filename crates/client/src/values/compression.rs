//! Compresses values, and decompresses them up to a bound: a few bytes may decompress to gigabytes, and a value in a
//! cache may come from anywhere.
//!
//! Each algorithm is a cargo feature of its name. A value compressed by one that is not built in is an error.

use super::{Compression, DecodeError, EncodeError};
use bytes::Bytes;

/// zstd's own default: larger ones cost more time than a cache saves.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 3;

pub(super) fn compress(plain: &[u8], by: Compression) -> Result<Vec<u8>, EncodeError> {
    match by {
        #[cfg(feature = "zlib")]
        Compression::Zlib => {
            use std::io::Write;
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            let written = encoder.write_all(plain).and_then(|()| encoder.finish());
            written.map_err(|error| EncodeError::Failed { what: "zlib", why: error.to_string() })
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL)
            .map_err(|error| EncodeError::Failed { what: "zstd", why: error.to_string() }),
        #[cfg(feature = "lz4")]
        Compression::Lz4 => Ok(lz4_flex::block::compress_prepend_size(plain)),
        #[allow(unreachable_patterns, reason = "all features may be on")]
        by => {
            let _ = plain;
            Err(EncodeError::NotBuiltIn { feature: feature(by) })
        }
    }
}

/// Decompresses to at most `bytes_max`, and allocates no more than that.
pub(super) fn decompress(compressed: &[u8], by: Compression, bytes_max: usize) -> Result<Bytes, DecodeError> {
    match by {
        #[cfg(feature = "zlib")]
        Compression::Zlib => decompress_zlib(compressed, bytes_max),
        #[cfg(feature = "zstd")]
        Compression::Zstd => decompress_zstd(compressed, bytes_max),
        #[cfg(feature = "lz4")]
        Compression::Lz4 => decompress_lz4(compressed, bytes_max),
        #[allow(unreachable_patterns, reason = "all features may be on")]
        by => {
            let _ = (compressed, bytes_max);
            Err(DecodeError::NotBuiltIn { feature: feature(by) })
        }
    }
}

#[allow(dead_code, reason = "all features may be on")]
fn feature(by: Compression) -> &'static str {
    match by {
        Compression::Zlib => "zlib",
        Compression::Zstd => "zstd",
        Compression::Lz4 => "lz4",
    }
}

#[cfg(feature = "zlib")]
fn decompress_zlib(compressed: &[u8], bytes_max: usize) -> Result<Bytes, DecodeError> {
    use std::io::Read;
    let mut plain = Vec::new();
    let mut decoder = flate2::read::ZlibDecoder::new(compressed).take(bytes_max as u64 + 1);
    decoder.read_to_end(&mut plain).map_err(|error| DecodeError::Malformed { what: "zlib", why: error.to_string() })?;
    if plain.len() > bytes_max { Err(DecodeError::TooLarge { bytes_max }) } else { Ok(plain.into()) }
}

#[cfg(feature = "zstd")]
fn decompress_zstd(compressed: &[u8], bytes_max: usize) -> Result<Bytes, DecodeError> {
    let malformed = |why: String| DecodeError::Malformed { what: "zstd", why };
    // A frame that does not name its size may be from a streaming encoder. It gets as much as is allowed.
    let declared = zstd::zstd_safe::get_frame_content_size(compressed);
    let plain_bytes = declared.map_err(|_| malformed("it has no valid frame header".to_owned()))?;
    if plain_bytes.is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(DecodeError::TooLarge { bytes_max });
    }
    let capacity = plain_bytes.map_or(bytes_max, |bytes| bytes as usize);
    let plain = zstd::bulk::decompress(compressed, capacity).map_err(|error| malformed(error.to_string()))?;
    Ok(plain.into())
}

#[cfg(feature = "lz4")]
fn decompress_lz4(compressed: &[u8], bytes_max: usize) -> Result<Bytes, DecodeError> {
    let malformed = |why: String| DecodeError::Malformed { what: "lz4", why };
    let (plain_bytes, block) =
        lz4_flex::block::uncompressed_size(compressed).map_err(|error| malformed(error.to_string()))?;
    if plain_bytes > bytes_max {
        return Err(DecodeError::TooLarge { bytes_max });
    }
    let plain = lz4_flex::block::decompress(block, plain_bytes).map_err(|error| malformed(error.to_string()))?;
    Ok(plain.into())
}

#[cfg(all(test, feature = "zlib", feature = "zstd", feature = "lz4"))]
mod tests {
    use super::*;

    const ALL: [Compression; 3] = [Compression::Zlib, Compression::Zstd, Compression::Lz4];

    #[test]
    fn values_are_the_same_after_compression() {
        for by in ALL {
            for plain in [vec![], vec![7], vec![b'a'; 100_000], (0..50_000u32).map(|n| ((n * n) >> 3) as u8).collect()]
            {
                let compressed = compress(&plain, by).expect("compressed");
                let back = decompress(&compressed, by, plain.len()).expect("decompressed");
                assert_eq!(back, plain, "{by}, {} bytes", plain.len());
            }
        }
    }

    #[test]
    fn more_bytes_than_allowed_are_an_error() {
        let plain = vec![0; 10 << 20];
        for by in ALL {
            let bomb = compress(&plain, by).expect("compressed");
            assert!(bomb.len() < plain.len() / 200, "{by}: {} bytes", bomb.len());
            assert_eq!(decompress(&bomb, by, 1 << 20), Err(DecodeError::TooLarge { bytes_max: 1 << 20 }), "{by}");
        }
    }

    /// A header that claims little, in front of much.
    #[test]
    fn a_wrong_size_in_the_header_is_an_error() {
        let mut bomb = compress(&vec![0; 1 << 20], Compression::Lz4).expect("compressed");
        bomb[..4].copy_from_slice(&10u32.to_le_bytes());
        assert!(matches!(decompress(&bomb, Compression::Lz4, 1 << 20), Err(DecodeError::Malformed { .. })));
        bomb[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decompress(&bomb, Compression::Lz4, 99), Err(DecodeError::TooLarge { bytes_max: 99 }));
    }

    /// A stream's frame does not name its size.
    #[test]
    fn a_zstd_frame_without_a_size_is_bounded_too() {
        let stream = zstd::stream::encode_all(&vec![0; 1 << 20][..], 3).expect("compressed");
        assert_eq!(zstd::zstd_safe::get_frame_content_size(&stream).expect("a frame"), None);
        assert_eq!(decompress(&stream, Compression::Zstd, 1 << 20).expect("it fits").len(), 1 << 20);
        assert!(decompress(&stream, Compression::Zstd, (1 << 20) - 1).is_err());
    }

    #[test]
    fn bytes_that_are_not_compressed_are_an_error() {
        for by in ALL {
            for garbage in [&b""[..], b"x", b"hello, this was never compressed", &[255; 40]] {
                assert!(decompress(garbage, by, 1 << 20).is_err(), "{by} of {garbage:?}");
            }
        }
    }
}
