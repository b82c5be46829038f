//! Meta commands carried out against the store.
//!
//! | | does | not yet |
//! |---|---|---|
//! | `mg` | get, with `T` get and touch; `E` alone changes nothing | `N`, `R`: the store keeps no word of who has won |
//! | `ms` | every mode, each with `C`; `N` with append and prepend | `I`, `E`: no stale mark and no CAS unique by choice |
//! | `md` | delete; `C` is compared first; `x` leaves an empty value; `E` alone changes nothing | `I`; `E` with `x` |
//! | `ma` | both ways, `C`, `N` with `J`, `T` | `E` |
//! | `me` | shows what the store knows of an item | |
//!
//! What is not served is refused by name: a client that got a half-served answer could take it for a whole one.
//!
//! `C` with an append, a prepend or `ma`, and an append that tells its size, look first and then store under the unique
//! they saw: the store compares again, so nothing comes in between.
//!
//! Accepted races: `md` with `C`, and `ma` or an append with `N`, take two steps. A set in between may be deleted (a
//! cache may lose a value at any time); a vivification that lost is counted as what it met.

use crate::{Service, render};
use lookaside_protocol::meta::{
    MetaFacts, MetaFlags, MetaOperation, MetaStatus, MetaVerb, compose_meta_answer, decode_key,
};
use lookaside_protocol::text::refusal;
use lookaside_protocol::{Cas, Direction, KEY_BYTES_MAX, StoreMode};
use lookaside_store::{ArithmeticOutcome, DeleteOutcome, Expiry, HashedKey, ItemView, NewItem, Now, StoreOutcome};

/// How often an append that tells its size starts anew because others stored in between.
const EXTEND_TRIES_MAX: usize = 64;

const UNSUPPORTED: &str = "CLIENT_ERROR flag not supported";

/// How a command went, or the line that its sender is told instead.
type Answer = Result<MetaStatus, &'static str>;

/// A meta command on its way.
struct Meta<'a> {
    service: &'a Service<'a>,
    now: Now,
    /// The key as the client wrote it: what answers carry.
    wire_key: &'a [u8],
    /// The key that is stored.
    key: HashedKey<'a>,
    flags: MetaFlags<'a>,
}

/// Carries out one meta command. `key` is hashed as it came; one in base64 is hashed again.
pub(crate) fn execute(
    service: &Service<'_>,
    operation: &MetaOperation<&[u8]>,
    key: HashedKey<'_>,
    now: Now,
    out: &mut Vec<u8>,
) {
    service.counters.cmd_meta.add(1);
    let reply_at = out.len();
    let answer = MetaFlags::read(operation.verb, operation.flags).and_then(|flags| {
        let mut room = [0; KEY_BYTES_MAX];
        let stored_key = match flags.has(b'b') {
            true => HashedKey::new(decode_key(key.key(), &mut room).ok_or("CLIENT_ERROR error decoding key")?),
            false => key,
        };
        Meta { service, now, wire_key: key.key(), key: stored_key, flags }.carry_out(operation, out)
    });
    match answer {
        Ok(status) if operation_is_quiet(operation, status) => out.truncate(reply_at),
        Ok(_) => {}
        Err(line) => {
            out.truncate(reply_at);
            render::line(line.as_bytes(), out);
        }
    }
}

fn operation_is_quiet(operation: &MetaOperation<&[u8]>, status: MetaStatus) -> bool {
    status.is_silent(operation.verb)
        && lookaside_protocol::meta::meta_flags(operation.flags).any(|flag| flag.letter == b'q')
}

