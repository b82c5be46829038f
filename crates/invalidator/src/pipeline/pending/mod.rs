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
//!   while it is in flight is pending again.
//! * At most `keys_max` keys outside the retry queue are pending, counted once per commit that names them, unless a
//!   single commit names more. Nothing is admitted while the retry queue holds `retry_queue_keys_max` keys or
//!   `retry_queue_bytes_max` bytes of keys. Keys admitted before that may still fail, so the queue may exceed its bound
//!   by `keys_max`.
//! * A key that fails holds back itself and the safe position, but no other key. A batch holds either fresh keys or
//!   keys of the retry queue, and fresh keys go first, unless keys of the retry queue are released.
//! * Memory is bounded by the number of pending keys, however many commits pass: a commit that is acknowledged, or
//!   whose keys are all tracked by older commits in the retry queue, leaves nothing behind.
//!
//! Deletes of different keys need no order: a delete is idempotent, and a reader that fills a key after the delete
//! reads a database that already shows the commit.

mod batch;
mod commits;

pub use batch::InFlightBatch;
pub use commits::AckedCommit;

use super::retry_queue::{Backoff, RetryQueue, RetryState};
use crate::{Commit, Position};
use batch::{BatchBudget, BatchKeys};
use bytes::Bytes;
use commits::PendingCommits;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::Duration,
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
    /// Nothing is admitted while the keys in the retry queue have this many bytes. Each key costs some 300 bytes more.
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
    unsent: BTreeMap<Bytes, PendingKey>,
    /// The keys of `unsent` in the order of sending.
    send_queue: VecDeque<Bytes>,
    retries: RetryQueue,
    batches: u64,
}

/// A pending key outside the retry queue.
#[derive(Debug, Default)]
struct PendingKey {
    /// The commits that track it.
    commits: Vec<u64>,
    failures: u32,
}

