//! The misses of a client whose values it may still store: what lets a router fill under leases for a client that knows
//! none (`cluster/lease_route.rs`, §3.2.1 of the paper, [ADR 016](../../../docs/adr/016-leases-for-plain-clients.md)).
//!
//! A plain `set` does not say which miss it fills. An application may use one connection in several threads, and may
//! get a key again between its query and its `set`. So a `set` counts for the **oldest** miss of its key: it has a
//! token only if that token was issued at or before every miss that no `set` has answered yet, and still is the last
//! one.
//!
//! ```text
//!          a miss, token T                a miss, another token: a delete came between
//!   none ------------------> held by T -----------------------------------> void
//!     |                          | a set takes T; a delete                    ^
//!     |                          '--------------------------------------------|
//!     '-- a hot miss, an error: the client reads the database without a token-'
//! ```
//!
//! A key is removed when it has had as many sets as misses, or when its newest miss is too old: its client has stored
//! nothing, and will not. The age of the oldest does not matter: which of its misses a set has answered is not known,
//! so a newer one may still be unanswered. While a key is void no tokens are taken for it, since none could be used.
//!
//! Connections of a pool exchange sets. With [`LeaseScope::Address`] all connections of an address share one state, so
//! that the rule holds over all of them. It outlives them, and is blind at first, since threads of a client outlive
//! their connections, and this process.
//!
//! The state of a process ([`LeaseScope::Process`]) does not end with a connection. There a get that was given up, or a
//! thread that misses and never stores, would keep a key void for as long as the key is read. So a key is void for a
//! process for at most [`VOID_AGES_MAX`] ages of a miss; a set that comes later than that counts for a later miss.
//!
//! A client is also blind when routes lease other keys than those before ([`Leasing::version`]): it may have missed
//! keys that were not leased then.
//!
//! Invariants: a token is given to one set. Without a token, and with an unanswered miss that is not too old, a set is
//! refused, except after [`VOID_AGES_MAX`]. Memory is bounded ([`MISSES_MAX`], [`TOTAL_MISSES_MAX`]): a miss that there
//! is no space for leaves the client *blind* for as long as a miss is remembered, and then every key that is not
//! remembered counts as void.
//!
//! Keys are not stored: two with one 64-bit hash share their misses, and at worst a set is refused.

mod clients;

pub use clients::{LeaseClients, LeaseCounters, TOTAL_MISSES_MAX};

use lookaside_protocol::LeaseToken;
use lookaside_sync::Mutex;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The most keys whose misses are remembered for one connection. The largest common page has 1,740 (§3.1).
pub const MISSES_MAX: usize = 2_048;
/// The most keys whose misses are remembered for one address, or one process.
pub const ADDRESS_MISSES_MAX: usize = 65_536;

/// The connections that one state is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseScope {
    /// One: a client stores over the connection over which it has missed.
    #[default]
    Connection,
    /// All from one address: clients have pools of connections.
    Address,
    /// All requests of this process: it is the client itself.
    Process,
}

/// Threads put a configuration in force at different moments, and requests that have begun on the one before end later:
/// all within this time, in seconds. Only a state that threads share is affected.
const SWITCH_S_MAX: u64 = 10;

/// What the routes of a tree need to know of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leasing {
    /// The connections whose misses are needed together.
    pub scope: LeaseScope,
    /// Increases whenever a tree leases other keys than the one before it, in all threads alike; 0 for the first tree
    /// of the process.
    pub version: u64,
}

/// The time, and for how long a miss is remembered, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub(crate) now_s: u64,
    pub(crate) miss_age_s: u64,
}

impl Age {
    fn is_over(self, since_s: u64) -> bool {
        // A second has begun when the miss was remembered.
        self.now_s.saturating_sub(since_s) > self.miss_age_s
    }
}

/// Sets that have not come after this time, in seconds, are not waited for.
const ANSWER_S_MAX: u64 = 1;

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// No set can be a fill.
    None,
    /// The next set is stored under this token.
    Held(LeaseToken),
    /// The next set is refused.
    Void,
}

/// The misses of one client.
pub struct ClientMisses {
    id: u64,
    scope: LeaseScope,
    /// Of the keys whose misses it knows ([`Leasing::version`]).
    version: AtomicU64,
    keys: Mutex<Keys>,
    counters: Arc<LeaseCounters>,
    /// Weak, since addresses are kept there.
    all: Weak<LeaseClients>,
}

#[derive(Debug)]
struct Keys {
    by_hash: BTreeMap<u64, Misses>,
    blind: Blind,
}

