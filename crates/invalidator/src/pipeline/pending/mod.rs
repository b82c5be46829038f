//! What a cluster still owes: commits whose deletes have not all been acknowledged. The heart of a pipeline, without
//! clock, sockets or tasks: commits and acknowledgements go in, batches of deletes and a position come out.
//!
//! ```text
//! commits   7: a b    8: a    9: c     those that are owed a delete, and no others
//! owed      a -> 7, 8     ready          one entry a key: the delete of `a` pays for both commits
//!           b -> 7        (sent)         taken out of the entries while a batch carries it
//! failing   c -> 9        refused        once a key, out of the window's bound, tried again when its time has come
//! ```
//!
//! Invariants:
//! * The position never passes a commit that is owed a delete: it is what had been reached before the oldest of them.
//! * A delete pays for those commits that were admitted before it was sent, and for no later one: a key that is named
//!   again while a batch carries it is owed anew.
//! * At most `keys_max` keys that have not failed are owed, counted once a commit that named them, unless a single
//!   commit names more; and nothing is admitted while `failing_keys_max` keys fail, or `failing_bytes_max` bytes of
//!   keys. What was admitted already may still fail, so that there may be a window more.
//! * Failures of one key hold up that key (and the position), and no other key. Batches hold either fresh keys or
//!   failing ones, and the fresh go first.
//! * Memory follows the keys that are owed, however many commits pass: a commit that is paid, or that waits for a
//!   failing key which an older one holds, leaves nothing behind.
//!
//! Order between keys means nothing: a delete is idempotent, and a reader that fills a key after it reads a database
//! that shows the commit already.

use super::retry_queue::{Failing, Named, Waits};
use crate::{Commit, Position};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// Every so many batches failing keys go before fresh ones, so that a flood of commits does not starve them.
const FAILING_FIRST_EVERY: u64 = 8;

/// The bounds of a window and of the batches that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most keys owed that have not failed.
    pub keys_max: usize,
    /// The most keys that fail: nothing is admitted beyond that.
    pub failing_keys_max: usize,
    /// The most bytes of the keys that fail; each key costs some 300 bytes more.
    pub failing_bytes_max: usize,
    /// The most keys of one batch.
    pub batch_keys_max: usize,
    /// The most bytes of the keys of one batch; a single key always fits.
    pub batch_bytes_max: usize,
    /// How long a key waits after its first failure. It doubles with every failure.
    pub retry_min: Duration,
    /// How long a key waits at most, unless very many fail.
    pub retry_max: Duration,
}

/// Deletes that travel together. Comes back through [`Window::settle`].
#[derive(Debug)]
pub struct OutBatch {
    load: Load,
    /// The newest commit when it was sent.
    upto: u64,
}

#[derive(Debug)]
enum Load {
    Fresh(Vec<(Bytes, Owed)>),
    Failing(Vec<Bytes>),
}

impl OutBatch {
    /// The keys, each once.
    pub fn keys(&self) -> Vec<Bytes> {
        match &self.load {
            Load::Fresh(owed) => owed.iter().map(|(key, _)| key.clone()).collect(),
            Load::Failing(keys) => keys.clone(),
        }
    }

    /// Whether these are keys that have failed before.
    pub fn is_retry(&self) -> bool {
        matches!(self.load, Load::Failing(_))
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
    /// By number, in log order.
    commits: BTreeMap<u64, Owing>,
    newest: u64,
    /// Keys that have not failed, counted once a commit.
    keys: usize,
    owed: BTreeMap<Bytes, Owed>,
    ready: VecDeque<Bytes>,
    failing: Failing,
    batches: u64,
    merged: u64,
    /// All up to here has been admitted.
    reached: Position,
}

#[derive(Debug)]
struct Owing {
    /// What had been reached when it was admitted.
    before: Position,
    commit: Position,
    committed_at: SystemTime,
    /// How many keys are owed that are held for this commit.
    keys: usize,
    /// Whether one of its keys is held for another commit: when it is paid cannot be told.
    merged: bool,
}

#[derive(Debug, Default)]
struct Owed {
    commits: Vec<u64>,
    failures: u32,
}

impl Owed {
    fn span(&self) -> (u64, u64) {
        let ends = self.commits.iter().min().zip(self.commits.iter().max());
        let (oldest, newest) = ends.expect("what is owed is owed to a commit");
        (*oldest, *newest)
    }
}

impl Window {
    /// Nothing owed up to `position`.
    pub fn new(limits: Limits, position: Position) -> Window {
        Window {
            limits,
            commits: BTreeMap::new(),
            newest: 0,
            keys: 0,
            owed: BTreeMap::new(),
            ready: VecDeque::new(),
            failing: Failing::new(Waits { min: limits.retry_min, max: limits.retry_max }),
            batches: 0,
            merged: 0,
            reached: position,
        }
    }

