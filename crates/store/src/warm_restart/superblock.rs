//! The last 4 KiB of a shared region: whose it is, how it is laid out, and whether what it holds can be trusted
//! (§6.4 of the paper). Found from the size of the segment alone, so that a build of another format finds it too.
//!
//! ```text
//! region:      | page 0 | page 1 | ... | state area (state.rs) | superblock |
//!
//! superblock:   0 magic      8 format     16 layout           24 mark
//!              32 bytes of memory (-m)    40 words of state   48 checksum of the state
//!              56 moment     64 items     72 bytes of name    80 checksum of all this but the mark, and of the name
//!             128 name, in words, zeros behind it
//! ```
//! While a process has the region the mark says DIRTY. It says CLEAN from the end of a save until the next process has
//! taken the region up; it is the last word to be written, so whoever reads CLEAN can read all else.

use crate::memory::chunk::{
    self, CHAIN_BYTES, EXTENSION_BYTES, FLAGS_BYTES, HEADER_BYTES, Header, Parts, State, Usage,
};
use crate::memory::geometry::{CHUNK_BITS, Geometry, PAGE_BITS, TIMER_BLOCK_BYTES};
use crate::memory::index::{self, BUCKET_BYTES};
use crate::memory::region::Region;
use crate::memory::transient::{ENTRY_BYTES, WHEEL_S};
use crate::warm_restart::RegionName;
use crate::{HashedKey, Now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// What a superblock takes.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;
/// To be raised when what lies in a region, or its state, changes in a way that [`format_probe`] does not see.
pub(crate) const FORMAT: u64 = 1;

const MAGIC: u64 = u64::from_be_bytes(*b"lookside");
const DIRTY: u64 = u64::from_be_bytes(*b"  dirty ");
const CLEAN: u64 = u64::from_be_bytes(*b"  clean ");

const FIELDS: usize = 11;
const MARK: usize = 3;
const CHECKSUM: usize = 10;
const NAME_AT: usize = 128;
const WORD_BYTES: usize = size_of::<u64>();

/// What a region says about itself.
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

/// Why a segment says nothing about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Nothing but zeros: it was made and not filled in.
    Blank,
    /// It does not begin as a superblock does.
    Foreign,
    /// It begins as one, and is not what was written.
    Damaged,
}

impl Superblock {
    /// Of a region that is to be made.
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
        let begin = begin(region).ok_or(Unreadable::Foreign)?;
        let word = |at: usize| region.long_word(begin + at).load(Relaxed);
        let is_clean = region.long_word(begin + MARK * WORD_BYTES).load(Acquire) == CLEAN;
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

    /// Writes all but the mark, which must say DIRTY meanwhile.
    pub fn write(&self, region: &Region) {
        let begin = begin(region).expect("a region that was made has a tail");
        let mut fields = self.fields();
        fields[CHECKSUM] = self.checksum();
        for (place, field) in fields.into_iter().enumerate().filter(|&(place, _)| place != MARK) {
            region.long_word(begin + place * WORD_BYTES).store(field, Relaxed);
        }
        for (place, chunk) in self.name.as_bytes().chunks(WORD_BYTES).enumerate() {
            let mut word = [0; WORD_BYTES];
            word[..chunk.len()].copy_from_slice(chunk);
            region.long_word(begin + NAME_AT + place * WORD_BYTES).store(u64::from_ne_bytes(word), Relaxed);
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

/// Says that a process has the region.
pub(crate) fn mark_dirty(region: &Region) {
    set_mark(region, DIRTY);
}

/// Says that all of the region is what was saved.
pub(crate) fn mark_clean(region: &Region) {
    set_mark(region, CLEAN);
}

fn set_mark(region: &Region, mark: u64) {
    let begin = begin(region).expect("a region that was made has a tail");
    region.long_word(begin + MARK * WORD_BYTES).store(mark, Release);
}

/// Where the superblock begins, in a region that is large enough and ends where a word does.
fn begin(region: &Region) -> Option<usize> {
    let begin = region.region_bytes().checked_sub(SUPERBLOCK_BYTES)?;
    begin.is_multiple_of(WORD_BYTES).then_some(begin)
}

/// Tells bytes that were written from others, not against whom means it.
pub(crate) fn checksum(bytes: impl Iterator<Item = u8>) -> u64 {
    rapidhash::v3::rapidhash_v3(&bytes.collect::<Vec<u8>>())
}

/// Differs between two builds, or two sets of options, that would not find each other's items.
pub(crate) fn layout(geometry: &Geometry) -> u64 {
    let Geometry { page_bytes, pages, stripe_bits, chunk_bytes, tail_bytes, .. } = geometry;
    let sizes = [*page_bytes, *pages, *stripe_bits as usize, *tail_bytes];
    let sizes = sizes.iter().chain(chunk_bytes).flat_map(|size| size.to_ne_bytes());
    checksum(format_probe().into_iter().flat_map(u64::to_ne_bytes).chain(sizes))
}

/// How this build lays out chunks and buckets, whatever the options: its constants, an item's header as it writes it, and
/// where it would look for a key.
fn format_probe() -> Vec<u64> {
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
    let usage = Usage::new(0xa5, State::Head, 2, Now { unix_ms: 1_700_000_000_123 }).fetched();
    let shape = chunk::shape(0x5a, 0x1234, Parts { has_flags: true, is_extended: true, is_chained: true });
    let stale = Header { sequence: 1, expiry_s: 2, shape, usage }.stale(1_700_000_000_456);
    let header = [shape, usage.0, stale.sequence, stale.expiry_s, stale.shape, stale.usage.0, stale.key_at() as u32];
    let key = HashedKey::new(b"a key to probe with");
    let places = index::hashes(key, 8).map(|place| place as u64);
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
    use crate::{Options, Store};

    /// A build whose items or index look different must not take up a region of this one. If this fails, that is what
    /// happened: write the new number here, raise FORMAT if it is the state that has other words, and every warm restart across the two builds will be a cold one.
    #[test]
    #[cfg(all(target_pointer_width = "64", target_endian = "little"))]
    fn the_format_is_what_it_was() {
        let probe = checksum(format_probe().into_iter().flat_map(u64::to_ne_bytes));
        let options = Options { memory_bytes_max: 4 << 20, ..Options::default() };
        let store = Store::new(options).expect("the options are fine");
        let empty_state_words = store.memory.save(Now { unix_ms: 1_700_000_000_123 }).len();
        assert_eq!((FORMAT, probe, empty_state_words), (1, 18_400_531_419_849_400_644, 5_038));
    }
}
