//! The verbs, one file per family. A verb runs from start to end under the lock of the key's stripe.
//!
//! An item never changes once it can be found, but for its expiry, its usage, its meta state, and when it becomes
//! stale: a verb that changes a value stores another item and puts it in the place of the old one (`insert.rs`).
//!
//! Five functions look a key up. They differ in what they find:
//!
//! | | expired | deleted (stale) | hidden by its meta state | live |
//! |---|---|---|---|---|
//! | [`StripeGuard::find`] | found | found | found | found |
//! | [`StripeGuard::find_unexpired`], [`StripeGuard::find_for_get`] | removed | found | found | found |
//! | [`StripeGuard::find_undeleted`], for meta verbs and deletes | removed | – | found | found |
//! | [`StripeGuard::find_live`], for classic verbs | removed | – | – | found |

pub(crate) mod arithmetic;
mod delete;
mod get;
mod insert;
mod maintenance;
mod meta;
mod set;

use crate::memory::Memory;
use crate::memory::chunk::Header;
use crate::memory::handle::{Handle, SlotAt};
use crate::memory::index::RemovalReason;
use crate::shared::Shared;
use crate::stripe::Stripe;
use crate::sync::{MutexGuard, lock};
use crate::{HashedKey, Now};
use lookaside_protocol::Cas;

/// A stripe under its lock.
pub(crate) struct StripeGuard<'s> {
    pub shared: &'s Shared,
    pub stripe: MutexGuard<'s, Stripe>,
}

/// An item that was looked up.
#[derive(Clone, Copy)]
pub(crate) struct ItemRef {
    pub slot: SlotAt,
    pub handle: Handle,
    /// Its offset in the region.
    pub at: usize,
    pub header: Header,
}

impl<'s> StripeGuard<'s> {
    /// Waits for the stripe's lock; then runs maintenance that is due. Every verb starts with this.
    #[inline]
    pub fn lock(shared: &'s Shared, stripe: usize, now: Now) -> StripeGuard<'s> {
        let mut stripe = lock(&shared.memory.stripes[stripe].0);
        if now.unix_ms >= stripe.due_ms {
            stripe = StripeGuard::with_maintenance(shared, stripe, now);
        }
        StripeGuard { shared, stripe }
    }

    /// Takes and returns the guard by value: if its address were taken, every verb would copy it through memory, and
    /// wait for that longer than for the lock.
    #[cold]
    #[inline(never)]
    fn with_maintenance(shared: &'s Shared, stripe: MutexGuard<'s, Stripe>, now: Now) -> MutexGuard<'s, Stripe> {
        let mut guard = StripeGuard { shared, stripe };
        guard.run_due(now);
        guard.stripe
    }