/// Whether there may be misses that are not remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blind {
    No,
    /// From `lag_s` seconds after its first use on, and before.
    FromFirstUse {
        lag_s: u64,
    },
    /// May be in the future.
    Since(u64),
}

impl Blind {
    /// For a state that begins with routes that lease as `leasing` says.
    fn at_first_use(Leasing { scope, version }: Leasing) -> Blind {
        // The process has had another tree: requests of the same address may still be on it.
        let has_lag = scope == LeaseScope::Address && version > 0;
        Blind::FromFirstUse { lag_s: if has_lag { SWITCH_S_MAX } else { 0 } }
    }
}

/// How long a key is void for a process, in ages of a miss, before its misses are forgotten as soon as no fewer of them
/// were ever unanswered: those that are left were most likely given up.
const VOID_AGES_MIN: u64 = 2;
/// How long a key is void for a process at most, in ages of a miss.
const VOID_AGES_MAX: u64 = 3;

/// The time for which a key has been void.
#[derive(Clone, Copy, Debug)]
struct Void {
    /// When that was first seen.
    since_s: u64,
    /// The fewest unanswered misses since.
    count_min: u32,
}

impl Void {
    fn is_over(self, count: u32, age: Age) -> bool {
        let ages = |ages| age.now_s.saturating_sub(self.since_s) > ages * age.miss_age_s;
        ages(VOID_AGES_MAX) || ages(VOID_AGES_MIN) && count <= self.count_min
    }
}

/// The unanswered misses of one key.
#[derive(Clone, Copy, Debug)]
struct Misses {
    /// `None` if the next set is refused.
    token: Option<LeaseToken>,
    count: u32,
    /// When the oldest was recorded.
    since_s: u64,
    /// When the newest was recorded.
    newest_s: u64,
    /// `None` if there is a token, or was when they were last looked at.
    void: Option<Void>,
}

impl ClientMisses {
    /// Whether it may have misses, of keys that trees of this version lease, that no set has answered.
    pub fn has_any(&self, version: u64) -> bool {
        let keys = self.keys.lock();
        !keys.by_hash.is_empty() || keys.blind != Blind::No || self.version.load(Relaxed) < version
    }

    /// A request of the client is about to be routed by a tree of this version. If the state has served no such tree,
    /// the client may have missed keys that were not leased.
    pub fn advance_to(&self, version: u64) {
        if self.version.load(Relaxed) >= version {
            return;
        }
        let mut keys = self.keys.lock();
        if self.version.fetch_max(version, Relaxed) < version {
            keys.blind = Blind::at_first_use(Leasing { scope: self.scope, version });
        }
    }

    /// The connections that it is for.
    pub fn scope(&self) -> LeaseScope {
        self.scope
    }

    /// Whether sets that answer a key's misses may arrive over other connections in a moment.
    pub(crate) fn is_answered_elsewhere(&self, hash: u64, age: Age) -> bool {
        let is_recent = |misses: &Misses| age.now_s.saturating_sub(misses.since_s) <= ANSWER_S_MAX;
        self.scope == LeaseScope::Address && self.keys.lock().by_hash.get(&hash).is_some_and(is_recent)
    }

    pub(crate) fn counters(&self) -> &LeaseCounters {
        &self.counters
    }

    /// What is known of a key that the client reads.
    pub(crate) fn state(&self, hash: u64, age: Age) -> KeyState {
        let mut keys = self.keys.lock();
        if let Some(misses) = self.find(&mut keys, hash, age) {
            let is_over = misses.void.is_some_and(|void| void.is_over(misses.count, age));
            if self.scope != LeaseScope::Process || !is_over {
                return misses.token.map_or(KeyState::Void, KeyState::Held);
            }
            self.counters().misses_expired.add(1);
            self.remove(&mut keys, hash);
        }
        keys.state_of_others(age)
    }

    /// Records that the client has missed a key, with the token that was issued for it, if one was. Returns a token
    /// that cannot be used, so that it can be returned to its server.
    pub(crate) fn record(&self, hash: u64, token: Option<LeaseToken>, age: Age) -> Option<LeaseToken> {
        let mut keys = self.keys.lock();
        if let Some(misses) = self.find(&mut keys, hash, age) {
            misses.count = misses.count.saturating_add(1);
            misses.newest_s = age.now_s;
            return match token {
                // The earlier token holds for this miss, too.
                None => None,
                token if token == misses.token => None,
                token => {
                    misses.token = None;
                    token
                }
            };
        }
        if !self.make_space(&mut keys, age) {
            self.counters().misses_dropped.add(1);
            keys.make_blind(age);
            return token;
        }
        // A client that is blind may have missed the key before. It still may when it is no longer blind.
        let (usable, unusable) = if keys.is_blind(age) { (None, token) } else { (token, None) };
        self.counters().tokens.add(usable.is_some().into());
        keys.by_hash
            .insert(hash, Misses { token: usable, count: 1, since_s: age.now_s, newest_s: age.now_s, void: None });
        unusable
    }

