//! The index: from a key to its item. A bucketized cuckoo hash table. Every verb uses it.
//!
//! ```text
//! bucket, one cache line:  slot x 8          slot:  handle 32 | tag 24 | reason 8       0: empty
//! ```
//! A slot with handle 0 is empty. If its last item expired or was flushed, its tag and the reason stay until the slot
//! is used again ([`RemovalReason`]): a get that then finds nothing is counted by the reason.
//!
//! A key has two buckets, both within its stripe, and lies in either. When both are full an item moves to its other
//! bucket; if none can, the coldest item of the two buckets is evicted.
//!
//! Growth is Litwin's linear hashing: bucket `count` takes its share from the bucket that it is split off from. A
//! bucket's number ends in the bits of its stripe, so both lie in one stripe, and only that stripe's lock is needed;
//! look-ups of keys of other stripes give the same answers before and after. So no request ever waits for a table to
//! be copied. Buckets lie in pages of the region, found through a directory.
//!
//! Slots are atomics so that a prefetch may read them without a lock. Everything else happens under the stripe's lock.

use crate::HashedKey;
use crate::memory::crawl_registry::CrawlRegistry;
use crate::memory::geometry::Geometry;
use crate::memory::handle::{Handle, SlotAt};
use crate::memory::region::Region;
use crate::snapshot_codec::{PageOwners, SnapshotReader, SnapshotWriter};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const SLOTS: usize = 8;
pub(crate) const BUCKET_BYTES: usize = 64;
/// The index grows when more than this percentage of slots is in use.
const FILL_PERCENT: usize = 85;

/// Below this percentage the index does not grow beyond its share of memory, however full one stripe is.
const GROWTH_FILL_PERCENT_MIN: usize = 40;
/// The index may use one part in this many of the memory however empty it is: few buckets fill unevenly.
const INDEX_SHARE: usize = 64;

/// A key's first bucket is preferred while it has this many empty slots.
const SPARE_SLOTS: usize = 2;
/// How many further items may move to make room for one.
const MOVES_MAX: usize = 2;

/// The bits of a slot that hold the reason why its last item left.
const REASON_SHIFT: u32 = 56;

/// Why an item left that no client has deleted and no store has displaced. A statistic: a slot that is used again
/// forgets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    /// Its time was over.
    Expired = 1,
    /// A flush.
    Flushed = 2,
}

/// The number of stores that this process has made.
static STORES: AtomicU32 = AtomicU32::new(0);

/// The directory of buckets. The buckets lie in the region.
pub(crate) struct Index {
    /// Unique among the stores of this process.
    store: u32,
    /// The page of each run of buckets.
    directory: Box<[AtomicU32]>,
    buckets: AtomicUsize,
    page_shift: u32,
    /// Buckets per page, as a power of two.
    run_bits: u32,
    stripe_bits: u32,
    /// Up to this many buckets, the index grows whenever one stripe needs it.
    buckets_unconditional_max: usize,
}

impl Index {
    /// An empty index in page 0.
    pub fn new(geometry: &Geometry) -> Index {
        let run_bits = (geometry.page_bytes / BUCKET_BYTES).ilog2();
        Index {
            store: STORES.fetch_add(1, Ordering::Relaxed),
            directory: (0..geometry.pages_max).map(|_| AtomicU32::new(0)).collect(),
            buckets: AtomicUsize::new(1 << run_bits.max(geometry.stripe_bits)),
            page_shift: geometry.page_bytes.ilog2(),
            run_bits,
            stripe_bits: geometry.stripe_bits,
            buckets_unconditional_max: geometry.pages * geometry.page_bytes / INDEX_SHARE / BUCKET_BYTES,
        }
    }

