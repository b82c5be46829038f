//! References into the region: to a chunk, and to a slot of the index.

/// A handle has this many bits for the page.
pub(crate) const PAGE_BITS: u32 = 18;
/// A handle has this many bits for the chunk within its page.
pub(crate) const CHUNK_BITS: u32 = 14;

/// A reference to a chunk: page and chunk number within the page. 0 refers to nothing: page 0 belongs to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub u32);

impl Handle {
    pub fn new(page: u32, chunk: usize) -> Handle {
        Handle(page << CHUNK_BITS | chunk as u32)
    }

    #[inline]
    pub fn page(self) -> u32 {
        self.0 >> CHUNK_BITS
    }

    #[inline]
    pub fn chunk(self) -> usize {
        (self.0 & ((1 << CHUNK_BITS) - 1)) as usize
    }
}

/// The offset of an index slot in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotAt(pub usize);
