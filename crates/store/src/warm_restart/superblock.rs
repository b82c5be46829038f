//! The last 4 KiB of a shared region: its name, its layout, and whether its contents can be trusted (§6.4 of the
//! paper). Found from the size of the segment alone, so that a build with another format finds it too.
//!
//! ```text
//! region:      | page 0 | page 1 | ... | state area (snapshot.rs) | superblock |
//!
//! superblock:   0 magic      8 format     16 layout           24 mark
//!              32 bytes of memory (-m)    40 words of state   48 checksum of the state
//!              56 time saved 64 items     72 bytes of name    80 checksum of all this but the mark, and of the name
//!             128 name, in words, padded with zeros
//! ```
//! While a process uses the region the mark is DIRTY. It is CLEAN from the end of a save until the next process has
//! restored the region; it is written last, so a process that reads CLEAN can read all else.

use super::name::RegionName;
use crate::memory::chunk::{
    self, CHAIN_BYTES, ChunkKind, EXTENSION_BYTES, FLAGS_BYTES, HEADER_BYTES, Header, Parts, Usage,
};
use crate::memory::geometry::{Geometry, TIMER_BLOCK_BYTES};
use crate::memory::handle::{CHUNK_BITS, PAGE_BITS};
use crate::memory::index::{self, BUCKET_BYTES};
use crate::memory::region::Region;
use crate::memory::transient::ENTRY_BYTES;
use crate::stripe::timer_wheel::WHEEL_S;
use crate::{KeyHasher, Now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
/// To be raised when the layout of a region, or of its state, changes in a way that [`format_fingerprint`] does not
/// cover.
pub(crate) const FORMAT: u64 = 2;

const MAGIC: u64 = u64::from_be_bytes(*b"lookside");
const DIRTY: u64 = u64::from_be_bytes(*b"  dirty ");
const CLEAN: u64 = u64::from_be_bytes(*b"  clean ");

const FIELDS: usize = 11;
const MARK: usize = 3;
const CHECKSUM: usize = 10;
const NAME_AT: usize = 128;
const WORD_BYTES: usize = size_of::<u64>();

/// The description of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub format: u64,
    pub layout: u64,
    pub memory_bytes: u64,
    pub state_words: u64,
    pub state_checksum: u64,
    pub saved_at_ms: u64,
    pub items: u64,
    pub name: String,
}

/// Why a segment has no valid superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is all zeros: the segment was created and not initialized.
    Blank,
    /// The magic number is missing.
    Foreign,
    /// The magic number is there, but the checksum is wrong.
    Damaged,
}

impl Superblock {
    /// The superblock of a new region.
    pub fn new(name: &RegionName, layout: u64, memory_bytes: usize) -> Superblock {
        let memory_bytes = memory_bytes as u64;
        let name = name.as_str().to_string();
        Superblock {
            format: FORMAT,
            layout,
            memory_bytes,
            state_words: 0,
            state_checksum: 0,
            saved_at_ms: 0,
            items: 0,
            name,
        }
    }

    /// Reads the superblock of a region, and whether it is marked as clean.
    pub fn read(region: &Region) -> Result<(Superblock, bool), Unreadable> {
        let offset = superblock_offset(region).ok_or(Unreadable::Foreign)?;
        let word = |at: usize| region.long_word(offset + at).load(Relaxed);
        let is_clean = region.long_word(offset + MARK * WORD_BYTES).load(Acquire) == CLEAN;
        if word(0) != MAGIC {
            let is_blank = (0..SUPERBLOCK_BYTES).step_by(WORD_BYTES).all(|at| word(at) == 0);
            return Err(if is_blank { Unreadable::Blank } else { Unreadable::Foreign });
        }
        let field = |place: usize| word(place * WORD_BYTES);
        let name_bytes = usize::try_from(field(9)).ok().filter(|&bytes| bytes <= RegionName::BYTES_MAX);
        let name_words = (0..name_bytes.ok_or(Unreadable::Damaged)?).step_by(WORD_BYTES).map(|at| word(NAME_AT + at));
        let mut name: Vec<u8> = name_words.flat_map(u64::to_ne_bytes).collect();
        name.truncate(field(9) as usize);
        let superblock = Superblock {
            format: field(1),
            layout: field(2),
            memory_bytes: field(4),
            state_words: field(5),
            state_checksum: field(6),
            saved_at_ms: field(7),
            items: field(8),
            name: String::from_utf8(name).map_err(|_| Unreadable::Damaged)?,
        };
        match superblock.checksum() == field(CHECKSUM) {
            true => Ok((superblock, is_clean)),
            false => Err(Unreadable::Damaged),
        }
    }

    /// Writes all but the mark, which must be DIRTY meanwhile.
    pub fn write(&self, region: &Region) {
        let offset = superblock_offset(region).expect("a region that was made has a tail");
        let mut fields = self.fields();
        fields[CHECKSUM] = self.checksum();
        for (place, field) in fields.into_iter().enumerate().filter(|&(place, _)| place != MARK) {
            region.long_word(offset + place * WORD_BYTES).store(field, Relaxed);
        }
        for (place, chunk) in self.name.as_bytes().chunks(WORD_BYTES).enumerate() {
            let mut word = [0; WORD_BYTES];
            word[..chunk.len()].copy_from_slice(chunk);
            region.long_word(offset + NAME_AT + place * WORD_BYTES).store(u64::from_ne_bytes(word), Relaxed);
        }
    }

