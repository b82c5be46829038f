//! The verbs that change a value: set and its kin, lease-set, delete, incr and decr.
//!
//! Everything that stores, and every delete, voids the key's lease: a fill that began earlier read the database
//! earlier, and may not overwrite what came after (§3.2.1 of the paper).

use crate::arithmetic;
use crate::read::seconds;
use crate::record::{self, Header, State};
use crate::stripe::{Content, Found, NoRoom, Stripe};
use crate::{ArithmeticOutcome, DeleteOutcome, HashedKey, LeaseSetOutcome, NewItem, Now, StoreOutcome};
use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};

impl Stripe {
    /// Stores `item` as `mode` says.
    pub(crate) fn store(&mut self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.flush_if_due(now);
        let live = self.find_live(key, now);
        match (mode, live) {
            (StoreMode::Add, Some(_)) => return StoreOutcome::NotStored,
            (StoreMode::Add, None) if self.hold_offs.refuses(key.hash(), now) => {
                self.counters.hold_off_refusals += 1;
                return StoreOutcome::NotStored;
            }
            (StoreMode::Set | StoreMode::Add, _) => {}
            (StoreMode::Cas(_), None) => return StoreOutcome::NotFound,
            (StoreMode::Cas(Cas(unique)), Some(found)) if found.header.cas != unique => return StoreOutcome::Exists,
            (StoreMode::Cas(_) | StoreMode::Replace, Some(_)) => {}
            (StoreMode::Append, Some(found)) => return self.concatenate(key, found, item.value, true, now),
            (StoreMode::Prepend, Some(found)) => return self.concatenate(key, found, item.value, false, now),
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => return StoreOutcome::NotStored,
        }
        let outcome = self.store_live(key, item, now);
        if mode == StoreMode::Set && matches!(outcome, StoreOutcome::Stored(_)) {
            self.hold_offs.end(key.hash());
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
        self.flush_if_due(now);
        let found = self.find(key, now);
        let is_live = found.is_some_and(|found| found.is_live());
        // A live value with a token that holds: only two keys of one hash can bring that about.
        if self.leases.holds(key.hash(), token) && !is_live {
            let outcome = self.store_live(key, item, now).into();
            self.counters.lease_sets_stored += u64::from(matches!(outcome, LeaseSetOutcome::Stored(_)));
            return outcome;
        }
        self.counters.lease_sets_refused += 1;
        match found.map(|found| found.header.state) {
            Some(State::Stale { until_ms }) if token.is_held() => self.refresh_stale(key, item, until_ms, now),
            _ => LeaseSetOutcome::NotStored,
        }
    }

    /// Takes the live value away, or makes it a stale one; voids the lease; begins the hold-off.
    pub(crate) fn delete(&mut self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.flush_if_due(now);
        self.leases.void(key.hash());
        self.hold_offs.begin(key.hash(), now.unix_ms.saturating_add(hold_off_ms.into()), now);
        let Some(found) = self.find_live(key, now) else {
            return DeleteOutcome::NotFound;
        };
        if self.stale_ms == 0 {
            self.drop_record(found);
        } else {
            let state = State::Stale { until_ms: now.unix_ms.saturating_add(self.stale_ms) };
            let header = Header { state, referenced: false, ..found.header };
            self.log.write_header(found.handle, &header);
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
        self.flush_if_due(now);
        let Some(found) = self.find_live(key, now) else {
            return ArithmeticOutcome::NotFound;
        };
        let old = self.log.value(found.handle, &found.header).to_vec();
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
        record::record_bytes(key.key().len(), value_bytes) > self.item_bytes_max
    }

    /// Makes `item` the live value. One that is refused takes the older value with it: the writer meant to replace
    /// that, so it must not be served on.
    fn store_live(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        self.leases.void(key.hash());
        if self.is_too_large(key, item.value.len()) {
            if let Some(found) = self.find_live(key, now) {
                self.drop_record(found);
            }
            return StoreOutcome::TooLarge;
        }
        let state = State::Live { last_access_s: seconds(now) };
        let content = Content { flags: item.flags, expiry: item.expiry, state, value: item.value };
        match self.place(key, &content, now) {
            Ok(cas) => {
                self.counters.items_total += 1;
                StoreOutcome::Stored(cas)
            }
            Err(NoRoom) => StoreOutcome::OutOfMemory,
        }
    }

    fn refresh_stale(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, until_ms: u64, now: Now) -> LeaseSetOutcome {
        if self.is_too_large(key, item.value.len()) {
            return LeaseSetOutcome::TooLarge;
        }
        let state = State::Stale { until_ms };
        let content = Content { flags: item.flags, expiry: item.expiry, state, value: item.value };
        match self.place(key, &content, now) {
            Ok(_) => LeaseSetOutcome::StaleStored,
            Err(NoRoom) => LeaseSetOutcome::OutOfMemory,
        }
    }

    fn concatenate(&mut self, key: HashedKey<'_>, found: Found, piece: &[u8], behind: bool, now: Now) -> StoreOutcome {
        if self.is_too_large(key, found.header.value_bytes as usize + piece.len()) {
            return StoreOutcome::TooLarge;
        }
        let old = self.log.value(found.handle, &found.header).to_vec();
        let value = if behind { [&old, piece].concat() } else { [piece, &old].concat() };
        match self.restore(key, &found, &value, now) {
            Ok(cas) => {
                self.counters.items_total += 1;
                StoreOutcome::Stored(cas)
            }
            Err(NoRoom) => StoreOutcome::OutOfMemory,
        }
    }

    /// Gives a live item another value; flags, expiry and age stay.
    fn restore(&mut self, key: HashedKey<'_>, found: &Found, value: &[u8], now: Now) -> Result<Cas, NoRoom> {
        self.leases.void(key.hash());
        let Header { flags, expiry, state, .. } = found.header;
        self.place(key, &Content { flags, expiry, state, value }, now)
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