    /// Whether `keys` more keys may be owed.
    pub fn has_room(&self, keys: usize) -> bool {
        let fits = self.keys == 0 || self.keys + keys <= self.limits.keys_max;
        keys == 0 || (fits && !self.is_blocked())
    }

    /// Whether so many keys fail that nothing more is admitted.
    pub fn is_blocked(&self) -> bool {
        self.failing.len() >= self.limits.failing_keys_max || self.failing.key_bytes() >= self.limits.failing_bytes_max
    }

    /// Takes on a commit, behind all that were taken on before. Its visibility has been waited for.
    pub fn admit(&mut self, commit: Commit) {
        if commit.keys.is_empty() {
            return self.advance(commit.position);
        }
        self.newest += 1;
        let (named, mut keys) = (commit.keys.len(), 0);
        for key in commit.keys {
            match self.failing.name(&key, self.newest) {
                Named::Elsewhere => {
                    self.owe(key.into(), self.newest);
                    keys += 1;
                }
                Named::Owes => keys += 1,
                Named::Covered => {}
            }
        }
        let before = std::mem::replace(&mut self.reached, commit.position.clone());
        if keys == 0 {
            self.merged += 1;
            return;
        }
        let (committed_at, merged) = (commit.committed_at, keys < named);
        self.commits.insert(self.newest, Owing { before, commit: commit.position, committed_at, keys, merged });
    }

    fn owe(&mut self, key: Bytes, number: u64) {
        self.keys += 1;
        match self.owed.entry(key) {
            Entry::Occupied(mut owed) => owed.get_mut().commits.push(number),
            Entry::Vacant(vacant) => {
                self.ready.push_back(vacant.key().clone());
                vacant.insert(Owed { commits: vec![number], failures: 0 });
            }
        }
    }

    /// The log moved on to `position` without naming a key.
    pub fn advance(&mut self, position: Position) {
        self.reached = position;
    }

    /// The next batch to send: of fresh keys, or, if `retries` may be sent, of those that have failed and whose time
    /// has come again by `now`.
    pub fn batch(&mut self, now: Instant, retries: bool) -> Option<OutBatch> {
        let failing_first = retries && self.batches % FAILING_FIRST_EVERY == FAILING_FIRST_EVERY - 1;
        let load = match failing_first {
            true => self.failing_load(now).or_else(|| self.fresh_load()),
            false => match self.fresh_load() {
                None if retries => self.failing_load(now),
                fresh => fresh,
            },
        }?;
        self.batches += 1;
        Some(OutBatch { load, upto: self.newest })
    }

    fn fresh_load(&mut self) -> Option<Load> {
        let mut space = Space::new(&self.limits);
        let mut owed = Vec::new();
        while self.ready.front().is_some_and(|key| space.takes(key)) {
            let key = self.ready.pop_front().expect("it has a front");
            let what = self.owed.remove(&key).expect("what is ready is owed");
            owed.push((key, what));
        }
        (!owed.is_empty()).then_some(Load::Fresh(owed))
    }

    fn failing_load(&mut self, now: Instant) -> Option<Load> {
        let mut space = Space::new(&self.limits);
        let keys: Vec<Bytes> = std::iter::from_fn(|| self.failing.take_due(now, |key| space.takes(key))).collect();
        (!keys.is_empty()).then_some(Load::Failing(keys))
    }

    /// When the next failed key is to be tried again.
    pub fn next_retry(&self) -> Option<Instant> {
        self.failing.next_due()
    }

    /// A batch has come back; `settled` says for each key whether its delete is done with. Returns the commits that
    /// have been paid by it.
    pub fn settle(&mut self, batch: OutBatch, settled: &[bool], now: Instant) -> Vec<Paid> {
        let mut paid = Vec::new();
        match batch.load {
            Load::Fresh(owed) => {
                assert_eq!(owed.len(), settled.len(), "one outcome a key");
                for ((key, owed), settled) in owed.into_iter().zip(settled) {
                    match settled {
                        true => self.pay(&key, &owed, batch.upto, &mut paid),
                        false => self.fail(key, owed, now, &mut paid),
                    }
                }
            }
            Load::Failing(keys) => {
                assert_eq!(keys.len(), settled.len(), "one outcome a key");
                for (key, settled) in keys.into_iter().zip(settled) {
                    match settled {
                        true => self.pay_failing(key, &mut paid),
                        false => self.fail_again(&key, now, &mut paid),
                    }
                }
            }
        }
        paid
    }

