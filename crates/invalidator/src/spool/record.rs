//! The format of segment files, and what can be read of a file that a crash has cut off. Sans-I/O.
//!
//! ```text
//!   segment   | "LKCOMIT" 1 | base | record | record | ...                                   all little endian
//!   record    | body bytes: u32 | CRC-32 of those four bytes and the body: u32 | body |
//!   body      | 1: base    | epoch: u64 | flags: u8 (1: origin, 2: orphan) | position | identity of the log | cause, of an orphan |
//!             | 2: commit  | microseconds since 1970: u64 | position | keys: u32 | bytes: u16, key | ... |
//!             | 3: advance | position |
//!             | 4: gap     | epoch: u64 | position | cause |
//!   text      | bytes: u32 | UTF-8 |                           positions, identities and causes
//! ```

use super::position::SpoolPosition;
use crate::{Commit, Position};
use bytes::{Buf, BufMut};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first bytes of a segment: a name and the version of the format.
pub(super) const HEADER: [u8; 8] = *b"LKCOMIT\x01";
/// Length and checksum.
const FRAME_BYTES: usize = 8;
/// The longest body. A commit of a source has 10,000 keys of 250 bytes at most.
const BODY_BYTES_MAX: usize = 8 << 20;

const KIND_BASE: u8 = 1;
const KIND_COMMIT: u8 = 2;
const KIND_ADVANCE: u8 = 3;
const KIND_GAP: u8 = 4;
const FLAG_ORIGIN: u8 = 1;
const FLAG_ORPHAN: u8 = 2;

/// The start of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// All records of the segment come after it, or are at this position.
    pub position: SpoolPosition,
    /// The log that the spool was read from.
    pub log_identity: String,
    /// Whether the spool began here, so that nothing at this position is missing.
    pub is_origin: bool,
    /// Why deletes before this position are lost for all clusters, of which no record tells yet (an orphan); `None` if
    /// they are not.
    pub loss: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Base(Base),
    /// A commit, at a position of the log.
    Commit(Commit),
    /// The log was read up to here.
    Advance(Position),
    /// The commits before this position, which begins an epoch, are lost.
    Gap {
        position: SpoolPosition,
        why: String,
    },
}

/// What the first bytes of a buffer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A record and its length.
    Record(Record, usize),
    /// The start of a record of this length.
    Incomplete(usize),
    Invalid,
}

/// Appends the record of a commit.
pub(super) fn encode_commit(commit: &Commit, out: &mut Vec<u8>) {
    encode_framed(out, |out| {
        out.put_u8(KIND_COMMIT);
        let since = commit.committed_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        out.put_u64_le(u64::try_from(since.as_micros()).unwrap_or(u64::MAX));
        put_text(&commit.position.0, out);
        out.put_u32_le(u32::try_from(commit.keys.len()).expect("a commit has few keys"));
        for key in &commit.keys {
            out.put_u16_le(u16::try_from(key.len()).expect("a valid key has 250 bytes at most"));
            out.put_slice(key);
        }
    });
}

pub(super) fn encode(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Commit(commit) => encode_commit(commit, out),
        Record::Base(base) => encode_framed(out, |out| {
            out.put_u8(KIND_BASE);
            out.put_u64_le(base.position.epoch);
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            out.put_u8(flag(base.is_origin, FLAG_ORIGIN) | flag(base.loss.is_some(), FLAG_ORPHAN));
            put_text(&base.position.position.0, out);
            put_text(&base.log_identity, out);
            base.loss.iter().for_each(|why| put_text(why, out));
        }),
        Record::Advance(position) => encode_framed(out, |out| {
            out.put_u8(KIND_ADVANCE);
            put_text(&position.0, out);
        }),
        Record::Gap { position, why } => encode_framed(out, |out| {
            out.put_u8(KIND_GAP);
            out.put_u64_le(position.epoch);
            put_text(&position.position.0, out);
            put_text(why, out);
        }),
    }
}

fn encode_framed(out: &mut Vec<u8>, put_body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_bytes(0, FRAME_BYTES);
    put_body(out);
    let length = out.len() - start - FRAME_BYTES;
    assert!(length <= BODY_BYTES_MAX, "a record of {length} bytes could not be read back");
    let body_bytes = (length as u32).to_le_bytes();
    let sum = checksum(body_bytes, &out[start + FRAME_BYTES..]);
    out[start..start + 4].copy_from_slice(&body_bytes);
    out[start + 4..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.put_u32_le(u32::try_from(text.len()).expect("a short text"));
    out.put_slice(text.as_bytes());
}

fn checksum(body_bytes: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&body_bytes);
    hasher.update(body);
    hasher.finalize()
}

