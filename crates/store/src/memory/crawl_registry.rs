//! The crawls under way (`crawl.rs`), as far as the index must know them: an item that moves between buckets must not
//! slip past a crawl.

use crate::Now;
use crate::sync::{Mutex, lock};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

const CRAWLS_MAX: usize = 16;
/// A crawl that made no step for this long gives up its place when another needs one.
const IDLE_MS_MAX: u64 = 60_000;
/// How many buckets a crawl can have to revisit.
const REVISITS_MAX: usize = 1 << 16;

/// The position of a crawl.
#[derive(Debug, Default)]
pub(crate) struct CrawlPosition {
    /// The next bucket.
    pub bucket: AtomicUsize,
    /// Buckets behind `bucket` with an item that was not seen.
    pub revisit: Mutex<BTreeSet<usize>>,
    /// The time of the last step.
    pub stepped_ms: AtomicU64,
    /// The crawl has lost its place, and learns of no more moves.
    pub is_given_up: AtomicBool,
}

/// All crawls under way.
#[derive(Default)]
pub(crate) struct CrawlRegistry {
    /// Their number, so that a move looks no further while it is 0.
    count: AtomicUsize,
    positions: Mutex<Vec<Weak<CrawlPosition>>>,
}

impl CrawlRegistry {
    /// Registers a crawl; `None` if there are too many.
    pub fn add(&self, now: Now) -> Option<Arc<CrawlPosition>> {
        let mut positions = lock(&self.positions);
        positions.retain(|position| position.strong_count() > 0);
        if positions.len() == CRAWLS_MAX {
            positions.retain(|position| position.upgrade().is_some_and(|position| !position.give_up_if_idle(now)));
        }
        if positions.len() == CRAWLS_MAX {
            return None;
        }
        let position = Arc::<CrawlPosition>::default();
        position.stepped_ms.store(now.unix_ms, Ordering::SeqCst);
        positions.push(Arc::downgrade(&position));
        self.count.store(positions.len(), Ordering::SeqCst);
        Some(position)
    }

    /// Whether an item may move from one bucket to the other; crawls that would miss it revisit the second. The caller
    /// holds the lock of their stripe, without which no crawl gets past either.
    pub fn allow_move(&self, from: usize, to: usize) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut positions = lock(&self.positions);
        positions.retain(|position| position.strong_count() > 0);
        self.count.store(positions.len(), Ordering::SeqCst);
        positions.iter().filter_map(Weak::upgrade).all(|position| position.allow_move(from, to))
    }
}

impl CrawlPosition {
    fn give_up_if_idle(&self, now: Now) -> bool {
        let is_idle = now.unix_ms.saturating_sub(self.stepped_ms.load(Ordering::SeqCst)) >= IDLE_MS_MAX;
        self.is_given_up.fetch_or(is_idle, Ordering::SeqCst);
        is_idle
    }

    fn allow_move(&self, from: usize, to: usize) -> bool {
        let next = self.bucket.load(Ordering::SeqCst);
        let mut revisit = lock(&self.revisit);
        let is_unseen = from >= next || revisit.contains(&from);
        if to >= next || !is_unseen {
            return true;
        }
        let may_add = revisit.len() < REVISITS_MAX;
        if may_add {
            revisit.insert(to);
        }
        may_add
    }
}
