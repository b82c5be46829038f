//! The verbs that change a value: set and its kin, lease-set, delete, incr and decr.
//!
//! Everything that stores, and every delete, voids the key's lease: a fill that began earlier read the database
//! earlier, and may not overwrite what came after (§3.2.1 of the paper).

use crate::arithmetic;
use crate::record::HEADER_BYTES;
use crate::stripe::{Content, Found, Locked, NoRoom};
use crate::{ArithmeticOutcome, DeleteOutcome, HashedKey, LeaseSetOutcome, NewItem, Now, StoreOutcome};
use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};

impl Locked<'_> {
    /// Stores `item` as `mode` says.
    pub(crate) fn store(&mut self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        let live = self.find_live(key, now);
        match (mode, live) {
            (StoreMode::Add, Some(_)) => return StoreOutcome::NotStored,
            (StoreMode::Add, None) if self.stripe.hold_offs.refuses(key.hash(), now) => {
                self.stripe.counters.hold_off_refusals += 1;
                return StoreOutcome::NotStored;
            }
            (StoreMode::Set | StoreMode::Add, _) => {}
            (StoreMode::Cas(_), None) => return StoreOutcome::NotFound,
            (StoreMode::Cas(unique), Some(found)) if self.cas(&found.header) != unique => return StoreOutcome::Exists,
            (StoreMode::Cas(_) | StoreMode::Replace, Some(_)) => {}
            (StoreMode::Append, Some(found)) => return self.concatenate(key, found, item.value, true, now),
            (StoreMode::Prepend, Some(found)) => return self.concatenate(key, found, item.value, false, now),
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => return StoreOutcome::NotStored,
        }
        let outcome = self.store_live(key, item, now);
        if mode == StoreMode::Set && matches!(outcome, StoreOutcome::Stored(_)) {
            self.stripe.hold_offs.end(key.hash());
        }
        outcome
    }

    /// Stores `item` if `token` still holds; refreshes a stale value if not.
    pub(crate) fn lease_set(
        &mut self,
        key: HashedKey<'_>,
        token: LeaseToken,
        item: &NewItem<'_>,
        now: Now,
    ) -> LeaseSetOutcome {
        let found = self.find(key, now);
        let is_live = found.is_some_and(|found| found.is_live());
        // A live value with a token that holds: only two keys of one hash can bring that about.
        if self.stripe.leases.holds(key.hash(), token) && !is_live {
            let outcome = self.store_live(key, item, now).into();
            self.stripe.counters.lease_sets_stored += u64::from(matches!(outcome, LeaseSetOutcome::Stored(_)));
            return outcome;
        }
        self.stripe.counters.lease_sets_refused += 1;
        match found {
            Some(found) if !is_live && token.is_held() => {
                self.refresh_stale(key, item, found.header.stale_until_ms(), now)
            }
            _ => LeaseSetOutcome::NotStored,
        }
    }

    /// Takes the live value away, or makes it a stale one; voids the lease; begins the hold-off.
    pub(crate) fn delete(&mut self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.stripe.leases.void(key.hash());
        self.stripe.hold_offs.begin(key.hash(), now.unix_ms.saturating_add(hold_off_ms.into()), now);
        let Some(found) = self.find_live(key, now) else {
            return DeleteOutcome::NotFound;
        };
        match self.memory.stale_ms {
            0 => self.drop_item(found),
            stale_ms => self.make_stale(found, now.unix_ms.saturating_add(stale_ms), now),
        }
        DeleteOutcome::Deleted
    }

    /// Counts up or down. The number is written as memcached does: never shorter than it was, spaces behind it.
    pub(crate) fn arithmetic(
        &mut self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        now: Now,
    ) -> ArithmeticOutcome {
        let Some(found) = self.find_live(key, now) else {
            return ArithmeticOutcome::NotFound;
        };
        let old = self.value_of(&found);
        let Some(number) = arithmetic::parse(&old) else {
            return ArithmeticOutcome::NotANumber;
        };
        let number = arithmetic::apply(number, direction, delta);
        let value = arithmetic::render(number, old.len());
        match self.restore(key, &found, &value, now) {
            Ok(cas) => ArithmeticOutcome::Number(number, cas),
            Err(NoRoom) => ArithmeticOutcome::OutOfMemory,
        }
    }

    /// Whether an item of this size may be stored at all.
    fn is_too_large(&self, key: HashedKey<'_>, value_bytes: usize) -> bool {
        HEADER_BYTES + key.key().len() + value_bytes > self.memory.item_bytes_max
    }

    /// Makes `item` the live value. One that is refused takes the older value with it: the writer meant to replace
    /// that, so it must not be served on.
    fn store_live(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.stripe.leases.void(key.hash());
        if self.is_too_large(key, item.value.len()) {
            if let Some(found) = self.find_live(key, now) {
                self.drop_item(found);
            }
            return StoreOutcome::TooLarge;
        }
        let content = Content { flags: item.flags, expiry: item.expiry, stale_until_ms: None, value: item.value };
        match self.place(key, &content, now) {
            Ok(cas) => {
                self.stripe.counters.items_total += 1;
                StoreOutcome::Stored(cas)
            }
            Err(NoRoom) => {
                if let Some(found) = self.find_live(key, now) {
                    self.drop_item(found);
                }
                StoreOutcome::OutOfMemory
            }
        }
    }

    fn refresh_stale(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, until_ms: u64, now: Now) -> LeaseSetOutcome {
        if self.is_too_large(key, item.value.len()) {
            return LeaseSetOutcome::TooLarge;
        }
        let stale_until_ms = Some(until_ms);
        let content = Content { flags: item.flags, expiry: item.expiry, stale_until_ms, value: item.value };
        match self.place(key, &content, now) {
            Ok(_) => LeaseSetOutcome::StaleStored,
            Err(NoRoom) => LeaseSetOutcome::OutOfMemory,
        }
    }

    fn concatenate(&mut self, key: HashedKey<'_>, found: Found, piece: &[u8], behind: bool, now: Now) -> StoreOutcome {
        if self.is_too_large(key, self.value_bytes_of(&found) + piece.len()) {
            return StoreOutcome::TooLarge;
        }
        let old = self.value_of(&found);
        let value = if behind { [&old, piece].concat() } else { [piece, &old].concat() };
        match self.restore(key, &found, &value, now) {
            Ok(cas) => {
                self.stripe.counters.items_total += 1;
                StoreOutcome::Stored(cas)
            }
            Err(NoRoom) => StoreOutcome::OutOfMemory,
        }
    }

    /// Gives a live item another value; flags, expiry and age stay.
    fn restore(&mut self, key: HashedKey<'_>, found: &Found, value: &[u8], now: Now) -> Result<Cas, NoRoom> {
        self.stripe.leases.void(key.hash());
        let flags = self.memory.flags(found.handle, &found.header);
        let content = Content { flags, expiry: found.header.expiry(), stale_until_ms: None, value };
        self.place(key, &content, now)
    }

    fn value_of(&self, found: &Found) -> Vec<u8> {
        self.value(found.handle, &found.header).to_vec()
    }

    fn value_bytes_of(&self, found: &Found) -> usize {
        self.value(found.handle, &found.header).value_bytes()
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
