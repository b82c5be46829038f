//! The verbs of the meta dialect, as far as they do more than the plain ones: looks that vivify and recache, deletes that
//! invalidate, counting on terms. Stores on terms are in `write.rs`, with the plain ones.
//!
//! A win is a mark with the item and no lease: who has won is told so, and nothing keeps others from storing. A client
//! that wants to lose against a delete stores with the unique that its look has shown.

use crate::meta_conditions::{
    MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaGetOutcome,
};
use crate::meta_state::Marks;
use crate::shard::{Content, Extension, Found, Locked, NoRoom};
use crate::verbs::arithmetic::Number;
use crate::{ArithmeticOutcome, Expiry, HashedKey, Now, StoreOutcome};
use lookaside_protocol::{Cas, Direction};

impl Locked<'_> {
    /// Shows the item that was not deleted, or one that the look has made.
    pub(crate) fn meta_get<R>(
        &mut self,
        key: HashedKey<'_>,
        terms: &MetaGet,
        now: Now,
        render: impl FnOnce(MetaGetOutcome<'_>) -> R,
    ) -> Option<R> {
        let found = self.find_marked(key, now);
        let is_vivified = found.is_none();
        let found = match found {
            Some(found) => found,
            None => self.vivify(key, terms.vivify?, terms.cas_new, now)?,
        };
        let marks = self.memory.marks(found.at, &found.header);
        let expiry_before = found.header.expiry();
        let is_free = !marks.has(Marks::WON);
        let is_near = terms.recache.is_some_and(|recache| {
            let touched = terms.touch.filter(|_| recache.is_touched_first);
            ends_before(touched.unwrap_or(expiry_before), recache.before)
        });
        let is_won = is_vivified || is_free && (is_near || marks.has(Marks::STALE));
        let found = if is_won && !is_vivified { self.mark_won(key, found, marks, now)? } else { found };
        let (slab_class, item_bytes) = self.extent(&found);
        let touch = terms.touch.filter(|_| !is_vivified);
        let item = match terms.no_bump {
            true => self.show(found, touch, now),
            false => self.visit(found, touch, now),
        };
        let win_already_sent = !is_free && !is_vivified;
        let is_stale = marks.has(Marks::STALE);
        Some(render(MetaGetOutcome {
            item,
            expiry_before,
            is_vivified,
            is_won,
            win_already_sent,
            is_stale,
            slab_class,
            item_bytes,
        }))
    }

    /// The number of an item's slab class, and all that the item takes, in bytes.
    pub(crate) fn extent(&self, found: &Found) -> (usize, usize) {
        let further_bytes = self.value_bytes_of(found) - found.header.value_bytes_here();
        (self.memory.class_of(found.handle) + 1, found.header.head_bytes() + further_bytes)
    }

    /// A stub for a key that has no item. Leases stay as they are: nothing has been stored that a fill could overwrite.
    fn vivify(&mut self, key: HashedKey<'_>, expiry: Expiry, cas: Option<Cas>, now: Now) -> Option<Found> {
        let extension = Some(Extension { marks: Marks::STUB.with(Marks::WON), cas });
        let content = Content { extension, ..Content::live(0, expiry, b"") };
        self.place(key, &content, now).ok()?;
        self.stripe.counters.items_total += 1;
        self.look_up(key)
    }

    /// Notes that somebody has won. An item without room for marks is written anew; if there is no room for that either,
    /// the next one who looks will win too.
    fn mark_won(&mut self, key: HashedKey<'_>, found: Found, marks: Marks, now: Now) -> Option<Found> {
        let marks = marks.with(Marks::WON);
        if found.header.is_extended() {
            self.memory.set_marks(found.at, &found.header, marks);
            return Some(found);
        }
        let cas = Some(self.cas(found.at, &found.header));
        let value = self.value_of(&found);
        let flags = self.memory.flags(found.at, &found.header);
        let (extension, usage) = (Some(Extension { marks, cas }), Some(found.header.usage));
        let content = Content { extension, usage, ..Content::live(flags, found.header.expiry(), &value) };
        // Without room the old item may have been evicted in the search for some.
        let _ = self.place(key, &content, now);
        self.look_up(key)
    }

    /// Takes the item away, or does to it what the terms say; voids the lease. One that cannot be kept for want of room
    /// goes.
    pub(crate) fn meta_delete(&mut self, key: HashedKey<'_>, terms: &MetaDelete, now: Now) -> MetaDeleteOutcome {
        let found = self.find_marked(key, now);
        if let (Some(found), Some(expected)) = (found, terms.cas_compare)
            && self.cas(found.at, &found.header) != expected
        {
            return MetaDeleteOutcome::Exists;
        }
        self.stripe.leases.void(key.hash());
        let Some(found) = found else {
            return MetaDeleteOutcome::NotFound;
        };
        if !terms.invalidates && !terms.empties {
            self.remove(found, now);
            return MetaDeleteOutcome::Deleted;
        }
        let value = if terms.empties { Vec::new() } else { self.value_of(&found) };
        let flags = if terms.empties { 0 } else { self.memory.flags(found.at, &found.header) };
        let expiry_else = if terms.empties { Expiry::Never } else { found.header.expiry() };
        let marks = if terms.invalidates { Marks::STALE } else { Marks::NONE };
        let is_extended = terms.invalidates || terms.cas_new.is_some();
        let content = Content {
            extension: is_extended.then_some(Extension { marks, cas: terms.cas_new }),
            usage: (!terms.empties).then_some(found.header.usage),
            ..Content::live(flags, terms.touch.unwrap_or(expiry_else), &value)
        };
        if let Err(NoRoom) = self.place(key, &content, now)
            && let Some(found) = self.find_marked(key, now)
        {
            self.drop_item(found);
        }
        MetaDeleteOutcome::Deleted
    }

    /// Counts up or down. The number is written as memcached does: never shorter than it was, spaces behind it; a number
    /// that got no longer keeps its marks, and whether it was fetched.
    pub(crate) fn arithmetic(
        &mut self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        now: Now,
    ) -> ArithmeticOutcome {
        match self.find_live(key, now) {
            Some(found) => self.count(key, &found, direction, delta, None, now),
            None => ArithmeticOutcome::NotFound,
        }
    }

    /// Counts as the terms say.
    pub(crate) fn meta_arithmetic(
        &mut self,
        key: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        terms: &MetaArithmetic,
        now: Now,
    ) -> MetaArithmeticOutcome {
        let Some(found) = self.find_marked(key, now) else {
            return self.vivify_number(key, terms, now);
        };
        let before = found.header.expiry();
        // As in memcached what cannot be a number is told of first.
        if self.value_bytes_of(&found) == 0 {
            return MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::NotANumber, expiry: [before; 2] };
        }
        if terms.cas_compare.is_some_and(|expected| expected != self.cas(found.at, &found.header)) {
            return MetaArithmeticOutcome::Exists;
        }
        let outcome = self.count(key, &found, direction, delta, terms.cas_new, now);
        let touch = terms.touch.filter(|_| matches!(outcome, ArithmeticOutcome::Number(..)));
        if let (Some(expiry), Some(found)) = (touch, self.look_up(key)) {
            self.show(found, Some(expiry), now);
        }
        MetaArithmeticOutcome::Counted { outcome, expiry: [before, touch.unwrap_or(before)] }
    }

    fn vivify_number(&mut self, key: HashedKey<'_>, terms: &MetaArithmetic, now: Now) -> MetaArithmeticOutcome {
        let (outcome, expiry) = (ArithmeticOutcome::NotFound, [Expiry::Never; 2]);
        let Some((initial, expiry_new)) = terms.vivify else {
            return MetaArithmeticOutcome::Counted { outcome, expiry };
        };
        if self.is_held_off(key, now) {
            return MetaArithmeticOutcome::NotStored;
        }
        let number = Number::render(initial, 0);
        let content = Content { extension: chosen(terms.cas_new), ..Content::live(0, expiry_new, number.bytes()) };
        match self.store_content(key, &content, now) {
            StoreOutcome::Stored(cas) => MetaArithmeticOutcome::Vivified(cas),
            _ => MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::OutOfMemory, expiry },
        }
    }

    fn count(
        &mut self,
        key: HashedKey<'_>,
        found: &Found,
        direction: Direction,
        delta: u64,
        cas: Option<Cas>,
        now: Now,
    ) -> ArithmeticOutcome {
        let value_bytes = self.value_bytes_of(found);
        let value = self.value(found);
        let number = match value.in_one_piece() {
            Some(value) => Number::parse(value),
            None => Number::parse(&value.to_vec()),
        };
        let Some(number) = number else {
            return ArithmeticOutcome::NotANumber;
        };
        let number = number.counted(direction, delta);
        let rendered = Number::render(number, value_bytes);
        let stays_in_place = rendered.bytes().len() == value_bytes;
        let marks = self.memory.marks(found.at, &found.header);
        let extension = match stays_in_place && marks != Marks::NONE {
            true => Some(Extension { marks, cas }),
            false => chosen(cas),
        };
        let usage = found.header.usage;
        self.stripe.leases.void(key.hash());
        let content = Content {
            extension,
            usage: stays_in_place.then_some(usage),
            ..Content::live(self.memory.flags(found.at, &found.header), found.header.expiry(), rendered.bytes())
        };
        match self.place(key, &content, now) {
            Ok(cas) => ArithmeticOutcome::Number(number, cas),
            Err(NoRoom) => ArithmeticOutcome::OutOfMemory,
        }
    }
}

/// Room for a unique that somebody has chosen.
pub(crate) fn chosen(cas: Option<Cas>) -> Option<Extension> {
    cas.map(|cas| Extension { marks: Marks::NONE, cas: Some(cas) })
}

/// Whether an item with this expiry ends before the other does. As in memcached, nothing ends before never.
fn ends_before(expiry: Expiry, before: Expiry) -> bool {
    match (expiry, before) {
        (Expiry::At { unix_s }, Expiry::At { unix_s: before_s }) => unix_s < before_s,
        _ => false,
    }
}
