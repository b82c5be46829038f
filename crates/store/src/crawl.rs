//! A crawl over all items in bounded steps: for listing keys (`lru_crawler metadump`), for removing what has expired
//! (`lru_crawler crawl`) and for sampling the working set (§3.2.2 of the paper). Serves no request.
//!
//! The crawl goes along the index, one bucket under one stripe's lock at a time, while verbs run. Every item that stays
//! for the whole crawl is seen:
//!
//! * When a bucket is split behind the crawl, part of its items move to the end, and are seen again.
//! * An item that is displaced moves to the other of its two buckets. If a crawl has not seen it yet and is past the
//!   other bucket, it revisits that (`memory/crawl_registry.rs`). When a crawl has too many buckets to revisit, such
//!   items do not move; then the coldest item of two full buckets is evicted, if no other can move.
//!
//! A crawl over a sample of one in N chooses by tags, which lie in the index: other items are not touched.

use crate::memory::crawl_registry::CrawlPosition;
use crate::memory::index::RemovalReason;
use crate::shared::Shared;
use crate::sync::lock;
use crate::verbs::{ItemRef, StripeGuard};
use crate::{Expiry, ItemView, Now};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The progress of a crawl. Dropping it ends the crawl.
#[derive(Debug)]
pub struct Crawl {
    position: Arc<CrawlPosition>,
    one_in: u32,
}

/// What a step of a crawl that removes expired items has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Items visited.
    pub checked: u64,
    /// Of these, items that had expired, or stale values whose time was over, which are gone.
    pub reclaimed: u64,
}

/// An item that a crawl visits.
#[derive(Clone, Copy, Debug)]
pub struct CrawlItem<'a> {
    /// The item, whatever its meta state.
    pub item: ItemView<'a>,
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// All bytes that it uses, headers included, in all of its chunks.
    pub item_bytes: usize,
}

impl Crawl {
    /// Starts a crawl over one item in `one_in`; `None` if there are too many crawls.
    pub(crate) fn start(shared: &Shared, one_in: u32, now: Now) -> Option<Crawl> {
        let position = shared.memory.crawls.add(now)?;
        Some(Crawl { position, one_in: one_in.max(1) })
    }

    /// Whether the crawl has lost its place to another: it has not shown all items, and will show no more.
    pub fn is_given_up(&self) -> bool {
        self.position.is_given_up.load(Ordering::SeqCst)
    }

    /// Shows the items of up to `buckets_max` buckets; `false` if the crawl is at its end.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        buckets_max: usize,
        now: Now,
        mut show: impl FnMut(CrawlItem<'_>),
    ) -> bool {
        self.visit(shared, buckets_max, now, |guard, found| {
            if !found.header.is_stale() && !found.header.is_expired(now) {
                let item = guard.view(&found, now);
                let (slab_class, item_bytes) = guard.extent(&found);
                show(CrawlItem { item, slab_class, item_bytes });
            }
        })
    }

    /// Removes the items of up to `buckets_max` buckets that have expired and are in a class that is wanted; `false` if
    /// the crawl is at its end.
    pub(crate) fn reclaim(
        &mut self,
        shared: &Shared,
        buckets_max: usize,
        now: Now,
        wants_class: impl Fn(usize) -> bool,
    ) -> (Reclaimed, bool) {
        let mut counts = Reclaimed::default();
        let has_more = self.visit(shared, buckets_max, now, |guard, found| {
            if wants_class(guard.extent(&found).0) {
                counts.checked += 1;
                if found.header.is_expired(now) {
                    guard.remove_expired(found, Some(RemovalReason::Expired));
                    counts.reclaimed += 1;
                }
            }
        });
        (counts, has_more)
    }

