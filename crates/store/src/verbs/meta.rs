//! The meta verbs, as far as they do more than the classic ones. Classic `incr` and `decr`
//! ([`StripeGuard::arithmetic`]) are here too; sets with conditions are in `set.rs`.
//!
//! A win (`W`) is a flag on the item, not a lease: the winner is asked to recache, but other clients may still store. A
//! client that wants a concurrent delete to refuse its store uses the CAS unique of its get.

use super::arithmetic::Number;
use super::insert::{Extension, NewContent};
use super::{ItemRef, StripeGuard};
use crate::ages::StoreNumber;
use crate::memory::OutOfMemory;
use crate::meta_conditions::{
    MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaGetOutcome,
};
use crate::meta_state::MetaState;
use crate::{ArithmeticOutcome, Expiry, HashedKey, Now, StoreOutcome};
use lookaside_protocol::{Cas, Direction};

impl StripeGuard<'_> {
    /// Shows the item that was not deleted, or a placeholder that this get creates.
    pub fn meta_get<R>(
        &mut self,
        key: HashedKey<'_>,
        conditions: &MetaGet,
        now: Now,
        render: impl FnOnce(MetaGetOutcome<'_>) -> R,
    ) -> Option<R> {
        let found = match conditions.counts_miss {
            true => self.find_for_get(key, now).filter(|found| !found.header.is_stale()),
            false => self.find_undeleted(key, now),
        };
        let is_vivified = found.is_none();
        let found = match found {
            Some(found) => found,
            None => self.vivify(key, conditions.vivify?, conditions.cas_new, now)?,
        };
        let meta_state = self.shared.memory.pages.meta_state(found.at, &found.header);
        let expiry_before = found.header.expiry();
        let win_is_free = !meta_state.contains_any(MetaState::WON);
        let is_near = conditions.recache.is_some_and(|recache| {
            let touch = conditions.touch.filter(|_| recache.is_touched_first);
            ends_before(touch.unwrap_or(expiry_before), recache.before)
        });
        let is_won = is_vivified || win_is_free && (is_near || meta_state.contains_any(MetaState::STALE));
        let found = if is_won && !is_vivified { self.mark_won(key, found, meta_state, now)? } else { found };
        let (slab_class, item_bytes) = self.extent(&found);
        let touch = conditions.touch.filter(|_| !is_vivified);
        let number = StoreNumber { stripe: self.stripe.number, sequence: found.header.sequence };
        let item = match conditions.no_bump {
            true => self.set_expiry_and_view(found, touch, now),
            false => self.access(found, touch, now),
        };
        let win_already_sent = !win_is_free && !is_vivified;
        let is_stale = meta_state.contains_any(MetaState::STALE);
        let is_hidden = is_vivified || meta_state.is_hidden();
        Some(render(MetaGetOutcome {
            item,
            expiry_before,
            is_vivified,
            is_won,
            win_already_sent,
            is_stale,
            is_hidden,
            number,
            slab_class,
            item_bytes,
        }))
    }

    /// Creates a placeholder for a key that has no item. Leases stay as they are: no value has been stored that a fill
    /// could overwrite.
    fn vivify(&mut self, key: HashedKey<'_>, expiry: Expiry, cas: Option<Cas>, now: Now) -> Option<ItemRef> {
        let extension = Some(Extension { meta_state: MetaState::PLACEHOLDER.with(MetaState::WON), cas });
        let content = NewContent { extension, ..NewContent::live(0, expiry, b"") };
        self.insert(key, &content, now).ok()?;
        self.stripe.counters.items_total += 1;
        self.find(key)
    }

    /// Records a win in the item. An item without a meta state is stored again with one; if no memory can be freed for
    /// that, the next get wins too.
    fn mark_won(&mut self, key: HashedKey<'_>, found: ItemRef, meta_state: MetaState, now: Now) -> Option<ItemRef> {
        let meta_state = meta_state.with(MetaState::WON);
        if found.header.is_extended() {
            self.shared.memory.pages.set_meta_state(found.at, &found.header, meta_state);
            return Some(found);
        }
        let cas = Some(self.cas(found.at, &found.header));
        let value = self.value(&found).to_vec();
        let flags = self.shared.memory.pages.flags(found.at, &found.header);
        let (extension, usage) = (Some(Extension { meta_state, cas }), Some(found.header.usage));
        let content = NewContent { extension, usage, ..NewContent::live(flags, found.header.expiry(), &value) };
        // If no memory could be freed, the old item may have been evicted on the way.
        let _ = self.insert(key, &content, now);
        self.find(key)
    }

    /// Removes the item, or changes it as the conditions say; voids the lease. If no memory can be freed for the
    /// changed item, it is removed.
    pub fn meta_delete(&mut self, key: HashedKey<'_>, conditions: &MetaDelete, now: Now) -> MetaDeleteOutcome {
        let found = self.find_undeleted(key, now);
        if let (Some(found), Some(expected)) = (found, conditions.cas_compare)
            && self.cas(found.at, &found.header) != expected
        {
            return MetaDeleteOutcome::Exists;
        }
        self.stripe.leases.void(key.hash());
        let Some(found) = found else {
            return MetaDeleteOutcome::NotFound;
        };
        if !conditions.invalidates && !conditions.empties {
            self.remove_or_make_stale(found, now);
            return MetaDeleteOutcome::Deleted;
        }
        let value = if conditions.empties { Vec::new() } else { self.value(&found).to_vec() };
        let flags = if conditions.empties { 0 } else { self.shared.memory.pages.flags(found.at, &found.header) };
        let expiry_kept = if conditions.empties { Expiry::Never } else { found.header.expiry() };
        let meta_state = if conditions.invalidates { MetaState::STALE } else { MetaState::NONE };
        let is_extended = conditions.invalidates || conditions.cas_new.is_some();
        let content = NewContent {
            extension: is_extended.then_some(Extension { meta_state, cas: conditions.cas_new }),
            usage: (!conditions.empties).then_some(found.header.usage),
            ..NewContent::live(flags, conditions.touch.unwrap_or(expiry_kept), &value)
        };
        if let Err(OutOfMemory) = self.insert(key, &content, now)
            && let Some(found) = self.find_undeleted(key, now)
        {
            self.remove_item(found);
        }
        MetaDeleteOutcome::Deleted
    }

    /// Increments or decrements. A number that got no longer keeps its meta state and usage.
    pub fn arithmetic(&mut self, key: HashedKey<'_>, direction: Direction, delta: u64, now: Now) -> ArithmeticOutcome {
        match self.find_live(key, now) {
            Some(found) => self.apply_delta(key, &found, direction, delta, None, now),
            None => ArithmeticOutcome::NotFound,
        }
    }

    /// As [`StripeGuard::arithmetic`], with conditions, and for items whatever their meta state.
    pub fn meta_arithmetic(
        &mut self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        conditions: &MetaArithmetic,
        now: Now,
    ) -> MetaArithmeticOutcome {
        let Some(found) = self.find_undeleted(key, now) else {
            return self.vivify_number(key, conditions, now);
        };
        let before = found.header.expiry();
        // As in memcached, a value that cannot be a number is reported first.
        if self.value(&found).value_bytes() == 0 {
            return MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::NotANumber, expiry: [before; 2] };
        }
        if conditions.cas_compare.is_some_and(|expected| expected != self.cas(found.at, &found.header)) {
            return MetaArithmeticOutcome::Exists;
        }
        let outcome = self.apply_delta(key, &found, direction, delta, conditions.cas_new, now);
        let touch = conditions.touch.filter(|_| matches!(outcome, ArithmeticOutcome::Number(..)));
        if let (Some(expiry), Some(found)) = (touch, self.find(key)) {
            self.set_expiry_and_view(found, Some(expiry), now);
        }
        MetaArithmeticOutcome::Counted { outcome, expiry: [before, touch.unwrap_or(before)] }
    }

    fn vivify_number(&mut self, key: HashedKey<'_>, conditions: &MetaArithmetic, now: Now) -> MetaArithmeticOutcome {
        let (outcome, expiry) = (ArithmeticOutcome::NotFound, [Expiry::Never; 2]);
        let Some((initial, expiry_new)) = conditions.vivify else {
            return MetaArithmeticOutcome::Counted { outcome, expiry };
        };
        if self.check_hold_off(key, now) {
            return MetaArithmeticOutcome::NotStored;
        }
        let number = Number::render(initial, 0);
        let content = NewContent {
            extension: Extension::with_client_cas(conditions.cas_new),
            ..NewContent::live(0, expiry_new, number.bytes())
        };
        match self.store_content(key, &content, now) {
            StoreOutcome::Stored(cas) => MetaArithmeticOutcome::Vivified(cas),
            _ => MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::OutOfMemory, expiry },
        }
    }

    fn apply_delta(
        &mut self,
        key: HashedKey<'_>,
        found: &ItemRef,
        direction: Direction,
        delta: u64,
        cas: Option<Cas>,
        now: Now,
    ) -> ArithmeticOutcome {
        let value_bytes = self.value(found).value_bytes();
        let value = self.value(found);
        let number = match value.in_one_piece() {
            Some(value) => Number::parse(value),
            None => Number::parse(&value.to_vec()),
        };
        let Some(number) = number else {
            return ArithmeticOutcome::NotANumber;
        };
        let number = number.apply(direction, delta);
        let rendered = Number::render(number, value_bytes);
        let stays_in_place = rendered.bytes().len() == value_bytes;
        let meta_state = self.shared.memory.pages.meta_state(found.at, &found.header);
        let extension = match stays_in_place && meta_state != MetaState::NONE {
            true => Some(Extension { meta_state, cas }),
            false => Extension::with_client_cas(cas),
        };
        let usage = found.header.usage;
        self.stripe.leases.void(key.hash());
        let content = NewContent {
            extension,
            usage: stays_in_place.then_some(usage),
            ..NewContent::live(
                self.shared.memory.pages.flags(found.at, &found.header),
                found.header.expiry(),
                rendered.bytes(),
            )
        };
        match self.insert(key, &content, now) {
            Ok(cas) => ArithmeticOutcome::Number(number, cas),
            Err(OutOfMemory) => {
                self.stripe.counters.stores_out_of_memory += 1;
                ArithmeticOutcome::OutOfMemory
            }
        }
    }
}

/// Whether one expiry is before the other. As in memcached, no expiry is before `Never`, and `Never` is before none.
fn ends_before(expiry: Expiry, before: Expiry) -> bool {
    match (expiry, before) {
        (Expiry::At { unix_s }, Expiry::At { unix_s: before_s }) => unix_s < before_s,
        _ => false,
    }
}
