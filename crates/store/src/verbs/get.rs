//! The verbs that show a value: get, gat, lease-get. A plain get never sees a stale value.

use crate::item::Value;
use crate::memory::chunk::{self, CLOCK_MAX};
use crate::meta_state::Marks;
use crate::shard::{Found, Locked};
use crate::{Expiry, HashedKey, ItemView, LeaseGet, Now};
use lookaside_protocol::LeaseToken;

impl Locked<'_> {
    /// Shows the live item, if there is one; gives it a new expiry, if there is one.
    #[inline]
    pub(crate) fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        expiry: Option<Expiry>,
        now: Now,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        let found = self.find_live(key, now)?;
        Some(render(self.visit(found, expiry, now)))
    }

    /// Shows the live item, or who may fill the miss.
    pub(crate) fn lease_get<R>(&mut self, key: HashedKey<'_>, now: Now, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        let found = self.find(key, now);
        if let Some(live) = found.filter(|found| self.is_live(found)) {
            return render(LeaseGet::Hit(self.visit(live, None, now)));
        }
        let token = self.stripe.leases.acquire(key.hash(), now);
        match token {
            Some(_) => self.stripe.counters.lease_tokens += 1,
            None => self.stripe.counters.lease_hot_misses += 1,
        }
        // A stub has nothing to show.
        let stale = found.filter(|found| !self.memory.marks(found.at, &found.header).has(Marks::STUB));
        self.stripe.counters.stale_hits += u64::from(stale.is_some());
        let stale = stale.map(|found| self.view(&found, now));
        render(LeaseGet::Miss { token: token.unwrap_or(LeaseToken::HOT_MISS), stale })
    }

    /// Notes that the item was asked for; the view tells how it was before. A hot item is not written to: its clock is
    /// full, and the second in which it was asked for last is the same.
    #[inline(always)]
    pub(crate) fn visit(&mut self, found: Found, expiry: Option<Expiry>, now: Now) -> ItemView<'_> {
        let memory = self.memory;
        let before = found.header.usage;
        let after = before.accessed(now).fetched().with_clock((before.clock() + 1).min(CLOCK_MAX));
        if after != before {
            memory.set_usage_at(found.at, after);
        }
        self.show(found, expiry, now)
    }

    /// An item as it is shown, and with a new expiry, if there is one; nobody will know that it was asked for.
    #[inline(always)]
    pub(crate) fn show(&mut self, found: Found, expiry: Option<Expiry>, now: Now) -> ItemView<'_> {
        match expiry {
            None => self.view(&found, now),
            Some(expiry) => self.show_renewed(found, expiry, now),
        }
    }

    fn show_renewed(&mut self, found: Found, expiry: Expiry, now: Now) -> ItemView<'_> {
        let memory = self.memory;
        memory.set_expiry(found.handle, chunk::expiry_s(expiry));
        memory.begin_timer(&mut self.stripe, found.handle, now);
        ItemView { expiry, ..self.view(&found, now) }
    }

    /// An item of this stripe as it is shown.
    #[inline(always)]
    pub(crate) fn view(&self, found: &Found, now: Now) -> ItemView<'_> {
        let header = &found.header;
        ItemView {
            key: self.memory.key(found.at, header),
            flags: self.memory.flags(found.at, header),
            cas: self.cas(found.at, header),
            expiry: header.expiry(),
            last_access_age_s: if header.is_stale() { 0 } else { header.usage.access_age_s(now) },
            fetched: header.usage.is_fetched(),
            value: self.value(found),
        }
    }

    /// The value of an item of this stripe.
    #[inline(always)]
    pub(crate) fn value(&self, found: &Found) -> Value<'_> {
        let first = self.memory.value_here(found.at, &found.header);
        match found.header.is_chained() {
            true => {
                let (next, value_bytes) = self.memory.chain(found.at, &found.header);
                Value::chained(first, self.memory, next, value_bytes - first.len())
            }
            false => Value::whole(first),
        }
    }
}