/// The record at the start of `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Decoded {
    let Some((body_bytes, rest)) = bytes.split_first_chunk::<4>() else { return Decoded::Incomplete(FRAME_BYTES) };
    let length = u32::from_le_bytes(*body_bytes) as usize;
    if length == 0 || length > BODY_BYTES_MAX {
        return Decoded::Invalid;
    }
    let incomplete = Decoded::Incomplete(FRAME_BYTES + length);
    let Some((sum, rest)) = rest.split_first_chunk::<4>() else { return incomplete };
    let Some(body) = rest.get(..length) else { return incomplete };
    if checksum(*body_bytes, body) != u32::from_le_bytes(*sum) {
        return Decoded::Invalid;
    }
    parse_body(body).map_or(Decoded::Invalid, |record| Decoded::Record(record, FRAME_BYTES + length))
}

fn parse_body(mut body: &[u8]) -> Option<Record> {
    let record = match body.try_get_u8().ok()? {
        KIND_BASE => {
            let (epoch, flags) = (body.try_get_u64_le().ok()?, body.try_get_u8().ok()?);
            Record::Base(Base {
                position: SpoolPosition { epoch, position: Position(take_text(&mut body)?) },
                log_identity: take_text(&mut body)?,
                is_origin: flags & FLAG_ORIGIN != 0,
                loss: match flags & FLAG_ORPHAN {
                    0 => None,
                    // An earlier version wrote no cause.
                    _ if body.is_empty() => Some(String::new()),
                    _ => Some(take_text(&mut body)?),
                },
            })
        }
        KIND_COMMIT => {
            let committed_at = UNIX_EPOCH.checked_add(Duration::from_micros(body.try_get_u64_le().ok()?))?;
            Record::Commit(parse_commit(committed_at, &mut body)?)
        }
        KIND_ADVANCE => Record::Advance(Position(take_text(&mut body)?)),
        KIND_GAP => {
            let epoch = body.try_get_u64_le().ok()?;
            let position = SpoolPosition { epoch, position: Position(take_text(&mut body)?) };
            Record::Gap { position, why: take_text(&mut body)? }
        }
        _ => return None,
    };
    body.is_empty().then_some(record)
}

fn parse_commit(committed_at: SystemTime, body: &mut &[u8]) -> Option<Commit> {
    let position = Position(take_text(body)?);
    let count = body.try_get_u32_le().ok()?;
    let mut keys = Vec::new();
    for _ in 0..count {
        let key_bytes = body.try_get_u16_le().ok()?.into();
        keys.push(body.split_off(..key_bytes)?.to_vec());
    }
    Some(Commit { position, keys, committed_at })
}

fn take_text(body: &mut &[u8]) -> Option<String> {
    let bytes = body.try_get_u32_le().ok()? as usize;
    String::from_utf8(body.split_off(..bytes)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let position = || "[0-9A-F]{1,8}/[0-9A-F]{1,8}".prop_map(Position);
        let spooled =
            move || (any::<u64>(), position()).prop_map(|(epoch, position)| SpoolPosition { epoch, position });
        let keys = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..250), 0..20);
        prop_oneof![
            (spooled(), ".*", any::<bool>(), proptest::option::of(".*")).prop_map(
                |(position, log_identity, is_origin, loss)| {
                    Record::Base(Base { position, log_identity, is_origin, loss })
                }
            ),
            (position(), keys, 0..u64::MAX / 4_000).prop_map(|(position, keys, us)| {
                let committed_at = UNIX_EPOCH + Duration::from_micros(us);
                Record::Commit(Commit { position, keys, committed_at })
            }),
            position().prop_map(Record::Advance),
            (spooled(), ".*").prop_map(|(position, why)| Record::Gap { position, why }),
        ]
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding_wherever_the_bytes_end(record in any_record(), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            let length = bytes.len();
            prop_assert_eq!(decode(&bytes), Decoded::Record(record.clone(), length));
            let cut = cut.index(length);
            prop_assert!(matches!(decode(&bytes[..cut]), Decoded::Incomplete(needed) if needed <= length && needed > cut));
            bytes.extend_from_slice(b"next");
            prop_assert_eq!(decode(&bytes), Decoded::Record(record, length));
        }

        #[test]
        fn a_flipped_bit_is_detected(record in any_record(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let mut bytes = Vec::new();
            encode(&record, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(!matches!(decode(&bytes), Decoded::Record(..)));
        }

        #[test]
        fn no_input_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            decode(&bytes);
            parse_body(&bytes);
        }
    }
}
