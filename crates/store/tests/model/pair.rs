//! A store and its model side by side: each command goes to both, and the store's reply is compared with the model's.

use super::command::{Command, Mode, Remembered};
use super::scratch_region::ScratchRegion;
use super::{Entry, Expected, Model};
use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};
use lookaside_store::{
    ArithmeticOutcome, Expiry, HashedKey, ItemView, KeyHasher, LeaseGet, LeaseSetOutcome, MetaArithmetic,
    MetaArithmeticOutcome, MetaDelete, MetaDeleteOutcome, MetaGet, MetaSet, NewItem, Options, Recache, Start, Store,
    StoreOutcome,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const START_MS: u64 = 1_700_000_000_123;

/// The store, the model, and the tokens and uniques that clients remember.
pub struct Pair {
    /// `None` only during a restart.
    store: Option<Store>,
    /// The region of a store that can be restarted. Behind the store, which must be dropped before the region is
    /// removed.
    region: Option<ScratchRegion>,
    options: Options,
    model: Model,
    /// Values may be missing, leases may be lost.
    is_short_of_memory: bool,
    /// No value may be missing, but stores may be refused: the store evicts nothing.
    is_refusing: bool,
    /// Stores that were refused.
    pub refusals: u64,
    memory_bytes_max: u64,
    tokens: Vec<(u8, LeaseToken)>,
    uniques: BTreeMap<u8, Cas>,
}

type Shown = (u32, Vec<u8>);

fn shown(view: ItemView<'_>) -> Shown {
    (view.flags, view.value.pieces().flatten().copied().collect())
}

fn of_model(entry: &Entry) -> Shown {
    (entry.flags, entry.value.clone())
}

/// Second 0 is stored as second 1.
fn in_seconds(expiry: Expiry) -> Option<u32> {
    match expiry {
        Expiry::At { unix_s } => Some(unix_s.max(1)),
        Expiry::Never => None,
    }
}

impl Pair {
    pub fn new(options: Options, is_short_of_memory: bool) -> Pair {
        Pair {
            memory_bytes_max: options.memory_bytes_max as u64,
            store: Some(Store::new(options.clone()).expect("the options are fine")),
            region: None,
            options: options.clone(),
            is_refusing: is_short_of_memory && !options.evictions,
            refusals: 0,
            model: Model::new(options, START_MS),
            is_short_of_memory,
            tokens: Vec::new(),
            uniques: BTreeMap::new(),
        }
    }

    /// With a store that can be restarted.
    pub fn restartable(options: Options, is_short_of_memory: bool) -> Pair {
        let mut pair = Pair::new(options, is_short_of_memory);
        let region = ScratchRegion::new();
        let (store, start) = region.attach(&pair.options, pair.model.now());
        assert!(matches!(start, Start::Empty(_)));
        (pair.store, pair.region) = (Some(store), Some(region));
        pair
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("there is a store except during a restart")
    }

    fn restart(&mut self, down_ms: u64) -> Result<(), TestCaseError> {
        let Some(region) = &self.region else { return Ok(()) };
        let before = self.store().statistics();
        let saved = self.store.take().expect("it is there").save(self.model.now()).expect("the region is there");
        prop_assert_eq!(saved.expect("it has a region").items, before.items);
        self.model.advance(down_ms);
        self.model.restart();
        self.options.seed += 1;
        let (store, start) = region.attach(&self.options, self.model.now());
        prop_assert!(matches!(start, Start::Warm { items, .. } if items == before.items), "{:?}", start);
        let after = store.statistics();
        prop_assert!(after.items == before.items && after.memory_bytes <= before.memory_bytes);
        store.audit();
        self.store = Some(store);
        Ok(())
    }

    pub fn run(&mut self, key: u8, command: Command) -> Result<(), TestCaseError> {
        let name = format!("key:{key}");
        let hashed = KeyHasher::new(0).hash(name.as_bytes());
        self.check_eviction(key, hashed)?;
        match command {
            Command::Get => {
                let seen = self.store().reader(self.model.now()).get(hashed, |view| (shown(view), view.fetched));
                prop_assert_eq!(seen, self.model.live(key).map(|entry| (of_model(entry), entry.is_fetched)));
                self.model.record_fetch(key);
            }
            Command::MetaGet { no_bump, touch, vivify, recache, unique } => {
                let [touch, vivify, before] = [touch, vivify, recache].map(|exptime| self.expiry(exptime));
                let recache = before.map(|before| Recache { before, is_touched_first: no_bump });
                let cas_new = unique.map(Cas);
                self.meta_get(
                    key,
                    hashed,
                    &MetaGet { no_bump, touch, vivify, recache, cas_new, counts_miss: !no_bump },
                )?;
            }
            Command::MetaSet { mode, compare, invalidates, vivify, unique, item } => {
                let mode = self.mode(key, mode);
                let conditions = MetaSet {
                    cas_compare: compare.map(|remembered| self.unique(key, remembered)),
                    cas_new: unique.map(Cas),
                    invalidates,
                    vivify: self.expiry(vivify),
                };
                let expiry = Expiry::from_exptime(item.exptime, self.model.now());
                self.meta_set(
                    key,
                    hashed,
                    mode,
                    &NewItem { flags: item.flags, expiry, value: &item.value },
                    &conditions,
                )?;
            }
            Command::MetaDelete { compare, invalidates, empties, touch, unique } => {
                let cas_compare = compare.map(|remembered| self.unique(key, remembered));
                let (cas_new, touch) = (unique.map(Cas), self.expiry(touch));
                self.meta_delete(key, hashed, &MetaDelete { cas_compare, cas_new, invalidates, empties, touch })?;
            }
            Command::MetaArithmetic { up, delta, compare, touch, vivify, unique } => {
                let direction = if up { Direction::Up } else { Direction::Down };
                let conditions = MetaArithmetic {
                    cas_compare: compare.map(|remembered| self.unique(key, remembered)),
                    cas_new: unique.map(Cas),
                    touch: self.expiry(touch),
                    vivify: vivify.map(|(number, exptime)| (number, Expiry::from_exptime(exptime, self.model.now()))),
                };
                self.meta_arithmetic(key, hashed, direction, delta, &conditions)?;
            }
            Command::Touch { exptime } => self.touch(key, hashed, exptime)?,
            Command::LeaseGet => self.lease_get(key, hashed)?,
            Command::Store { mode, flags, exptime, value } => {
                let expiry = Expiry::from_exptime(exptime, self.model.now());
                self.store_item(key, hashed, mode, &NewItem { flags, expiry, value: &value })?;
            }
            Command::LeaseSet { remembered, flags, exptime, value } => {
                let expiry = Expiry::from_exptime(exptime, self.model.now());
                self.lease_set(key, hashed, remembered, &NewItem { flags, expiry, value: &value })?;
            }
            Command::Delete { hold_off_ms } => {
                let outcome = self.store().delete(hashed, hold_off_ms, self.model.now());
                prop_assert_eq!(outcome, self.model.delete(key, hold_off_ms));
            }
            Command::Arithmetic { direction, delta } => self.arithmetic(key, hashed, direction, delta)?,
            Command::Flush { ahead_ms } => {
                let now = lookaside_store::Now { unix_ms: self.model.now_ms };
                if self.store().flush_all(lookaside_store::Now { unix_ms: now.unix_ms + ahead_ms }, now) {
                    self.model.flush(ahead_ms);
                }
            }
            Command::Wait { ms } => self.model.advance(ms),
            Command::Restart { down_ms } => self.restart(down_ms)?,
        }
        prop_assert!(self.store().statistics().memory_bytes <= self.memory_bytes_max);
        Ok(())
    }

    /// A store that is short of memory may have evicted a live value; it must never show another.
    fn check_eviction(&mut self, key: u8, hashed: HashedKey<'_>) -> Result<(), TestCaseError> {
        if self.is_short_of_memory {
            match self.store().reader(self.model.now()).get(hashed, shown) {
                Some(seen) => prop_assert_eq!(Some(seen), self.model.live(key).map(of_model)),
                None if self.model.live(key).is_some() => {
                    prop_assert!(!self.is_refusing, "key {} was evicted", key);
                    self.model.evict(key);
                }
                None if self.model.undeleted(key).is_some() => {
                    self.meta_get(key, hashed, &MetaGet { no_bump: true, ..MetaGet::default() })?;
                }
                None => {}
            }
            self.model.record_fetch(key);
        }
        Ok(())
    }

    fn meta_get(&mut self, key: u8, hashed: HashedKey<'_>, conditions: &MetaGet) -> Result<(), TestCaseError> {
        let seen = self.store().reader(self.model.now()).meta_get(hashed, conditions, |found| {
            let flags = [found.is_vivified, found.is_won, found.win_already_sent, found.is_stale];
            let item = found.item;
            (shown(item), item.cas, [found.expiry_before, item.expiry].map(in_seconds), item.fetched, flags)
        });
        if seen.is_none() && self.is_short_of_memory {
            if self.model.undeleted(key).is_some() {
                prop_assert!(!self.is_refusing, "key {} was evicted", key);
                self.model.evict(key);
            }
            return Ok(());
        }
        let expected = self.model.meta_get(key, conditions, seen.as_ref().map(|seen| seen.1));
        let expected = expected.map(|look| {
            let flags = [look.is_vivified, look.is_won, look.win_already_sent, look.entry.is_stale];
            let expiries = [look.expiry_before, look.entry.expiry].map(in_seconds);
            // If there was no memory to record the win, the next get wins again.
            let wins_again = self.is_short_of_memory && seen.as_ref().is_some_and(|seen| seen.4[1]) && flags[2];
            let flags = if wins_again { [flags[0], true, false, flags[3]] } else { flags };
            (of_model(&look.entry), look.entry.cas, expiries, look.entry.is_fetched, flags)
        });
        prop_assert_eq!(seen, expected);
        Ok(())
    }

    /// The item's unique after a delete that left it. If the item was marked as stale, this get wins.
    fn peek_unique(&mut self, key: u8, hashed: HashedKey<'_>, is_stale: bool) -> Option<Cas> {
        let conditions = MetaGet { no_bump: true, ..MetaGet::default() };
        let seen = self.store().reader(self.model.now()).meta_get(hashed, &conditions, |found| {
            assert_eq!((found.is_won, found.is_stale), (is_stale, is_stale));
            found.item.cas
        });
        self.uniques.extend(seen.map(|cas| (key, cas)));
        seen
    }

    fn meta_set(
        &mut self,
        key: u8,
        hashed: HashedKey<'_>,
        mode: StoreMode,
        item: &NewItem<'_>,
        conditions: &MetaSet,
    ) -> Result<(), TestCaseError> {
        let (outcome, value_bytes) = self.store().meta_set(hashed, mode, item, conditions, self.model.now());
        let expected = self.model.expect_meta_set(key, mode, conditions);
        match outcome {
            StoreOutcome::Stored(cas) => {
                prop_assert!(matches!(expected, Expected::Stored | Expected::StaleStored), "{:?}", expected);
                let (expected_bytes, is_fine) = self.model.meta_set(key, mode, item, conditions, cas);
                prop_assert!(is_fine, "the unique is new and grows, or is the one that was requested");
                prop_assert_eq!(value_bytes, expected_bytes);
                self.uniques.insert(key, cas);
            }
            StoreOutcome::NotStored if self.is_short_of_memory => {
                prop_assert!(expected == Expected::NotStored || mode != StoreMode::Set, "{:?}", expected);
            }
            StoreOutcome::NotStored => prop_assert_eq!(expected, Expected::NotStored),
            StoreOutcome::Exists => prop_assert_eq!(expected, Expected::Exists),
            StoreOutcome::NotFound => prop_assert_eq!(expected, Expected::NotFound),
            StoreOutcome::TooLarge if self.is_short_of_memory => {
                prop_assert!(matches!(mode, StoreMode::Append | StoreMode::Prepend));
            }
            StoreOutcome::OutOfMemory => self.refuse_store(key, mode, expected)?,
            StoreOutcome::TooLarge => prop_assert!(false, "{:?}", outcome),
        }
        Ok(())
    }

    /// A store that evicts nothing has found no memory.
    fn refuse_store(&mut self, key: u8, mode: StoreMode, expected: Expected) -> Result<(), TestCaseError> {
        prop_assert!(self.is_refusing && matches!(expected, Expected::Stored | Expected::StaleStored));
        self.model.refuse(key, mode == StoreMode::Set);
        self.refusals += 1;
        Ok(())
    }

    /// Checks that each live value of the model is there.
    pub fn check_nothing_is_lost(&mut self) -> Result<(), TestCaseError> {
        for key in self.model.live_keys() {
            self.run(key, Command::Get)?;
        }
        prop_assert_eq!(self.store().statistics().evictions, 0);
        prop_assert!(self.store().statistics().stores_out_of_memory >= self.refusals);
        Ok(())
    }

    fn meta_delete(&mut self, key: u8, hashed: HashedKey<'_>, conditions: &MetaDelete) -> Result<(), TestCaseError> {
        let outcome = self.store().meta_delete(hashed, conditions, self.model.now());
        let stays = outcome == MetaDeleteOutcome::Deleted && (conditions.invalidates || conditions.empties);
        let cas = if stays { self.peek_unique(key, hashed, conditions.invalidates) } else { None };
        let (expected, is_fine) = self.model.meta_delete(key, conditions, cas);
        prop_assert_eq!(outcome, expected);
        prop_assert!(is_fine, "the unique is new and grows, or is the one that was requested");
        if stays && cas.is_none() && self.is_refusing {
            // There was no memory for the changed item.
            self.model.evict(key);
        } else if stays {
            // The get of the unique has won.
            self.model.meta_get(key, &MetaGet { no_bump: true, ..MetaGet::default() }, None);
        }
        Ok(())
    }

    fn meta_arithmetic(
        &mut self,
        key: u8,
        hashed: HashedKey<'_>,
        direction: Direction,
        delta: u64,
        conditions: &MetaArithmetic,
    ) -> Result<(), TestCaseError> {
        let outcome = self.store().meta_arithmetic(hashed, direction, delta, conditions, self.model.now());
        if self.is_short_of_memory && outcome == MetaArithmeticOutcome::NotStored {
            // A hold-off that was merged refuses other keys too.
            prop_assert!(self.model.undeleted(key).is_none() && conditions.vivify.is_some());
            return Ok(());
        }
        if let MetaArithmeticOutcome::Counted { outcome: ArithmeticOutcome::OutOfMemory, .. } = outcome {
            prop_assert!(self.is_refusing);
            self.model.refuse(key, false);
            return Ok(());
        }
        let is_expected = self.model.meta_arithmetic(key, direction, delta, conditions, outcome);
        prop_assert!(is_expected, "{:?} {:?}", conditions, outcome);
        Ok(())
    }

    fn arithmetic(
        &mut self,
        key: u8,
        hashed: HashedKey<'_>,
        direction: Direction,
        delta: u64,
    ) -> Result<(), TestCaseError> {
        let outcome = self.store().arithmetic(hashed, direction, delta, self.model.now());
        let (expected, value) = self.model.expect_arithmetic(key, direction, delta);
        match (outcome, expected) {
            (ArithmeticOutcome::Number(number, cas), Expected::Number(wanted)) => {
                prop_assert_eq!(number, wanted);
                prop_assert!(self.model.apply_arithmetic(key, value, cas), "the unique is new and grows");
            }
            (ArithmeticOutcome::NotFound, Expected::NotFound) => {}
            (ArithmeticOutcome::NotANumber, Expected::NotANumber) => {}
            (ArithmeticOutcome::OutOfMemory, Expected::Number(_)) if self.is_refusing => self.model.refuse(key, false),
            other => prop_assert!(false, "{:?}", other),
        }
        Ok(())
    }

    fn expiry(&self, exptime: Option<i64>) -> Option<Expiry> {
        exptime.map(|exptime| Expiry::from_exptime(exptime, self.model.now()))
    }

    fn mode(&self, key: u8, mode: Mode) -> StoreMode {
        match mode {
            Mode::Set => StoreMode::Set,
            Mode::Add => StoreMode::Add,
            Mode::Replace => StoreMode::Replace,
            Mode::Append => StoreMode::Append,
            Mode::Prepend => StoreMode::Prepend,
            Mode::Cas(remembered) => StoreMode::Cas(self.unique(key, remembered)),
        }
    }

    fn touch(&mut self, key: u8, hashed: HashedKey<'_>, exptime: i64) -> Result<(), TestCaseError> {
        let expiry = Expiry::from_exptime(exptime, self.model.now());
        let seen =
            self.store().reader(self.model.now()).get_and_touch(hashed, expiry, |view| (shown(view), view.expiry));
        prop_assert_eq!(seen, self.model.live(key).map(|entry| (of_model(entry), expiry)));
        self.model.record_fetch(key);
        self.model.touch(key, expiry);
        self.model.expire();
        Ok(())
    }

    fn lease_get(&mut self, key: u8, hashed: HashedKey<'_>) -> Result<(), TestCaseError> {
        let reply = self.store().reader(self.model.now()).lease_get(hashed, |reply| match reply {
            LeaseGet::Hit(view) => Ok(shown(view)),
            LeaseGet::Miss { token, stale } => Err((token, stale.map(shown))),
        });
        let (token, stale) = match reply {
            Ok(hit) => {
                prop_assert_eq!(Some(hit), self.model.live(key).map(of_model));
                self.model.record_fetch(key);
                return Ok(());
            }
            Err(miss) => miss,
        };
        prop_assert!(self.model.live(key).is_none(), "a live value must be shown");
        if stale.is_some() || !self.is_short_of_memory {
            prop_assert_eq!(stale, self.model.stale(key).map(of_model));
        } else if self.model.stale(key).is_some() {
            self.model.evict(key);
        }
        let is_due = self.model.token_is_due(key);
        prop_assert!(token.is_held() == is_due || self.is_short_of_memory && token.is_held());
        if token.is_held() {
            prop_assert!(self.model.issue(key, token), "no token is issued twice");
            self.tokens.push((key, token));
        } else {
            prop_assert_eq!(token, LeaseToken::HOT_MISS);
        }
        Ok(())
    }

    fn store_item(
        &mut self,
        key: u8,
        hashed: HashedKey<'_>,
        mode: Mode,
        item: &NewItem<'_>,
    ) -> Result<(), TestCaseError> {
        let mode = self.mode(key, mode);
        let outcome = self.store().store(hashed, mode, item, self.model.now());
        let expected = self.model.expect_store(key, mode);
        match outcome {
            StoreOutcome::Stored(cas) => {
                prop_assert_eq!(expected, Expected::Stored);
                let is_new = self.model.store(key, mode, item.flags, item.expiry, item.value, cas);
                prop_assert!(is_new, "the unique is new and grows");
                self.uniques.insert(key, cas);
            }
            StoreOutcome::NotStored if mode == StoreMode::Add && self.is_short_of_memory => {}
            StoreOutcome::NotStored => prop_assert_eq!(expected, Expected::NotStored),
            StoreOutcome::Exists => prop_assert_eq!(expected, Expected::Exists),
            StoreOutcome::NotFound => prop_assert_eq!(expected, Expected::NotFound),
            StoreOutcome::TooLarge if self.is_short_of_memory => {
                prop_assert!(matches!(mode, StoreMode::Append | StoreMode::Prepend));
            }
            StoreOutcome::OutOfMemory => self.refuse_store(key, mode, expected)?,
            StoreOutcome::TooLarge => prop_assert!(false, "{:?}", outcome),
        }
        Ok(())
    }

    fn lease_set(
        &mut self,
        key: u8,
        hashed: HashedKey<'_>,
        remembered: Remembered,
        item: &NewItem<'_>,
    ) -> Result<(), TestCaseError> {
        let token = self.token(key, remembered);
        let outcome = self.store().lease_set(hashed, token, item, self.model.now());
        let expected = self.model.expect_lease_set(key, token);
        match outcome {
            LeaseSetOutcome::Stored(cas) => {
                prop_assert_eq!(expected, Expected::Stored, "a fill that the model refuses");
                // In the model a fill is an add that no hold-off refuses.
                self.model.store(key, StoreMode::Add, item.flags, item.expiry, item.value, cas);
            }
            LeaseSetOutcome::StaleStored => {
                prop_assert!(self.model.stale(key).is_some());
                prop_assert!(expected == Expected::StaleStored || self.is_short_of_memory);
                self.model.refresh_stale(key, item.flags, item.expiry, item.value);
            }
            LeaseSetOutcome::NotStored => {
                prop_assert!(expected == Expected::NotStored || self.is_short_of_memory, "{:?}", expected);
            }
            // A lease that a store short of memory has displaced is refused as a stale one.
            LeaseSetOutcome::OutOfMemory if self.is_refusing => {
                prop_assert!(expected != Expected::NotStored, "{:?}", expected);
                if expected == Expected::Stored {
                    self.model.refuse(key, false);
                }
                self.refusals += 1;
            }
            LeaseSetOutcome::TooLarge | LeaseSetOutcome::OutOfMemory => prop_assert!(false, "{:?}", outcome),
        }
        Ok(())
    }

    fn token(&self, key: u8, remembered: Remembered) -> LeaseToken {
        let newest = self.tokens.iter().rfind(|(of, _)| *of == key).map(|&(_, token)| token);
        match remembered {
            Remembered::Newest => newest.unwrap_or(LeaseToken::HOT_MISS),
            Remembered::Any(choice) if !self.tokens.is_empty() => self.tokens[choice % self.tokens.len()].1,
            Remembered::Any(_) => LeaseToken::HOT_MISS,
            Remembered::Invented(token) => LeaseToken(token),
        }
    }

    fn unique(&self, key: u8, remembered: Remembered) -> Cas {
        match remembered {
            Remembered::Newest => self.uniques.get(&key).copied().unwrap_or(Cas(0)),
            Remembered::Any(choice) => {
                self.uniques.values().copied().nth(choice % self.uniques.len().max(1)).unwrap_or(Cas(0))
            }
            Remembered::Invented(unique) => Cas(unique),
        }
    }
}
