//! A walk over all items in bounded steps: for listing keys (`lru_crawler metadump`) and for sampling the working set
//! (§3.2.2 of the paper). Serves no request.
//!
//! The walk goes along the index, one bucket under one stripe's lock at a time; whatever else happens meanwhile goes on.
//! Every item that stays for the whole walk is seen:
//!
//! * When a bucket is split behind the walk, part of its items move to the end, and are seen again.
//! * An item that must make room moves to the other of its two buckets. If a walk has yet to come by the one and has left
//!   the other behind, it is told to come back to that. Of a walk that has too many to come back to, nobody moves away;
//!   then the coldest item of two full buckets leaves, if no other can move.
//!
//! A walk over a sample of one in N chooses by tags, which lie in the index: the items of others are not touched.

use crate::memory::Memory;
use crate::shard::Locked;
use crate::sync::{Mutex, lock};
use crate::{Expiry, ItemView, Now};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// So many walks can be under way.
const CRAWLS_MAX: usize = 16;
/// A walk that made no step for so long leaves its place to another that finds none.
const STANDSTILL_MS_MAX: u64 = 60_000;
/// A walk can have so many buckets to come back to.
const RETURNS_MAX: usize = 1 << 16;

/// How far a walk has come. Dropping it ends the walk.
#[derive(Debug)]
pub struct Crawl {
    position: Arc<Position>,
    one_in: u32,
}

/// Where a walk is.
#[derive(Debug, Default)]
struct Position {
    /// The bucket that is next.
    bucket: AtomicUsize,
    /// Buckets to come back to: behind it, with an item that was not seen.
    returns: Mutex<BTreeSet<usize>>,
    /// When the last step was made.
    stepped_ms: AtomicU64,
    /// Nobody tells it of items that move any more.
    is_given_up: AtomicBool,
}

/// An item that a walk comes by.
#[derive(Clone, Copy, Debug)]
pub struct CrawlItem<'a> {
    /// The item. It may bear marks.
    pub item: ItemView<'a>,
    /// The number of its slab class, from 1 on.
    pub slab_class: usize,
    /// What it takes, header included, in bytes: of a value that is chained over several chunks all of them.
    pub item_bytes: usize,
}

/// The walks under way, for who moves items between buckets.
#[derive(Default)]
pub(crate) struct Crawls {
    /// How many there may be: whoever finds 0 looks no further.
    count: AtomicUsize,
    positions: Mutex<Vec<Weak<Position>>>,
}

impl Crawls {
    fn begin(&self, one_in: u32, now: Now) -> Option<Crawl> {
        let mut positions = lock(&self.positions);
        positions.retain(|position| position.strong_count() > 0);
        if positions.len() == CRAWLS_MAX {
            positions.retain(|position| position.upgrade().is_some_and(|position| !position.give_up_if_standing(now)));
        }
        if positions.len() == CRAWLS_MAX {
            return None;
        }
        let position = Arc::<Position>::default();
        position.stepped_ms.store(now.unix_ms, Ordering::SeqCst);
        positions.push(Arc::downgrade(&position));
        self.count.store(positions.len(), Ordering::SeqCst);
        Some(Crawl { position, one_in: one_in.max(1) })
    }

    /// Whether an item may move from one bucket to the other; walks that would miss it come back. The caller holds the lock
    /// of their stripe, without which no walk gets past either.
    pub fn allow(&self, from: usize, to: usize) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let mut positions = lock(&self.positions);
        positions.retain(|position| position.strong_count() > 0);
        self.count.store(positions.len(), Ordering::SeqCst);
        positions.iter().filter_map(Weak::upgrade).all(|position| position.allow(from, to))
    }
}

impl Crawl {
    /// Whether the walk has left its place to another: what it has shown is not all, and there will be no more.
    pub fn is_given_up(&self) -> bool {
        self.position.is_given_up.load(Ordering::SeqCst)
    }
}

impl Position {
    fn give_up_if_standing(&self, now: Now) -> bool {
        let stands = now.unix_ms.saturating_sub(self.stepped_ms.load(Ordering::SeqCst)) >= STANDSTILL_MS_MAX;
        self.is_given_up.fetch_or(stands, Ordering::SeqCst);
        stands
    }

