//! Sizes that follow from the options and stay: of pages and chunks, their numbers, and the memory used beside them.
//!
//! * A page is memory / 4096, within 16 KiB and 1 MiB: small caches would starve on large pages, since every class
//!   in use holds at least one. Smaller stores have smaller pages, so that there are at least 64.
//! * Chunks grow from 64 bytes by 1.07 (§6.2 of the paper) up to half a page; each size is then stretched until the
//!   chunks fill the page. An item larger than the largest chunk is chained over several.

use crate::memory::handle::{CHUNK_BITS, PAGE_BITS};
use crate::options::{Options, OptionsError};

const PAGE_BYTES_MIN: usize = 16 << 10;
const PAGE_BYTES_MAX: usize = 1 << 20;
const PAGES_MIN: usize = 64;
/// The shape of an item has this many bits for the value bytes in its first chunk (`chunk.rs`).
pub(crate) const VALUE_BITS: u32 = 20;
/// No chunk is larger, so that the number of value bytes in it fits the shape.
const CHUNK_BYTES_LIMIT: usize = 1 << VALUE_BITS;
/// The largest chunk is one part in this many of a page.
const CHUNKS_PER_PAGE_MIN: usize = 2;
const MEMORY_BYTES_MIN: usize = 64 << 10;
/// More stripes than this reduce contention no further; a chunk has eight bits for the number of its stripe.
const STRIPES_MAX: usize = 256;
/// The size of a block of timers.
pub(crate) const TIMER_BLOCK_BYTES: usize = 256;
/// The memory that the lists of pages and classes use for each page.
const PAGE_RECORD_BYTES: usize = 32;
/// The same for a page that the memory limit does not allow yet.
const RESERVED_PAGE_RECORD_BYTES: usize = 24;
/// The memory of a stripe is rounded up to this in a store that can be restored.
const PERSISTED_STRIPE_BYTES: usize = 512;
const CLASS_RECORD_BYTES: usize = 256;

/// The sizes of one store.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub page_bytes: usize,
    pub pages: usize,
    /// The pages that there may be once the memory limit is raised; `pages` if it cannot be.
    pub pages_max: usize,
    pub stripe_bits: u32,
    /// The bytes of a chunk of each class, in ascending order; the last is the class of timer blocks, which holds no
    /// items.
    pub chunk_bytes: Box<[usize]>,
    /// The memory used beside the pages.
    pub fixed_bytes: usize,
    /// The part of it that lies behind the pages, for the next process (`warm_restart`); 0 if the store cannot be
    /// restored.
    pub tail_bytes: usize,
}

impl Geometry {
    /// The sizes for these options. `stripe_bytes` returns the memory of one stripe, given their number. `tail_bytes`
    /// returns the size of the tail from the numbers of pages, classes and stripes; `None` if the store cannot be
    /// restored.
    pub fn new(
        options: &Options,
        stripe_bytes: impl Fn(usize) -> usize,
        tail_bytes: Option<&dyn Fn(usize, usize, usize) -> usize>,
    ) -> Result<Geometry, OptionsError> {
        let memory_bytes = options.memory_bytes_max;
        check(options)?;
        let stripes = 1 << (memory_bytes / MEMORY_BYTES_MIN).clamp(1, STRIPES_MAX).ilog2();
        let page_bytes = page_bytes(memory_bytes);
        let chunk_bytes = chunk_sizes(page_bytes, options);
        let lists_bytes = memory_bytes / page_bytes * PAGE_RECORD_BYTES + chunk_bytes.len() * CLASS_RECORD_BYTES;
        let stripe_bytes = match tail_bytes {
            // A newer build, whose stripes have one counter more, should get the same number of pages.
            Some(_) => stripe_bytes(stripes).next_multiple_of(PERSISTED_STRIPE_BYTES),
            None => stripe_bytes(stripes),
        };
        let tail_bytes = tail_bytes.map_or(0, |tail| tail(memory_bytes / page_bytes, chunk_bytes.len(), stripes));
        // A region that another process can restore has a fixed size.
        let growth_bytes = if tail_bytes == 0 { options.memory_bytes_reserved.saturating_sub(memory_bytes) } else { 0 };
        let growth_pages = growth_bytes / page_bytes;
        let reserve_bytes = growth_pages * RESERVED_PAGE_RECORD_BYTES;
        let fixed_bytes = stripes * stripe_bytes + lists_bytes + tail_bytes + reserve_bytes;
        let pages = memory_bytes.saturating_sub(fixed_bytes) / page_bytes;
        if pages < PAGES_MIN / 2 {
            return Err(OptionsError::MemoryTooSmall { memory_bytes, needed_bytes: 2 * memory_bytes });
        }
        let pages_max = (pages + growth_pages).min(1 << PAGE_BITS).max(pages);
        let stripe_bits = stripes.ilog2();
        Ok(Geometry { page_bytes, pages, pages_max, stripe_bits, chunk_bytes, fixed_bytes, tail_bytes })
    }

    /// The size of the region.
    pub fn region_bytes(&self) -> usize {
        self.pages * self.page_bytes + self.tail_bytes
    }

