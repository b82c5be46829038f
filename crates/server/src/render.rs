//! Replies rendered straight from the item into the reply buffer: a hit is one copy.
//!
//! These are the bytes of memcached's `protocol.txt`, and `LVALUE` for leases (§3.2.1 of the paper; its layout is drawn
//! in `lookaside_protocol::lease`).

use lookaside_protocol::LeaseToken;
use lookaside_store::{ItemView, Value};

/// What `VALUE`, three numbers of up to 20 digits, spaces and line ends take beside key and value, in bytes.
const HEADER_BYTES_MAX: usize = 96;

/// Appends `VALUE <key> <flags> <bytes>[ <cas>]\r\n<data>\r\n`.
pub fn value(item: &ItemView<'_>, cas: bool, out: &mut Vec<u8>) {
    out.reserve(HEADER_BYTES_MAX + item.key.len() + item.value.value_bytes());
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(item.key);
    spaced_number(u64::from(item.flags), out);
    spaced_number(item.value.value_bytes() as u64, out);
    if cas {
        spaced_number(item.cas.0, out);
    }
    data(item.value, out);
}

/// Appends `LVALUE <key> <token> <flags> <bytes>\r\n<stale>\r\n`; without a stale value flags and bytes are 0.
pub fn lease(key: &[u8], token: LeaseToken, stale: Option<&ItemView<'_>>, out: &mut Vec<u8>) {
    let value = stale.map_or(Value::whole(b""), |item| item.value);
    out.reserve(HEADER_BYTES_MAX + key.len() + value.value_bytes());
    out.extend_from_slice(b"LVALUE ");
    out.extend_from_slice(key);
    spaced_number(token.0, out);
    spaced_number(stale.map_or(0, |item| u64::from(item.flags)), out);
    spaced_number(value.value_bytes() as u64, out);
    data(value, out);
}

/// Appends `line` and the line's end.
pub fn line(line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number on a line of its own.
pub fn number_line(number: u64, out: &mut Vec<u8>) {
    line(itoa::Buffer::new().format(number).as_bytes(), out);
}

fn spaced_number(number: u64, out: &mut Vec<u8>) {
    out.push(b' ');
    if number < 10 {
        out.push(b'0' + number as u8);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

fn data(value: Value<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
    for piece in value.pieces() {
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(b"\r\n");
}
