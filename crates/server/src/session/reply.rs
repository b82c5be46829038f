//! Replies rendered straight from the item into the reply buffer: a hit is one copy.
//!
//! These are the bytes of memcached's `protocol.txt`, and `LVALUE` for leases (§3.2.1 of the paper; its layout is drawn
//! in `lookaside_protocol::lease`).

use lookaside_protocol::LeaseToken;
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

/// The numbers at the end of a line, each with a space in front, and the line end. Written backwards, in the order in
/// which digits are computed, so that one copy moves them all to the reply.
struct LineTail {
    bytes: [u8; TAIL_BYTES],
    from: usize,
}

/// Three numbers of up to 20 digits with their spaces, and the line end.
const TAIL_BYTES: usize = 3 * 21 + 2;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

impl LineTail {
    fn new() -> LineTail {
        let mut bytes = [0; TAIL_BYTES];
        bytes[TAIL_BYTES - 2..].copy_from_slice(b"\r\n");
        LineTail { bytes, from: TAIL_BYTES - 2 }
    }

    /// Puts a number in front of the present ones, two digits at a time.
    #[inline(always)]
    fn put(&mut self, mut number: u64) {
        while number >= 100 {
            self.push(&PAIRS[(number % 100) as usize]);
            number /= 100;
        }
        match number {
            0..10 => self.push(&[b' ', b'0' + number as u8]),
            _ => {
                self.push(&PAIRS[number as usize]);
                self.push(b" ");
            }
        }
    }

    #[inline]
    fn push<const COUNT: usize>(&mut self, bytes: &[u8; COUNT]) {
        self.from -= COUNT;
        self.bytes[self.from..][..COUNT].copy_from_slice(bytes);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_are_written_in_full() {
        let powers = (0..20).map(|exponent| 10u64.pow(exponent));
        for number in powers.flat_map(|power| [power - 1, power, power + 1]).chain([42, 105, u64::MAX]) {
            let mut tail = LineTail::new();
            [number, 7, number].into_iter().for_each(|number| tail.put(number));
            assert_eq!(String::from_utf8_lossy(tail.bytes()), format!(" {number} 7 {number}\r\n"));
        }
    }
}