    /// The address space of the region, for a raised memory limit.
    pub fn reserved_bytes(&self) -> usize {
        self.pages_max * self.page_bytes + self.tail_bytes
    }

    /// The class with the smallest chunks of at least `bytes`; `None` if no chunk is that large.
    pub fn class_for(&self, bytes: usize) -> Option<usize> {
        let class = self.chunk_bytes[..self.timer_class()].partition_point(|&chunk_bytes| chunk_bytes < bytes);
        (class < self.timer_class()).then_some(class)
    }

    /// The class of timer blocks.
    pub fn timer_class(&self) -> usize {
        self.chunk_bytes.len() - 1
    }

    /// The bytes of the largest chunk.
    pub fn chunk_bytes_max(&self) -> usize {
        self.chunk_bytes[self.timer_class() - 1]
    }

    /// The number of chunks of a class in a page, limited by the bits of a handle: timer blocks do not fill pages of
    /// more than 4 MiB.
    pub fn chunks_per_page(&self, class: usize) -> usize {
        (self.page_bytes / self.chunk_bytes[class]).min(1 << CHUNK_BITS)
    }
}

fn check(options: &Options) -> Result<(), OptionsError> {
    let memory_bytes = options.memory_bytes_max;
    if memory_bytes < MEMORY_BYTES_MIN {
        return Err(OptionsError::MemoryTooSmall { memory_bytes, needed_bytes: MEMORY_BYTES_MIN });
    }
    let limit_bytes = (memory_bytes / 2).min(u32::MAX as usize / 2);
    if options.item_bytes_max > limit_bytes {
        return Err(OptionsError::ItemTooLarge { item_bytes: options.item_bytes_max, limit_bytes });
    }
    if !(Options::GROWTH_FACTOR_MIN..=Options::GROWTH_FACTOR_MAX).contains(&options.growth_factor) {
        return Err(OptionsError::GrowthFactor { growth_factor: options.growth_factor.to_string() });
    }
    if !(Options::CHUNK_BYTES_MIN..=Options::CHUNK_BYTES_MAX).contains(&options.chunk_bytes_min) {
        return Err(OptionsError::ChunkSize { chunk_bytes: options.chunk_bytes_min });
    }
    Ok(())
}

fn page_bytes(memory_bytes: usize) -> usize {
    let scaled = (memory_bytes / 4096).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX).min(memory_bytes / PAGES_MIN);
    // Beyond 256 GiB pages must grow on, so that their numbers fit a handle.
    (1 << scaled.ilog2()).max((memory_bytes >> PAGE_BITS).next_power_of_two())
}

fn chunk_sizes(page_bytes: usize, options: &Options) -> Box<[usize]> {
    let largest = (page_bytes / CHUNKS_PER_PAGE_MIN).min(CHUNK_BYTES_LIMIT);
    let mut sizes: Vec<usize> = Vec::new();
    let mut wanted = options.chunk_bytes_min.max(page_bytes >> CHUNK_BITS).next_multiple_of(4).min(largest);
    while wanted < largest {
        // The same number of chunks, without a rest at the end of the page.
        let stretched = (page_bytes / (page_bytes / wanted)) & !3;
        sizes.push(stretched);
        wanted = ((stretched as f64 * options.growth_factor) as usize & !3).max(stretched + 4);
    }
    if sizes.last() != Some(&largest) {
        sizes.push(largest);
    }
    sizes.push(TIMER_BLOCK_BYTES);
    sizes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(memory_bytes_max: usize) -> Geometry {
        let options = Options { memory_bytes_max, item_bytes_max: 8 << 10, ..Options::default() };
        Geometry::new(&options, |_| 512, None).expect("the options are fine")
    }

    #[test]
    fn pages_scale_with_memory_and_fit_a_handle() {
        assert_eq!(geometry(64 << 10).page_bytes, 1 << 10);
        assert_eq!(geometry(64 << 20).page_bytes, 16 << 10);
        assert_eq!(geometry(1 << 30).page_bytes, 256 << 10);
        assert_eq!(geometry(64 << 30).page_bytes, 1 << 20);
        assert!(geometry(4 << 40).pages <= 1 << PAGE_BITS);
    }

    #[test]
    fn chunk_sizes_ascend_and_fill_pages() {
        for memory_bytes in [64 << 10, 1 << 20, 64 << 20, 1 << 40, 4 << 40] {
            let geometry = geometry(memory_bytes);
            let sizes = &geometry.chunk_bytes[..geometry.timer_class()];
            assert!(sizes.windows(2).all(|pair| pair[0] < pair[1] && pair[0] % 4 == 0), "{sizes:?}");
            assert!((0..=geometry.timer_class()).all(|class| geometry.chunks_per_page(class) <= 1 << CHUNK_BITS));
            assert_eq!(geometry.class_for(geometry.chunk_bytes_max()), Some(sizes.len() - 1));
            assert_eq!(geometry.class_for(geometry.chunk_bytes_max() + 1), None);
        }
        let sizes = geometry(64 << 30).chunk_bytes;
        assert_eq!(sizes[0], 64);
        assert!(sizes.iter().filter(|&&size| size < 16 << 10).count() > 70, "1.07 makes many classes");
    }
}
