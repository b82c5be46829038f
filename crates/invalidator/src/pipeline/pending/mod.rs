//! The pending deletes of a cluster: commits whose deletes have not all been acknowledged. The core of a pipeline,
//! without clock, sockets or tasks: commits and acknowledgements go in, batches of deletes and a safe position come
//! out.
//!
//! ```text
//! commits      7: a b    8: a    9: c    commits with a pending delete, and no others    (commits.rs)
//! pending      a -> 7, 8     unsent      one entry per key: one delete of `a` covers both commits
//!              b -> 7        in flight   held by its batch while that is in flight       (batch.rs)
//! retry queue  c -> 9        refused     one entry per key, sent again after a delay     (retry_queue.rs)
//! ```
//!
//! Invariants:
//! * The safe position never passes a commit with a pending delete: it is the position before the oldest of them.
//! * A delete covers the commits that were admitted before it was sent, and no later one. A key that is named again
//!   while it is in flight, or in the retry queue, is sent again at once: how old a value may be that a healthy server
//!   holds depends on no other server, and on no delay of a retry.
//! * At most `keys_max` keys outside the retry queue are pending, counted once per commit that names them, unless a
//!   single commit names more. Nothing is admitted while the retry queue holds `retry_queue_keys_max` keys or
//!   `retry_queue_bytes_max` bytes of keys. Keys admitted before that may still fail, so the queue may exceed its bound
//!   by `keys_max`.
//! * While the cluster is not reachable, nothing is admitted once `keys_max` keys are pending in and outside the retry
//!   queue: the database's log keeps the rest, at no cost in memory. When it is reachable again, its keys are released,
//!   and count for up to half of `keys_max` until they are sent.
//! * A key that fails holds back itself and the safe position, but no other key. A batch holds either fresh keys or
//!   keys of the retry queue, and fresh keys go first, unless keys of the retry queue are released. A fresh delete that
//!   is refused uses no capacity any more.
//! * Memory is bounded by the number of pending keys, however many commits pass: a commit that is acknowledged, or
//!   whose keys are all tracked by older commits in the retry queue, leaves nothing behind. A position may be long, and
//!   is there once, as a difference from others.
//!
//! Deletes of different keys need no order: a delete is idempotent, and a reader that fills a key after the delete
//! reads a database that already shows the commit.

mod batch;
mod commits;

pub use batch::InFlightBatch;
pub use commits::AckedCommit;

use super::retry_queue::{Backoff, RetryQueue};
use crate::{Commit, Position};
use batch::{BatchBudget, BatchKeys};
use bytes::Bytes;
use commits::PendingCommits;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// In every eighth batch the retry queue goes before fresh keys, so that a flood of commits does not starve it.
const RETRY_FIRST_EVERY: u64 = 8;

/// The bounds of [`PendingDeletes`] and its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most pending keys outside the retry queue.
    pub keys_max: usize,
    /// Nothing is admitted while the retry queue holds this many keys.
    pub retry_queue_keys_max: usize,
    /// Nothing is admitted while the keys in the retry queue have this many bytes. Each key costs some 600 bytes more.
    pub retry_queue_bytes_max: usize,
    /// The most keys of one batch.
    pub batch_keys_max: usize,
    /// The most bytes of the keys of one batch; a single key always fits.
    pub batch_bytes_max: usize,
    /// How long a key waits after its first failure. The delay doubles with every failure.
    pub retry_delay_min: Duration,
    /// The longest delay of a key, unless very many keys are in the retry queue.
    pub retry_delay_max: Duration,
}

/// The deletes that a cluster has not acknowledged.
#[derive(Debug)]
pub struct PendingDeletes {
    limits: Limits,
    commits: PendingCommits,
    /// The keys outside the retry queue, unsent or in flight, counted once per commit.
    fresh_keys: usize,
    /// Keys that wait to be sent, with the commits that name them.
    unsent: BTreeMap<Bytes, Vec<u64>>,
    /// The keys of `unsent` in the order of sending.
    send_queue: VecDeque<Bytes>,
    /// The bytes of the keys of `unsent`.
    unsent_bytes: usize,
    duplicates_removed: u64,
    retries: RetryQueue,
    is_reachable: bool,
    batches: u64,
}

