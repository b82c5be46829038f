//! The events of a compressed transaction of MySQL (`binlog_transaction_compression`), decompressed one at a time: a
//! transaction of a million rows needs no more memory than its compressed bytes and its longest event.
//!
//! ```text
//! payload | type: n, length: n, value | ... | 0 | the events by zstd |      n: the protocol's length-encoded integers
//! ```
//!
//! Bounds: an event may have as many bytes as the header of the payload says for all of them, and memory is allocated
//! as they arrive, so that a false length costs nothing.

use super::cursor::{Cursor, Malformed};
use std::{
    fmt,
    io::{self, Read},
};

const READING: &str = "a compressed transaction";

/// Types of fields.
const END: usize = 0;
const ALGORITHM: usize = 2;
const LENGTH: usize = 3;

const ZSTD: u64 = 0;
const UNCOMPRESSED: u64 = 255;

const EVENT_HEADER_BYTES: usize = 19;
/// Where an event's header has its length.
const LENGTH_AT: usize = 9;

/// The events of a compressed transaction.
pub struct TransactionPayload {
    events: Box<dyn Read + Send>,
    /// The bytes of the events that have not been read yet.
    bytes_left: u64,
    event: Vec<u8>,
}

impl fmt::Debug for TransactionPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionPayload").field("bytes_left", &self.bytes_left).finish_non_exhaustive()
    }
}

impl TransactionPayload {
    /// Parses the header of a payload, and copies the rest: it is read between other work.
    pub fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(body, READING);
        let (mut algorithm, mut length) = (UNCOMPRESSED, None);
        loop {
            let field = cursor.length()?;
            if field == END {
                break;
            }
            let mut value = Cursor::new(cursor.bytes()?, READING);
            match field {
                ALGORITHM => algorithm = value.length()? as u64,
                LENGTH => length = Some(value.length()? as u64),
                _ => {}
            }
        }
        let compressed = cursor.rest().to_vec();
        let compressed_bytes = compressed.len() as u64;
        let compressed = io::Cursor::new(compressed);
        let (events, bytes_left): (Box<dyn Read + Send>, u64) = match algorithm {
            ZSTD => {
                let decoder = zstd::stream::read::Decoder::with_buffer(compressed).map_err(|_| Malformed(READING))?;
                (Box::new(decoder), length.ok_or(Malformed(READING))?)
            }
            UNCOMPRESSED => (Box::new(compressed), compressed_bytes),
            _ => return Err(Malformed("a transaction with an unsupported compression")),
        };
        Ok(TransactionPayload { events, bytes_left, event: Vec::new() })
    }

    /// The next event; `None` after the last one.
    pub fn next_event(&mut self) -> Result<Option<&[u8]>, Malformed> {
        self.event.clear();
        if self.bytes_left == 0 {
            return match self.read_bytes(1)? {
                0 => Ok(None),
                _ => Err(Malformed("a compressed transaction: it is longer than its header says")),
            };
        }
        self.read_bytes(EVENT_HEADER_BYTES as u64)?;
        let mut header = Cursor::new(&self.event, READING);
        header.read_slice(LENGTH_AT)?;
        let length = u64::from(header.u32()?);
        let rest = length.checked_sub(EVENT_HEADER_BYTES as u64).ok_or(Malformed("an event's length"))?;
        self.bytes_left = self.bytes_left.checked_sub(length).ok_or(Malformed("an event's length"))?;
        match self.read_bytes(rest)? as u64 == rest {
            true => Ok(Some(&self.event)),
            false => Err(Malformed(READING)),
        }
    }

    /// Appends up to `count` bytes to the event.
    fn read_bytes(&mut self, count: u64) -> Result<usize, Malformed> {
        self.events.by_ref().take(count).read_to_end(&mut self.event).map_err(|_| Malformed(READING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(body_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; EVENT_HEADER_BYTES + body_bytes];
        let length = u32::try_from(bytes.len()).expect("a short event");
        bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn payload(events: &[u8], length: u32) -> Vec<u8> {
        let mut body = vec![2, 1, 0, 3, 5, 0xfe];
        body[4] = 9;
        body.extend_from_slice(&u64::from(length).to_le_bytes());
        body.push(0);
        body.extend(zstd::bulk::compress(events, 3).expect("compressed"));
        body
    }

    fn lengths(body: &[u8]) -> Result<Vec<usize>, Malformed> {
        let mut payload = TransactionPayload::read(body)?;
        let mut lengths = Vec::new();
        while let Some(event) = payload.next_event()? {
            lengths.push(event.len());
        }
        Ok(lengths)
    }

    #[test]
    fn events_are_read_one_by_one() {
        let events = [event(0), event(1_000_000), event(7)].concat();
        assert_eq!(lengths(&payload(&events, events.len() as u32)), Ok(vec![19, 1_000_019, 26]));
        let plain = [&[2, 3, 0xfc, 255, 0, 0][..], &event(5)].concat();
        assert_eq!(lengths(&plain), Ok(vec![24]), "not compressed");
    }

    /// A payload of a few kilobytes may claim gigabytes, or hold them.
    #[test]
    fn false_lengths_are_refused() {
        let events = event(100);
        assert!(lengths(&payload(&events, 118)).is_err(), "longer than the header says");
        let two = [event(100), event(100)].concat();
        assert!(lengths(&payload(&two, 119)).is_err(), "longer than the header says by a whole event");
        assert!(lengths(&payload(&events, u32::MAX)).is_err(), "shorter");
        let mut too_long = event(0);
        too_long[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(lengths(&payload(&too_long, u32::MAX)).is_err(), "an event of 4 GiB");
        too_long[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&18_u32.to_le_bytes());
        assert!(lengths(&payload(&too_long, 19)).is_err(), "an event shorter than its header");
        let bomb = vec![0; 64 << 20];
        assert!(lengths(&payload(&bomb, 19)).is_err(), "64 MiB behind a length of 19 bytes");
        assert!(lengths(&[2, 1, 0, 0]).is_err(), "no length");
        assert!(lengths(&[2, 1, 9, 3, 1, 1, 0, 0]).is_err(), "an unknown compression");
    }
}
