//! Keys whose deletes were refused, usually because their server is down. Part of [`PendingDeletes`](super::pending),
//! which sends them again until they are acknowledged (§4.1). They are counted apart, so that they use up none of the
//! capacity for keys on healthy servers.
//!
//! ```text
//! refused -> waiting -> due -> in flight -> acknowledged: removed
//!              |     ^_____________|  \____ refused for a newer commit meanwhile: waiting again, see `uncovered`
//!              '-----'
//!              released: the cause of all failures is gone
//! ```
//!
//! A commit that names a key of the queue does not wait for the key's retry, nor for its delete in flight: it has a
//! delete of its own, at once, outside of the queue. For a delete is refused if it fails anywhere, also at the gutter,
//! while the server that is read is healthy. If that delete is refused, too, its commits join the key's entry here.
//!
//! Invariants:
//! * A key has one entry, however many commits its refused deletes had: with the oldest of them, which holds back the
//!   safe position, and the newest. Its next delete covers all commits that are admitted when that delete is sent.
//! * A delete in flight does not cover commits that were admitted after it was sent. The oldest such commit that joins
//!   the entry is recorded, and holds back the safe position after the delete has succeeded.
//! * Memory is bounded by the number of keys: at most three commits are recorded for each.
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
    failures: u32,
    state: EntryState,
}

#[derive(Clone, Copy, Debug)]
enum EntryState {
    Waiting(Due),
    InFlight {
        /// The newest commit when the delete was sent.
        covered: u64,
        /// The oldest commit of the entry that the delete does not cover; `None` if it covers all.
        uncovered: Option<u64>,
    },
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

    /// Adds a key whose delete for `commits` was refused. The key may have an entry already. Returns the commits that
    /// need not be tracked, as an older one tracks the key.
    pub fn insert(&mut self, key: Bytes, mut commits: Vec<u64>, now: Instant) -> Vec<u64> {
        match self.keys.entry(key.clone()) {
            Entry::Occupied(mut entry) => entry.get_mut().join(commits),
            Entry::Vacant(vacant) => {
                self.key_bytes += key.len();
                commits.sort_unstable();
                let newest = commits.last().copied().expect("a delete has a commit");
                let state = EntryState::InFlight { covered: newest, uncovered: None };
                vacant.insert(RetryEntry { oldest: commits.remove(0), newest, failures: 1, state });
                self.schedule(&key, now);
                commits
            }
        }
    }

    /// Takes the key that is due first out of the waiting keys, if it is due at `now` and `fits`. Its delete is in
    /// flight then, and covers the commits up to `newest_commit`.
    pub fn pop_due(&mut self, now: Instant, newest_commit: u64, fits: impl FnOnce(&Bytes) -> bool) -> Option<Bytes> {
        let is_released = self.has_released();
        let first = if is_released { self.released.first_entry() } else { self.waiting.first_entry() };
        let key = first.filter(|first| (is_released || first.key().0 <= now) && fits(first.get()))?.remove();
        let entry = self.keys.get_mut(&key).expect("a waiting key has an entry");
        entry.state = EntryState::InFlight { covered: newest_commit, uncovered: None };
        if is_released {
            entry.failures = 0;
        }
        Some(key)
    }

    /// Schedules a key in flight again after a refusal. Returns the commit that need not be tracked any more.
    pub fn reschedule(&mut self, key: &Bytes, now: Instant) -> Option<u64> {
        let entry = self.keys.get_mut(key).expect("a key in flight has an entry");
        entry.failures += 1;
        let released = entry.uncovered();
        self.schedule(key, now);
        released
    }

    /// Removes a key whose delete succeeded, or schedules it again for the commits that the delete does not cover.
    /// Returns its oldest commit.
    pub fn acknowledge(&mut self, key: &Bytes, now: Instant) -> u64 {
        let entry = self.keys.get_mut(key).expect("a key in flight has an entry");
        let oldest = entry.oldest;
        match entry.uncovered() {
            Some(uncovered) => {
                (entry.oldest, entry.failures) = (uncovered, 1);
                self.schedule(key, now);
            }
            None => self.remove(key),
        }
        oldest
    }

    /// Removes a waiting key if a delete outside the queue, sent after commit `newest_commit` was admitted, covers all
    /// of its commits. Returns its oldest commit.
    pub fn acknowledge_by_other_delete(&mut self, key: &Bytes, newest_commit: u64) -> Option<u64> {
        let entry = self.keys.get(key).filter(|entry| entry.newest <= newest_commit)?;
        let EntryState::Waiting(due) = entry.state else { return None };
        let oldest = entry.oldest;
        self.waiting.remove(&due).or_else(|| self.released.remove(&due));
        self.remove(key);
        Some(oldest)
    }

    fn remove(&mut self, key: &Bytes) {
        self.keys.remove(key);
        self.key_bytes -= key.len();
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
        entry.state = EntryState::Waiting(due);
        self.waiting.insert(due, key.clone());
    }
}

impl RetryEntry {
    /// The oldest commit that the delete in flight does not cover; `None` if there is none.
    fn uncovered(&self) -> Option<u64> {
        match self.state {
            EntryState::InFlight { uncovered, .. } => uncovered,
            EntryState::Waiting(_) => None,
        }
    }

    /// Adds the commits of another refused delete. Returns those that need not be tracked.
    fn join(&mut self, mut commits: Vec<u64>) -> Vec<u64> {
        commits.push(self.oldest);
        commits.extend(self.uncovered());
        commits.sort_unstable();
        self.newest = commits.last().copied().map_or(self.newest, |last| last.max(self.newest));
        self.oldest = commits.remove(0);
        if let EntryState::InFlight { covered, uncovered } = &mut self.state {
            let later = commits.partition_point(|commit| commit <= covered);
            *uncovered = (later < commits.len()).then(|| commits.remove(later));
        }
        commits
    }
}
