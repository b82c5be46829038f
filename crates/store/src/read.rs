//! The verbs that show a value: get, gat, lease-get. A plain get never sees a stale value.

use crate::log::Handle;
use crate::record::{Header, State};
use crate::stripe::{Found, Stripe};
use crate::{Expiry, HashedKey, ItemView, LeaseGet, Now};
use lookaside_protocol::LeaseToken;

impl Stripe {
    /// Shows the live item, if there is one; gives it a new expiry, if there is one.
    pub(crate) fn get<R>(
        &mut self,
        key: HashedKey<'_>,
        expiry: Option<Expiry>,
        now: Now,
        render: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        self.flush_if_due(now);
        let found = self.find_live(key, now)?;
        Some(render(self.visit(found, expiry, now)))
    }

    /// Shows the live item, or who may fill the miss.
    pub(crate) fn lease_get<R>(&mut self, key: HashedKey<'_>, now: Now, render: impl FnOnce(LeaseGet<'_>) -> R) -> R {
        self.flush_if_due(now);
        let found = self.find(key, now);
        if let Some(live) = found.filter(Found::is_live) {
            return render(LeaseGet::Hit(self.visit(live, None, now)));
        }
        let token = self.leases.acquire(key.hash(), now);
        match token {
            Some(_) => self.counters.lease_tokens += 1,
            None => self.counters.lease_hot_misses += 1,
        }
        self.counters.stale_hits += u64::from(found.is_some());
        let stale = found.map(|found| self.view(found.handle, &found.header, now));
        render(LeaseGet::Miss { token: token.unwrap_or(LeaseToken::HOT_MISS), stale })
    }

    /// Notes that the item was asked for; the view tells how it was before.
    fn visit(&mut self, found: Found, expiry: Option<Expiry>, now: Now) -> ItemView<'_> {
        let before = Header { expiry: expiry.unwrap_or(found.header.expiry), ..found.header };
        let state = State::Live { last_access_s: seconds(now) };
        let after = Header { state, referenced: true, fetched: true, ..before };
        self.log.write_header(found.handle, &after);
        self.view(found.handle, &before, now)
    }

    fn view(&self, handle: Handle, header: &Header, now: Now) -> ItemView<'_> {
        let last_access_age_s = match header.state {
            State::Live { last_access_s } => seconds(now).saturating_sub(last_access_s),
            State::Stale { .. } | State::Dead => 0,
        };
        ItemView {
            key: self.log.key(handle),
            flags: header.flags,
            cas: lookaside_protocol::Cas(header.cas),
            expiry: header.expiry,
            last_access_age_s,
            fetched: header.fetched,
            value: self.log.value(handle, header),
        }
    }
}

/// The moment in whole seconds, as it is kept with an item.
pub(crate) fn seconds(now: Now) -> u32 {
    u32::try_from(now.unix_ms / 1000).unwrap_or(u32::MAX)
}