    /// Saves where the buckets lie. With a page ahead, the next run has its page already.
    pub fn save(&self, is_page_ahead: bool, snapshot: &mut SnapshotWriter) {
        snapshot.put_u64(self.buckets() as u64);
        let runs = self.buckets().div_ceil(1 << self.run_bits) + usize::from(is_page_ahead);
        self.directory[..runs].iter().for_each(|page| snapshot.put_u32(page.load(Ordering::Relaxed)));
    }

    /// Restores what [`Index::save`] saved.
    pub fn restore(
        &self,
        is_page_ahead: bool,
        owners: &mut PageOwners,
        snapshot: &mut SnapshotReader<'_>,
    ) -> Option<()> {
        let buckets = usize::try_from(snapshot.get_u64()?).ok()?;
        let buckets_max = self.directory.len() << self.run_bits;
        if !(self.buckets()..=buckets_max).contains(&buckets) {
            return None;
        }
        let runs = buckets.div_ceil(1 << self.run_bits) + usize::from(is_page_ahead);
        for entry in self.directory.get(..runs)? {
            entry.store(owners.claim(snapshot.get_u32()?)?, Ordering::Relaxed);
        }
        self.buckets.store(buckets, Ordering::Release);
        Some(())
    }

    /// The number of buckets.
    #[inline]
    pub fn buckets(&self) -> usize {
        self.buckets.load(Ordering::Acquire)
    }

    /// Whether a stripe with this many items needs more buckets, and [`Index::may_grow`] allows them.
    pub fn needs_growth(&self, stripe_items: usize, items: usize) -> bool {
        (stripe_items << self.stripe_bits) * 100 > self.buckets() * SLOTS * FILL_PERCENT && self.may_grow(items)
    }

    /// Whether a store with this many items may have more buckets. Keys crafted to fall into one stripe, or one bucket,
    /// must not make the index use up the memory of all others.
    pub fn may_grow(&self, items: usize) -> bool {
        let buckets = self.buckets();
        buckets < self.buckets_unconditional_max || items * 100 > buckets * SLOTS * GROWTH_FILL_PERCENT_MIN
    }

    /// Whether the next bucket needs another page.
    pub fn needs_page(&self) -> bool {
        self.buckets() & ((1 << self.run_bits) - 1) == 0
    }

    /// Gives the next run of buckets a page.
    pub fn add_page(&self, page: u32) {
        self.directory[self.buckets() >> self.run_bits].store(page, Ordering::Release);
    }