    fn fields(&self) -> [u64; FIELDS] {
        let Superblock { format, layout, memory_bytes, state_words, state_checksum, saved_at_ms, items, .. } = *self;
        let name_bytes = self.name.len() as u64;
        let (mark, checksum) = (0, 0);
        [
            MAGIC,
            format,
            layout,
            mark,
            memory_bytes,
            state_words,
            state_checksum,
            saved_at_ms,
            items,
            name_bytes,
            checksum,
        ]
    }

    fn checksum(&self) -> u64 {
        let fields = self.fields().into_iter().flat_map(u64::to_ne_bytes);
        checksum(fields.chain(self.name.bytes()))
    }
}

/// Marks the region as used by a process.
pub(crate) fn mark_dirty(region: &Region) {
    set_mark(region, DIRTY);
}

/// Marks the region as saved.
pub(crate) fn mark_clean(region: &Region) {
    set_mark(region, CLEAN);
}

fn set_mark(region: &Region, mark: u64) {
    let offset = superblock_offset(region).expect("a region that was made has a tail");
    region.long_word(offset + MARK * WORD_BYTES).store(mark, Release);
}

/// The offset of the superblock; `None` if the region is too small or does not end at a word boundary.
fn superblock_offset(region: &Region) -> Option<usize> {
    let offset = region.region_bytes().checked_sub(SUPERBLOCK_BYTES)?;
    offset.is_multiple_of(WORD_BYTES).then_some(offset)
}

/// Detects accidental changes, not deliberate ones.
pub(crate) fn checksum(bytes: impl Iterator<Item = u8>) -> u64 {
    rapidhash::v3::rapidhash_v3(&bytes.collect::<Vec<u8>>())
}

/// A fingerprint of the layout: differs between builds, or options, that would not find each other's items.
pub(crate) fn layout(geometry: &Geometry) -> u64 {
    let Geometry { page_bytes, pages, stripe_bits, chunk_bytes, tail_bytes, .. } = geometry;
    let sizes = [*page_bytes, *pages, *stripe_bits as usize, *tail_bytes];
    let sizes = sizes.iter().chain(chunk_bytes).flat_map(|size| size.to_ne_bytes());
    checksum(format_fingerprint().into_iter().flat_map(u64::to_ne_bytes).chain(sizes))
}

/// How this build lays out chunks and buckets, whatever the options: its constants, a header that it encodes, and the
/// buckets of a key.
fn format_fingerprint() -> Vec<u64> {
    let constants = [
        size_of::<usize>(),
        HEADER_BYTES,
        FLAGS_BYTES,
        EXTENSION_BYTES,
        CHAIN_BYTES,
        BUCKET_BYTES,
        PAGE_BITS as usize,
        CHUNK_BITS as usize,
        TIMER_BLOCK_BYTES,
        WHEEL_S as usize,
        ENTRY_BYTES,
    ];
    let usage = Usage::new(0xa5, ChunkKind::Head, 2, Now { unix_ms: 1_700_000_000_123 }).with_fetched();
    let shape = chunk::shape(0x5a, 0x1234, Parts { has_flags: true, is_extended: true, is_chained: true });
    let stale = Header { sequence: 1, expiry_s: 2, shape, usage }.into_stale(1_700_000_000_456);
    let header = [shape, usage.0, stale.sequence, stale.expiry_s, stale.shape, stale.usage.0, stale.key_at() as u32];
    let key = KeyHasher::new(0x0123_4567_89ab_cdef).hash(b"a key to probe with");
    let places = index::bucket_hashes(key, 8).map(|place| place as u64);
    let key = [key.hash(), key.tag().into(), key.stripe(8) as u64];
    constants
        .map(|constant| constant as u64)
        .into_iter()
        .chain(header.map(u64::from))
        .chain(key)
        .chain(places)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warm_restart::snapshot;
    use crate::{Options, Store};

    /// A build with another layout of items or index must not restore a region of this one. If this fails, the layout
    /// has changed: write the new number here, and raise FORMAT if the words of the state have changed. Every warm
    /// restart across the two builds will then be a cold one.
    #[test]
    #[cfg(all(target_pointer_width = "64", target_endian = "little"))]
    fn the_format_is_unchanged() {
        let probe = checksum(format_fingerprint().into_iter().flat_map(u64::to_ne_bytes));
        let options = Options { memory_bytes_max: 4 << 20, ..Options::default() };
        let store = Store::new(options).expect("the options are fine");
        let empty_state_words = snapshot::save(&store.shared, Now { unix_ms: 1_700_000_000_123 }).len();
        assert_eq!((FORMAT, probe, empty_state_words), (2, 3_004_242_837_958_218_034, 5_168));
    }
}
