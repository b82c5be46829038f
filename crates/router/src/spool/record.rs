//! The bytes of a spool's files: what is kept of a delete, and what can be told of a file that a crash or a disk has
//! damaged. Sans-I/O.
//!
//! ```text
//!   segment   | "LKSPOOL" 1 | record | record | ...
//!   record    | body bytes: u32 | CRC-32 of those four bytes and the body: u32 | body |          little endian
//!   body      | 1: delete | flags: u8 (1: the key is base64) | hold-off: u32, ms | key |
//!             | 2: forget |
//! ```
//!
//! A write that a crash cut short leaves a **torn tail**: nothing behind it is whole. Nobody was told that it was done
//! (but see `--spool-fsync`), so it is cut. What is bad with something whole behind it was **damaged** after it was
//! written: deletes are lost, and nobody knows which.

use bytes::Bytes;
use lookaside_protocol::meta::{MetaOperation, MetaVerb, meta_flags};
use lookaside_protocol::{Operation, Request};
use lookaside_routing::Verb;

/// How a segment begins: a name, and the version of the layout.
pub(super) const HEADER: [u8; 8] = *b"LKSPOOL\x01";
/// Length and checksum.
const FRAME_BYTES: usize = 8;
/// Kind, flags and hold-off.
const DELETE_BYTES: usize = 6;
/// Longer than any key, in base64 too.
const KEY_BYTES_MAX: usize = 1_024;
const BODY_BYTES_MAX: usize = DELETE_BYTES + KEY_BYTES_MAX;

const KIND_DELETE: u8 = 1;
const KIND_FORGET: u8 = 2;
const FLAG_BASE64: u8 = 1;

/// One thing that a server owes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A key to delete, whatever the conditions of the request were: for a cache that is always right.
    Delete(Deletion),
    /// All that the server holds is to be forgotten.
    Forget,
}

/// A delete that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    pub(super) key: Bytes,
    /// Whether the key is written in base64, as the meta dialect can.
    pub(super) is_base64: bool,
    pub(super) hold_off_ms: u32,
}

impl Deletion {
    /// What is kept of `request`, if it is a delete.
    pub(super) fn of(request: &Request<Bytes>) -> Option<Deletion> {
        if Verb::of(&request.operation) != Verb::Delete {
            return None;
        }
        let (is_base64, hold_off_ms) = match &request.operation {
            Operation::Delete { hold_off_ms } => (false, *hold_off_ms),
            Operation::Meta(meta) => (meta_flags(&meta.flags).any(|flag| flag.letter == b'b'), 0),
            _ => (false, 0),
        };
        // The key is a slice of a client's whole block, which need not wait with it.
        Some(Deletion { key: Bytes::copy_from_slice(&request.key), is_base64, hold_off_ms })
    }

    /// The request that is sent to the server.
    pub(super) fn request(&self) -> Request<Bytes> {
        let operation = match self.is_base64 {
            true => Operation::Meta(MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None }),
            false => Operation::Delete { hold_off_ms: self.hold_off_ms },
        };
        Request { key: self.key.clone(), operation }
    }

    /// How many bytes it takes in a segment.
    pub(super) fn bytes(&self) -> u64 {
        (FRAME_BYTES + DELETE_BYTES + self.key.len()) as u64
    }
}

/// Appends a record.
pub(super) fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    match record {
        Record::Delete(deletion) => {
            out.extend_from_slice(&[KIND_DELETE, if deletion.is_base64 { FLAG_BASE64 } else { 0 }]);
            out.extend_from_slice(&deletion.hold_off_ms.to_le_bytes());
            out.extend_from_slice(&deletion.key);
        }
        Record::Forget => out.push(KIND_FORGET),
    }
    let body_bytes = ((out.len() - start - FRAME_BYTES) as u32).to_le_bytes();
    let sum = checksum(body_bytes, &out[start + FRAME_BYTES..]);
    out[start..start + 4].copy_from_slice(&body_bytes);
    out[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(body_bytes: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&body_bytes);
    hasher.update(body);
    hasher.finalize()
}

/// The record at the front of `bytes`, and its length; nothing if there is no whole one.
fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
    let (body_bytes, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*body_bytes) as usize;
    if length == 0 || length > BODY_BYTES_MAX {
        return None;
    }
    let body = rest.get(..length)?;
    if checksum(*body_bytes, body) != u32::from_le_bytes(*sum) {
        return None;
    }
    let record = match body {
        [KIND_FORGET] => Record::Forget,
        [KIND_DELETE, flags, a, b, c, d, key @ ..] if !key.is_empty() => Record::Delete(Deletion {
            key: Bytes::copy_from_slice(key),
            is_base64: flags & FLAG_BASE64 != 0,
            hold_off_ms: u32::from_le_bytes([*a, *b, *c, *d]),
        }),
        _ => return None,
    };
    Some((record, FRAME_BYTES + length))
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) records: Vec<Record>,
    /// How far the segment is whole, from its start.
    pub(super) good_bytes: u64,
    pub(super) condition: Condition,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Whole,
    /// Bytes after `good_bytes` are what is left of a write that was never done.
    Torn,
    /// Records are lost that were whole once.
    Damaged,
    /// Written by a version that lays things out in another way.
    Newer(u8),
}

