//! `lru_crawler crawl`: removes items that have expired from memory. Others leave when a get, a timer or eviction finds
//! them.
//!
//! One crawl at a time. It begins with the command and goes on once a second ([`ExpiryCrawl::step`]), a part of the
//! index each time: a small store is crawled before the client has its `OK`.

use super::ClassSet;
use lookaside_store::{Crawl, Now, Store};
use lookaside_sync::{Mutex, SharedCounter};

/// Buckets, of up to eight items each, that are crawled before the command is answered: less than a millisecond.
const BUCKETS_AT_START: usize = 1 << 12;
/// Buckets for each second after that: tens of milliseconds.
const BUCKETS_PER_STEP: usize = 1 << 17;

#[derive(Default)]
pub(crate) struct ExpiryCrawl {
    /// The store's locks may be taken while holding this one.
    current: Mutex<Option<(Crawl, ClassSet)>>,
    pub(crate) starts: SharedCounter,
    pub(crate) items_checked: SharedCounter,
    pub(crate) items_reclaimed: SharedCounter,
}

impl ExpiryCrawl {
    /// Starts a crawl over the items of these classes; `false` if one is under way, or if the store has too many
    /// crawls.
    pub(crate) fn start(&self, store: &Store, classes: ClassSet, now: Now) -> bool {
        // A step takes long: a worker that waited for it would serve no client.
        let Some(mut current) = self.current.try_lock() else { return false };
        let started = if current.is_none() { store.start_crawl(1, now) } else { None };
        let Some(crawl) = started else { return false };
        self.starts.add(1);
        *current = Some((crawl, classes));
        self.crawl(&mut current, store, BUCKETS_AT_START, now);
        true
    }

    /// Continues the crawl, if one is under way.
    pub(crate) fn step(&self, store: &Store, now: Now) {
        self.crawl(&mut self.current.lock(), store, BUCKETS_PER_STEP, now);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.current.try_lock().is_none_or(|current| current.is_some())
    }

    /// Ends the crawl: the store is another one from now on.
    pub(crate) fn reset(&self) {
        *self.current.lock() = None;
    }

    fn crawl(&self, current: &mut Option<(Crawl, ClassSet)>, store: &Store, buckets_max: usize, now: Now) {
        let Some((crawl, classes)) = current else { return };
        let (counts, has_more) = store.reclaim_expired(crawl, buckets_max, now, |class| classes.contains(class));
        self.items_checked.add(counts.checked);
        self.items_reclaimed.add(counts.reclaimed);
        if !has_more {
            *current = None;
        }
    }
}
