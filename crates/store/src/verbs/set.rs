//! The verbs that change a value: set and its kin, lease-set, delete. Counting is in `meta.rs`.
//!
//! Everything that stores, and every delete, voids the key's lease: a fill that began earlier read the database
//! earlier, and may not overwrite what came after (§3.2.1 of the paper).

use crate::memory::chunk::HEADER_BYTES;
use crate::meta_conditions::MetaSet;
use crate::meta_state::Marks;
use crate::shard::{Content, Extension, Found, Locked, NoRoom};
use crate::verbs::meta::chosen;
use crate::{DeleteOutcome, HashedKey, LeaseSetOutcome, NewItem, Now, StoreOutcome};
use lookaside_protocol::{Cas, LeaseToken, StoreMode};
use std::cmp::Ordering;

impl Locked<'_> {
    /// Stores `item` as `mode` says.
    pub(crate) fn store(&mut self, key: HashedKey<'_>, mode: StoreMode, item: &NewItem<'_>, now: Now) -> StoreOutcome {
        let live = self.find_live(key, now);
        match (mode, live) {
            (StoreMode::Add, Some(_)) => return StoreOutcome::NotStored,
            (StoreMode::Add, None) if self.is_held_off(key, now) => return StoreOutcome::NotStored,
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
        self.store_whole(key, mode, &Content::live(item.flags, item.expiry, item.value), now)
    }

    /// As [`Locked::store`], on terms, and with an eye for items that bear marks. Tells the bytes of the value too.
    pub(crate) fn meta_set(
        &mut self,
        key: HashedKey<'_>,
        mode: StoreMode,
        item: &NewItem<'_>,
        terms: &MetaSet,
        now: Now,
    ) -> (StoreOutcome, usize) {
        let value_bytes = item.value.len();
        let found = self.find_marked(key, now);
        let content =
            Content { extension: chosen(terms.cas_new), ..Content::live(item.flags, item.expiry, item.value) };
        let content = match (mode, found) {
            (StoreMode::Append | StoreMode::Prepend, Some(found)) => {
                return match terms.cas_compare.is_none_or(|unique| self.cas(found.at, &found.header) == unique) {
                    true => self.concatenate(key, found, mode, item.value, terms.cas_new, now),
                    false => (StoreOutcome::Exists, value_bytes),
                };
            }
            (StoreMode::Append | StoreMode::Prepend, None) => match terms.vivify {
                Some(expiry) if !self.is_held_off(key, now) => Content { expiry, ..content },
                _ => return (StoreOutcome::NotStored, value_bytes),
            },
            (StoreMode::Cas(_), None) => return (StoreOutcome::NotFound, value_bytes),
            (StoreMode::Cas(unique), Some(found)) => match self.compared(unique, &found, terms) {
                Some(Marks::NONE) => content,
                Some(marks) => {
                    let extension = Some(Extension { marks, cas: terms.cas_new });
                    Content { extension, expiry: found.header.expiry(), ..content }
                }
                None => return (StoreOutcome::Exists, value_bytes),
            },
            (StoreMode::Add, Some(_)) | (StoreMode::Replace, None) => return (StoreOutcome::NotStored, value_bytes),
            (StoreMode::Add, None) if self.is_held_off(key, now) => return (StoreOutcome::NotStored, value_bytes),
            (StoreMode::Add, None) | (StoreMode::Replace, Some(_)) | (StoreMode::Set, _) => content,
        };
        (self.store_whole(key, mode, &content, now), value_bytes)
    }

    /// The marks of an item that is stored under this unique; `None` if it may not be.
    fn compared(&self, unique: Cas, found: &Found, terms: &MetaSet) -> Option<Marks> {
        let present = self.cas(found.at, &found.header);
        let old_marks = self.memory.marks(found.at, &found.header);
        match unique.0.cmp(&present.0) {
            // To memcached 0 is no unique.
            _ if unique == Cas(0) => None,
            Ordering::Equal => Some(Marks::NONE),
            Ordering::Less if terms.invalidates => Some(Marks::STALE.with(old_marks.only(Marks::WON))),
            Ordering::Less | Ordering::Greater => None,
        }
    }

    /// Whether a hold-off refuses to add the key; it is counted.
    pub(crate) fn is_held_off(&mut self, key: HashedKey<'_>, now: Now) -> bool {
        let is_held_off = self.stripe.hold_offs.refuses(key.hash(), now);
        self.stripe.counters.hold_off_refusals += u64::from(is_held_off);
        is_held_off
    }

    fn store_whole(&mut self, key: HashedKey<'_>, mode: StoreMode, content: &Content<'_>, now: Now) -> StoreOutcome {
        let outcome = self.store_content(key, content, now);
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
        let is_live = found.is_some_and(|found| self.is_live(&found));
        // A live value with a token that holds: only two keys of one hash can bring that about.
        if self.stripe.leases.holds(key.hash(), token) && !is_live {
            let outcome = self.store_content(key, &Content::live(item.flags, item.expiry, item.value), now).into();
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

    /// Takes the value away, or makes it a stale one; voids the lease; begins the hold-off. Marks keep nothing back.
    pub(crate) fn delete(&mut self, key: HashedKey<'_>, hold_off_ms: u32, now: Now) -> DeleteOutcome {
        self.stripe.leases.void(key.hash());
        self.stripe.hold_offs.begin(key.hash(), now.unix_ms.saturating_add(hold_off_ms.into()), now);
        match self.find_marked(key, now) {
            Some(found) => {
                self.remove(found, now);
                DeleteOutcome::Deleted
            }
            None => DeleteOutcome::NotFound,
        }
    }

    /// What was an item's value is a stale one from now on, if such are kept. A stub has none.
    pub(crate) fn remove(&mut self, found: Found, now: Now) {
        match self.memory.stale_ms {
            _ if self.memory.marks(found.at, &found.header).has(Marks::STUB) => self.drop_item(found),
            0 => self.drop_item(found),
            stale_ms => self.make_stale(found, now.unix_ms.saturating_add(stale_ms), now),
        }
    }

    /// Whether an item of this size may be stored at all.
    fn is_too_large(&self, key: HashedKey<'_>, value_bytes: usize) -> bool {
        HEADER_BYTES + key.key().len() + value_bytes > self.memory.item_bytes_max
    }

    /// Makes `content` the item. One that is refused takes the older value with it: the writer meant to replace that, so
    /// it must not be served on.
    pub(crate) fn store_content(&mut self, key: HashedKey<'_>, content: &Content<'_>, now: Now) -> StoreOutcome {
        self.stripe.leases.void(key.hash());
        let is_too_large = self.is_too_large(key, content.value.len());
        if !is_too_large && let Ok(cas) = self.place(key, content, now) {
            self.stripe.counters.items_total += 1;
            return StoreOutcome::Stored(cas);
        }
        if let Some(found) = self.find_marked(key, now) {
            self.drop_item(found);
        }
        if is_too_large { StoreOutcome::TooLarge } else { StoreOutcome::OutOfMemory }
    }

    fn refresh_stale(&mut self, key: HashedKey<'_>, item: &NewItem<'_>, until_ms: u64, now: Now) -> LeaseSetOutcome {
        if self.is_too_large(key, item.value.len()) {
            return LeaseSetOutcome::TooLarge;
        }
        let stale_until_ms = Some(until_ms);
        let content = Content { stale_until_ms, ..Content::live(item.flags, item.expiry, item.value) };
        match self.place(key, &content, now) {
            Ok(_) => LeaseSetOutcome::StaleStored,
            Err(NoRoom) => LeaseSetOutcome::OutOfMemory,
        }
    }

    /// Puts a piece in front of a value or behind it; flags and expiry stay.
    fn concatenate(
        &mut self,
        key: HashedKey<'_>,
        found: Found,
        mode: StoreMode,
        piece: &[u8],
        cas: Option<Cas>,
        now: Now,
    ) -> (StoreOutcome, usize) {
        let value_bytes = self.value_bytes_of(&found) + piece.len();
        if self.is_too_large(key, value_bytes) {
            return (StoreOutcome::TooLarge, value_bytes);
        }
        let old = self.value_of(&found);
        let value = if mode == StoreMode::Append { [&old, piece].concat() } else { [piece, &old].concat() };
        let flags = self.memory.flags(found.at, &found.header);
        let content = Content { extension: chosen(cas), ..Content::live(flags, found.header.expiry(), &value) };
        self.stripe.leases.void(key.hash());
        match self.place(key, &content, now) {
            Ok(cas) => {
                self.stripe.counters.items_total += 1;
                (StoreOutcome::Stored(cas), value_bytes)
            }
            Err(NoRoom) => (StoreOutcome::OutOfMemory, value_bytes),
        }
    }

    pub(crate) fn value_of(&self, found: &Found) -> Vec<u8> {
        self.value(found).to_vec()
    }

    pub(crate) fn value_bytes_of(&self, found: &Found) -> usize {
        self.value(found).value_bytes()
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