    fn allow(&self, from: usize, to: usize) -> bool {
        let next = self.bucket.load(Ordering::SeqCst);
        let mut returns = lock(&self.returns);
        let is_unseen = from >= next || returns.contains(&from);
        if to >= next || !is_unseen {
            return true;
        }
        let has_room = returns.len() < RETURNS_MAX;
        if has_room {
            returns.insert(to);
        }
        has_room
    }
}

impl Memory {
    /// A walk over one item in so many; nothing if there are too many walks already.
    pub fn begin_crawl(&self, one_in: u32, now: Now) -> Option<Crawl> {
        self.index.crawls.begin(one_in, now)
    }

    /// Shows the items of the next buckets, at most so many; says whether the walk goes on.
    pub fn crawl(&self, crawl: &mut Crawl, buckets_max: usize, now: Now, mut show: impl FnMut(CrawlItem<'_>)) -> bool {
        crawl.position.stepped_ms.store(now.unix_ms, Ordering::SeqCst);
        for _ in 0..buckets_max {
            let Some(bucket) = self.next_of(crawl) else {
                return false;
            };
            let lane = bucket & (self.stripes.len() - 1);
            let locked = Locked::new(self, lane, now);
            for (slot, head) in self.index.sample_of(&self.region, bucket, crawl.one_in) {
                let found = locked.found_in(slot, head);
                let header = found.header;
                if !header.is_stale() && !header.is_past(now) {
                    let item = locked.view(&found, now);
                    let (slab_class, item_bytes) = locked.extent(&found);
                    show(CrawlItem { item, slab_class, item_bytes });
                }
            }
            // Under the lock still: who moves items of this stripe must know.
            if !lock(&crawl.position.returns).remove(&bucket) {
                crawl.position.bucket.store(bucket + 1, Ordering::SeqCst);
            }
            drop(locked);
        }
        self.next_of(crawl).is_some()
    }

    /// The bucket to look at: those to come back to are last, since more may come.
    fn next_of(&self, crawl: &Crawl) -> Option<usize> {
        if crawl.is_given_up() {
            return None;
        }
        let next = crawl.position.bucket.load(Ordering::SeqCst);
        match next < self.index.buckets() {
            true => Some(next),
            false => lock(&crawl.position.returns).first().copied(),
        }
    }
}

impl CrawlItem<'_> {
    /// The second in which the item leaves; nothing if it has all the time.
    pub fn end_s(&self) -> Option<u32> {
        match self.item.expiry {
            Expiry::At { unix_s } => Some(unix_s),
            Expiry::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::lock;
    use crate::{Expiry, HashedKey, NewItem, Now, Options, Store};
    use lookaside_protocol::StoreMode;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::Ordering;

    /// A walk was told to come back for items that could not move: up to sixteen buckets for each key that found both of
    /// its own full.
    #[test]
    fn a_walk_comes_back_for_no_more_items_than_have_moved() {
        const FIRST_KEYS: u32 = 1_500;
        const KEYS: u32 = 2_300;
        let options = Options { memory_bytes_max: 256 << 10, item_bytes_max: 4 << 10, ..Options::default() };
        let store = Store::new(options).expect("the options are fine");
        let now = Now { unix_ms: 1_700_000_000_000 };
        let set = |number: u32| {
            let item = NewItem { flags: 0, expiry: Expiry::Never, value: b"v" };
            store.store(HashedKey::new(&number.to_be_bytes()), StoreMode::Set, &item, now);
        };
        let buckets_of_items = || {
            let index = &store.memory.index;
            let mut places = BTreeMap::new();
            for bucket in 0..index.buckets() {
                places.extend(index.items_in(&store.memory.region, bucket).map(|(_, item)| (item.0, bucket)));
            }
            places
        };
        (0..FIRST_KEYS).for_each(set);
        let mut crawl = store.begin_crawl(1, now).expect("no other walk");
        store.crawl(&mut crawl, store.memory.index.buckets() / 2, now, |_| ());
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
        let returns = lock(&crawl.position.returns);
        assert!(!moved_to.is_empty(), "no bucket was full");
        assert!(returns.is_subset(&moved_to), "come back to {returns:?}, but items moved to {moved_to:?}");
        drop(returns);
        store.audit();
    }
}