    /// Calls `visit` for the items of up to `buckets_max` buckets, under the lock of their stripe; `false` if the crawl
    /// is at its end.
    fn visit<'s>(
        &mut self,
        shared: &'s Shared,
        buckets_max: usize,
        now: Now,
        mut visit: impl FnMut(&mut StripeGuard<'s>, ItemRef),
    ) -> bool {
        let memory = &shared.memory;
        self.position.stepped_ms.store(now.unix_ms, Ordering::SeqCst);
        for _ in 0..buckets_max {
            let Some(bucket) = self.next_bucket(shared) else {
                return false;
            };
            let mut guard = StripeGuard::lock(shared, bucket & (memory.stripes.len() - 1), now);
            for (slot, head) in memory.index.sample_bucket(&memory.pages.region, bucket, self.one_in) {
                let found = guard.item_at(slot, head);
                visit(&mut guard, found);
            }
            // Still under the lock, since a thread that moves items of this stripe must see it.
            if !lock(&self.position.revisit).remove(&bucket) {
                self.position.bucket.store(bucket + 1, Ordering::SeqCst);
            }
            drop(guard);
        }
        self.next_bucket(shared).is_some()
    }

    /// The next bucket. Those to revisit are last, since more may be added.
    fn next_bucket(&self, shared: &Shared) -> Option<usize> {
        if self.is_given_up() {
            return None;
        }
        let next = self.position.bucket.load(Ordering::SeqCst);
        match next < shared.memory.index.buckets() {
            true => Some(next),
            false => lock(&self.position.revisit).first().copied(),
        }
    }
}

impl CrawlItem<'_> {
    /// The second in which the item expires; `None` if it never does.
    pub fn expiry_s(&self) -> Option<u32> {
        match self.item.expiry {
            Expiry::At { unix_s } => Some(unix_s),
            Expiry::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::lock;
    use crate::{Expiry, KeyHasher, NewItem, Now, Options, Store};
    use lookaside_protocol::StoreMode;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::Ordering;

    /// Once a crawl revisited buckets for items that could not move: up to sixteen for each key that found both of its
    /// own full.
    #[test]
    fn a_crawl_revisits_only_buckets_to_which_items_moved() {
        const FIRST_KEYS: u32 = 1_500;
        const KEYS: u32 = 2_300;
        let options = Options { memory_bytes_max: 256 << 10, item_bytes_max: 4 << 10, ..Options::default() };
        let store = Store::new(options).expect("the options are fine");
        let now = Now { unix_ms: 1_700_000_000_000 };
        let set = |number: u32| {
            let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"v" };
            store.store(KeyHasher::new(0).hash(&number.to_be_bytes()), StoreMode::Set, &item, now);
        };
        let buckets_of_items = || {
            let memory = &store.shared.memory;
            let mut places = BTreeMap::new();
            for bucket in 0..memory.index.buckets() {
                let items = memory.index.items_of_bucket(&memory.pages.region, bucket);
                places.extend(items.map(|(_, item)| (item.0, bucket)));
            }
            places
        };
        (0..FIRST_KEYS).for_each(set);
        let mut crawl = store.start_crawl(1, now).expect("no other crawl");
        store.crawl(&mut crawl, store.shared.memory.index.buckets() / 2, now, |_| ());
        let next = crawl.position.bucket.load(Ordering::SeqCst);
        let (mut moved_to, mut before) = (BTreeSet::new(), buckets_of_items());
        for number in FIRST_KEYS..KEYS {
            set(number);
            let after = buckets_of_items();
            let is_moved = |item: &u32, bucket: usize| before.get(item).is_some_and(|&old| old != bucket);
            let moved = after.iter().filter(|&(item, &bucket)| bucket < next && is_moved(item, bucket));
            moved_to.extend(moved.map(|(_, &bucket)| bucket));
            before = after;
        }
        let revisit = lock(&crawl.position.revisit);
        assert!(!moved_to.is_empty(), "no bucket was full");
        assert!(revisit.is_subset(&moved_to), "revisits {revisit:?}, but items moved to {moved_to:?}");
        drop(revisit);
        store.audit();
    }
}
