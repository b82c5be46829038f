//! What a cluster still owes: commits whose deletes have not all been acknowledged. The heart of a pipeline, without
//! clock, sockets or tasks: commits and acknowledgements go in, batches of deletes and a position come out.
//!
//! ```text
//! commits   | 7: a b | 8: a | 9: c |     in log order; a commit leaves when nothing before it is owed
//! owed      a -> 7, 8     ready          one entry a key: the delete of `a` pays for both commits
//!           b -> 7        later          failed; tried again when its time has come
//!           c -> 9        (sent)         taken out of the entries while a batch carries it
//! ```
//!
//! Invariants:
//! * The position never passes a commit that is owed a delete.
//! * A delete pays for those commits that were admitted before it was sent, and for no later one: a key that is named
//!   again while a batch carries it gets an entry of its own, and is sent again.
//! * At most `keys_max` keys are owed, counted once a commit that named them, unless a single commit names more.
//! * Failures of one key hold up that key (and the position), and no other key.
//!
//! Order between keys means nothing: a delete is idempotent, and a reader that fills a key after it reads a database
//! that shows the commit already.

use crate::{Commit, Position};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// The bounds of a window and of the batches that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most keys owed.
    pub keys_max: usize,
    /// The most keys of one batch.
    pub batch_keys_max: usize,
    /// The most bytes of the keys of one batch; a single key always fits.
    pub batch_bytes_max: usize,
    /// How long a key waits after its first failure. It doubles with every failure.
    pub retry_min: Duration,
    /// How long a key waits at most.
    pub retry_max: Duration,
}

/// Deletes that travel together. Comes back through [`Window::settle`].
#[derive(Debug)]
pub struct OutBatch {
    owed: Vec<(Bytes, Owed)>,
}

impl OutBatch {
    /// The keys, each once.
    pub fn keys(&self) -> Vec<Bytes> {
        self.owed.iter().map(|(key, _)| key.clone()).collect()
    }
}

/// A commit whose deletes have all been acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// Its own position.
    pub position: Position,
    /// As the source told.
    pub committed_at: SystemTime,
}

/// The commits that are owed deletes.
#[derive(Debug)]
pub struct Window {
    limits: Limits,
    commits: VecDeque<Owing>,
    /// The number of `commits[0]`; the others follow.
    first: u64,
    keys: usize,
    owed: BTreeMap<Bytes, Owed>,
    ready: VecDeque<Bytes>,
    later: BTreeMap<(Instant, u64), Bytes>,
    retries: u64,
    position: Position,
}

#[derive(Debug)]
struct Owing {
    commit: Position,
    /// The commit's own, or a later one: behind the commit the log may have moved on without naming keys.
    reached: Position,
    committed_at: SystemTime,
    keys: usize,
}

#[derive(Debug, Default)]
struct Owed {
    commits: Vec<u64>,
    failures: u32,
}

impl Window {
    /// Nothing owed up to `position`.
    pub fn new(limits: Limits, position: Position) -> Window {
        Window {
            limits,
            commits: VecDeque::new(),
            first: 0,
            keys: 0,
            owed: BTreeMap::new(),
            ready: VecDeque::new(),
            later: BTreeMap::new(),
            retries: 0,
            position,
        }
    }

    /// Whether `keys` more keys may be owed.
    pub fn has_room(&self, keys: usize) -> bool {
        self.keys == 0 || self.keys + keys <= self.limits.keys_max
    }

    /// Takes on a commit, behind all that were taken on before. Its visibility has been waited for.
    pub fn admit(&mut self, commit: Commit) {
        if commit.keys.is_empty() {
            return self.advance(commit.position);
        }
        let number = self.first + self.commits.len() as u64;
        self.keys += commit.keys.len();
        self.commits.push_back(Owing {
            reached: commit.position.clone(),
            commit: commit.position,
            committed_at: commit.committed_at,
            keys: commit.keys.len(),
        });
        for key in commit.keys {
            match self.owed.entry(Bytes::from(key)) {
                Entry::Occupied(mut owed) => owed.get_mut().commits.push(number),
                Entry::Vacant(vacant) => {
                    self.ready.push_back(vacant.key().clone());
                    vacant.insert(Owed { commits: vec![number], failures: 0 });
                }
            }
        }
    }

    /// The log moved on to `position` without naming a key.
    pub fn advance(&mut self, position: Position) {
        match self.commits.back_mut() {
            Some(last) => last.reached = position,
            None => self.position = position,
        }
    }