    /// Returns what is known of a key that the client stores, and counts the set for the key's oldest miss.
    pub(crate) fn answer(&self, hash: u64, age: Age) -> KeyState {
        let mut keys = self.keys.lock();
        let Some(misses) = self.find(&mut keys, hash, age) else {
            return keys.state_of_others(age);
        };
        let state = misses.token.take().map_or(KeyState::Void, KeyState::Held);
        misses.count -= 1;
        if let Some(void) = &mut misses.void {
            void.count_min = void.count_min.min(misses.count);
        }
        if misses.count == 0 {
            self.remove(&mut keys, hash);
        }
        state
    }

    /// Takes back a miss of a key that no set will answer, since the client has got a value elsewhere. Returns the
    /// token if no other miss can use it, so that it can be returned to its server.
    pub(crate) fn withdraw(&self, hash: u64, age: Age) -> Option<LeaseToken> {
        let mut keys = self.keys.lock();
        let misses = self.find(&mut keys, hash, age)?;
        misses.count -= 1;
        if let Some(void) = &mut misses.void {
            void.count_min = void.count_min.min(misses.count);
        }
        if misses.count > 0 {
            return None;
        }
        let token = misses.token;
        self.remove(&mut keys, hash);
        token
    }

    /// Records that the client deletes a key. A set for a miss before that may still come, so the miss is not removed.
    pub(crate) fn void(&self, hash: u64) {
        if let Some(misses) = self.keys.lock().by_hash.get_mut(&hash) {
            misses.token = None;
        }
    }

    /// The misses of a key, unless the newest is too old.
    fn find<'a>(&self, keys: &'a mut Keys, hash: u64, age: Age) -> Option<&'a mut Misses> {
        if keys.by_hash.get(&hash).is_some_and(|misses| age.is_over(misses.newest_s)) {
            self.counters().misses_expired.add(1);
            self.remove(keys, hash);
        }
        let misses = keys.by_hash.get_mut(&hash)?;
        if misses.token.is_none() {
            misses.void.get_or_insert(Void { since_s: age.now_s, count_min: misses.count });
        }
        Some(misses)
    }

    fn remove(&self, keys: &mut Keys, hash: u64) {
        keys.by_hash.remove(&hash);
        self.counters.count_removed(1);
    }

    /// Whether there is space for one more key. Counts it.
    fn make_space(&self, keys: &mut Keys, age: Age) -> bool {
        let keys_max = match self.scope {
            LeaseScope::Connection => MISSES_MAX,
            LeaseScope::Address | LeaseScope::Process => ADDRESS_MISSES_MAX,
        };
        if keys.by_hash.len() >= keys_max {
            self.counters.remove_expired(keys, age);
        }
        if keys.by_hash.len() >= keys_max {
            return false;
        }
        if self.counters.try_remember() {
            return true;
        }
        if let Some(all) = self.all.upgrade() {
            all.sweep(age);
        }
        self.counters.try_remember()
    }
}

impl Keys {
    /// The state of the keys that are not remembered.
    fn state_of_others(&mut self, age: Age) -> KeyState {
        if self.is_blind(age) { KeyState::Void } else { KeyState::None }
    }

    fn make_blind(&mut self, age: Age) {
        self.blind = match self.blind {
            Blind::No => Blind::Since(age.now_s),
            Blind::Since(since_s) => Blind::Since(since_s.max(age.now_s)),
            Blind::FromFirstUse { lag_s } => Blind::Since(age.now_s + lag_s),
        };
    }

    fn is_blind(&mut self, age: Age) -> bool {
        self.blind = match self.blind {
            Blind::FromFirstUse { lag_s } => Blind::Since(age.now_s + lag_s),
            Blind::Since(since_s) if age.is_over(since_s) => Blind::No,
            blind => blind,
        };
        self.blind != Blind::No
    }
}

impl Drop for ClientMisses {
    fn drop(&mut self) {
        self.counters.count_removed(self.keys.get_mut().by_hash.len());
        if let Some(all) = self.all.upgrade() {
            all.remove(self.id);
        }
    }
}

impl fmt::Debug for ClientMisses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientMisses").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