impl PendingDeletes {
    /// No pending deletes, and all up to `position` acknowledged.
    pub fn new(limits: Limits, position: Position) -> PendingDeletes {
        PendingDeletes {
            limits,
            commits: PendingCommits::new(position),
            fresh_keys: 0,
            unsent: BTreeMap::new(),
            send_queue: VecDeque::new(),
            unsent_bytes: 0,
            duplicates_removed: 0,
            retries: RetryQueue::new(Backoff { min: limits.retry_delay_min, max: limits.retry_delay_max }),
            is_reachable: true,
            batches: 0,
        }
    }

    /// Whether `keys` more keys may be admitted.
    pub fn has_capacity(&self, keys: usize) -> bool {
        // Released keys are sent before fresh ones. Half of the capacity is left to these: the server of released keys
        // may still be down.
        let released = self.retries.released().min(self.limits.keys_max / 2);
        let fits = self.fresh_keys == 0 || self.fresh_keys + released + keys <= self.limits.keys_max;
        keys == 0 || (fits && !self.is_blocked())
    }

    /// Whether nothing more is admitted because too many deletes have failed.
    pub fn is_blocked(&self) -> bool {
        self.retries.len() >= self.limits.retry_queue_keys_max
            || self.retries.key_bytes() >= self.limits.retry_queue_bytes_max
            || (!self.is_reachable && self.keys() >= self.limits.keys_max)
    }

    /// Records whether any delete can be delivered.
    pub fn set_reachable(&mut self, is_reachable: bool) {
        self.is_reachable = is_reachable;
    }

    /// Adds a commit that is newer than all others. The caller has waited until readers see it.
    pub fn admit(&mut self, commit: Commit) {
        if commit.keys.is_empty() {
            return self.advance(commit.position);
        }
        let number = self.commits.insert(&commit.position, commit.committed_at, commit.keys.len());
        commit.keys.into_iter().for_each(|key| self.add_unsent(key.into(), number));
    }

    fn add_unsent(&mut self, key: Bytes, number: u64) {
        self.fresh_keys += 1;
        match self.unsent.entry(key) {
            Entry::Occupied(mut pending) => {
                pending.get_mut().push(number);
                self.duplicates_removed += 1;
            }
            Entry::Vacant(vacant) => {
                self.unsent_bytes += vacant.key().len();
                self.send_queue.push_back(vacant.key().clone());
                vacant.insert(vec![number]);
            }
        }
    }

    /// Records that the log reached `position` without naming a key.
    pub fn advance(&mut self, position: Position) {
        self.commits.advance(position);
    }

    /// The next batch to send: fresh keys or, if `may_retry`, keys of the retry queue that are due at `now`.
    pub fn next_batch(&mut self, now: Instant, may_retry: bool) -> Option<InFlightBatch> {
        let is_retry_turn = self.batches % RETRY_FIRST_EVERY == RETRY_FIRST_EVERY - 1;
        let retries_first = may_retry && (is_retry_turn || self.retries.has_released());
        let keys = match retries_first {
            true => self.next_retry_keys(now).or_else(|| self.next_fresh_keys()),
            false => match self.next_fresh_keys() {
                None if may_retry => self.next_retry_keys(now),
                fresh => fresh,
            },
        }?;
        self.batches += 1;
        Some(InFlightBatch { keys, newest_commit: self.commits.newest() })
    }

    fn next_fresh_keys(&mut self) -> Option<BatchKeys> {
        let mut budget = BatchBudget::new(&self.limits);
        let mut keys = Vec::new();
        while self.send_queue.front().is_some_and(|key| budget.reserve(key)) {
            let key = self.send_queue.pop_front().expect("it has a front");
            let commits = self.unsent.remove(&key).expect("a queued key is unsent");
            self.unsent_bytes -= key.len();
            keys.push((key, commits));
        }
        (!keys.is_empty()).then_some(BatchKeys::Fresh(keys))
    }

    fn next_retry_keys(&mut self, now: Instant) -> Option<BatchKeys> {
        let mut budget = BatchBudget::new(&self.limits);
        let newest = self.commits.newest();
        let pop = || self.retries.pop_due(now, newest, |key| budget.reserve(key));
        let keys: Vec<Bytes> = std::iter::from_fn(pop).collect();
        (!keys.is_empty()).then_some(BatchKeys::Retry(keys))
    }