    /// The index as it is now, to look up many keys.
    #[inline]
    pub fn view(&self) -> IndexView<'_> {
        IndexView {
            directory: &self.directory,
            buckets: self.buckets(),
            page_shift: self.page_shift,
            run_bits: self.run_bits,
            stripe_bits: self.stripe_bits,
        }
    }

    /// The item in the first slot with the key's tag on the line at `at`, without the lock, so it may be out of date.
    /// The slot is stored in the key as a hint.
    #[inline]
    pub fn find_hint(&self, region: &Region, key: &mut HashedKey<'_>, at: usize) -> Option<Handle> {
        let line = region.line(at);
        let slot_index = slots_with_tag(line, key.tag()).next()?;
        key.set_hint(self.store, SlotAt(at + 8 * slot_index));
        Some(handle_of(line[slot_index].load(Ordering::Relaxed)))
    }

    /// The item in the slot of the key's hint, if it still has the key's tag. The stripe is locked.
    #[inline]
    pub fn find_hinted(&self, region: &Region, key: HashedKey<'_>) -> Option<(SlotAt, Handle)> {
        let at = key.hint(self.store)?;
        let slot = load(region, at);
        (tag_of(slot) == key.tag()).then_some((at, handle_of(slot)))
    }

    /// The slot and item with the key's tag for which `check` returns `Some`.
    #[inline]
    pub fn find<T>(
        &self,
        region: &Region,
        key: HashedKey<'_>,
        mut check: impl FnMut(Handle) -> Option<T>,
    ) -> Option<(SlotAt, T)> {
        self.view().lines(key).into_iter().find_map(|at| {
            let line = region.line(at);
            slots_with_tag(line, key.tag()).find_map(|slot_index| {
                let item = check(handle_of(line[slot_index].load(Ordering::Relaxed)))?;
                Some((SlotAt(at + 8 * slot_index), item))
            })
        })
    }

    /// The slot of an item that is in the index.
    pub fn slot_of(&self, region: &Region, key: HashedKey<'_>, handle: Handle) -> SlotAt {
        let found = self.find(region, key, |other| (other == handle).then_some(()));
        found.expect("every head is in the index").0
    }

    /// An empty slot for the key: in its first bucket while that has [`SPARE_SLOTS`], so that most gets touch one
    /// line; else in the emptier of the two.
    pub fn find_empty_slot(&self, region: &Region, key: HashedKey<'_>) -> Option<SlotAt> {
        let [first, second] = self.view().buckets_of(key).map(|bucket| self.empty_slots(region, bucket));
        let emptier = if first.1 < SPARE_SLOTS && second.1 > first.1 { second } else { first };
        emptier.0
    }

    /// Empties a slot for a key whose buckets are both full: an item moves to its other bucket, after another item has
    /// moved out of that if need be.
    pub fn displace<'k>(
        &self,
        region: &'k Region,
        crawls: &CrawlRegistry,
        key: HashedKey<'_>,
        key_of: &impl Fn(Handle) -> HashedKey<'k>,
    ) -> Option<SlotAt> {
        let buckets = self.view().buckets_of(key);
        let empty = |bucket, moves| self.empty_slot_of(region, crawls, bucket, moves, key_of);
        (0..=MOVES_MAX).find_map(|moves| buckets.iter().find_map(|&bucket| empty(bucket, moves)))
    }

    /// Empties a slot of a full bucket; `moves` further items may have to move for it.
    fn empty_slot_of<'k>(
        &self,
        region: &'k Region,
        crawls: &CrawlRegistry,
        bucket: usize,
        moves: usize,
        key_of: &impl Fn(Handle) -> HashedKey<'k>,
    ) -> Option<SlotAt> {
        (0..SLOTS).find_map(|slot_index| {
            let from = SlotAt(self.view().bucket_offset(bucket) + 8 * slot_index);
            let buckets = self.view().buckets_of(key_of(handle_of(load(region, from))));
            let other = if buckets[0] == bucket { buckets[1] } else { buckets[0] };
            let to = match moves {
                _ if other == bucket => None,
                0 => self.empty_slots(region, other).0,
                _ => self.empty_slot_of(region, crawls, other, moves - 1, key_of),
            }?;
            // Last, because a crawl that allows the move revisits the bucket, and must not do so for an item that
            // stayed.
            crawls.allow_move(bucket, other).then(|| {
                self.relocate(region, from, to);
                from
            })
        })
    }

    /// All slots that the key could lie in, with the items in them.
    pub fn candidates(&self, region: &Region, key: HashedKey<'_>) -> impl Iterator<Item = (SlotAt, Handle)> {
        self.view().buckets_of(key).into_iter().flat_map(|bucket| self.items_of_bucket(region, bucket))
    }

    /// Stores an item under the key's tag.
    pub fn set_slot(&self, region: &Region, at: SlotAt, key: HashedKey<'_>, handle: Handle) {
        region.long_word(at.0).store(slot(key, handle), Ordering::Relaxed);
    }

    /// Empties the slot.
    pub fn clear_slot(&self, region: &Region, at: SlotAt) {
        region.long_word(at.0).store(0, Ordering::Relaxed);
    }

    /// Empties the slot of an item, and leaves the reason.
    pub fn vacate_slot(&self, region: &Region, at: SlotAt, reason: RemovalReason) {
        let tag = u64::from(tag_of(load(region, at)));
        region.long_word(at.0).store((reason as u64) << REASON_SHIFT | tag << 32, Ordering::Relaxed);
    }

    /// Why the item with the key's tag left, if a slot still knows; it does not any more afterwards.
    pub fn take_removal_reason(&self, region: &Region, key: HashedKey<'_>) -> Option<RemovalReason> {
        let is_vacated = |slot: u64| slot << (64 - REASON_SHIFT) == u64::from(key.tag()) << (32 + 64 - REASON_SHIFT);
        self.view().lines(key).into_iter().flat_map(|at| region.line(at)).find_map(|slot| {
            let value = slot.load(Ordering::Relaxed);
            if !is_vacated(value) {
                return None;
            }
            slot.store(0, Ordering::Relaxed);
            match value >> REASON_SHIFT {
                1 => Some(RemovalReason::Expired),
                _ => Some(RemovalReason::Flushed),
            }
        })
    }

    /// Moves an item to a slot in another of its buckets.
    fn relocate(&self, region: &Region, from: SlotAt, to: SlotAt) {
        region.long_word(to.0).store(load(region, from), Ordering::Relaxed);
        self.clear_slot(region, from);
    }

    /// All items of one stripe.
    pub fn items_of_stripe(&self, region: &Region, stripe: usize) -> impl Iterator<Item = (SlotAt, Handle)> {
        (stripe..self.buckets()).step_by(1 << self.stripe_bits).flat_map(|bucket| self.items_of_bucket(region, bucket))
    }

    /// All items of one bucket.
    pub fn items_of_bucket(&self, region: &Region, bucket: usize) -> impl Iterator<Item = (SlotAt, Handle)> {
        let at = self.view().bucket_offset(bucket);
        let slots = (0..SLOTS).map(move |slot| SlotAt(at + 8 * slot));
        slots
            .map(|at| (at, load(region, at)))
            .filter(|&(_, slot)| !is_empty(slot))
            .map(|(at, slot)| (at, handle_of(slot)))
    }

    /// A sample of one in `one_in` of a bucket's items, chosen by their tags.
    pub fn sample_bucket(&self, region: &Region, bucket: usize, one_in: u32) -> impl Iterator<Item = (SlotAt, Handle)> {
        self.items_of_bucket(region, bucket).filter(move |&(at, _)| tag_of(load(region, at)).is_multiple_of(one_in))
    }

    /// The stripe whose lock the next growth needs.
    pub fn growing_stripe(&self) -> usize {
        self.buckets() & ((1 << self.stripe_bits) - 1)
    }

    /// Adds one bucket. The caller holds the lock of the growing stripe, and no other thread grows the index.
    pub fn grow<'k>(&self, region: &'k Region, key_of: impl Fn(Handle) -> HashedKey<'k>) {
        let count = self.buckets();
        let parent = count - (1 << count.ilog2());
        let (parent_at, child_at) = (self.view().bucket_offset(parent), self.view().bucket_offset(count));
        (0..SLOTS).for_each(|slot| self.clear_slot(region, SlotAt(child_at + 8 * slot)));
        let mut child_slots = 0;
        for slot_index in 0..SLOTS {
            let from = SlotAt(parent_at + 8 * slot_index);
            let slot = load(region, from);
            if is_empty(slot) {
                continue;
            }
            let key = key_of(handle_of(slot));
            let [first, second] = bucket_hashes(key, self.stripe_bits);
            let hash = if bucket_of(first, count) == parent { first } else { second };
            if bucket_of(hash, count + 1) == count {
                self.relocate(region, from, SlotAt(child_at + 8 * child_slots));
                child_slots += 1;
            }
        }
        self.buckets.store(count + 1, Ordering::Release);
    }

    /// An empty slot, if possible one that knows no reason why its last item left, and the number of empty slots.
    fn empty_slots(&self, region: &Region, bucket: usize) -> (Option<SlotAt>, usize) {
        let at = self.view().bucket_offset(bucket);
        let (mut unused, mut vacated, mut count) = (None, None, 0);
        for slot_index in (0..SLOTS).rev() {
            let at = SlotAt(at + 8 * slot_index);
            match load(region, at) {
                0 => unused = Some(at),
                slot if is_empty(slot) => vacated = Some(at),
                _ => continue,
            }
            count += 1;
        }
        (unused.or(vacated), count)
    }
}

