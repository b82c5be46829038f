//! The store as a simple map: its replies when it has ample memory.
//!
//! Absent: memory, hashing, eviction. The store chooses tokens and CAS uniques; the model gets them and checks whether
//! they are valid.

use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, DeleteOutcome, Expiry, MetaArithmetic, MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome,
    MetaGet, MetaSet, NewItem, Now, Options, Recache,
};
use std::collections::{BTreeMap, BTreeSet};

/// The item of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub flags: u32,
    pub expiry: Expiry,
    pub value: Vec<u8>,
    pub cas: Cas,
    /// `None`: not deleted.
    pub stale_until_ms: Option<u64>,
    /// Marked as out of date.
    pub is_stale: bool,
    /// Created by a meta get.
    pub is_placeholder: bool,
    /// A client has won.
    pub is_won: bool,
    pub is_fetched: bool,
}

impl Entry {
    fn new(flags: u32, expiry: Expiry, value: &[u8], cas: Cas) -> Entry {
        let value = value.to_vec();
        let (is_stale, is_placeholder, is_won, is_fetched) = (false, false, false, false);
        Entry { flags, expiry, value, cas, stale_until_ms: None, is_stale, is_placeholder, is_won, is_fetched }
    }

    fn is_live(&self) -> bool {
        self.stale_until_ms.is_none() && !self.is_stale && !self.is_placeholder
    }
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    token: LeaseToken,
    issued_ms: u64,
    holds: bool,
}

/// The outcome that the model expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Stored,
    StaleStored,
    NotStored,
    Exists,
    NotFound,
    NotANumber,
    Number(u64),
}

/// All keys of a store.
#[derive(Default)]
pub struct Model {
    options: Options,
    pub now_ms: u64,
    entries: BTreeMap<u8, Entry>,
    leases: BTreeMap<u8, Lease>,
    hold_offs: BTreeMap<u8, u64>,
    flushes: Vec<u64>,
    tokens_seen: BTreeSet<u64>,
    cas_seen: BTreeSet<u64>,
    /// The greatest unique of each key that no client chose.
    cas_greatest: BTreeMap<u8, u64>,
}

/// The expected outcome of a meta get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaGetExpected {
    pub entry: Entry,
    pub expiry_before: Expiry,
    pub is_vivified: bool,
    pub is_won: bool,
    pub win_already_sent: bool,
}

/// Arithmetic by the rules of C; the number is written no shorter than it was.
fn apply_delta(value: &[u8], direction: Direction, delta: u64) -> Option<(u64, Vec<u8>)> {
    let text: String = value.iter().map(|&byte| char::from(byte)).collect();
    let is_space = |letter: char| " \t\n\r\u{b}\u{c}".contains(letter);
    let word = text.trim_start_matches(is_space).split(is_space).next().unwrap_or_default();
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let mut number = digits.parse::<u64>().ok()?;
    if word.starts_with('-') {
        number = number.wrapping_neg();
        if number >= 1 << 63 {
            return None;
        }
    }
    let number = match direction {
        Direction::Up => number.wrapping_add(delta),
        Direction::Down => number.saturating_sub(delta),
    };
    let mut written = number.to_string().into_bytes();
    written.resize(written.len().max(value.len()), b' ');
    Some((number, written))
}

impl Model {
    pub fn new(options: Options, now_ms: u64) -> Model {
        Model { options, now_ms, ..Model::default() }
    }

    pub fn now(&self) -> Now {
        Now { unix_ms: self.now_ms }
    }