    #[inline(always)]
    fn memory(&self) -> &'s Memory {
        &self.shared.memory
    }

    /// The item of `key`, also if it has expired.
    #[inline(always)]
    pub fn find(&self, key: HashedKey<'_>) -> Option<ItemRef> {
        let (pages, index) = (&self.memory().pages, &self.memory().index);
        if let Some((slot, handle)) = index.find_hinted(&pages.region, key) {
            let at = pages.offset_of(handle);
            if let Some(header) = pages.header_if_key(at, key.key()) {
                return Some(ItemRef { slot, handle, at, header });
            }
        }
        let check = |handle| {
            let at = pages.offset_of(handle);
            Some((handle, at, pages.header_if_key(at, key.key())?))
        };
        let (slot, (handle, at, header)) = index.find(&pages.region, key, check)?;
        Some(ItemRef { slot, handle, at, header })
    }

    /// The item of `key`; an expired one is removed.
    #[inline(always)]
    pub fn find_unexpired(&mut self, key: HashedKey<'_>, now: Now) -> Option<ItemRef> {
        let found = self.find(key)?;
        if found.header.is_expired(now) {
            self.remove_expired(found, None);
            return None;
        }
        Some(found)
    }

    /// As [`StripeGuard::find_unexpired`], for a get: counts one of an item that has expired or was flushed.
    #[inline(always)]
    pub fn find_for_get(&mut self, key: HashedKey<'_>, now: Now) -> Option<ItemRef> {
        match self.find(key) {
            Some(found) if !found.header.is_expired(now) => Some(found),
            found => {
                self.count_get_of_removed(key, found);
                None
            }
        }
    }

    /// Counts a get by why there is no item. `expired` is the item that it found, which is removed.
    #[inline(never)]
    fn count_get_of_removed(&mut self, key: HashedKey<'_>, expired: Option<ItemRef>) {
        let reason = match expired {
            Some(expired) => {
                self.remove_expired(expired, None);
                // A stale value was deleted before its time was over.
                (!expired.header.is_stale()).then_some(RemovalReason::Expired)
            }
            None => self.take_removal_reason(key),
        };
        match reason {
            Some(RemovalReason::Expired) => self.stripe.counters.gets_expired += 1,
            Some(RemovalReason::Flushed) => self.stripe.counters.gets_flushed += 1,
            None => {}
        }
    }

    /// Why the key's last item left, if a slot of the index still knows; it does not any more afterwards.
    fn take_removal_reason(&mut self, key: HashedKey<'_>) -> Option<RemovalReason> {
        let memory = self.memory();
        let may_be_known = self.stripe.has_removal_reasons;
        may_be_known.then(|| memory.index.take_removal_reason(&memory.pages.region, key)).flatten()
    }

    /// Removes an item that has expired, and counts it. A stale value has no reason to remember: it was deleted before.
    pub fn remove_expired(&mut self, found: ItemRef, reason: Option<RemovalReason>) {
        let memory = self.memory();
        memory.slabs.counters[memory.pages.class_of(found.handle)].record_removal(&found.header, false);
        self.remove_item_because(found, reason.filter(|_| !found.header.is_stale()));
        self.stripe.counters.expirations += 1;
    }

    /// The item of `key` that was not deleted, whatever its meta state.
    pub fn find_undeleted(&mut self, key: HashedKey<'_>, now: Now) -> Option<ItemRef> {
        self.find_unexpired(key, now).filter(|found| !found.header.is_stale())
    }

    /// The live item of `key`.
    #[inline(always)]
    pub fn find_live(&mut self, key: HashedKey<'_>, now: Now) -> Option<ItemRef> {
        self.find_unexpired(key, now).filter(|found| self.is_live(found))
    }

    /// Whether a get may show the item.
    #[inline(always)]
    pub fn is_live(&self, found: &ItemRef) -> bool {
        !found.header.is_stale() && !self.memory().pages.meta_state(found.at, &found.header).is_hidden()
    }

    /// The item in a slot of this stripe.
    pub fn item_at(&self, slot: SlotAt, handle: Handle) -> ItemRef {
        let pages = &self.memory().pages;
        ItemRef { slot, handle, at: pages.offset_of(handle), header: pages.header(handle) }
    }

    /// The CAS unique of a live item. It grows with each store, and no two stripes share one; unless a client chose it.
    pub fn cas(&self, at: usize, header: &Header) -> Cas {
        match self.memory().pages.explicit_cas(at, header) {
            Some(explicit) => Cas(explicit),
            None => self.implicit_cas(header),
        }
    }

    fn implicit_cas(&self, header: &Header) -> Cas {
        Cas(u64::from(header.sequence) << 8 | self.stripe.number as u64)
    }

    /// Removes an item from the index and frees it.
    pub fn remove_item(&mut self, found: ItemRef) {
        self.remove_item_because(found, None);
    }

    /// As [`StripeGuard::remove_item`]; the index remembers the reason, if there is one.
    fn remove_item_because(&mut self, found: ItemRef, reason: Option<RemovalReason>) {
        let memory = self.memory();
        match reason {
            Some(reason) => {
                memory.index.vacate_slot(&memory.pages.region, found.slot, reason);
                self.stripe.has_removal_reasons = true;
            }
            None => memory.index.clear_slot(&memory.pages.region, found.slot),
        }
        self.stripe.remove_item(&memory.items, memory.pages.item_bytes(found.at, &found.header));
        self.free_item(found);
    }

    fn free_item(&mut self, found: ItemRef) {
        let (pages, slabs) = (&self.memory().pages, &self.memory().slabs);
        let mut freed = Vec::new();
        pages.unlink_chunks(found.handle, &found.header, &mut freed);
        slabs.free(pages, found.handle);
        slabs.free_all(pages, &freed);
    }
}
