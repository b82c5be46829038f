//! Keys whose deletes were refused, usually because their server is down. Part of [`PendingDeletes`](super::pending),
//! which sends them again until they are acknowledged (§4.1). They are counted apart, so that they use up none of the
//! capacity for keys on healthy servers.
//!
//! ```text
//! refused -> waiting -> due -> in flight -> acknowledged: removed
//!              |     ^_____________|  \____ named meanwhile: pending again, see `pending_again`
//!              '-----'
//!              released: the cause of all failures is gone
//! ```
//!
//! Invariants:
//! * A key has one entry, however many commits name it: with the oldest of them, which holds back the safe position,
//!   and the newest. Its next delete covers all commits that are admitted when that delete is sent.
//! * A commit that names a key while its delete is in flight is not covered by that delete. The first such commit is
//!   recorded, and holds back the safe position after the delete has succeeded.
//! * Memory is bounded by the number of keys: at most two commits are recorded for each.
//! * The delay of a key grows with its failures, and all keys together are sent at most [`RETRIES_PER_S_MAX`] times per
//!   second: a server that is down must not flood the router with retries.
//! * Released keys are due at once, in the order of their failures, and go before all others. If they fail again, their
//!   delays begin from the shortest. Releases are as far apart as the longest delay of the present keys: between them
//!   the delays hold, also if a router answers probes and no delete.
//!
//! Not here: the bounds of the queue, which belong to [`PendingDeletes`](super::pending). A commit is a number here.

use bytes::Bytes;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};
use tokio::time::Instant;

/// About the most retries per second. With many keys a key waits longer than [`Backoff::max`]: a million keys are
/// retried every ten seconds.
pub(crate) const RETRIES_PER_S_MAX: u32 = 100_000;

/// The delay before a retry. It doubles after every failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub min: Duration,
    pub max: Duration,
}

/// How a key that a new commit names relates to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryState {
    /// The key is not in the queue.
    NotQueued,
    /// A delete that an older commit waits for covers the new commit too.
    Covered,
    /// A delete is in flight. After it the key is pending again, for the new commit.
    PendingAgain,
}

/// The keys that wait for a retry or are in flight as one.
#[derive(Debug)]
pub(crate) struct RetryQueue {
    backoff: Backoff,
    keys: BTreeMap<Bytes, RetryEntry>,
    key_bytes: usize,
    waiting: BTreeMap<Due, Bytes>,
    /// Waiting keys that are due, whatever their `Due` says.
    released: BTreeMap<Due, Bytes>,
    /// When keys were released last; `None` if never.
    released_at: Option<Instant>,
    scheduled: u64,
}

/// When a key is due; the number keeps keys of the same moment apart and in order.
type Due = (Instant, u64);

#[derive(Debug)]
struct RetryEntry {
    oldest: u64,
    newest: u64,
    /// The first commit that named the key while its delete was in flight.
    pending_again: Option<u64>,
    failures: u32,
    /// `None` while its delete is in flight.
    due: Option<Due>,
}

impl RetryQueue {
    pub fn new(backoff: Backoff) -> RetryQueue {
        RetryQueue {
            backoff,
            keys: BTreeMap::new(),
            key_bytes: 0,
            waiting: BTreeMap::new(),
            released: BTreeMap::new(),
            released_at: None,
            scheduled: 0,
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The bytes of all keys.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Makes all waiting keys due at once, unless that was done less than the longest delay ago. Returns how many.
    pub fn release_all(&mut self, now: Instant) -> usize {
        let interval = self.backoff.max.max(self.rate_delay());
        if self.waiting.is_empty() || self.released_at.is_some_and(|at| now < at + interval) {
            return 0;
        }
        self.released_at = Some(now);
        let keys = self.waiting.len();
        self.released.append(&mut self.waiting);
        keys
    }

    /// How many released keys wait.
    pub fn released(&self) -> usize {
        self.released.len()
    }

    /// Whether released keys wait.
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// When the next key is due; `None` if none waits.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        match self.has_released() {
            true => Some(now),
            false => self.waiting.first_key_value().map(|((at, _), _)| *at),
        }
    }

