//! The format of segment files: how a delete is stored, and what can be recovered from a file that a crash or a disk
//! has damaged. Sans-I/O.
//!
//! ```text
//!   segment   | "LKSPOOL" 1 | record | record | ...
//!   record    | body bytes: u32 | CRC-32 of those four bytes and the body: u32 | body |          little endian
//!   body      | 1: delete | flags: u8 (1: the key is base64) | hold-off: u32, ms | key |
//!             | 2: flush the server |
//! ```
//!
//! A crash in the middle of a write leaves a **torn tail**: no valid record follows it. It was never acknowledged (but
//! see `--spool-fsync`), so it is cut off. An invalid part with a valid record behind it was **damaged** after it was
//! written: deletes are lost, and it is not known which. So was a record whose checksum is right and whose body has no
//! meaning here, such as a key that no server accepts: no crash writes it, and it must not be sent to a server, which
//! would take a line feed in it for the end of the command.

use bytes::Bytes;
use lookaside_protocol::meta::{MetaOperation, MetaVerb, meta_flags};
use lookaside_protocol::{Operation, Request, check_key};
use lookaside_routing::Verb;

/// The first bytes of a segment: a name and the version of the format.
pub(super) const HEADER: [u8; 8] = *b"LKSPOOL\x01";
/// Length and checksum.
const FRAME_BYTES: usize = 8;
/// Kind, flags and hold-off.
const DELETE_BYTES: usize = 6;
/// Longer than any key, in base64 too.
const KEY_BYTES_MAX: usize = 1_024;
const BODY_BYTES_MAX: usize = DELETE_BYTES + KEY_BYTES_MAX;

const KIND_DELETE: u8 = 1;
const KIND_FLUSH_ALL: u8 = 2;
const FLAG_BASE64: u8 = 1;

/// One entry of a backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A key to delete, whatever the conditions of the request were: deleting too much is safe for a cache.
    Delete(Deletion),
    /// The server is to be flushed (`flush_all`).
    FlushAll,
}

/// A spooled delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deletion {
    pub(super) key: Bytes,
    /// Whether the key is base64, as the meta protocol allows.
    pub(super) is_base64: bool,
    pub(super) hold_off_ms: u32,
}

impl Deletion {
    /// The part of `request` that is spooled. `None` if it is not a delete.
    pub(super) fn of(request: &Request<Bytes>) -> Option<Deletion> {
        if Verb::of(&request.operation) != Verb::Delete {
            return None;
        }
        let (is_base64, hold_off_ms) = match &request.operation {
            Operation::Delete { hold_off_ms } => (false, *hold_off_ms),
            Operation::Meta(meta) => (meta_flags(&meta.flags).any(|flag| flag.letter == b'b'), 0),
            _ => (false, 0),
        };
        // The key is a slice of a client's input buffer; a copy lets that buffer go.
        Some(Deletion { key: Bytes::copy_from_slice(&request.key), is_base64, hold_off_ms })
    }

    pub(super) fn request(&self) -> Request<Bytes> {
        let operation = match self.is_base64 {
            true => Operation::Meta(MetaOperation { verb: MetaVerb::Delete, flags: "b".into(), value: None }),
            false => Operation::Delete { hold_off_ms: self.hold_off_ms },
        };
        Request { key: self.key.clone(), operation }
    }

    /// Its size in a segment.
    pub(super) fn bytes(&self) -> u64 {
        (FRAME_BYTES + DELETE_BYTES + self.key.len()) as u64
    }
}

pub(super) fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    match record {
        Record::Delete(deletion) => {
            out.extend_from_slice(&[KIND_DELETE, if deletion.is_base64 { FLAG_BASE64 } else { 0 }]);
            out.extend_from_slice(&deletion.hold_off_ms.to_le_bytes());
            out.extend_from_slice(&deletion.key);
        }
        Record::FlushAll => out.push(KIND_FLUSH_ALL),
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

/// The body of the record at the start of `bytes`, and the record's length. `None` if there is none with a right
/// checksum.
fn decode_frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (body_bytes, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*body_bytes) as usize;
    if length == 0 || length > BODY_BYTES_MAX {
        return None;
    }
    let body = rest.get(..length)?;
    let is_valid = checksum(*body_bytes, body) == u32::from_le_bytes(*sum);
    is_valid.then_some((body, FRAME_BYTES + length))
}

