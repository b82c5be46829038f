//! The store as a map that one can read at a glance: what it must answer when it has memory in plenty.
//!
//! Absent: memory, hashing, eviction. Tokens and CAS uniques are the store's own choice; the model is told them and
//! says whether they could be.

use lookaside_protocol::{Cas, Direction, LeaseToken, StoreMode};
use lookaside_store::{DeleteOutcome, Expiry, Now, Options};
use std::collections::{BTreeMap, BTreeSet};

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub flags: u32,
    pub expiry: Expiry,
    pub value: Vec<u8>,
    pub cas: Cas,
    /// `None`: live.
    pub stale_until_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    token: LeaseToken,
    issued_ms: u64,
    holds: bool,
}

/// What the model expects of a store.
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

    /// Leases end with the process; all else goes on.
    pub fn restart(&mut self) {
        self.leases.clear();
    }

    pub fn flush(&mut self, ahead_ms: u64) {
        self.flushes.push(self.now_ms + ahead_ms);
        self.advance(0);
    }

    pub fn live(&self, key: u8) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| entry.stale_until_ms.is_none())
    }

    pub fn stale(&self, key: u8) -> Option<&Entry> {
        self.entries.get(&key).filter(|entry| entry.stale_until_ms.is_some())
    }

    pub fn touch(&mut self, key: u8, expiry: Expiry) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.stale_until_ms.is_none()) {
            entry.expiry = expiry;
        }
    }

    /// After the value was shown: one with a past expiry is gone.
    pub fn settle(&mut self) {
        self.advance(0);
    }

    /// Whether a lease-get of an absent key must be given a token.
    pub fn token_is_due(&self, key: u8) -> bool {
        match self.leases.get(&key) {
            None => true,
            Some(lease) if self.now_ms >= lease.issued_ms + u64::from(self.options.lease_interval_ms) => true,
            Some(lease) => !lease.holds && !self.options.lease_interval_outlasts_delete,
        }
    }

    /// The store has handed out a token. Says whether it is one that was never seen.
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

    /// The store has stored, under this unique. Says whether the unique is new and grows.
    pub fn store(&mut self, key: u8, mode: StoreMode, flags: u32, expiry: Expiry, value: &[u8], cas: Cas) -> bool {
        let old = self.live(key).cloned();
        let entry = match (mode, old) {
            (StoreMode::Append, Some(old)) => Entry { value: [&old.value, value].concat(), cas, ..old },
            (StoreMode::Prepend, Some(old)) => Entry { value: [value, &old.value].concat(), cas, ..old },
            _ => Entry { flags, expiry, value: value.to_vec(), cas, stale_until_ms: None },
        };
        if mode == StoreMode::Set {
            self.hold_offs.remove(&key);
        }
        self.put(key, entry)
    }

    pub fn expect_lease_set(&self, key: u8, token: LeaseToken) -> Expected {
        match self.token_holds(key, token) {
            true => Expected::Stored,
            false if token.is_held() && self.stale(key).is_some() => Expected::StaleStored,
            false => Expected::NotStored,
        }
    }

    pub fn refresh_stale(&mut self, key: u8, flags: u32, expiry: Expiry, value: &[u8]) {
        let entry = self.entries.get_mut(&key).expect("the model said there was one");
        *entry = Entry { flags, expiry, value: value.to_vec(), cas: entry.cas, stale_until_ms: entry.stale_until_ms };
        self.advance(0);
    }

    pub fn expect_arithmetic(&self, key: u8, direction: Direction, delta: u64) -> (Expected, Vec<u8>) {
        let Some(entry) = self.live(key) else {
            return (Expected::NotFound, Vec::new());
        };
        let text = String::from_utf8_lossy(&entry.value);
        let digits = text.trim_end_matches(' ');
        let number = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse::<u64>().ok(),
            false => None,
        };
        let Some(number) = number else {
            return (Expected::NotANumber, Vec::new());
        };
        let number = match direction {
            Direction::Up => number.wrapping_add(delta),
            Direction::Down => number.saturating_sub(delta),
        };
        let mut value = number.to_string();
        while value.len() < entry.value.len() {
            value.push(' ');
        }
        (Expected::Number(number), value.into_bytes())
    }

    pub fn count(&mut self, key: u8, value: Vec<u8>, cas: Cas) -> bool {
        let old = self.live(key).expect("the model said there was one").clone();
        self.put(key, Entry { value, cas, ..old })
    }

    pub fn delete(&mut self, key: u8, hold_off_ms: u32) -> DeleteOutcome {
        self.void(key);
        let until_ms = self.now_ms + u64::from(hold_off_ms);
        let mark = self.hold_offs.entry(key).or_default();
        *mark = until_ms.max(*mark);
        if self.live(key).is_none() {
            return DeleteOutcome::NotFound;
        }
        let stale_until_ms = self.now_ms + u64::from(self.options.stale_ms);
        let entry = self.entries.get_mut(&key).expect("it is live");
        entry.stale_until_ms = Some(stale_until_ms);
        self.advance(0);
        DeleteOutcome::Deleted
    }

    /// The store was short of memory and has let go of the live value.
    pub fn evict(&mut self, key: u8) {
        self.entries.remove(&key);
    }

    fn put(&mut self, key: u8, entry: Entry) -> bool {
        self.void(key);
        let cas = entry.cas;
        let grows = self.entries.insert(key, entry).is_none_or(|old| old.cas.0 < cas.0);
        self.advance(0);
        self.cas_seen.insert(cas.0) && grows
    }

    fn void(&mut self, key: u8) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.holds = false;
        }
    }
}
