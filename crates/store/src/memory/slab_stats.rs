//! The statistics of each slab class. Serves `stats slabs` and `stats items`.
//!
//! Counters rise when items leave, so that storing and finding cost nothing. The items of a class are counted when the
//! statistics are read, in up to [`SAMPLE_CHUNKS_MAX`] of its chunks: in a class with more of them, `items` and
//! `items_bytes` are estimates.

use crate::Now;
use crate::memory::chunk::ChunkKind;
use crate::memory::handle::Handle;
use crate::memory::pages::Pages;
use crate::memory::slab::{Class, Slabs};
use crate::sync::lock;
use lookaside_sync::SharedCounter;

const SAMPLE_CHUNKS_MAX: usize = 1024;

/// A snapshot of a slab class; counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassStatistics {
    /// Its number. The class with the smallest chunks is number 1.
    pub number: usize,
    /// A chunk's size in bytes, header included.
    pub chunk_bytes: usize,
    /// Chunks in a page.
    pub chunks_per_page: usize,
    /// Pages of the class.
    pub pages: usize,
    /// Chunks that hold an item, or a piece of one.
    pub chunks_used: usize,
    /// Chunks that hold nothing, including those that were never used.
    pub chunks_free: usize,
    /// Chunks that were never used.
    pub chunks_fresh: usize,
    /// Items that begin in a chunk of this class.
    pub items: usize,
    /// The bytes that these items use, in all of their chunks.
    pub items_bytes: usize,
    /// An estimate of how long ago the next victim was last accessed, in seconds.
    pub age_s: u64,
    /// The mean age of the items evicted last, in seconds; `None` if none was.
    pub evicted_age_s: Option<u64>,
    /// Chunks allocated.
    pub allocations: u64,
    /// Items evicted.
    pub evictions: u64,
    /// Evicted items that were never fetched.
    pub evictions_unfetched: u64,
    /// Evicted items that had an expiry.
    pub evictions_with_expiry: u64,
    /// Items removed because they had expired.
    pub expirations: u64,
    /// Expired items that were never fetched.
    pub expirations_unfetched: u64,
    /// Allocations that failed.
    pub refusals: u64,
    /// Pages that came from other classes.
    pub pages_gained: u64,
    /// Pages that went to other classes or to the index.
    pub pages_given: u64,
}

impl Slabs {
    /// The classes of items that have a page or have counted something.
    /// No item has more than `item_bytes_max`.
    pub fn statistics(&self, pages: &Pages, item_bytes_max: usize, now: Now) -> Vec<ClassStatistics> {
        let classes = 0..pages.geometry.timer_class();
        let all = classes.map(|class| self.class_statistics(pages, class, item_bytes_max, now));
        all.filter(|class| class.pages > 0 || class.allocations > 0).collect()
    }

    fn class_statistics(&self, pages: &Pages, number: usize, item_bytes_max: usize, now: Now) -> ClassStatistics {
        let class = lock(&self.classes[number]);
        let chunks_per_page = pages.geometry.chunks_per_page(number);
        let records = || class.pages.iter().chain(&class.draining).map(|&page| self.record(page));
        let page_count = records().count();
        let chunks_used = records().map(|record| record.chunks_used()).sum();
        let chunks_carved: usize = records().map(|record| record.chunks_carved()).sum();
        let (items, items_bytes) = self.sample(pages, &class, chunks_carved, item_bytes_max);
        let counters = &self.counters[number];
        let count = |counter: &SharedCounter| counter.value();
        let age = &self.ages[number];
        ClassStatistics {
            number: number + 1,
            chunk_bytes: pages.geometry.chunk_bytes[number],
            chunks_per_page,
            pages: page_count,
            chunks_used,
            chunks_free: page_count * chunks_per_page - chunks_used,
            chunks_fresh: page_count * chunks_per_page - chunks_carved,
            items,
            items_bytes,
            age_s: if page_count > 0 { age.age_s(now) } else { 0 },
            evicted_age_s: age.evicted_age_s(),
            allocations: class.allocations,
            evictions: count(&counters.evictions),
            evictions_unfetched: count(&counters.evictions_unfetched),
            evictions_with_expiry: count(&counters.evictions_with_expiry),
            expirations: count(&counters.expirations),
            expirations_unfetched: count(&counters.expirations_unfetched),
            refusals: count(&counters.refusals),
            pages_gained: count(&counters.pages_gained),
            pages_given: count(&counters.pages_given),
        }
    }

    /// Items, and the bytes they use, from a sample of chunks at equal distances. Their stripes are not locked, so a
    /// header may be out of date; it is only added up.
    fn sample(&self, pages: &Pages, class: &Class, chunks_carved: usize, item_bytes_max: usize) -> (usize, usize) {
        let step = chunks_carved.div_ceil(SAMPLE_CHUNKS_MAX).max(1);
        let (mut items, mut bytes, mut place) = (0, 0, 0);
        for &page in class.pages.iter().chain(&class.draining) {
            let carved = self.record(page).chunks_carved();
            while place < carved {
                let chunk = Handle::new(page, place);
                if pages.usage(chunk).kind() == ChunkKind::Head {
                    items += 1;
                    bytes += pages.item_bytes(pages.offset_of(chunk), &pages.header(chunk)).min(item_bytes_max);
                }
                place += step;
            }
            place -= carved;
        }
        (items * step, bytes * step)
    }
}