/// The directory and the number of buckets at one moment. May be out of date for keys whose stripe is not locked.
#[derive(Clone, Copy)]
pub(crate) struct IndexView<'i> {
    directory: &'i [AtomicU32],
    buckets: usize,
    page_shift: u32,
    run_bits: u32,
    stripe_bits: u32,
}

impl IndexView<'_> {
    /// The offsets of the key's two buckets.
    #[inline]
    pub fn lines(&self, key: HashedKey<'_>) -> [usize; 2] {
        self.buckets_of(key).map(|bucket| self.bucket_offset(bucket))
    }

    #[inline]
    fn buckets_of(&self, key: HashedKey<'_>) -> [usize; 2] {
        bucket_hashes(key, self.stripe_bits).map(|hash| bucket_of(hash, self.buckets))
    }

    #[inline]
    fn bucket_offset(&self, bucket: usize) -> usize {
        let page = self.directory[bucket >> self.run_bits].load(Ordering::Acquire) as usize;
        (page << self.page_shift) + (bucket & ((1 << self.run_bits) - 1)) * BUCKET_BYTES
    }
}

/// The bits that choose the key's two buckets: both end in the number of its stripe.
#[inline]
pub(crate) fn bucket_hashes(key: HashedKey<'_>, stripe_bits: u32) -> [usize; 2] {
    let first = key.hash();
    let stripe_mask = (1 << stripe_bits) - 1;
    // Any odd constant: the upper half of the product depends on all bits below.
    let second = first.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
    [first as usize, (second & !stripe_mask | first & stripe_mask) as usize]
}

