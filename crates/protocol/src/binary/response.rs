//! Composes responses for servers, and parses them for clients.

use super::{HEADER_BYTES, RESPONSE_MAGIC, ResponseTag, Status};
use crate::Cas;
use crate::text::Limits;

const FLAGS_BYTES: usize = 4;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The request's opcode and opaque.
    pub tag: ResponseTag,
    /// The status.
    pub status: Status,
    /// The item's CAS unique; 0 for none.
    pub cas: Cas,
    /// The flags of a hit.
    pub extras: &'a [u8],
    /// The key, if the request wants it repeated; the name of a statistic.
    pub key: &'a [u8],
    /// The value, or the message of an error.
    pub value: &'a [u8],
}

/// The result of parsing a response at the front of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedResponse<'a> {
    /// Not a whole response yet.
    Incomplete {
        /// The buffer holds no whole response below this length, in bytes.
        needed_bytes: usize,
    },
    /// A response.
    Response {
        /// The response.
        response: Response<'a>,
        /// Bytes of the buffer that it took.
        consumed: usize,
    },
    /// Not a response, or one over the limits: the connection cannot be used any more.
    Bad,
}

/// Appends a response.
pub fn compose_response(response: &Response<'_>, out: &mut Vec<u8>) {
    let Response { tag, status, cas, extras, key, value } = *response;
    let body_bytes = extras.len() + key.len() + value.len();
    out.reserve(HEADER_BYTES + body_bytes);
    out.extend_from_slice(&header(tag, status, cas, key.len(), extras.len(), body_bytes));
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Appends the response of a request that failed or found no item, with memcached's message.
pub fn compose_error(tag: ResponseTag, status: Status, out: &mut Vec<u8>) {
    let value = status.message().as_bytes();
    compose_response(&Response { tag, status, cas: Cas(0), extras: b"", key: b"", value }, out);
}

/// Appends a hit's response without its value; the caller appends the `value_bytes`. `key` is empty unless it is
/// repeated.
#[inline]
pub fn compose_hit(tag: ResponseTag, cas: Cas, flags: u32, key: &[u8], value_bytes: usize, out: &mut Vec<u8>) {
    let body_bytes = FLAGS_BYTES + key.len() + value_bytes;
    out.reserve(HEADER_BYTES + body_bytes);
    out.extend_from_slice(&header(tag, Status::Success, cas, key.len(), FLAGS_BYTES, body_bytes));
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(key);
}

/// Appends the responses to `stat`: one for each line `STAT <name> <value>` of the text protocol's reply, and an
/// empty one at the end.
pub fn compose_statistics(tag: ResponseTag, text: &[u8], out: &mut Vec<u8>) {
    let statistic = |key, value| Response { tag, status: Status::Success, cas: Cas(0), extras: b"", key, value };
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(line) = line.strip_prefix(b"STAT ") else { continue };
        let name_bytes = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let value = line.get(name_bytes + 1..).unwrap_or_default();
        compose_response(&statistic(&line[..name_bytes], value), out);
    }
    compose_response(&statistic(b"", b""), out);
}

/// Parses one response at the front of `buffer`.
pub fn parse_response<'a>(buffer: &'a [u8], limits: &Limits) -> ParsedResponse<'a> {
    if buffer.first().is_some_and(|&magic| magic != RESPONSE_MAGIC) {
        return ParsedResponse::Bad;
    }
    let Some((header, _)) = buffer.split_first_chunk::<HEADER_BYTES>() else {
        return ParsedResponse::Incomplete { needed_bytes: HEADER_BYTES };
    };
    let [_, opcode, k0, k1, extras_bytes, _, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = *header;
    let (key_bytes, extras_bytes) = (usize::from(u16::from_be_bytes([k0, k1])), usize::from(extras_bytes));
    let body_bytes = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
    let Some(status) = Status::from_code(u16::from_be_bytes([s0, s1])) else { return ParsedResponse::Bad };
    match body_bytes.checked_sub(key_bytes + extras_bytes) {
        Some(value_bytes) if value_bytes <= limits.value_bytes_max => {}
        _ => return ParsedResponse::Bad,
    }
    let consumed = HEADER_BYTES + body_bytes;
    let Some(body) = buffer.get(HEADER_BYTES..consumed) else {
        return ParsedResponse::Incomplete { needed_bytes: consumed };
    };
    let (extras, rest) = body.split_at(extras_bytes);
    let (key, value) = rest.split_at(key_bytes);
    let tag = ResponseTag { opcode, opaque: u32::from_be_bytes([o0, o1, o2, o3]) };
    let response = Response { tag, status, cas: Cas(u64::from_be_bytes(cas)), extras, key, value };
    ParsedResponse::Response { response, consumed }
}

#[inline]
fn header(
    tag: ResponseTag,
    status: Status,
    cas: Cas,
    key_bytes: usize,
    extras_bytes: usize,
    body_bytes: usize,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = RESPONSE_MAGIC;
    header[1] = tag.opcode;
    header[2..4].copy_from_slice(&(key_bytes as u16).to_be_bytes());
    header[4] = extras_bytes as u8;
    header[6..8].copy_from_slice(&status.code().to_be_bytes());
    header[8..12].copy_from_slice(&(body_bytes as u32).to_be_bytes());
    header[12..16].copy_from_slice(&tag.opaque.to_be_bytes());
    header[16..24].copy_from_slice(&cas.0.to_be_bytes());
    header
}
