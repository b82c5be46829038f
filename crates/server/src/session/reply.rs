//! Replies rendered straight from the item into the reply buffer: a hit is one copy.
//!
//! These are the bytes of memcached's `protocol.txt`, and `LVALUE` for leases (§3.2.1 of the paper; its layout is drawn
//! in `lookaside_protocol::lease`).

use lookaside_protocol::{LeaseToken, text::LineTail};
use lookaside_store::{ItemView, Value};

pub(crate) const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(crate) const OUT_OF_MEMORY_ARITHMETIC: &str = "SERVER_ERROR out of memory";
pub(crate) const NOT_A_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Appends `VALUE <key> <flags> <bytes>[ <cas>]\r\n<data>\r\n`. Returns the length of the data.
#[inline]
pub fn write_value(item: &ItemView<'_>, cas: bool, out: &mut Vec<u8>) -> usize {
    let mut tail = LineTail::new();
    if cas {
        tail.put(item.cas.0);
    }
    let value_bytes = item.value.value_bytes();
    tail.put(value_bytes as u64);
    tail.put(u64::from(item.flags));
    write_block(b"VALUE ", item.key, &tail, item.value, out);
    value_bytes
}

/// Appends `LVALUE <key> <token> <flags> <bytes>\r\n<stale>\r\n`; without a stale value flags and bytes are 0.
pub fn write_lease(key: &[u8], token: LeaseToken, stale: Option<&ItemView<'_>>, out: &mut Vec<u8>) {
    let value = stale.map_or(Value::whole(b""), |item| item.value);
    let mut tail = LineTail::new();
    tail.put(value.value_bytes() as u64);
    tail.put(stale.map_or(0, |item| u64::from(item.flags)));
    tail.put(token.0);
    write_block(b"LVALUE ", key, &tail, value, out);
}

/// Appends `line` and the line end.
pub fn write_line(line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line with a number.
pub fn write_number_line(number: u64, out: &mut Vec<u8>) {
    write_line(itoa::Buffer::new().format(number).as_bytes(), out);
}

/// Appends a line and a value.
#[inline(always)]
fn write_block(verb: &[u8], key: &[u8], tail: &LineTail, value: Value<'_>, out: &mut Vec<u8>) {
    let tail = tail.bytes();
    out.reserve(verb.len() + key.len() + tail.len() + value.value_bytes() + 2);
    out.extend_from_slice(verb);
    out.extend_from_slice(key);
    out.extend_from_slice(tail);
    value.append_to(out);
    out.extend_from_slice(b"\r\n");
}