impl Meta<'_> {
    fn carry_out(&self, operation: &MetaOperation<&[u8]>, out: &mut Vec<u8>) -> Answer {
        match operation.verb {
            MetaVerb::Get => self.get(out),
            MetaVerb::Set => self.set(operation.value.unwrap_or_default(), out),
            MetaVerb::Delete => self.delete(out),
            MetaVerb::Arithmetic => self.arithmetic(out),
            MetaVerb::Debug => Ok(self.debug(out)),
        }
    }

    fn refuse_any_of(&self, letters: &[u8]) -> Result<(), &'static str> {
        if letters.iter().any(|&letter| self.flags.has(letter)) { Err(UNSUPPORTED) } else { Ok(()) }
    }

    fn expiry(&self, ttl_s: Option<i32>) -> Expiry {
        Expiry::from_exptime(ttl_s.unwrap_or(0).into(), self.now)
    }

    fn answer(&self, status: MetaStatus, facts: &MetaFacts, value: Option<&[u8]>, out: &mut Vec<u8>) -> MetaStatus {
        compose_meta_answer(status, self.wire_key, &self.flags, facts, value, out);
        if value.is_some() { MetaStatus::Value } else { status }
    }

    fn get(&self, out: &mut Vec<u8>) -> Answer {
        self.refuse_any_of(b"NR")?;
        let counters = self.service.counters;
        counters.cmd_get.add(1);
        let touches = self.flags.ttl_s.is_some();
        counters.cmd_touch.add(touches.into());
        let found = self.look(|item| self.show(&item, out));
        match found {
            Some(_) => {
                counters.get_hits.add(1);
                counters.touch_hits.add(touches.into());
            }
            None => {
                counters.get_misses.add(1);
                counters.touch_misses.add(touches.into());
            }
        }
        Ok(found.unwrap_or_else(|| self.answer(MetaStatus::Miss, &MetaFacts::default(), None, out)))
    }

    /// Looks the key up, touching the item if `T` asks for it. A `t` in front of the `T` is told what was left before.
    fn look<R>(&self, see: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        let reader = self.service.store.reader(self.now);
        if self.flags.ttl_s.is_none() {
            return reader.get(self.key, see);
        }
        let expiry = self.expiry(self.flags.ttl_s);
        if !self.stands_before(b't', b'T') {
            return reader.get_and_touch(self.key, expiry, see);
        }
        let seen = reader.get(self.key, see)?;
        reader.get_and_touch(self.key, expiry, |_| ());
        Some(seen)
    }

    /// Whether both flags are there, `first` in front of `second`.
    fn stands_before(&self, first: u8, second: u8) -> bool {
        let mut order =
            self.flags.in_order().map(|flag| flag.letter).filter(|&letter| letter == first || letter == second);
        order.next() == Some(first) && order.next() == Some(second)
    }

    fn show(&self, item: &ItemView<'_>, out: &mut Vec<u8>) -> MetaStatus {
        let facts = MetaFacts {
            cas: Some(item.cas),
            client_flags: Some(item.flags),
            hit_before: Some(item.fetched),
            idle_s: Some(item.last_access_age_s),
            value_bytes: Some(item.value.value_bytes()),
            ttl_s: Some(ttl_s(item.expiry, self.now)),
            ..MetaFacts::default()
        };
        // With `C` the value is for those who have another one.
        if !self.flags.has(b'v') || self.flags.cas_compare == Some(item.cas) {
            return self.answer(MetaStatus::Done, &facts, None, out);
        }
        let mut pieces = item.value.pieces();
        let first = pieces.next().unwrap_or_default();
        if first.len() == item.value.value_bytes() {
            return self.answer(MetaStatus::Value, &facts, Some(first), out);
        }
        // The rare value in several pieces: the composer wants it whole.
        let whole: Vec<u8> = item.value.pieces().flatten().copied().collect();
        self.answer(MetaStatus::Value, &facts, Some(&whole), out)
    }

    fn set(&self, value: &[u8], out: &mut Vec<u8>) -> Answer {
        self.refuse_any_of(b"IE")?;
        let mode = self.flags.store_mode();
        self.service.counters.cmd_set.add(1);
        let flags = self.flags.client_flags.unwrap_or(0);
        let item = NewItem { flags, expiry: self.expiry(self.flags.ttl_s), value };
        let mut value_bytes = value.len();
        let mut outcome = match mode {
            StoreMode::Append | StoreMode::Prepend => self.extend(mode, &item, &mut value_bytes),
            _ => self.service.store.store(self.key, mode, &item, self.now),
        };
        let is_extension = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        if is_extension && outcome == StoreOutcome::NotStored && self.flags.vivify_ttl_s.is_some() {
            let item = NewItem { expiry: self.expiry(self.flags.vivify_ttl_s), ..item };
            outcome = self.service.store.store(self.key, StoreMode::Add, &item, self.now);
        }
        // What was not stored has the unique 0.
        let mut facts = MetaFacts { value_bytes: Some(value_bytes), cas: Some(Cas(0)), ..MetaFacts::default() };
        let status = match outcome {
            StoreOutcome::Stored(cas) => {
                facts.cas = Some(cas);
                MetaStatus::Done
            }
            StoreOutcome::NotStored => MetaStatus::NotStored,
            StoreOutcome::Exists => MetaStatus::Exists,
            StoreOutcome::NotFound => MetaStatus::NotFound,
            StoreOutcome::TooLarge => return Err(refusal::TOO_LARGE),
            StoreOutcome::OutOfMemory => return Err(crate::execute::OUT_OF_MEMORY),
        };
        Ok(self.answer(status, &facts, None, out))
    }

    /// The unique that an append, a prepend or `ma` is to find; to these 0 is none.
    fn compared(&self) -> Option<Cas> {
        self.flags.cas_compare.filter(|&cas| cas != Cas(0))
    }

    /// Appends or prepends. If `C` compares or `s` asks for the new size, the item is looked at and stored under the
    /// unique that it had; `value_bytes` becomes the new size.
    fn extend(&self, mode: StoreMode, item: &NewItem<'_>, value_bytes: &mut usize) -> StoreOutcome {
        if self.compared().is_none() && !self.flags.has(b's') {
            return self.service.store.store(self.key, mode, item, self.now);
        }
        for _ in 0..EXTEND_TRIES_MAX {
            let reader = self.service.store.reader(self.now);
            let found = reader.get(self.key, |old| (old.cas, old.flags, old.expiry, old.value.to_vec()));
            let Some((cas, flags, expiry, old)) = found else { return StoreOutcome::NotStored };
            if self.compared().is_some_and(|expected| expected != cas) {
                return StoreOutcome::Exists;
            }
            let value = match mode {
                StoreMode::Append => [&old, item.value].concat(),
                _ => [item.value, &old].concat(),
            };
            let extended = NewItem { flags, expiry, value: &value };
            let outcome = self.service.store.store(self.key, StoreMode::Cas(cas), &extended, self.now);
            match outcome {
                StoreOutcome::Exists if self.compared().is_none() => {}
                StoreOutcome::NotFound => return StoreOutcome::NotStored,
                _ => {
                    *value_bytes = value.len();
                    return outcome;
                }
            }
        }
        StoreOutcome::OutOfMemory
    }

    fn delete(&self, out: &mut Vec<u8>) -> Answer {
        self.refuse_any_of(b"I")?;
        if self.flags.has(b'x') {
            return self.empty(out);
        }
        let counters = self.service.counters;
        if let Some(expected) = self.flags.cas_compare {
            let present = self.service.store.reader(self.now).get(self.key, |item| item.cas);
            if present.is_some_and(|cas| cas != expected) {
                return Ok(self.answer(MetaStatus::Exists, &MetaFacts::default(), None, out));
            }
        }
        let status = match self.service.store.delete(self.key, 0, self.now) {
            DeleteOutcome::Deleted => {
                counters.delete_hits.add(1);
                MetaStatus::Done
            }
            DeleteOutcome::NotFound => {
                counters.delete_misses.add(1);
                MetaStatus::NotFound
            }
        };
        Ok(self.answer(status, &MetaFacts::default(), None, out))
    }

    /// `md` with `x`: the item stays, its value and its flags go.
    fn empty(&self, out: &mut Vec<u8>) -> Answer {
        self.refuse_any_of(b"E")?;
        let item = NewItem { flags: 0, expiry: self.expiry(self.flags.ttl_s), value: b"" };
        let mode = self.flags.cas_compare.map_or(StoreMode::Replace, StoreMode::Cas);
        let counters = self.service.counters;
        let status = match self.service.store.store(self.key, mode, &item, self.now) {
            StoreOutcome::Stored(_) => {
                counters.delete_hits.add(1);
                MetaStatus::Done
            }
            StoreOutcome::NotStored | StoreOutcome::NotFound => {
                counters.delete_misses.add(1);
                MetaStatus::NotFound
            }
            StoreOutcome::Exists => MetaStatus::Exists,
            StoreOutcome::TooLarge | StoreOutcome::OutOfMemory => return Err(crate::execute::OUT_OF_MEMORY),
        };
        Ok(self.answer(status, &MetaFacts::default(), None, out))
    }

    fn arithmetic(&self, out: &mut Vec<u8>) -> Answer {
        self.refuse_any_of(b"E")?;
        let direction = self.flags.direction();
        let mut is_vivified = false;
        let counted = match self.compared() {
            Some(expected) => self.count_if(direction, expected),
            None => Some(self.count(direction)),
        };
        let outcome = match counted {
            None => return Ok(self.answer(MetaStatus::Exists, &MetaFacts::default(), None, out)),
            Some(ArithmeticOutcome::NotFound) if self.flags.vivify_ttl_s.is_some() => {
                is_vivified = true;
                self.vivify(direction)
            }
            Some(outcome) => outcome,
        };
        let (number, cas) = match outcome {
            ArithmeticOutcome::Number(number, cas) => (number, cas),
            ArithmeticOutcome::NotFound => {
                return Ok(self.answer(MetaStatus::NotFound, &MetaFacts::default(), None, out));
            }
            ArithmeticOutcome::NotANumber => return Err(crate::execute::NOT_A_NUMBER),
            ArithmeticOutcome::OutOfMemory => return Err(crate::execute::OUT_OF_MEMORY_ARITHMETIC),
        };
        let ttl_s = match is_vivified {
            true => self.ttl_told_of_new(),
            false => self.ttl_left(),
        };
        let facts = MetaFacts { cas: Some(cas), ttl_s, ..MetaFacts::default() };
        let mut digits = itoa::Buffer::new();
        let value = self.flags.has(b'v').then(|| digits.format(number).as_bytes());
        Ok(self.answer(MetaStatus::Done, &facts, value, out))
    }

    fn count(&self, direction: Direction) -> ArithmeticOutcome {
        let outcome = self.service.store.arithmetic(self.key, direction, self.flags.delta.unwrap_or(1), self.now);
        crate::execute::count_arithmetic(self.service, direction, outcome);
        outcome
    }

    /// What an `ma` tells of the time left to an item that was there, after `T` has changed it.
    fn ttl_left(&self) -> Option<i64> {
        let needs_expiry = self.flags.ttl_s.is_some() || self.flags.has(b't');
        let expiry = if needs_expiry { self.look(|item| item.expiry) } else { None };
        expiry.map(|expiry| ttl_s(expiry, self.now))
    }

    /// What it tells of one that it has made: what the flags in front of the `t` have said so far.
    fn ttl_told_of_new(&self) -> Option<i64> {
        let told = self.flags.in_order().map(|flag| flag.letter).take_while(|&letter| letter != b't');
        let expiry = self.expiry(told.fold(None, |ttl_s, letter| self.ttl_of(letter).or(ttl_s)));
        Some(ttl_s(expiry, self.now))
    }

    fn ttl_of(&self, letter: u8) -> Option<i32> {
        match letter {
            b'N' => self.flags.vivify_ttl_s,
            b'T' => self.flags.ttl_s,
            _ => None,
        }
    }

    /// Counts if the item has this unique; nothing if it has another.
    fn count_if(&self, direction: Direction, expected: Cas) -> Option<ArithmeticOutcome> {
        let reader = self.service.store.reader(self.now);
        let found = reader.get(self.key, |item| (item.cas, item.flags, item.expiry, item.value.to_vec()));
        let Some((cas, flags, expiry, old)) = found else {
            crate::execute::count_arithmetic(self.service, direction, ArithmeticOutcome::NotFound);
            return Some(ArithmeticOutcome::NotFound);
        };
        if cas != expected {
            return None;
        }
        let Some(number) = decimal(&old) else { return Some(ArithmeticOutcome::NotANumber) };
        let delta = self.flags.delta.unwrap_or(1);
        let number = match direction {
            Direction::Up => number.wrapping_add(delta),
            Direction::Down => number.saturating_sub(delta),
        };
        let value = format!("{number:<width$}", width = old.len());
        let item = NewItem { flags, expiry, value: value.as_bytes() };
        let outcome = match self.service.store.store(self.key, StoreMode::Cas(expected), &item, self.now) {
            StoreOutcome::Stored(cas) => ArithmeticOutcome::Number(number, cas),
            StoreOutcome::NotFound => ArithmeticOutcome::NotFound,
            StoreOutcome::Exists => return None,
            _ => ArithmeticOutcome::OutOfMemory,
        };
        crate::execute::count_arithmetic(self.service, direction, outcome);
        Some(outcome)
    }

    /// Makes the number that was missing, to live as long as the later of `N` and `T` says; if another client was faster,
    /// counts on its one.
    fn vivify(&self, direction: Direction) -> ArithmeticOutcome {
        let initial = self.flags.initial.unwrap_or(0);
        let mut digits = itoa::Buffer::new();
        let value = digits.format(initial).as_bytes();
        let letters = self.flags.in_order().map(|flag| flag.letter);
        let ttl_s = letters.fold(None, |ttl_s, letter| self.ttl_of(letter).or(ttl_s));
        let item = NewItem { flags: 0, expiry: self.expiry(ttl_s), value };
        match self.service.store.store(self.key, StoreMode::Add, &item, self.now) {
            StoreOutcome::Stored(cas) => ArithmeticOutcome::Number(initial, cas),
            StoreOutcome::NotStored => self.count(direction),
            _ => ArithmeticOutcome::OutOfMemory,
        }
    }

    fn debug(&self, out: &mut Vec<u8>) -> MetaStatus {
        let shown = self.service.store.reader(self.now).get(self.key, |item| {
            out.extend_from_slice(b"ME ");
            out.extend_from_slice(self.wire_key);
            let facts = format!(
                " exp={} la={} cas={} fetch={} cls=0 size={}",
                ttl_s(item.expiry, self.now),
                item.last_access_age_s,
                item.cas.0,
                if item.fetched { "yes" } else { "no" },
                item.key.len() + item.value.value_bytes(),
            );
            render::line(facts.as_bytes(), out);
        });
        if shown.is_some() {
            return MetaStatus::Debug;
        }
        render::line(b"EN", out);
        MetaStatus::Miss
    }
}

/// The number that a value stands for, spaces behind it left out.
fn decimal(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii_end();
    let is_decimal = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_decimal)?.parse().ok()
}

/// Seconds left to live, -1 for ever.
fn ttl_s(expiry: Expiry, now: Now) -> i64 {
    match expiry {
        Expiry::Never => -1,
        Expiry::At { unix_s } => i64::from(unix_s) - (now.unix_ms / 1000) as i64,
    }
}