/// The bucket of a hash when there are `count` of them.
#[inline]
fn bucket_of(hash: usize, count: usize) -> usize {
    let half = 1 << count.ilog2();
    let bucket = hash & (2 * half - 1);
    if bucket < count { bucket } else { bucket - half }
}

/// The indexes of the slots with this tag. All eight are compared before the first branch, which would be mispredicted.
#[inline]
fn slots_with_tag(line: &[AtomicU64; SLOTS], tag: u32) -> impl Iterator<Item = usize> + use<> {
    // A slot is the tag above the handle, so a slot with this tag is one of the 2^32 numbers from `first` on. A slot
    // costs a subtraction, a comparison, and its result shifted in.
    let first = u64::from(tag) << 32;
    let has_tag = |slot: &AtomicU64| slot.load(Ordering::Relaxed).wrapping_sub(first) < 1 << 32;
    let mut matches = line.iter().rev().fold(0u32, |matches, slot| matches + matches + u32::from(has_tag(slot)));
    std::iter::from_fn(move || {
        let slot_index = matches.trailing_zeros() as usize;
        matches &= matches.wrapping_sub(1);
        (slot_index < SLOTS).then_some(slot_index)
    })
}

#[inline]
fn load(region: &Region, at: SlotAt) -> u64 {
    region.long_word(at.0).load(Ordering::Relaxed)
}

fn slot(key: HashedKey<'_>, handle: Handle) -> u64 {
    u64::from(key.tag()) << 32 | u64::from(handle.0)
}

#[inline]
fn tag_of(slot: u64) -> u32 {
    (slot >> 32) as u32
}

/// Whether the slot has no item.
#[inline]
fn is_empty(slot: u64) -> bool {
    slot as u32 == 0
}

#[inline]
fn handle_of(slot: u64) -> Handle {
    Handle(slot as u32)
}

#[cfg(test)]
mod tests;