    fn pay(&mut self, key: &Bytes, owed: &Owed, upto: u64, paid: &mut Vec<Paid>) {
        self.keys -= owed.commits.len();
        owed.commits.iter().for_each(|&number| self.release(number, false, paid));
        if let Some(oldest) = self.failing.paid_by_another(key, upto) {
            self.release(oldest, false, paid);
        }
    }

    fn fail(&mut self, key: Bytes, mut owed: Owed, now: Instant, paid: &mut Vec<Paid>) {
        owed.failures += 1;
        // Named again meanwhile, and waiting to be sent: that delete pays for these commits too.
        if let Some(newer) = self.owed.get_mut(&key) {
            newer.failures = newer.failures.max(owed.failures);
            newer.commits.append(&mut owed.commits);
            return;
        }
        self.keys -= owed.commits.len();
        let span = owed.span();
        let released = self.failing.keep(key, span, owed.failures, now);
        for number in owed.commits.into_iter().filter(|&number| number != span.0).chain(released) {
            self.release(number, true, paid);
        }
    }

    fn pay_failing(&mut self, key: Bytes, paid: &mut Vec<Paid>) {
        let (oldest, again) = self.failing.paid(&key);
        self.release(oldest, false, paid);
        if let Some(number) = again {
            self.owe(key, number);
        }
    }

    fn fail_again(&mut self, key: &Bytes, now: Instant, paid: &mut Vec<Paid>) {
        if let Some(number) = self.failing.refused(key, now) {
            self.release(number, true, paid);
        }
    }

    /// A key is no longer held for a commit: it was paid, or it is `merged`, held for an older one.
    fn release(&mut self, number: u64, merged: bool, paid: &mut Vec<Paid>) {
        let Entry::Occupied(mut entry) = self.commits.entry(number) else {
            unreachable!("a commit stays while a key is held for it");
        };
        let commit = entry.get_mut();
        commit.keys -= 1;
        commit.merged |= merged;
        if commit.keys == 0 {
            let commit = entry.remove();
            match commit.merged {
                true => self.merged += 1,
                false => paid.push(Paid { position: commit.commit, committed_at: commit.committed_at }),
            }
        }
    }

    /// All up to here has been applied.
    pub fn position(&self) -> &Position {
        self.commits.first_key_value().map_or(&self.reached, |(_, oldest)| &oldest.before)
    }

    /// How many keys are owed: those that fail, and the others counted once a commit that named them.
    pub fn keys(&self) -> usize {
        self.keys + self.failing.len()
    }

    /// How many keys fail, and of how many bytes.
    pub fn failing(&self) -> (usize, usize) {
        (self.failing.len(), self.failing.key_bytes())
    }

    /// How many commits were not followed until they were paid, since they waited for a failing key with others.
    pub fn merged(&self) -> u64 {
        self.merged
    }
}

/// What is left of a batch.
struct Space {
    first: bool,
    keys: usize,
    bytes: usize,
}

impl Space {
    fn new(limits: &Limits) -> Space {
        Space { first: true, keys: limits.batch_keys_max, bytes: limits.batch_bytes_max }
    }

    /// Makes room for `key`, if there is.
    fn takes(&mut self, key: &Bytes) -> bool {
        let fits = self.first || (self.keys > 0 && key.len() <= self.bytes);
        if fits {
            self.first = false;
            self.keys = self.keys.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(key.len());
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        keys_max: 8,
        failing_keys_max: 1_000,
        failing_bytes_max: 10_000,
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
        while let Some(batch) = window.batch(Instant::now(), true) {
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
            let batch = window.batch(now, true).expect("its time has come");
            assert_eq!(window.settle(batch, &[false], now), []);
            let due = now + Duration::from_millis(waits_ms);
            assert_eq!(window.next_retry(), Some(due));
            assert!(window.batch(due - Duration::from_millis(1), true).is_none(), "not before its time");
            now = due;
        }
        assert_eq!(window.position(), &Position("0".into()));
    }

    #[test]
    fn a_delete_pays_for_what_was_admitted_before_it_was_sent() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["a"]);
        admit(&mut window, 2, &["a", "b"]);
        let first = window.batch(now, true).expect("two keys");
        admit(&mut window, 3, &["a"]);
        let second = window.batch(now, true).expect("named again while it is on its way");
        assert_eq!(window.settle(second, &[true], now).len(), 1, "commit 3 is paid");
        assert_eq!(window.position(), &Position("0".into()), "but it is behind two that are owed");
        assert_eq!(window.settle(first, &[true, false], now).len(), 1, "commit 1 is paid");
        assert_eq!((window.position(), window.keys()), (&Position("1".into()), 1));
        let again = window.batch(window.next_retry().expect("b is tried again"), true).expect("b");
        window.advance(Position("9".into()));
        window.settle(again, &[true], now);
        assert_eq!((window.position(), window.keys()), (&Position("9".into()), 0));
    }