/// Reads a segment.
pub(super) fn scan(bytes: &[u8]) -> Scan {
    let Some(records) = bytes.strip_prefix(&HEADER[..]) else { return scan_headless(bytes) };
    let mut scan = Scan { records: Vec::new(), good_bytes: HEADER.len() as u64, condition: Condition::Whole };
    let mut rest = records;
    while let Some((record, length)) = decode(rest) {
        scan.records.push(record);
        scan.good_bytes += length as u64;
        rest = &rest[length..];
    }
    if !rest.is_empty() {
        scan.condition = if has_record(rest) { Condition::Damaged } else { Condition::Torn };
    }
    scan
}

/// A segment without the right header.
fn scan_headless(bytes: &[u8]) -> Scan {
    let condition = match bytes.split_first_chunk::<8>() {
        Some(([name @ .., version], _)) if *name == HEADER[..7] && *version > HEADER[7] => Condition::Newer(*version),
        Some((_, rest)) if has_record(rest) => Condition::Damaged,
        _ => Condition::Torn,
    };
    Scan { records: Vec::new(), good_bytes: 0, condition }
}

/// Whether a whole record begins anywhere in `bytes`.
fn has_record(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| decode(&bytes[at..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deletion(key: &str) -> Record {
        Record::Delete(Deletion { key: Bytes::copy_from_slice(key.as_bytes()), is_base64: false, hold_off_ms: 0 })
    }

    fn segment(records: &[Record]) -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        records.iter().for_each(|record| encode(record, &mut bytes));
        bytes
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let key = proptest::collection::vec(any::<u8>(), 1..400);
        prop_oneof![
            8 => (key, any::<bool>(), any::<u32>()).prop_map(|(key, is_base64, hold_off_ms)| {
                Record::Delete(Deletion { key: key.into(), is_base64, hold_off_ms })
            }),
            1 => Just(Record::Forget),
        ]
    }

    #[test]
    fn a_segment_torn_at_any_byte_keeps_all_that_is_whole() {
        let records = [deletion("a"), deletion("user:42"), Record::Forget, deletion("last")];
        let bytes = segment(&records);
        for length in 0..=bytes.len() {
            let found = scan(&bytes[..length]);
            let whole = (0..=records.len()).rev().find(|&count| segment(&records[..count]).len() <= length);
            assert_eq!(found.records, records[..whole.unwrap_or(0)], "{length}");
            let ends = whole.is_some_and(|count| segment(&records[..count]).len() == length);
            assert_eq!(found.condition, if ends { Condition::Whole } else { Condition::Torn }, "{length}");
        }
    }

    #[test]
    fn a_file_that_grew_without_its_bytes_is_torn() {
        let mut bytes = segment(&[deletion("a")]);
        bytes.extend([0; 4_096]);
        let found = scan(&bytes);
        assert_eq!((found.records.len(), found.condition), (1, Condition::Torn));
    }

    #[test]
    fn another_layout_is_known_for_what_it_is() {
        let mut bytes = segment(&[deletion("a")]);
        bytes[7] = 2;
        assert_eq!(scan(&bytes).condition, Condition::Newer(2));
    }

    #[test]
    fn only_what_matters_is_kept_of_a_delete() {
        let meta = |verb, flags: &'static str| Request {
            key: Bytes::from_static(b"k"),
            operation: Operation::Meta(MetaOperation { verb, flags: flags.into(), value: None }),
        };
        let kept = Deletion::of(&meta(MetaVerb::Delete, "I C77 b O5")).expect("a delete");
        assert!(kept.is_base64);
        assert_eq!(kept.request(), meta(MetaVerb::Delete, "b"), "unconditional");
        assert_eq!(Deletion::of(&meta(MetaVerb::Get, "v")), None);
        let delete = Request { key: Bytes::from_static(b"k"), operation: Operation::Delete { hold_off_ms: 2_000 } };
        assert_eq!(Deletion::of(&delete).expect("a delete").request(), delete);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(records in proptest::collection::vec(any_record(), 0..40)) {
            let bytes = segment(&records);
            let good_bytes = bytes.len() as u64;
            prop_assert_eq!(scan(&bytes), Scan { records, good_bytes, condition: Condition::Whole });
        }

        /// A flipped bit never changes a record: it is lost, and unless it was the last that is known.
        #[test]
        fn a_flipped_bit_is_noticed(
            records in proptest::collection::vec(any_record(), 2..20),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut bytes = segment(&records);
            let last = segment(&records[..records.len() - 1]).len();
            let at = at.index(last);
            bytes[at] ^= 1 << bit;
            let found = scan(&bytes);
            prop_assert_eq!(&found.records[..], &records[..found.records.len()]);
            prop_assert!(found.records.len() < records.len());
            let expected = matches!(found.condition, Condition::Damaged | Condition::Newer(_));
            prop_assert!(expected, "{:?}", found.condition);
        }

        #[test]
        fn nothing_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), with_header in any::<bool>()) {
            let bytes = if with_header { [&HEADER[..], &bytes].concat() } else { bytes };
            scan(&bytes);
        }
    }
}