    pub fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
        let now = self.now();
        if self.flushes.iter().any(|&at| at <= now.unix_ms) {
            self.entries.clear();
            self.leases.clear();
            self.flushes.retain(|&at| at > now.unix_ms);
        }
        self.entries.retain(|_, entry| {
            let stale_is_over = entry.stale_until_ms.is_some_and(|until_ms| until_ms <= now.unix_ms);
            !stale_is_over && !entry.expiry.is_past(now)
        });
    }

    /// Leases end with the process; all else stays.
    pub fn restart(&mut self) {
        self.leases.clear();
    }

    pub fn flush(&mut self, ahead_ms: u64) {
        self.flushes.push(self.now_ms + ahead_ms);
        self.advance(0);
    }

    pub fn live(&self, key: u8) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| entry.is_live())
    }

    /// The item that meta verbs see.
    pub fn undeleted(&self, key: u8) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| entry.stale_until_ms.is_none())
    }

    /// The value that a lease-get may show beside its token.
    pub fn stale(&self, key: u8) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| entry.stale_until_ms.is_some() || entry.is_stale)
    }

    pub fn touch(&mut self, key: u8, expiry: Expiry) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.is_live()) {
            entry.expiry = expiry;
        }
    }

    /// Records that a verb has shown the live item.
    pub fn record_fetch(&mut self, key: u8) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.is_live()) {
            entry.is_fetched = true;
        }
    }

    /// A meta get; `vivified` is the unique of a placeholder that the store created.
    pub fn meta_get(&mut self, key: u8, conditions: &MetaGet, vivified: Option<Cas>) -> Option<MetaGetExpected> {
        let is_vivified = self.undeleted(key).is_none();
        if is_vivified {
            let expiry = conditions.vivify?;
            let cas = conditions.cas_new.or(vivified).unwrap_or(Cas(0));
            let placeholder = Entry { is_placeholder: true, is_won: true, ..Entry::new(0, expiry, b"", cas) };
            self.entries.insert(key, placeholder);
        }
        let entry = self.entries.get_mut(&key).expect("there is one now");
        let before = entry.clone();
        if let Some(touch) = conditions.touch.filter(|_| !is_vivified) {
            entry.expiry = touch;
        }
        let expiry_of = |recache: Recache| if recache.is_touched_first { entry.expiry } else { before.expiry };
        let is_near = conditions.recache.is_some_and(|recache| match (expiry_of(recache), recache.before) {
            (Expiry::At { unix_s }, Expiry::At { unix_s: before_s }) => unix_s < before_s,
            _ => false,
        });
        let is_won = is_vivified || !before.is_won && (is_near || before.is_stale);
        entry.is_won |= is_won;
        entry.is_fetched |= !conditions.no_bump;
        let seen = Entry { is_fetched: before.is_fetched, ..entry.clone() };
        let win_already_sent = before.is_won && !is_vivified;
        self.advance(0);
        Some(MetaGetExpected { entry: seen, expiry_before: before.expiry, is_vivified, is_won, win_already_sent })
    }

    /// The outcome of a meta set, before it is applied.
    pub fn expect_meta_set(&self, key: u8, mode: StoreMode, conditions: &MetaSet) -> Expected {
        let found = self.undeleted(key);
        match (mode, found) {
            (StoreMode::Set, _) | (StoreMode::Replace, Some(_)) => Expected::Stored,
            (StoreMode::Add, None) if !self.is_held_off(key) => Expected::Stored,
            (StoreMode::Add, _) | (StoreMode::Replace, None) => Expected::NotStored,
            (StoreMode::Cas(_), None) => Expected::NotFound,
            (StoreMode::Cas(Cas(0)), Some(_)) => Expected::Exists,
            (StoreMode::Cas(cas), Some(entry)) if cas == entry.cas => Expected::Stored,
            (StoreMode::Cas(cas), Some(entry)) if cas.0 < entry.cas.0 && conditions.invalidates => {
                Expected::StaleStored
            }
            (StoreMode::Cas(_), Some(_)) => Expected::Exists,
            (_, Some(entry)) if conditions.cas_compare.is_some_and(|cas| cas != entry.cas) => Expected::Exists,
            (_, Some(_)) => Expected::Stored,
            (_, None) if conditions.vivify.is_some() && !self.is_held_off(key) => Expected::Stored,
            (_, None) => Expected::NotStored,
        }
    }

    /// Applies a meta set that stored with this unique. Returns the expected value size, and whether the unique is
    /// valid.
    pub fn meta_set(
        &mut self,
        key: u8,
        mode: StoreMode,
        item: &NewItem<'_>,
        conditions: &MetaSet,
        cas: Cas,
    ) -> (usize, bool) {
        let old = self.undeleted(key).cloned();
        let is_invalidated = self.expect_meta_set(key, mode, conditions) == Expected::StaleStored;
        let whole = Entry::new(item.flags, item.expiry, item.value, cas);
        let entry = match (mode, old) {
            (StoreMode::Append, Some(old)) => {
                Entry::new(old.flags, old.expiry, &[&old.value, item.value].concat(), cas)
            }
            (StoreMode::Prepend, Some(old)) => {
                Entry::new(old.flags, old.expiry, &[item.value, &old.value].concat(), cas)
            }
            (StoreMode::Append | StoreMode::Prepend, None) => {
                Entry { expiry: conditions.vivify.expect("it was stored"), ..whole }
            }
            (_, Some(old)) if is_invalidated => {
                Entry { expiry: old.expiry, is_stale: true, is_won: old.is_won, ..whole }
            }
            _ => whole,
        };
        if mode == StoreMode::Set {
            self.hold_offs.remove(&key);
        }
        let value_bytes = entry.value.len();
        (value_bytes, self.put(key, entry, conditions.cas_new))
    }

    /// A meta delete; `cas` is the unique afterwards of an item that stays.
    pub fn meta_delete(&mut self, key: u8, conditions: &MetaDelete, cas: Option<Cas>) -> (MetaDeleteOutcome, bool) {
        let found = self.undeleted(key).cloned();
        let is_other = |entry: &Entry| conditions.cas_compare.is_some_and(|cas| cas != entry.cas);
        match found {
            Some(entry) if is_other(&entry) => (MetaDeleteOutcome::Exists, true),
            None => {
                self.void(key);
                (MetaDeleteOutcome::NotFound, true)
            }
            Some(_) if !conditions.invalidates && !conditions.empties => {
                self.delete(key, 0);
                (MetaDeleteOutcome::Deleted, true)
            }
            Some(old) => {
                let cas = cas.or(conditions.cas_new).unwrap_or(Cas(0));
                let kept = match conditions.empties {
                    true => Entry::new(0, conditions.touch.unwrap_or(Expiry::Never), b"", cas),
                    false => Entry {
                        expiry: conditions.touch.unwrap_or(old.expiry),
                        cas,
                        is_won: false,
                        is_placeholder: false,
                        ..old
                    },
                };
                let entry = Entry { is_stale: conditions.invalidates, ..kept };
                // A unique that was not seen, because the item has expired already, cannot be checked.
                let chosen = conditions.cas_new.or((cas == Cas(0)).then_some(cas));
                (MetaDeleteOutcome::Deleted, self.put(key, entry, chosen))
            }
        }
    }

    /// Applies a meta arithmetic command. Returns whether the outcome is the expected one.
    pub fn meta_arithmetic(
        &mut self,
        key: u8,
        direction: Direction,
        delta: u64,
        conditions: &MetaArithmetic,
        outcome: MetaArithmeticOutcome,
    ) -> bool {
        let Some(old) = self.undeleted(key).cloned() else {
            return match (conditions.vivify, outcome) {
                (Some((initial, expiry)), MetaArithmeticOutcome::Vivified(cas)) => {
                    let entry = Entry::new(0, expiry, initial.to_string().as_bytes(), cas);
                    !self.is_held_off(key) && self.put(key, entry, conditions.cas_new)
                }
                (Some(_), outcome) => self.is_held_off(key) && outcome == MetaArithmeticOutcome::NotStored,
                (None, outcome) => {
                    matches!(outcome, MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::NotFound, .. })
                }
            };
        };
        let number = apply_delta(&old.value, direction, delta);
        let is_other = conditions.cas_compare.is_some_and(|cas| cas != old.cas);
        match (outcome, number) {
            (MetaArithmeticOutcome::Exists, _) => is_other && !old.value.is_empty(),
            (MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::NotANumber, .. }, number) => {
                number.is_none() && (!is_other || old.value.is_empty())
            }
            (
                MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::Number(seen, cas), expiry },
                Some((number, value)),
            ) => {
                let touched = conditions.touch.unwrap_or(old.expiry);
                let agrees = !is_other && seen == number && expiry == [old.expiry, touched];
                let kept = match value.len() == old.value.len() {
                    true => Entry { value, cas, ..old },
                    false => Entry::new(old.flags, old.expiry, &value, cas),
                };
                agrees && self.put(key, Entry { expiry: touched, ..kept }, conditions.cas_new)
            }
            _ => false,
        }
    }

    /// Removes an item with a past expiry, after its value was shown.
    pub fn expire(&mut self) {
        self.advance(0);
    }

    /// Whether a lease-get of an absent key must get a token.
    pub fn token_is_due(&self, key: u8) -> bool {
        match self.leases.get(&key) {
            None => true,
            Some(lease) if self.now_ms >= lease.issued_ms + u64::from(self.options.lease_interval_ms) => true,
            Some(lease) => !lease.holds && !self.options.lease_interval_outlasts_delete,
        }
    }

    /// Records a token that the store issued. Returns whether it is new.
    pub fn issue(&mut self, key: u8, token: LeaseToken) -> bool {
        self.leases.insert(key, Lease { token, issued_ms: self.now_ms, holds: true });
        token.is_held() && self.tokens_seen.insert(token.0)
    }

    pub fn token_holds(&self, key: u8, token: LeaseToken) -> bool {
        self.leases.get(&key).is_some_and(|lease| lease.holds && lease.token == token)
    }

    pub fn is_held_off(&self, key: u8) -> bool {
        self.hold_offs.get(&key).is_some_and(|&until_ms| until_ms > self.now_ms)
    }

    pub fn expect_store(&self, key: u8, mode: StoreMode) -> Expected {
        let live = self.live(key);
        match mode {
            StoreMode::Set => Expected::Stored,
            StoreMode::Add if live.is_some() || self.is_held_off(key) => Expected::NotStored,
            StoreMode::Add => Expected::Stored,
            StoreMode::Cas(cas) => match live {
                None => Expected::NotFound,
                Some(entry) if entry.cas != cas => Expected::Exists,
                Some(_) => Expected::Stored,
            },
            StoreMode::Replace | StoreMode::Append | StoreMode::Prepend if live.is_some() => Expected::Stored,
            StoreMode::Replace | StoreMode::Append | StoreMode::Prepend => Expected::NotStored,
        }
    }

    /// Applies a store with this unique. Returns whether the unique is new and grows.
    pub fn store(&mut self, key: u8, mode: StoreMode, flags: u32, expiry: Expiry, value: &[u8], cas: Cas) -> bool {
        let old = self.live(key).cloned();
        let entry = match (mode, old) {
            (StoreMode::Append, Some(old)) => Entry::new(old.flags, old.expiry, &[&old.value, value].concat(), cas),
            (StoreMode::Prepend, Some(old)) => Entry::new(old.flags, old.expiry, &[value, &old.value].concat(), cas),
            _ => Entry::new(flags, expiry, value, cas),
        };
        if mode == StoreMode::Set {
            self.hold_offs.remove(&key);
        }
        self.put(key, entry, None)
    }

    pub fn expect_lease_set(&self, key: u8, token: LeaseToken) -> Expected {
        match self.token_holds(key, token) {
            true => Expected::Stored,
            false if token.is_held() && self.is_deleted(key) => Expected::StaleStored,
            false => Expected::NotStored,
        }
    }

    pub fn refresh_stale(&mut self, key: u8, flags: u32, expiry: Expiry, value: &[u8]) {
        let entry = self.entries.get_mut(&key).expect("the model has the item");
        let stale_until_ms = entry.stale_until_ms;
        *entry = Entry { stale_until_ms, ..Entry::new(flags, expiry, value, entry.cas) };
        self.advance(0);
    }

    pub fn expect_arithmetic(&self, key: u8, direction: Direction, delta: u64) -> (Expected, Vec<u8>) {
        let Some(entry) = self.live(key) else {
            return (Expected::NotFound, Vec::new());
        };
        match apply_delta(&entry.value, direction, delta) {
            Some((number, value)) => (Expected::Number(number), value),
            None => (Expected::NotANumber, Vec::new()),
        }
    }

    pub fn apply_arithmetic(&mut self, key: u8, value: Vec<u8>, cas: Cas) -> bool {
        let old = self.live(key).expect("the model has the item").clone();
        let entry = match value.len() == old.value.len() {
            true => Entry { value, cas, ..old },
            false => Entry::new(old.flags, old.expiry, &value, cas),
        };
        self.put(key, entry, None)
    }

    fn is_deleted(&self, key: u8) -> bool {
        self.entries.get(&key).is_some_and(|entry| entry.stale_until_ms.is_some())
    }

    pub fn delete(&mut self, key: u8, hold_off_ms: u32) -> DeleteOutcome {
        self.void(key);
        let until_ms = self.now_ms + u64::from(hold_off_ms);
        let entry = self.hold_offs.entry(key).or_default();
        *entry = until_ms.max(*entry);
        if self.undeleted(key).is_none() {
            return DeleteOutcome::NotFound;
        }
        if self.entries[&key].is_placeholder {
            self.entries.remove(&key);
            return DeleteOutcome::Deleted;
        }
        let stale_until_ms = self.now_ms + u64::from(self.options.stale_ms);
        let entry = self.entries.get_mut(&key).expect("it is there");
        entry.stale_until_ms = Some(stale_until_ms);
        self.advance(0);
        DeleteOutcome::Deleted
    }

    /// Records that the store, short of memory, evicted the live value.
    pub fn evict(&mut self, key: u8) {
        self.entries.remove(&key);
    }

    /// Records that the store refused a value for want of memory.
    pub fn refuse(&mut self, key: u8, is_old_removed: bool) {
        self.void(key);
        if is_old_removed && self.undeleted(key).is_some() {
            self.entries.remove(&key);
        }
    }

    /// The keys with a live value.
    pub fn live_keys(&self) -> Vec<u8> {
        self.entries.iter().filter(|(_, entry)| entry.is_live()).map(|(&key, _)| key).collect()
    }

    /// Returns whether the unique is the chosen one, or new and greater than those before it.
    fn put(&mut self, key: u8, entry: Entry, chosen: Option<Cas>) -> bool {
        self.void(key);
        let cas = entry.cas;
        self.entries.insert(key, entry);
        self.advance(0);
        match chosen {
            Some(chosen) => cas == chosen,
            None => {
                let grows = self.cas_greatest.insert(key, cas.0).is_none_or(|greatest| greatest < cas.0);
                self.cas_seen.insert(cas.0) && grows
            }
        }
    }

    fn void(&mut self, key: u8) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.holds = false;
        }
    }
}