    /// The next batch to send, if a key is ready. Those whose time has come again are ready by `now`.
    pub fn batch(&mut self, now: Instant) -> Option<OutBatch> {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            self.ready.push_back(entry.remove());
        }
        let (mut owed, mut bytes) = (Vec::new(), 0);
        while let Some(key) = self.ready.front() {
            bytes += key.len();
            if owed.len() == self.limits.batch_keys_max || (bytes > self.limits.batch_bytes_max && !owed.is_empty()) {
                break;
            }
            let key = self.ready.pop_front().expect("it has a front");
            let what = self.owed.remove(&key).expect("what is ready is owed");
            owed.push((key, what));
        }
        (!owed.is_empty()).then_some(OutBatch { owed })
    }

    /// When the next failed key is to be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    /// A batch has come back; `applied` says for each key whether the delete was acknowledged. Returns the commits
    /// that have been paid by it.
    pub fn settle(&mut self, batch: OutBatch, applied: &[bool], now: Instant) -> Vec<Paid> {
        assert_eq!(batch.owed.len(), applied.len(), "one outcome a key");
        let mut paid = Vec::new();
        for ((key, owed), applied) in batch.owed.into_iter().zip(applied) {
            if *applied {
                owed.commits.iter().for_each(|&number| self.pay(number, &mut paid));
            } else {
                self.fail(key, owed, now);
            }
        }
        while self.commits.front().is_some_and(|commit| commit.keys == 0) {
            let commit = self.commits.pop_front().expect("it has a front");
            self.first += 1;
            self.position = commit.reached;
        }
        paid
    }

    fn pay(&mut self, number: u64, paid: &mut Vec<Paid>) {
        let commit = &mut self.commits[(number - self.first) as usize];
        commit.keys -= 1;
        self.keys -= 1;
        if commit.keys == 0 {
            paid.push(Paid { position: commit.commit.clone(), committed_at: commit.committed_at });
        }
    }

    fn fail(&mut self, key: Bytes, mut owed: Owed, now: Instant) {
        owed.failures += 1;
        match self.owed.entry(key.clone()) {
            // Named again meanwhile, and waiting to be sent: that delete pays for these commits too.
            Entry::Occupied(mut newer) => {
                newer.get_mut().commits.extend(owed.commits);
                newer.get_mut().failures = newer.get().failures.max(owed.failures);
            }
            Entry::Vacant(vacant) => {
                let doubled = self.limits.retry_min.saturating_mul(1 << (owed.failures - 1).min(16));
                vacant.insert(owed);
                self.retries += 1;
                self.later.insert((now + doubled.min(self.limits.retry_max), self.retries), key);
            }
        }
    }

    /// All up to here has been applied.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// How many keys are owed, counted once a commit that named them.
    pub fn keys(&self) -> usize {
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        keys_max: 8,
        batch_keys_max: 4,
        batch_bytes_max: 10,
        retry_min: Duration::from_millis(10),
        retry_max: Duration::from_millis(70),
    };

    fn window() -> Window {
        Window::new(LIMITS, Position("0".into()))
    }

    fn admit(window: &mut Window, position: u32, keys: &[&str]) {
        window.admit(Commit {
            position: Position(position.to_string()),
            keys: keys.iter().map(|key| key.as_bytes().to_vec()).collect(),
            committed_at: SystemTime::UNIX_EPOCH,
        });
    }

    #[test]
    fn batches_are_bounded_by_keys_and_by_bytes() {
        let mut window = window();
        admit(&mut window, 1, &["a", "b", "c", "d", "e", "four", "four4", "f", "more than ten bytes", "g"]);
        let mut batches = Vec::new();
        while let Some(batch) = window.batch(Instant::now()) {
            batches.push(batch.keys());
        }
        let expected: [&[&str]; 4] = [&["a", "b", "c", "d"], &["e", "four", "four4"], &["f"], &["more than ten bytes"]];
        assert_eq!(batches[..4], expected);
        assert_eq!(batches[4..], [["g"]]);
    }

    #[test]
    fn a_key_waits_longer_after_every_failure() {
        let mut window = window();
        admit(&mut window, 1, &["a"]);
        let mut now = Instant::now();
        for waits_ms in [10, 20, 40, 70, 70] {
            let batch = window.batch(now).expect("its time has come");
            assert_eq!(window.settle(batch, &[false], now), []);
            let due = now + Duration::from_millis(waits_ms);
            assert_eq!(window.next_retry(), Some(due));
            assert!(window.batch(due - Duration::from_millis(1)).is_none(), "not before its time");
            now = due;
        }
        assert_eq!(window.position(), &Position("0".into()));
    }

    #[test]
    fn a_delete_pays_for_what_was_admitted_before_it_was_sent() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["a"]);
        admit(&mut window, 2, &["a", "b"]);
        let first = window.batch(now).expect("two keys");
        admit(&mut window, 3, &["a"]);
        let second = window.batch(now).expect("named again while it is on its way");
        assert_eq!(window.settle(second, &[true], now).len(), 1, "commit 3 is paid");
        assert_eq!(window.position(), &Position("0".into()), "but it is behind two that are owed");
        assert_eq!(window.settle(first, &[true, false], now).len(), 1, "commit 1 is paid");
        assert_eq!((window.position(), window.keys()), (&Position("1".into()), 1));
        let again = window.batch(window.next_retry().expect("b is tried again")).expect("b");
        window.advance(Position("9".into()));
        window.settle(again, &[true], now);
        assert_eq!((window.position(), window.keys()), (&Position("9".into()), 0));
    }

    #[test]
    fn a_failed_key_that_was_named_again_is_sent_once() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["a"]);
        let first = window.batch(now).expect("a");
        admit(&mut window, 2, &["a"]);
        window.settle(first, &[false], now);
        let second = window.batch(now).expect("a again, at once");
        assert_eq!(window.settle(second, &[true], now).len(), 2, "both are paid");
        assert_eq!((window.batch(now).is_none(), window.next_retry()), (true, None));
    }
}
