//! Keys whose deletes were refused: a dead server's, as a rule. Part of the [window](super::pending), which sends them
//! again until they are acknowledged (§4.1); kept apart from it so that they take no room from the keys of servers
//! that are well.
//!
//! ```text
//! refused -> waits -> due -> on its way -> acknowledged: paid, and gone
//!              ^_______________|   \______ named meanwhile: owed anew, see `again`
//! ```
//!
//! Invariants:
//! * A key is here once, however many commits name it: with the oldest that owes it, which holds the position, and
//!   with the newest. What its next delete pays for is all that was admitted when that delete was sent.
//! * A commit that names a key while its delete is on its way is not paid for by that delete: the first such commit
//!   is remembered, and holds the position after the delete has succeeded.
//! * Memory follows the number of keys: at most two commits are held for each.
//! * Tries of one key get rarer, and tries of all keys together are at most [`TRIES_PER_S_MAX`]: a dead server must
//!   not turn into a storm at the router.
//!
//! Absent on purpose: the bounds, which are the window's, and what a commit is: here it is a number.

use bytes::Bytes;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};
use tokio::time::Instant;

/// At most about so many keys are tried again in a second. With more keys than that, a key waits longer than
/// `retry_max`: a million of them are tried every ten seconds.
pub(crate) const TRIES_PER_S_MAX: u32 = 100_000;

/// How long keys wait: doubled after every failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub min: Duration,
    pub max: Duration,
}

/// What a commit that names a key has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The key does not fail: it is the window's.
    Elsewhere,
    /// Nothing: an older commit waits for the same delete.
    Covered,
    /// It is the one that owes the key after the delete that is on its way.
    Owes,
}

/// The keys that fail.
#[derive(Debug)]
pub(crate) struct Failing {
    waits: Waits,
    keys: BTreeMap<Bytes, Kept>,
    key_bytes: usize,
    later: BTreeMap<Turn, Bytes>,
    turns: u64,
}

/// When a key is tried again; the number keeps those of one moment apart, and in order.
type Turn = (Instant, u64);

#[derive(Debug)]
struct Kept {
    oldest: u64,
    newest: u64,
    /// The first commit that named the key after its delete had been sent.
    again: Option<u64>,
    failures: u32,
    /// None while its delete is on its way.
    turn: Option<Turn>,
}

impl Failing {
    pub fn new(waits: Waits) -> Failing {
        Failing { waits, keys: BTreeMap::new(), key_bytes: 0, later: BTreeMap::new(), turns: 0 }
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Of how many bytes together.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// When the next key is to be tried.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Commit `number`, newer than all before, names `key`.
    pub fn name(&mut self, key: &[u8], number: u64) -> Named {
        let Some(kept) = self.keys.get_mut(key) else { return Named::Elsewhere };
        kept.newest = number;
        if kept.turn.is_none() && kept.again.is_none() {
            kept.again = Some(number);
            return Named::Owes;
        }
        Named::Covered
    }

    /// A delete that the window sent for `key` was refused, for the `failures`th time; `oldest` to `newest` are owed
    /// it. Returns the one of two commits that need not be held for it: the key may be here already, when several of
    /// its deletes were on their way.
    pub fn keep(&mut self, key: Bytes, (oldest, newest): (u64, u64), failures: u32, now: Instant) -> Option<u64> {
        match self.keys.entry(key.clone()) {
            Entry::Occupied(mut kept) => {
                // Whatever was sent since was sent after these commits were admitted: it pays for them too.
                let kept = kept.get_mut();
                let released = kept.oldest.max(oldest);
                kept.oldest = kept.oldest.min(oldest);
                kept.newest = kept.newest.max(newest);
                Some(released)
            }
            Entry::Vacant(vacant) => {
                self.key_bytes += key.len();
                vacant.insert(Kept { oldest, newest, again: None, failures, turn: None });
                self.wait(&key, now);
                None
            }
        }
    }

    /// Takes out the key that has waited longest, if its time has come; it is on its way from then on.
    pub fn take_due(&mut self, now: Instant, fits: impl FnOnce(&Bytes) -> bool) -> Option<Bytes> {
        let entry = self.later.first_entry().filter(|entry| entry.key().0 <= now && fits(entry.get()))?;
        let key = entry.remove();
        self.keys.get_mut(&key).expect("who waits is kept").turn = None;
        Some(key)
    }

    /// The delete that was on its way was refused again. Returns the commit that need not be held any more.
    pub fn refused(&mut self, key: &Bytes, now: Instant) -> Option<u64> {
        let kept = self.keys.get_mut(key).expect("who is on its way is kept");
        kept.failures += 1;
        let released = kept.again.take();
        self.wait(key, now);
        released
    }

    /// The delete that was on its way has succeeded. Returns the commit that it paid for, and the one that owes the
    /// key from now on.
    pub fn paid(&mut self, key: &Bytes) -> (u64, Option<u64>) {
        let kept = self.keys.remove(key).expect("who is on its way is kept");
        self.key_bytes -= key.len();
        (kept.oldest, kept.again)
    }

    /// Another delete of `key`, sent after commit `upto` was admitted, has succeeded. Returns the commit that it paid
    /// for, if it paid for all.
    pub fn paid_by_another(&mut self, key: &Bytes, upto: u64) -> Option<u64> {
        let turn = self.keys.get(key).filter(|kept| kept.newest <= upto)?.turn?;
        self.later.remove(&turn);
        Some(self.paid(key).0)
    }

    fn wait(&mut self, key: &Bytes, now: Instant) {
        let crowd = Duration::from_secs(self.keys.len() as u64) / TRIES_PER_S_MAX;
        let kept = self.keys.get_mut(key).expect("who waits is kept");
        let doubled = self.waits.min.saturating_mul(1 << (kept.failures.max(1) - 1).min(16));
        self.turns += 1;
        let turn = (now + doubled.min(self.waits.max).max(crowd), self.turns);
        kept.turn = Some(turn);
        self.later.insert(turn, key.clone());
    }
}
