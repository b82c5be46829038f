//! The verbs that store a value: set and its kin, lease-set.
//!
//! Every store, and every delete, voids the key's lease: a fill that began earlier read the database earlier, and must
//! not overwrite a newer value (§3.2.1 of the paper).

use super::insert::{Extension, NewContent};
use super::{ItemRef, StripeGuard};
use crate::memory::OutOfMemory;
use crate::memory::chunk::HEADER_BYTES;
use crate::meta_conditions::MetaSet;
use crate::meta_state::MetaState;
use crate::{HashedKey, LeaseSetOutcome, NewItem, Now, StoreOutcome};
use lookaside_protocol::{Cas, LeaseToken, StoreMode};
use std::cmp::Ordering;

impl StripeGuard<'_> {
    /// Stores `item` as `mode` says.
    pub fn store(&mut self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        let live = self.find_live(key, now);
        match (mode, live) {
            (StoreMode::Add, Some(_)) => return StoreOutcome::NotStored,
            (StoreMode::Add, None) if self.check_hold_off(key, now) => return StoreOutcome::NotStored,
            (StoreMode::Set | StoreMode::Add, _) => {}
            (StoreMode::Cas(_), None) => return StoreOutcome::NotFound,
            (StoreMode::Cas(unique), Some(found)) if self.cas(found.at, &found.header) != unique => {
                return StoreOutcome::Exists;
            }
            (StoreMode::Cas(_) | StoreMode::Replace, Some(_)) => {}
            (StoreMode::Append | StoreMode::Prepend, Some(found)) => {
                return self.concatenate(key, found, mode, item.value, None, now).0;
            }
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => return StoreOutcome::NotStored,
        }
        self.store_whole(key, mode, &NewContent::live(item.flags, item.expiry, item.value), now)
    }

    /// As [`StripeGuard::store`], with conditions, and for items whatever their meta state. Returns the bytes of the
    /// value too.
    pub fn meta_set(
        &mut self,
        key: HashedKey<'_>,
        mode: StoreMode,
        item: &NewItem<'_>,
        conditions: &MetaSet,
        now: Now,
    ) -> (StoreOutcome, usize) {
        let value_bytes = item.value.len();
        let found = self.find_undeleted(key, now);
        let content = NewContent {
            extension: Extension::with_client_cas(conditions.cas_new),
            ..NewContent::live(item.flags, item.expiry, item.value)
        };
        let content = match (mode, found) {
            (StoreMode::Append | StoreMode::Prepend, Some(found)) => {
                return match conditions.cas_compare.is_none_or(|unique| self.cas(found.at, &found.header) == unique) {
                    true => self.concatenate(key, found, mode, item.value, conditions.cas_new, now),
                    false => (StoreOutcome::Exists, value_bytes),
                };
            }
            (StoreMode::Append | StoreMode::Prepend, None) => match conditions.vivify {
                Some(expiry) if !self.check_hold_off(key, now) => NewContent { expiry, ..content },
                _ => return (StoreOutcome::NotStored, value_bytes),
            },
            (StoreMode::Cas(_), None) => return (StoreOutcome::NotFound, value_bytes),
            (StoreMode::Cas(unique), Some(found)) => match self.check_cas(unique, &found, conditions) {
                Some(MetaState::NONE) => content,
                Some(meta_state) => {
                    let extension = Some(Extension { meta_state, cas: conditions.cas_new });
                    NewContent { extension, expiry: found.header.expiry(), ..content }
                }
                None => return (StoreOutcome::Exists, value_bytes),
            },
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => return (StoreOutcome::NotStored, value_bytes),
            (StoreMode::Add, None) if self.check_hold_off(key, now) => return (StoreOutcome::NotStored, value_bytes),
            (StoreMode::Add, None) | (StoreMode::Replace, Some(_)) | (StoreMode::Set, _) => content,
        };
        (self.store_whole(key, mode, &content, now), value_bytes)
    }

    /// The meta state of an item that is stored over `found` with this unique; `None` if it must not be.
    fn check_cas(&self, unique: Cas, found: &ItemRef, conditions: &MetaSet) -> Option<MetaState> {
        let present = self.cas(found.at, &found.header);
        let old_state = self.shared.memory.pages.meta_state(found.at, &found.header);
        match unique.0.cmp(&present.0) {
            // In memcached 0 is not a unique.
            _ if unique == Cas(0) => None,
            Ordering::Equal => Some(MetaState::NONE),
            Ordering::Less if conditions.invalidates => {
                Some(MetaState::STALE.with(old_state.intersect(MetaState::WON)))
            }
            Ordering::Less | Ordering::Greater => None,
        }
    }

    /// Returns whether a hold-off refuses to add the key, and counts the refusal.
    pub(super) fn check_hold_off(&mut self, key: HashedKey<'_>, now: Now) -> bool {
        let is_refused = self.stripe.hold_offs.refuses(key.hash(), now);
        self.stripe.counters.hold_off_refusals += u64::from(is_refused);
        is_refused
    }

    fn store_whole(&mut self, key: HashedKey<'_>, mode: StoreMode, content: &NewContent<'_>, now: Now) -> StoreOutcome {
        let outcome = self.store_content(key, content, now);
        if mode == StoreMode::Set {
            match outcome {
                StoreOutcome::Stored(_) => self.stripe.hold_offs.remove(key.hash(), now),
                // As in memcached: the older value must not outlive the refused update. Other verbs leave it.
                StoreOutcome::OutOfMemory => self.remove_undeleted(key, now),
                _ => {}
            }
        }
        outcome
    }

    /// Stores `item` if `token` still holds; else refreshes the stale value.
    pub fn lease_set(
        &mut self,
        key: HashedKey<'_>,
        token: LeaseToken,
        item: &NewItem<'_>,
        now: Now,
    ) -> LeaseSetOutcome {
        let found = self.find_unexpired(key, now);
        let is_live = found.is_some_and(|found| self.is_live(&found));
        // A live value while a token holds: this happens only to two keys with the same hash.
        if self.stripe.leases.holds(key.hash(), token) && !is_live {
            let outcome = self.store_content(key, &NewContent::live(item.flags, item.expiry, item.value), now).into();
            self.stripe.counters.lease_sets_stored += u64::from(matches!(outcome, LeaseSetOutcome::Stored(_)));
            return outcome;
        }
        self.stripe.counters.lease_sets_refused += 1;
        match found {
            Some(found) if found.header.is_stale() && token.is_held() => {
                self.refresh_stale(key, item, found.header.stale_until_ms(), now)
            }
            _ => LeaseSetOutcome::NotStored,
        }
    }

    /// Ends a lease whose token no client has received.
    pub fn release_lease(&mut self, key: HashedKey<'_>, token: LeaseToken) {
        self.stripe.leases.release(key.hash(), token);
    }

    fn is_too_large(&self, key: HashedKey<'_>, value_bytes: usize) -> bool {
        HEADER_BYTES + key.key().len() + value_bytes > self.shared.item_bytes_max
    }

    /// Stores `content`. If it is too large, the older value is removed: the writer meant to replace that, so it must
    /// not be served any longer.
    pub(super) fn store_content(&mut self, key: HashedKey<'_>, content: &NewContent<'_>, now: Now) -> StoreOutcome {
        self.stripe.leases.void(key.hash());
        if self.is_too_large(key, content.value.len()) {
            self.remove_undeleted(key, now);
            self.stripe.counters.stores_too_large += 1;
            return StoreOutcome::TooLarge;
        }
        match self.insert(key, content, now) {
            Ok(cas) => {
                self.stripe.counters.items_total += 1;
                StoreOutcome::Stored(cas)
            }
            Err(OutOfMemory) => {
                self.stripe.counters.stores_out_of_memory += 1;
                StoreOutcome::OutOfMemory
            }
        }
    }

    fn remove_undeleted(&mut self, key: HashedKey<'_>, now: Now) {
        if let Some(found) = self.find_undeleted(key, now) {
            self.remove_item(found);
        }
    }

    fn refresh_stale(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, until_ms: u64, now: Now) -> LeaseSetOutcome {
        if self.is_too_large(key, item.value.len()) {
            self.stripe.counters.stores_too_large += 1;
            return LeaseSetOutcome::TooLarge;
        }
        let stale_until_ms = Some(until_ms);
        let content = NewContent { stale_until_ms, ..NewContent::live(item.flags, item.expiry, item.value) };
        match self.insert(key, &content, now) {
            Ok(_) => LeaseSetOutcome::StaleStored,
            Err(OutOfMemory) => {
                self.stripe.counters.stores_out_of_memory += 1;
                LeaseSetOutcome::OutOfMemory
            }
        }
    }

    /// Adds a piece to the front or the end of a value; flags and expiry stay.
    fn concatenate(
        &mut self,
        key: HashedKey<'_>,
        found: ItemRef,
        mode: StoreMode,
        piece: &[u8],
        cas: Option<Cas>,
        now: Now,
    ) -> (StoreOutcome, usize) {
        let value_bytes = self.value(&found).value_bytes() + piece.len();
        if self.is_too_large(key, value_bytes) {
            self.stripe.counters.stores_too_large += 1;
            return (StoreOutcome::TooLarge, value_bytes);
        }
        let old = self.value(&found).to_vec();
        let value = if mode == StoreMode::Append { [&old, piece].concat() } else { [piece, &old].concat() };
        let flags = self.shared.memory.pages.flags(found.at, &found.header);
        let content = NewContent {
            extension: Extension::with_client_cas(cas),
            ..NewContent::live(flags, found.header.expiry(), &value)
        };
        self.stripe.leases.void(key.hash());
        match self.insert(key, &content, now) {
            Ok(cas) => {
                self.stripe.counters.items_total += 1;
                (StoreOutcome::Stored(cas), value_bytes)
            }
            Err(OutOfMemory) => {
                self.stripe.counters.stores_out_of_memory += 1;
                (StoreOutcome::OutOfMemory, value_bytes)
            }
        }
    }
}

impl From<StoreOutcome> for LeaseSetOutcome {
    fn from(outcome: StoreOutcome) -> LeaseSetOutcome {
        match outcome {
            StoreOutcome::Stored(cas) => LeaseSetOutcome::Stored(cas),
            StoreOutcome::TooLarge => LeaseSetOutcome::TooLarge,
            StoreOutcome::OutOfMemory => LeaseSetOutcome::OutOfMemory,
            StoreOutcome::NotStored | StoreOutcome::Exists | StoreOutcome::NotFound => LeaseSetOutcome::NotStored,
        }
    }
}