    /// Whether fresh keys wait to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// Whether the fresh keys that wait fill a batch.
    pub fn has_full_batch(&self) -> bool {
        self.send_queue.len() >= self.limits.batch_keys_max || self.unsent_bytes >= self.limits.batch_bytes_max
    }

    /// When the next key of the retry queue is due; `None` if none waits.
    pub fn next_retry_at(&self, now: Instant) -> Option<Instant> {
        self.retries.next_due(now)
    }

    /// Sends the keys of the retry queue again at once, and before all others: they have been stale the longest.
    /// Returns how many; none if that was done a moment ago.
    pub fn release_retries(&mut self, now: Instant) -> usize {
        self.retries.release_all(now)
    }

    /// Applies the results of a batch: `is_final` says for each key whether its delete needs no retry. Returns the
    /// commits that have become fully acknowledged.
    pub fn complete(&mut self, batch: InFlightBatch, is_final: &[bool], now: Instant) -> Vec<AckedCommit> {
        let mut acked = Vec::new();
        match batch.keys {
            BatchKeys::Fresh(keys) => {
                assert_eq!(keys.len(), is_final.len(), "one result per key");
                for ((key, commits), is_final) in keys.into_iter().zip(is_final) {
                    self.fresh_keys -= commits.len();
                    match is_final {
                        true => self.acknowledge(&key, &commits, batch.newest_commit, &mut acked),
                        false => self.enqueue_retry(key, commits, now, &mut acked),
                    }
                }
            }
            BatchKeys::Retry(keys) => {
                assert_eq!(keys.len(), is_final.len(), "one result per key");
                for (key, is_final) in keys.into_iter().zip(is_final) {
                    match is_final {
                        true => self.acknowledge_retry(&key, now, &mut acked),
                        false => self.reschedule_retry(&key, now, &mut acked),
                    }
                }
            }
        }
        acked
    }

    fn acknowledge(&mut self, key: &Bytes, commits: &[u64], newest_commit: u64, acked: &mut Vec<AckedCommit>) {
        commits.iter().for_each(|&number| self.commits.release_key(number, false, acked));
        if let Some(oldest) = self.retries.acknowledge_by_other_delete(key, newest_commit) {
            self.commits.release_key(oldest, false, acked);
        }
    }

    fn enqueue_retry(&mut self, key: Bytes, commits: Vec<u64>, now: Instant, acked: &mut Vec<AckedCommit>) {
        for number in self.retries.insert(key, commits, now) {
            self.commits.release_key(number, true, acked);
        }
    }

    fn acknowledge_retry(&mut self, key: &Bytes, now: Instant, acked: &mut Vec<AckedCommit>) {
        let oldest = self.retries.acknowledge(key, now);
        self.commits.release_key(oldest, false, acked);
    }

    fn reschedule_retry(&mut self, key: &Bytes, now: Instant, acked: &mut Vec<AckedCommit>) {
        if let Some(number) = self.retries.reschedule(key, now) {
            self.commits.release_key(number, true, acked);
        }
    }

    /// All deletes up to here have been acknowledged.
    pub fn safe_position(&self) -> &Position {
        self.commits.safe_position()
    }

    /// When the oldest commit with a pending delete was committed; `None` if nothing is pending.
    pub fn oldest_committed_at(&self) -> Option<SystemTime> {
        self.commits.oldest_committed_at()
    }

    /// How many keys are pending. Keys outside the retry queue count once per commit that names them.
    pub fn keys(&self) -> usize {
        self.fresh_keys + self.retries.len()
    }

    /// How many keys the retry queue holds, and their bytes.
    pub fn retry_queue_size(&self) -> (usize, usize) {
        (self.retries.len(), self.retries.key_bytes())
    }

    /// How many keys of commits needed no delete of their own, because one that an older commit waits for covers them.
    pub fn duplicates_removed(&self) -> u64 {
        self.duplicates_removed
    }

    /// How many commits were not tracked until their last acknowledgement, because a retry covers their key together
    /// with an older commit's.
    pub fn commits_merged(&self) -> u64 {
        self.commits.merged()
    }
}

#[cfg(test)]
mod tests;
