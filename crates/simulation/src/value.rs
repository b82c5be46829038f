//! The values that applications cache: versions.

use bytes::Bytes;

pub(crate) fn version_of(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("applications cache versions only")
}

pub(crate) fn value_of(version: u64) -> Bytes {
    Bytes::from(version.to_string())
}
