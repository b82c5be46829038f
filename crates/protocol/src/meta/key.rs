//! Keys of any bytes, base64 on the wire: the flag `b`.

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::KEY_BYTES_MAX;

/// Decodes a key into `room`: what is stored for it. Nothing if it is no base64, or empty.
///
/// ```
/// use lookaside_protocol::{KEY_BYTES_MAX, meta::decode_key};
/// let mut room = [0; KEY_BYTES_MAX];
/// assert_eq!(decode_key(b"AP8=", &mut room), Some(&b"\x00\xff"[..]));
/// assert_eq!(decode_key(b"AP8", &mut room), None);
/// ```
pub fn decode_key<'r>(wire: &[u8], room: &'r mut [u8; KEY_BYTES_MAX]) -> Option<&'r [u8]> {
    let key_bytes = BASE64_STANDARD.decode_slice(wire, room).ok()?;
    (key_bytes > 0).then_some(&room[..key_bytes])
}

/// Appends a key as the flag `b` has it on the wire. What is longer than 186 bytes gets too long to be a key on the wire.
pub fn encode_key(key: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + key.len().div_ceil(3) * 4, 0);
    let written = BASE64_STANDARD.encode_slice(key, &mut out[start..]).expect("four bytes for every three");
    out.truncate(start + written);
}