    #[test]
    fn a_failed_key_that_was_named_again_is_sent_once() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["a"]);
        let first = window.batch(now, true).expect("a");
        admit(&mut window, 2, &["a"]);
        window.settle(first, &[false], now);
        let second = window.batch(now, true).expect("a again, at once");
        assert_eq!(window.settle(second, &[true], now).len(), 2, "both are paid");
        assert_eq!((window.batch(now, true).is_none(), window.next_retry()), (true, None));
    }

    /// Paid commits behind a single stuck key were all kept, 250 bytes each.
    #[test]
    fn a_stuck_key_costs_the_same_however_much_passes() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["stuck"]);
        let batch = window.batch(now, true).expect("stuck");
        window.settle(batch, &[false], now);
        for number in 2..1_000_000 {
            let keys: &[&str] = if number % 3 == 0 { &["a", "stuck"] } else { &["a"] };
            admit(&mut window, number, keys);
            let batch = window.batch(now, true).expect("a");
            window.settle(batch, &[true], now);
            let held = (window.commits.len(), window.owed.len(), window.ready.len(), window.failing.len());
            assert_eq!(held, (1, 0, 0, 1));
        }
        assert!(window.ready.capacity() < 100);
        assert_eq!((window.position(), window.keys(), window.merged()), (&Position("0".into()), 1, 333_333));
        let batch = window.batch(window.next_retry().expect("stuck"), true).expect("stuck");
        window.settle(batch, &[true], now);
        assert_eq!((window.position(), window.keys()), (&Position("999999".into()), 0));
    }

    #[test]
    fn a_failing_key_that_is_named_while_it_is_on_its_way_is_owed_anew() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["a"]);
        let batch = window.batch(now, true).expect("a");
        window.settle(batch, &[false], now);
        admit(&mut window, 2, &["a"]);
        let batch = window.batch(window.next_retry().expect("a"), true).expect("a");
        admit(&mut window, 3, &["a"]);
        admit(&mut window, 4, &["a"]);
        assert!(window.batch(now + Duration::from_secs(60), true).is_none(), "one delete at a time");
        assert_eq!(window.settle(batch, &[true], now).len(), 1, "commit 1; who waited with it is not followed");
        assert_eq!((window.position(), window.keys()), (&Position("2".into()), 1), "sent before 3 was admitted");
        let batch = window.batch(now, true).expect("at once");
        assert_eq!(window.settle(batch, &[true], now).len(), 1);
        assert_eq!((window.position(), window.keys()), (&Position("4".into()), 0));
    }

    #[test]
    fn keys_that_fail_leave_the_window_and_have_a_bound_of_their_own() {
        let (now, mut number) = (Instant::now(), 0);
        let cases = [(3, 10_000), (1_000, 9)];
        for (failing_keys_max, failing_bytes_max) in cases {
            let mut window =
                Window::new(Limits { failing_keys_max, failing_bytes_max, ..LIMITS }, Position("0".into()));
            for _ in 0..3 {
                assert!(window.has_room(8) && !window.is_blocked());
                number += 1;
                admit(&mut window, number, &[&format!("k{number:02}")]);
                let batch = window.batch(now, false).expect("a fresh key");
                window.settle(batch, &[false], now);
            }
            assert!(!window.has_room(1) && window.is_blocked() && window.has_room(0));
            assert_eq!((window.failing(), window.keys()), ((3, 9), 3));
            let batch = window.batch(now + LIMITS.retry_max, true).expect("all three");
            window.settle(batch, &[true, false, false], now);
            assert!(window.has_room(8) && !window.is_blocked());
        }
    }

    #[test]
    fn fresh_keys_go_before_failing_ones_but_for_every_eighth_batch() {
        let (mut window, now) = (window(), Instant::now());
        admit(&mut window, 1, &["stuck"]);
        let batch = window.batch(now, true).expect("stuck");
        window.settle(batch, &[false], now);
        let now = now + LIMITS.retry_max;
        let mut retries = Vec::new();
        for number in 2..32 {
            admit(&mut window, number, &["a", "b", "c", "d"]);
            let batch = window.batch(now, true).expect("there is always a fresh key");
            if batch.is_retry() {
                retries.push(number);
            }
            let settled = vec![!batch.is_retry(); batch.keys().len()];
            window.settle(batch, &settled, now - LIMITS.retry_max);
        }
        assert_eq!(retries, [8, 16, 24]);
    }
}
