//! The verbs that show a value: get, gat, lease-get.

use super::{ItemRef, StripeGuard};
use crate::item::Value;
use crate::memory::chunk::{self, CLOCK_MAX, Header};
use crate::meta_state::MetaState;
use crate::{Expiry, HashedKey, ItemView, LeaseGet, Now};
use lookaside_protocol::LeaseToken;

impl StripeGuard<'_> {
    /// Shows the live item, if there is one, and gives it the new expiry, if there is one.
    #[inline]
    pub fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        expiry: Option<Expiry>,
        now: Now,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        let found = self.find_for_get(key, now).filter(|found| self.is_live(found))?;
        Some(render(self.access(found, expiry, now)))
    }

    /// Gives the live item a new expiry; returns whether there is one.
    pub fn touch(&mut self, key: HashedKey<'_>, expiry: Expiry, now: Now) -> bool {
        let Some(found) = self.find_live(key, now) else { return false };
        self.access(found, Some(expiry), now);
        true
    }

    /// Shows the live item, or a token to fill the miss with and the stale value.
    pub fn lease_get<R>(&mut self, key: HashedKey<'_>, now: Now, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        let found = self.find_for_get(key, now);
        if let Some(live) = found.filter(|found| self.is_live(found)) {
            return render(LeaseGet::Hit(self.access(live, None, now)));
        }
        let token = self.stripe.leases.acquire(key.hash(), now);
        match token {
            Some(_) => self.stripe.counters.lease_tokens += 1,
            None => self.stripe.counters.lease_hot_misses += 1,
        }
        // A placeholder has no value to show.
        let pages = &self.shared.memory.pages;
        let stale =
            found.filter(|found| !pages.meta_state(found.at, &found.header).contains_any(MetaState::PLACEHOLDER));
        self.stripe.counters.stale_hits += u64::from(stale.is_some());
        let stale = stale.map(|found| self.view(&found, now));
        render(LeaseGet::Miss { token: token.unwrap_or(LeaseToken::HOT_MISS), stale })
    }

    /// Records an access; the view shows the usage before it. A hot item is not written to: its clock is full, and its
    /// last access was in the same second.
    #[inline(always)]
    pub(super) fn access(&mut self, found: ItemRef, expiry: Option<Expiry>, now: Now) -> ItemView<'_> {
        let before = found.header.usage;
        let after = before.with_access(now).with_fetched().with_clock((before.clock() + 1).min(CLOCK_MAX));
        if after != before {
            self.shared.memory.pages.set_usage_at(found.at, after);
        }
        self.set_expiry_and_view(found, expiry, now)
    }

    /// Shows an item, with a new expiry if there is one, without recording an access.
    #[inline(always)]
    pub(super) fn set_expiry_and_view(&mut self, found: ItemRef, expiry: Option<Expiry>, now: Now) -> ItemView<'_> {
        match expiry {
            None => self.view(&found, now),
            Some(expiry) => self.set_expiry(found, expiry, now),
        }
    }

    fn set_expiry(&mut self, found: ItemRef, expiry: Expiry, now: Now) -> ItemView<'_> {
        let memory = &self.shared.memory;
        let expiry_s = chunk::expiry_s(expiry);
        memory.pages.set_expiry(found.handle, expiry_s);
        let header = Header { expiry_s, ..found.header };
        memory.timers.start(&memory.pages, &memory.slabs, &mut self.stripe, (found.handle, &header), now);
        ItemView { expiry, ..self.view(&found, now) }
    }

    /// Shows an item of this stripe.
    #[inline(always)]
    pub fn view(&self, found: &ItemRef, now: Now) -> ItemView<'_> {
        let (pages, header) = (&self.shared.memory.pages, &found.header);
        ItemView {
            key: pages.key(found.at, header),
            flags: pages.flags(found.at, header),
            cas: self.cas(found.at, header),
            expiry: header.expiry(),
            last_access_age_s: if header.is_stale() { 0 } else { header.usage.access_age_s(now) },
            fetched: header.usage.is_fetched(),
            value: self.value(found),
        }
    }

    /// The value of an item of this stripe.
    #[inline(always)]
    pub(super) fn value(&self, found: &ItemRef) -> Value<'_> {
        let pages = &self.shared.memory.pages;
        let first = pages.inline_value(found.at, &found.header);
        match found.header.is_chained() {
            true => {
                let (next, value_bytes) = pages.chain(found.at, &found.header);
                Value::chained(first, pages, next, value_bytes - first.len())
            }
            false => Value::whole(first),
        }
    }

    /// The number of an item's slab class, and all bytes that the item uses.
    pub fn extent(&self, found: &ItemRef) -> (usize, usize) {
        let pages = &self.shared.memory.pages;
        (pages.class_of(found.handle) + 1, pages.item_bytes(found.at, &found.header))
    }
}