/// `None` if the body has no meaning.
fn decode_body(body: &[u8]) -> Option<Record> {
    match body {
        [KIND_FLUSH_ALL] => Some(Record::FlushAll),
        [KIND_DELETE, flags, a, b, c, d, key @ ..] if check_key(key).is_ok() => Some(Record::Delete(Deletion {
            key: Bytes::copy_from_slice(key),
            is_base64: flags & FLAG_BASE64 != 0,
            hold_off_ms: u32::from_le_bytes([*a, *b, *c, *d]),
        })),
        _ => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scan {
    pub(super) records: Vec<Record>,
    /// The length of the valid part at the start.
    pub(super) valid_bytes: u64,
    pub(super) condition: Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Intact,
    /// The bytes after `valid_bytes` are from a write that was not finished.
    Torn,
    /// Records that were once valid are lost.
    Damaged,
    /// Written by a newer version, in this version of the format.
    Newer(u8),
}

pub(super) fn scan(bytes: &[u8]) -> Scan {
    let Some(records) = bytes.strip_prefix(&HEADER[..]) else { return scan_headless(bytes) };
    let mut scan = Scan { records: Vec::new(), valid_bytes: HEADER.len() as u64, condition: Condition::Intact };
    let mut rest = records;
    while let Some((body, length)) = decode_frame(rest) {
        let Some(record) = decode_body(body) else { return Scan { condition: Condition::Damaged, ..scan } };
        scan.records.push(record);
        scan.valid_bytes += length as u64;
        rest = &rest[length..];
    }
    if !rest.is_empty() {
        scan.condition = if has_record(rest) { Condition::Damaged } else { Condition::Torn };
    }
    scan
}

fn scan_headless(bytes: &[u8]) -> Scan {
    let condition = match bytes.split_first_chunk::<8>() {
        Some(([name @ .., version], _)) if *name == HEADER[..7] && *version > HEADER[7] => Condition::Newer(*version),
        Some((_, rest)) if has_record(rest) => Condition::Damaged,
        _ => Condition::Torn,
    };
    Scan { records: Vec::new(), valid_bytes: 0, condition }
}

/// Whether a valid record starts anywhere in `bytes`.
fn has_record(bytes: &[u8]) -> bool {
    (0..bytes.len()).any(|at| decode_frame(&bytes[at..]).is_some())
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
        let key = proptest::collection::vec(b'!'..=b'~', 1..250);
        prop_oneof![
            8 => (key, any::<bool>(), any::<u32>()).prop_map(|(key, is_base64, hold_off_ms)| {
                Record::Delete(Deletion { key: key.into(), is_base64, hold_off_ms })
            }),
            1 => Just(Record::FlushAll),
        ]
    }

    #[test]
    fn a_segment_torn_at_any_byte_keeps_all_complete_records() {
        let records = [deletion("a"), deletion("user:42"), Record::FlushAll, deletion("last")];
        let bytes = segment(&records);
        for length in 0..=bytes.len() {
            let found = scan(&bytes[..length]);
            let complete = (0..=records.len()).rev().find(|&count| segment(&records[..count]).len() <= length);
            assert_eq!(found.records, records[..complete.unwrap_or(0)], "{length}");
            let ends = complete.is_some_and(|count| segment(&records[..count]).len() == length);
            assert_eq!(found.condition, if ends { Condition::Intact } else { Condition::Torn }, "{length}");
        }
    }

    #[test]
    fn a_file_extended_by_zeros_is_torn() {
        let mut bytes = segment(&[deletion("a")]);
        bytes.extend([0; 4_096]);
        let found = scan(&bytes);
        assert_eq!((found.records.len(), found.condition), (1, Condition::Torn));
    }

    /// Such a record at the end was taken for a write that was not finished, and cut off; one in the middle was sent to
    /// the server, where its line feed began another command.
    #[test]
    fn a_record_with_a_right_checksum_and_no_meaning_is_damage() {
        let long = "x".repeat(251);
        for key in ["a b", "a\r\nflush_all", "", &long] {
            let bytes = segment(&[deletion("a"), deletion(key)]);
            let found = scan(&bytes);
            assert_eq!((found.records.len(), found.condition), (1, Condition::Damaged), "{key:?}");
        }
        let mut unknown = segment(&[deletion("a")]);
        let (body_bytes, body) = (1_u32.to_le_bytes(), [9]);
        unknown.extend([body_bytes, checksum(body_bytes, &body).to_le_bytes()].concat());
        unknown.extend(body);
        assert_eq!(scan(&unknown).condition, Condition::Damaged);
    }

    #[test]
    fn a_newer_format_is_recognized() {
        let mut bytes = segment(&[deletion("a")]);
        bytes[7] = 2;
        assert_eq!(scan(&bytes).condition, Condition::Newer(2));
    }

    #[test]
    fn a_spooled_delete_drops_conditions_and_options() {
        let meta = |verb, flags: &'static str| Request {
            key: Bytes::from_static(b"k"),
            operation: Operation::Meta(MetaOperation { verb, flags: flags.into(), value: None }),
        };
        let spooled = Deletion::of(&meta(MetaVerb::Delete, "I C77 b O5")).expect("a delete");
        assert!(spooled.is_base64);
        assert_eq!(spooled.request(), meta(MetaVerb::Delete, "b"), "unconditional");
        assert_eq!(Deletion::of(&meta(MetaVerb::Get, "v")), None);
        let delete = Request { key: Bytes::from_static(b"k"), operation: Operation::Delete { hold_off_ms: 2_000 } };
        assert_eq!(Deletion::of(&delete).expect("a delete").request(), delete);
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(records in proptest::collection::vec(any_record(), 0..40)) {
            let bytes = segment(&records);
            let valid_bytes = bytes.len() as u64;
            prop_assert_eq!(scan(&bytes), Scan { records, valid_bytes, condition: Condition::Intact });
        }

        /// A flipped bit never changes a record: the record is lost, and the loss is detected unless it was the last
        /// one.
        #[test]
        fn a_flipped_bit_is_detected(
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
        fn no_input_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), with_header in any::<bool>()) {
            let bytes = if with_header { [&HEADER[..], &bytes].concat() } else { bytes };
            scan(&bytes);
        }
    }
}
