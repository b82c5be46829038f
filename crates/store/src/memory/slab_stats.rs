//! What an operator can be told about each slab class: how much it holds, who leaves it and how old, where its pages come
//! from. Serves `stats slabs` and `stats items`, and no request.
//!
//! Counters rise where items leave, so that storing and finding pay nothing. What lies in a class now is looked up when
//! somebody asks, from up to [`SAMPLE_CHUNKS_MAX`] of its chunks: in a class with more of them, `items` and `items_bytes`
//! are estimates.

use crate::Now;
use crate::memory::chunk::{Header, State};
use crate::memory::slab::Class;
use crate::memory::{Memory, handle};
use crate::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many chunks of a class are looked at.
const SAMPLE_CHUNKS_MAX: usize = 1024;

/// A slab class at the moment of asking; counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassStatistics {
    /// Its number; the class of the smallest chunks is number 1.
    pub number: usize,
    /// A chunk's size in bytes, header included.
    pub chunk_bytes: usize,
    /// How many chunks a page has.
    pub chunks_per_page: usize,
    /// The pages it holds.
    pub pages: usize,
    /// Chunks that hold an item, or a piece of one.
    pub chunks_used: usize,
    /// Chunks that hold nothing, those included that were never used.
    pub chunks_free: usize,
    /// Chunks that were never used.
    pub chunks_fresh: usize,
    /// Items that begin in a chunk of this class.
    pub items: usize,
    /// The bytes that these chunks are used for.
    pub items_bytes: usize,
    /// How long ago the next victim was last asked for, as far as can be told, in seconds.
    pub age_s: u64,
    /// The mean age of those evicted last, in seconds; nothing if none was.
    pub evicted_age_s: Option<u64>,
    /// Chunks handed out.
    pub allocations: u64,
    /// Items dropped to make room.
    pub evictions: u64,
    /// Those of them that nobody had asked for.
    pub evictions_unfetched: u64,
    /// Those of them that would have expired some day.
    pub evictions_with_expiry: u64,
    /// Items dropped because their time had come.
    pub expirations: u64,
    /// Those of them that nobody had asked for.
    pub expirations_unfetched: u64,
    /// Chunks that were asked for and could not be had.
    pub refusals: u64,
    /// Pages that came from other classes.
    pub pages_gained: u64,
    /// Pages that went to other classes or to the index.
    pub pages_given: u64,
}

/// What a class counts about those who leave. A cache line for each.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct ClassCounters {
    evictions: AtomicU64,
    evictions_unfetched: AtomicU64,
    evictions_with_expiry: AtomicU64,
    expirations: AtomicU64,
    expirations_unfetched: AtomicU64,
    pub refusals: AtomicU64,
    pub pages_gained: AtomicU64,
    pub pages_given: AtomicU64,
}

impl ClassCounters {
    /// An item leaves that nobody has deleted or replaced.
    pub fn note_leaving(&self, header: &Header, now: Now) {
        let is_unfetched = u64::from(!header.usage.is_fetched());
        if header.is_past(now) {
            self.expirations.fetch_add(1, Relaxed);
            self.expirations_unfetched.fetch_add(is_unfetched, Relaxed);
        } else {
            self.evictions.fetch_add(1, Relaxed);
            self.evictions_unfetched.fetch_add(is_unfetched, Relaxed);
            self.evictions_with_expiry.fetch_add(u64::from(header.expiry_s != 0), Relaxed);
        }
    }

    /// Evicted and expired items that nobody had asked for.
    pub fn unfetched(&self) -> [u64; 2] {
        [&self.evictions_unfetched, &self.expirations_unfetched].map(|counter| counter.load(Relaxed))
    }
}

impl Memory {
    /// The classes of items that hold a page or have counted something.
    pub fn class_statistics(&self, now: Now) -> Vec<ClassStatistics> {
        let all = (0..self.geometry.timer_class()).map(|class| self.statistics_of(class, now));
        all.filter(|class| class.pages > 0 || class.allocations > 0).collect()
    }

    fn statistics_of(&self, number: usize, now: Now) -> ClassStatistics {
        let class = lock(&self.classes[number]);
        let chunks_per_page = self.geometry.chunks_per_page(number);
        let records = || class.pages.iter().chain(&class.draining).map(|&page| &self.page_records[page as usize]);
        let pages = records().count();
        let chunks_used = records().map(|record| record.taken()).sum();
        let chunks_carved: usize = records().map(|record| record.carved()).sum();
        let (items, items_bytes) = self.sample(&class, chunks_carved);
        let counters = &self.class_counters[number];
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        let age = &self.ages[number];
        ClassStatistics {
            number: number + 1,
            chunk_bytes: self.geometry.chunk_bytes[number],
            chunks_per_page,
            pages,
            chunks_used,
            chunks_free: pages * chunks_per_page - chunks_used,
            chunks_fresh: pages * chunks_per_page - chunks_carved,
            items,
            items_bytes,
            age_s: if pages > 0 { age.age_s(now) } else { 0 },
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

    /// Items, and the bytes they use, by a look at every so many chunks. Their stripes are not locked, so a header may be
    /// out of date; it is only added up.
    fn sample(&self, class: &Class, chunks_carved: usize) -> (usize, usize) {
        let step = chunks_carved.div_ceil(SAMPLE_CHUNKS_MAX).max(1);
        let (mut items, mut bytes, mut place) = (0, 0, 0);
        for &page in class.pages.iter().chain(&class.draining) {
            let carved = self.page_records[page as usize].carved();
            while place < carved {
                let chunk = handle(page, place);
                if self.usage(chunk).state() == State::Head {
                    items += 1;
                    bytes += self.header(chunk).head_bytes().min(self.geometry.chunk_bytes[class.class]);
                }
                place += step;
            }
            place -= carved;
        }
        (items * step, bytes * step)
    }
}
