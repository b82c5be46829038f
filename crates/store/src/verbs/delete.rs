//! The delete verb.

use super::{ItemRef, StripeGuard};
use crate::meta_state::MetaState;
use crate::{DeleteOutcome, HashedKey, Now};

impl StripeGuard<'_> {
    /// Removes the value, or makes it stale, whatever its meta state; voids the lease; starts the hold-off.
    pub fn delete(&mut self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.stripe.leases.void(key.hash());
        self.stripe.hold_offs.add(key.hash(), now.unix_ms.saturating_add(hold_off_ms.into()), now);
        match self.find_undeleted(key, now) {
            Some(found) => {
                self.remove_or_make_stale(found, now);
                DeleteOutcome::Deleted
            }
            None => DeleteOutcome::NotFound,
        }
    }

    /// Makes an item's value stale if the store keeps stale values. A placeholder has none.
    pub(super) fn remove_or_make_stale(&mut self, found: ItemRef, now: Now) {
        let meta_state = self.shared.memory.pages.meta_state(found.at, &found.header);
        match self.shared.stale_ms {
            _ if meta_state.contains_any(MetaState::PLACEHOLDER) => self.remove_item(found),
            0 => self.remove_item(found),
            stale_ms => self.make_stale(found, now.unix_ms.saturating_add(stale_ms), now),
        }
    }
}