impl PendingKey {
    /// The oldest and the newest of its commits.
    fn span(&self) -> (u64, u64) {
        let ends = self.commits.iter().min().zip(self.commits.iter().max());
        let (oldest, newest) = ends.expect("a pending key has a commit");
        (*oldest, *newest)
    }
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
            retries: RetryQueue::new(Backoff { min: limits.retry_delay_min, max: limits.retry_delay_max }),
            batches: 0,
        }
    }

    /// Whether `keys` more keys may be admitted.
    pub fn has_capacity(&self, keys: usize) -> bool {
        let fits = self.fresh_keys == 0 || self.fresh_keys + keys <= self.limits.keys_max;
        keys == 0 || (fits && !self.is_blocked())
    }

    /// Whether the retry queue is so full that nothing more is admitted.
    pub fn is_blocked(&self) -> bool {
        self.retries.len() >= self.limits.retry_queue_keys_max
            || self.retries.key_bytes() >= self.limits.retry_queue_bytes_max
    }

    /// Adds a commit that is newer than all others. The caller has waited until readers see it.
    pub fn admit(&mut self, commit: Commit) {
        if commit.keys.is_empty() {
            return self.advance(commit.position);
        }
        let number = self.commits.assign_number();
        let (named_keys, mut tracked_keys) = (commit.keys.len(), 0);
        for key in commit.keys {
            match self.retries.record_commit(&key, number) {
                RetryState::NotQueued => {
                    self.add_unsent(key.into(), number);
                    tracked_keys += 1;
                }
                RetryState::PendingAgain => tracked_keys += 1,
                RetryState::Covered => {}
            }
        }
        self.commits.insert(number, commit.position, commit.committed_at, tracked_keys, named_keys);
    }

    fn add_unsent(&mut self, key: Bytes, number: u64) {
        self.fresh_keys += 1;
        match self.unsent.entry(key) {
            Entry::Occupied(mut pending) => pending.get_mut().commits.push(number),
            Entry::Vacant(vacant) => {
                self.send_queue.push_back(vacant.key().clone());
                vacant.insert(PendingKey { commits: vec![number], failures: 0 });
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
            let pending = self.unsent.remove(&key).expect("a queued key is unsent");
            keys.push((key, pending));
        }
        (!keys.is_empty()).then_some(BatchKeys::Fresh(keys))
    }

    fn next_retry_keys(&mut self, now: Instant) -> Option<BatchKeys> {
        let mut budget = BatchBudget::new(&self.limits);
        let keys: Vec<Bytes> = std::iter::from_fn(|| self.retries.pop_due(now, |key| budget.reserve(key))).collect();
        (!keys.is_empty()).then_some(BatchKeys::Retry(keys))
    }

    /// Whether fresh keys wait to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.send_queue.is_empty()
    }

    /// When the next key of the retry queue is due; `None` if none waits.
    pub fn next_retry_at(&self, now: Instant) -> Option<Instant> {
        self.retries.next_due(now)
    }

    /// Sends the keys of the retry queue again at once, and before all others: they have been stale the longest. Returns
    /// how many; none if that was done a moment ago.
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
                for ((key, pending), is_final) in keys.into_iter().zip(is_final) {
                    match is_final {
                        true => self.acknowledge(&key, &pending, batch.newest_commit, &mut acked),
                        false => self.enqueue_retry(key, pending, now, &mut acked),
                    }
                }
            }
            BatchKeys::Retry(keys) => {
                assert_eq!(keys.len(), is_final.len(), "one result per key");
                for (key, is_final) in keys.into_iter().zip(is_final) {
                    match is_final {
                        true => self.acknowledge_retry(key, &mut acked),
                        false => self.reschedule_retry(&key, now, &mut acked),
                    }
                }
            }
        }
        acked
    }

    fn acknowledge(&mut self, key: &Bytes, pending: &PendingKey, newest_commit: u64, acked: &mut Vec<AckedCommit>) {
        self.fresh_keys -= pending.commits.len();
        pending.commits.iter().for_each(|&number| self.commits.release_key(number, false, acked));
        if let Some(oldest) = self.retries.acknowledge_by_other_delete(key, newest_commit) {
            self.commits.release_key(oldest, false, acked);
        }
    }

    fn enqueue_retry(&mut self, key: Bytes, mut pending: PendingKey, now: Instant, acked: &mut Vec<AckedCommit>) {
        pending.failures += 1;
        // The key was named again meanwhile and is unsent: that delete covers these commits too.
        if let Some(newer) = self.unsent.get_mut(&key) {
            newer.failures = newer.failures.max(pending.failures);
            newer.commits.append(&mut pending.commits);
            return;
        }
        self.fresh_keys -= pending.commits.len();
        let span = pending.span();
        let released = self.retries.insert(key, span, pending.failures, now);
        for number in pending.commits.into_iter().filter(|&number| number != span.0).chain(released) {
            self.commits.release_key(number, true, acked);
        }
    }

    fn acknowledge_retry(&mut self, key: Bytes, acked: &mut Vec<AckedCommit>) {
        let (oldest, pending_again) = self.retries.acknowledge(&key);
        self.commits.release_key(oldest, false, acked);
        if let Some(number) = pending_again {
            self.add_unsent(key, number);
        }
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

    /// How many keys are pending. Keys outside the retry queue count once per commit that names them.
    pub fn keys(&self) -> usize {
        self.fresh_keys + self.retries.len()
    }

    /// How many keys the retry queue holds, and their bytes.
    pub fn retry_queue_size(&self) -> (usize, usize) {
        (self.retries.len(), self.retries.key_bytes())
    }

    /// How many commits were not tracked until their last acknowledgement, because a retry covers their key together
    /// with an older commit's.
    pub fn commits_merged(&self) -> u64 {
        self.commits.merged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    const LIMITS: Limits = Limits {
        keys_max: 8,
        retry_queue_keys_max: 1_000,
        retry_queue_bytes_max: 10_000,
        batch_keys_max: 4,
        batch_bytes_max: 10,
        retry_delay_min: Duration::from_millis(10),
        retry_delay_max: Duration::from_millis(70),
    };

    fn pending() -> PendingDeletes {
        PendingDeletes::new(LIMITS, Position("0".into()))
    }

    fn admit(pending: &mut PendingDeletes, position: u32, keys: &[&str]) {
        pending.admit(Commit {
            position: Position(position.to_string()),
            keys: keys.iter().map(|key| key.as_bytes().to_vec()).collect(),
            committed_at: SystemTime::UNIX_EPOCH,
        });
    }

    #[test]
    fn batches_are_bounded_by_keys_and_by_bytes() {
        let mut pending = pending();
        admit(&mut pending, 1, &["a", "b", "c", "d", "e", "four", "four4", "f", "more than ten bytes", "g"]);
        let mut batches = Vec::new();
        while let Some(batch) = pending.next_batch(Instant::now(), true) {
            batches.push(batch.keys());
        }
        let expected: [&[&str]; 4] = [&["a", "b", "c", "d"], &["e", "four", "four4"], &["f"], &["more than ten bytes"]];
        assert_eq!(batches[..4], expected);
        assert_eq!(batches[4..], [["g"]]);
    }

    #[test]
    fn retry_delay_doubles_up_to_its_maximum() {
        let mut pending = pending();
        admit(&mut pending, 1, &["a"]);
        let mut now = Instant::now();
        for delay_ms in [10, 20, 40, 70, 70] {
            let batch = pending.next_batch(now, true).expect("the key is due");
            assert_eq!(pending.complete(batch, &[false], now), []);
            let due = now + Duration::from_millis(delay_ms);
            assert_eq!(pending.next_retry_at(now), Some(due));
            assert!(pending.next_batch(due - Duration::from_millis(1), true).is_none(), "the key is not due");
            now = due;
        }
        assert_eq!(pending.safe_position(), &Position("0".into()));
    }

    #[test]
    fn released_keys_are_due_at_once_before_fresh_ones_and_fail_with_the_shortest_delay() {
        let (mut pending, mut now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["a", "b"]);
        for _ in 0..5 {
            let batch = pending.next_batch(now, true).expect("both are due");
            pending.complete(batch, &[false, false], now);
            now = pending.next_retry_at(now).expect("both wait");
        }
        let failed_at = now - LIMITS.retry_delay_max;
        admit(&mut pending, 2, &["fresh"]);
        assert_eq!(pending.release_retries(failed_at), 2);
        assert_eq!(pending.next_retry_at(failed_at), Some(failed_at));
        let batch = pending.next_batch(failed_at, true).expect("the released keys");
        assert_eq!(batch.keys(), ["a", "b"]);
        assert_eq!(pending.next_batch(failed_at, true).expect("then fresh ones").keys(), ["fresh"]);
        pending.complete(batch, &[true, false], failed_at);
        assert_eq!(pending.next_retry_at(failed_at), Some(failed_at + LIMITS.retry_delay_min));
    }

    #[test]
    fn delete_covers_only_commits_admitted_before_it_was_sent() {
        let (mut pending, now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["a"]);
        admit(&mut pending, 2, &["a", "b"]);
        let first = pending.next_batch(now, true).expect("two keys");
        admit(&mut pending, 3, &["a"]);
        let second = pending.next_batch(now, true).expect("a was named again while it was in flight");
        assert_eq!(pending.complete(second, &[true], now).len(), 1, "commit 3 is acknowledged");
        assert_eq!(pending.safe_position(), &Position("0".into()), "two older commits are pending");
        assert_eq!(pending.complete(first, &[true, false], now).len(), 1, "commit 1 is acknowledged");
        assert_eq!((pending.safe_position(), pending.keys()), (&Position("1".into()), 1));
        let retry = pending.next_batch(pending.next_retry_at(now).expect("b is retried"), true).expect("b");
        pending.advance(Position("9".into()));
        pending.complete(retry, &[true], now);
        assert_eq!((pending.safe_position(), pending.keys()), (&Position("9".into()), 0));
    }

    #[test]
    fn failed_key_that_was_named_again_is_sent_once() {
        let (mut pending, now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["a"]);
        let first = pending.next_batch(now, true).expect("a");
        admit(&mut pending, 2, &["a"]);
        pending.complete(first, &[false], now);
        let second = pending.next_batch(now, true).expect("a again, without a delay");
        assert_eq!(pending.complete(second, &[true], now).len(), 2, "both commits are acknowledged");
        assert_eq!((pending.next_batch(now, true).is_none(), pending.next_retry_at(now)), (true, None));
    }

    /// Acknowledged commits behind a single stuck key used 250 bytes each.
    #[test]
    fn stuck_key_uses_constant_memory() {
        let (mut pending, now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["stuck"]);
        let batch = pending.next_batch(now, true).expect("stuck");
        pending.complete(batch, &[false], now);
        for number in 2..1_000_000 {
            let keys: &[&str] = if number % 3 == 0 { &["a", "stuck"] } else { &["a"] };
            admit(&mut pending, number, keys);
            let batch = pending.next_batch(now, true).expect("a");
            pending.complete(batch, &[true], now);
            let sizes = (pending.commits.len(), pending.unsent.len(), pending.send_queue.len(), pending.retries.len());
            assert_eq!(sizes, (1, 0, 0, 1));
        }
        assert!(pending.send_queue.capacity() < 100);
        assert_eq!(
            (pending.safe_position(), pending.keys(), pending.commits_merged()),
            (&Position("0".into()), 1, 333_333)
        );
        let batch = pending.next_batch(pending.next_retry_at(now).expect("stuck"), true).expect("stuck");
        pending.complete(batch, &[true], now);
        assert_eq!((pending.safe_position(), pending.keys()), (&Position("999999".into()), 0));
    }

    #[test]
    fn retried_key_that_is_named_in_flight_is_pending_again() {
        let (mut pending, now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["a"]);
        let batch = pending.next_batch(now, true).expect("a");
        pending.complete(batch, &[false], now);
        admit(&mut pending, 2, &["a"]);
        let batch = pending.next_batch(pending.next_retry_at(now).expect("a"), true).expect("a");
        admit(&mut pending, 3, &["a"]);
        admit(&mut pending, 4, &["a"]);
        assert!(pending.next_batch(now + Duration::from_secs(60), true).is_none(), "one delete at a time");
        assert_eq!(pending.complete(batch, &[true], now).len(), 1, "commit 1; commit 2 was merged with it");
        assert_eq!(
            (pending.safe_position(), pending.keys()),
            (&Position("2".into()), 1),
            "the delete was sent before 3 was admitted"
        );
        let batch = pending.next_batch(now, true).expect("a is sent without a delay");
        assert_eq!(pending.complete(batch, &[true], now).len(), 1);
        assert_eq!((pending.safe_position(), pending.keys()), (&Position("4".into()), 0));
    }

    #[test]
    fn retry_queue_has_its_own_bound() {
        let (now, mut number) = (Instant::now(), 0);
        let cases = [(3, 10_000), (1_000, 9)];
        for (retry_queue_keys_max, retry_queue_bytes_max) in cases {
            let mut pending = PendingDeletes::new(
                Limits { retry_queue_keys_max, retry_queue_bytes_max, ..LIMITS },
                Position("0".into()),
            );
            for _ in 0..3 {
                assert!(pending.has_capacity(8) && !pending.is_blocked());
                number += 1;
                admit(&mut pending, number, &[&format!("k{number:02}")]);
                let batch = pending.next_batch(now, false).expect("a fresh key");
                pending.complete(batch, &[false], now);
            }
            assert!(!pending.has_capacity(1) && pending.is_blocked() && pending.has_capacity(0));
            assert_eq!((pending.retry_queue_size(), pending.keys()), ((3, 9), 3));
            let batch = pending.next_batch(now + LIMITS.retry_delay_max, true).expect("all three");
            pending.complete(batch, &[true, false, false], now);
            assert!(pending.has_capacity(8) && !pending.is_blocked());
        }
    }

    #[test]
    fn fresh_keys_go_first_but_for_every_eighth_batch() {
        let (mut pending, now) = (pending(), Instant::now());
        admit(&mut pending, 1, &["stuck"]);
        let batch = pending.next_batch(now, true).expect("stuck");
        pending.complete(batch, &[false], now);
        let now = now + LIMITS.retry_delay_max;
        let mut retries = Vec::new();
        for number in 2..32 {
            admit(&mut pending, number, &["a", "b", "c", "d"]);
            let batch = pending.next_batch(now, true).expect("a fresh key is unsent");
            if batch.is_retry() {
                retries.push(number);
            }
            let is_final = vec![!batch.is_retry(); batch.keys().len()];
            pending.complete(batch, &is_final, now - LIMITS.retry_delay_max);
        }
        assert_eq!(retries, [8, 16, 24]);
    }
}
