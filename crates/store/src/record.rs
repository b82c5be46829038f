//! An item's bytes in the log, and the header in front of them.
//!
//! ```text
//!  0        8        12       16           20        21    22            24                   32
//!  | cas    | expiry | flags  | value size | key size| bits| spare units | last access, or     | key | value | spare
//!  |        |        |        |            |         |     |             | end of the stale    |
//! ```
//! Every record starts at a multiple of [`UNIT_BYTES`] and is that many bytes long, spare included. Spare room is
//! left when a smaller value was written over a larger one.
//!
//! Absent: the tag. Whoever moves a record hashes its key again; that is rarer than storing one.

use crate::{Expiry, Now};

/// Records are laid out in units of this.
pub(crate) const UNIT_BYTES: usize = 8;
/// What every record carries in front of its key.
pub(crate) const HEADER_BYTES: usize = 32;

const BIT_DEAD: u8 = 1;
const BIT_STALE: u8 = 2;
const BIT_NEVER: u8 = 4;
const BIT_REFERENCED: u8 = 8;
const BIT_FETCHED: u8 = 16;

/// What a record is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A get may see it.
    Live {
        /// The Unix second of the last get, or of the store.
        last_access_s: u32,
    },
    /// Only a lease-get may see it, and only until then.
    Stale {
        /// Unix milliseconds.
        until_ms: u64,
    },
    /// Nothing refers to it: room to be reclaimed.
    Dead,
}

/// A record's header, decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub cas: u64,
    pub expiry: Expiry,
    pub flags: u32,
    pub value_bytes: u32,
    pub key_bytes: u8,
    pub spare_units: u16,
    pub state: State,
    /// Asked for since eviction last came by: it stays for another round.
    pub referenced: bool,
    pub fetched: bool,
}

/// The room that a key and a value need, in bytes.
pub(crate) fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(UNIT_BYTES)
}

impl Header {
    /// Reads the header at the front of `record`.
    pub fn decode(record: &[u8]) -> Header {
        let bits = record[21];
        Header {
            cas: u64_at(record, 0),
            expiry: match bits & BIT_NEVER {
                0 => Expiry::At { unix_s: u32_at(record, 8) },
                _ => Expiry::Never,
            },
            flags: u32_at(record, 12),
            value_bytes: u32_at(record, 16),
            key_bytes: record[20],
            spare_units: u16::from_le_bytes([record[22], record[23]]),
            state: match bits & (BIT_DEAD | BIT_STALE) {
                0 => State::Live { last_access_s: u32_at(record, 24) },
                BIT_STALE => State::Stale { until_ms: u64_at(record, 24) },
                _ => State::Dead,
            },
            referenced: bits & BIT_REFERENCED != 0,
            fetched: bits & BIT_FETCHED != 0,
        }
    }

    /// Writes the header to the front of `record`.
    pub fn encode(&self, record: &mut [u8]) {
        let (expiry_s, never) = match self.expiry {
            Expiry::At { unix_s } => (unix_s, 0),
            Expiry::Never => (0, BIT_NEVER),
        };
        let (tail, state) = match self.state {
            State::Live { last_access_s } => (u64::from(last_access_s), 0),
            State::Stale { until_ms } => (until_ms, BIT_STALE),
            State::Dead => (0, BIT_DEAD),
        };
        let referenced = if self.referenced { BIT_REFERENCED } else { 0 };
        let fetched = if self.fetched { BIT_FETCHED } else { 0 };
        record[0..8].copy_from_slice(&self.cas.to_le_bytes());
        record[8..12].copy_from_slice(&expiry_s.to_le_bytes());
        record[12..16].copy_from_slice(&self.flags.to_le_bytes());
        record[16..20].copy_from_slice(&self.value_bytes.to_le_bytes());
        record[20] = self.key_bytes;
        record[21] = never | state | referenced | fetched;
        record[22..24].copy_from_slice(&self.spare_units.to_le_bytes());
        record[24..32].copy_from_slice(&tail.to_le_bytes());
    }

    /// The whole record, spare included.
    pub fn record_bytes(&self) -> usize {
        self.tight_bytes() + usize::from(self.spare_units) * UNIT_BYTES
    }

    /// The record without its spare room.
    pub fn tight_bytes(&self) -> usize {
        record_bytes(usize::from(self.key_bytes), self.value_bytes as usize)
    }

    /// Whether nobody may see the record any more at `now`. A stale value is gone at the earlier of its two ends.
    pub fn is_past(&self, now: Now) -> bool {
        let stale_is_over = match self.state {
            State::Stale { until_ms } => until_ms <= now.unix_ms,
            State::Live { .. } | State::Dead => false,
        };
        stale_is_over || self.expiry.is_past(now)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut"))
}