    /// Records that commit `number`, newer than all before, names `key`.
    pub fn record_commit(&mut self, key: &[u8], number: u64) -> RetryState {
        let Some(entry) = self.keys.get_mut(key) else { return RetryState::NotQueued };
        entry.newest = number;
        if entry.due.is_none() && entry.pending_again.is_none() {
            entry.pending_again = Some(number);
            return RetryState::PendingAgain;
        }
        RetryState::Covered
    }

    /// Adds a key whose delete was refused for the `failures`th time and is pending for the commits `oldest` to
    /// `newest`. If several of its deletes were in flight, the key may have an entry already: returns the one of the
    /// two oldest commits that need not be tracked.
    pub fn insert(&mut self, key: Bytes, (oldest, newest): (u64, u64), failures: u32, now: Instant) -> Option<u64> {
        match self.keys.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                // A delete that was sent since covers these commits too, for they were admitted before it.
                let entry = entry.get_mut();
                let released = entry.oldest.max(oldest);
                entry.oldest = entry.oldest.min(oldest);
                entry.newest = entry.newest.max(newest);
                Some(released)
            }
            Entry::Vacant(vacant) => {
                self.key_bytes += key.len();
                vacant.insert(RetryEntry { oldest, newest, pending_again: None, failures, due: None });
                self.schedule(&key, now);
                None
            }
        }
    }

    /// Takes the key that is due first out of the waiting keys, if it is due at `now` and `fits`. It is in flight then.
    pub fn pop_due(&mut self, now: Instant, fits: impl FnOnce(&Bytes) -> bool) -> Option<Bytes> {
        let is_released = self.has_released();
        let first = if is_released { self.released.first_entry() } else { self.waiting.first_entry() };
        let key = first.filter(|first| (is_released || first.key().0 <= now) && fits(first.get()))?.remove();
        let entry = self.keys.get_mut(&key).expect("a waiting key has an entry");
        entry.due = None;
        if is_released {
            entry.failures = 0;
        }
        Some(key)
    }

    /// Schedules a key in flight again after a refusal. Returns the commit that need not be tracked any more.
    pub fn reschedule(&mut self, key: &Bytes, now: Instant) -> Option<u64> {
        let entry = self.keys.get_mut(key).expect("a key in flight has an entry");
        entry.failures += 1;
        let released = entry.pending_again.take();
        self.schedule(key, now);
        released
    }

    /// Removes a key whose delete succeeded. Returns its oldest commit, and the commit for which the key is pending
    /// again.
    pub fn acknowledge(&mut self, key: &Bytes) -> (u64, Option<u64>) {
        let entry = self.keys.remove(key).expect("a key in flight has an entry");
        self.key_bytes -= key.len();
        (entry.oldest, entry.pending_again)
    }

    /// Removes a waiting key if a delete outside the queue, sent after commit `newest_commit` was admitted, covers all
    /// of its commits. Returns its oldest commit.
    pub fn acknowledge_by_other_delete(&mut self, key: &Bytes, newest_commit: u64) -> Option<u64> {
        let due = self.keys.get(key).filter(|entry| entry.newest <= newest_commit)?.due?;
        self.waiting.remove(&due).or_else(|| self.released.remove(&due));
        Some(self.acknowledge(key).0)
    }

    /// The delay with which all keys together are sent [`RETRIES_PER_S_MAX`] times per second.
    fn rate_delay(&self) -> Duration {
        Duration::from_secs(self.keys.len() as u64) / RETRIES_PER_S_MAX
    }

    fn schedule(&mut self, key: &Bytes, now: Instant) {
        let rate_delay = self.rate_delay();
        let entry = self.keys.get_mut(key).expect("a waiting key has an entry");
        let doubled = self.backoff.min.saturating_mul(1 << (entry.failures.max(1) - 1).min(16));
        self.scheduled += 1;
        let due = (now + doubled.min(self.backoff.max).max(rate_delay), self.scheduled);
        entry.due = Some(due);
        self.waiting.insert(due, key.clone());
    }
}
