//! Keys of any bytes, base64 on the wire (flag `b`).

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::KEY_BYTES_MAX;

/// Decodes a key into `buffer`; `None` if it is not base64, or empty.
///
/// ```
/// use lookaside_protocol::{KEY_BYTES_MAX, meta::decode_key};
/// let mut buffer = [0; KEY_BYTES_MAX];
/// assert_eq!(decode_key(b"AP8=", &mut buffer), Some(&b"\x00\xff"[..]));
/// assert_eq!(decode_key(b"AP8", &mut buffer), None);
/// ```
pub fn decode_key<'b>(wire: &[u8], buffer: &'b mut [u8; KEY_BYTES_MAX]) -> Option<&'b [u8]> {
    let key_bytes = BASE64_STANDARD.decode_slice(wire, buffer).ok()?;
    (key_bytes > 0).then_some(&buffer[..key_bytes])
}

/// Appends a key in its wire form for the flag `b`. A key of more than 186 bytes becomes too long for the wire.
pub fn encode_key(key: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + key.len().div_ceil(3) * 4, 0);
    let written = BASE64_STANDARD.encode_slice(key, &mut out[start..]).expect("four bytes for every three");
    out.truncate(start + written);
}
