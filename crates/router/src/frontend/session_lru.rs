//! The clients of one thread in the order of their last requests: at the limit on connections the least recently used
//! one is closed for a new client. No request waits for it.
//!
//! A session counts as used whenever it reads. It is closed only while it waits for its client, with nothing in
//! progress: a batch that has begun is always answered. A command of which a part has arrived is in progress too, for
//! as long as it may take: a client that never ends it must not hold its connection for ever. So an order that is found
//! when it is needed suffices: a heap has each session by the use that was its last when it was put there, and one with
//! a later use is put back.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{task::AbortHandle, time::Instant};

/// The sessions that are looked at before a new client is refused, if all of them have a batch in progress.
const BUSY_MAX: usize = 64;

/// Entries of ended sessions are removed when there are as many as of others, and this number.
const ENDED_MAX: usize = 64;

/// What a session says about itself.
#[derive(Debug)]
pub(crate) struct SessionActivity {
    /// The number of the last use in this thread.
    used_at: AtomicU64,
    /// From when on it waits for its client with nothing in progress, by [`UseClock::now_ms`]; [`IN_PROGRESS`] if it
    /// does not wait.
    waits_from_ms: AtomicU64,
}

const IN_PROGRESS: u64 = u64::MAX;

impl Default for SessionActivity {
    fn default() -> Self {
        SessionActivity { used_at: AtomicU64::new(0), waits_from_ms: AtomicU64::new(IN_PROGRESS) }
    }
}

impl SessionActivity {
    /// The session waits for its client, with nothing in progress from this time on.
    pub(crate) fn begin_waiting(&self, from_ms: u64) {
        self.waits_from_ms.store(from_ms, Relaxed);
    }

    /// The session has read something, as the use of this number.
    pub(crate) fn end_waiting(&self, used_at: u64) {
        self.waits_from_ms.store(IN_PROGRESS, Relaxed);
        self.used_at.store(used_at, Relaxed);
    }

    /// Whether it waits at this time.
    pub(crate) fn is_waiting(&self, now_ms: u64) -> bool {
        self.waits_from_ms.load(Relaxed) <= now_ms
    }
}

/// Numbers the uses of a thread's sessions, and gives their times.
#[derive(Debug)]
pub(crate) struct UseClock {
    last: AtomicU64,
    started: Instant,
}

impl UseClock {
    /// A clock at 0, without uses.
    pub(crate) fn new() -> UseClock {
        UseClock { last: AtomicU64::new(0), started: Instant::now() }
    }

    /// The next number. Only this thread counts.
    pub(crate) fn next(&self) -> u64 {
        let next = self.last.load(Relaxed) + 1;
        self.last.store(next, Relaxed);
        next
    }

    /// Milliseconds since the first use could be.
    pub(crate) fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    /// The same at another time.
    pub(crate) fn ms_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(IN_PROGRESS - 1)
    }
}

/// The sessions of one thread, by their last uses.
#[derive(Debug, Default)]
pub(crate) struct SessionLru(BinaryHeap<Reverse<LruEntry>>);

#[derive(Debug)]
struct LruEntry {
    /// As it was when it was put into the heap.
    used_at: u64,
    activity: Arc<SessionActivity>,
    task: AbortHandle,
}

impl LruEntry {
    fn has_ended(&self) -> bool {
        Arc::strong_count(&self.activity) == 1
    }
}

impl SessionLru {
    /// Adds a session, which holds `activity` as long as it lasts, and is ended by `task`.
    pub(crate) fn add(&mut self, activity: Arc<SessionActivity>, task: AbortHandle, running: usize) {
        if self.0.len() > 2 * running + ENDED_MAX {
            self.0.retain(|Reverse(entry)| !entry.has_ended());
        }
        self.0.push(Reverse(LruEntry { used_at: activity.used_at.load(Relaxed), activity, task }));
    }

    /// Closes the least recently used of the sessions that wait for their clients at this time. False if none was
    /// found.
    pub(crate) fn close_least_recently_used(&mut self, now_ms: u64) -> bool {
        let mut busy = Vec::new();
        let closed = loop {
            let Some(Reverse(entry)) = self.0.pop() else { break false };
            let used_at = entry.activity.used_at.load(Relaxed);
            if entry.has_ended() {
                continue;
            }
            if used_at != entry.used_at {
                self.0.push(Reverse(LruEntry { used_at, ..entry }));
            } else if entry.activity.is_waiting(now_ms) {
                entry.task.abort();
                break true;
            } else {
                busy.push(Reverse(entry));
                if busy.len() == BUSY_MAX {
                    break false;
                }
            }
        };
        self.0.extend(busy);
        closed
    }
}

impl PartialEq for LruEntry {
    fn eq(&self, other: &Self) -> bool {
        self.used_at == other.used_at
    }
}

impl Eq for LruEntry {}

impl PartialOrd for LruEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LruEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.used_at.cmp(&other.used_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::task::JoinSet;

    /// Sessions that use, end and are closed at random, against a plain list.
    #[tokio::test]
    async fn the_least_recently_used_of_those_that_wait_is_closed() {
        let mut rng = fastrand::Rng::with_seed(5);
        let (uses, mut lru, mut tasks) = (UseClock::new(), SessionLru::default(), JoinSet::new());
        // By number: the last use, from when on it waits, and what the session holds.
        let mut model: BTreeMap<u64, (u64, u64, Arc<SessionActivity>)> = BTreeMap::new();
        let mut numbers: BTreeMap<tokio::task::Id, u64> = BTreeMap::new();
        for number in 0..5_000 {
            match rng.u32(0..10) {
                0..3 => {
                    let activity = Arc::new(SessionActivity::default());
                    let used_at = uses.next();
                    activity.end_waiting(used_at);
                    activity.begin_waiting(0);
                    let task = tasks.spawn(std::future::pending::<()>());
                    numbers.insert(task.id(), number);
                    lru.add(activity.clone(), task, model.len());
                    model.insert(number, (used_at, 0, activity));
                }
                3..8 => {
                    let at = rng.usize(0..model.len().max(1));
                    if let Some((used_at, waits_from_ms, activity)) = model.values_mut().nth(at) {
                        // A batch is in progress, or part of a command has arrived, or nothing.
                        *waits_from_ms = [IN_PROGRESS, number + rng.u64(1..500), 0, 0, 0][rng.usize(0..5)];
                        *used_at = uses.next();
                        activity.end_waiting(*used_at);
                        if *waits_from_ms != IN_PROGRESS {
                            activity.begin_waiting(*waits_from_ms);
                        }
                    }
                }
                8 => {
                    let at = rng.usize(0..model.len().max(1));
                    if let Some(number) = model.keys().nth(at).copied() {
                        model.remove(&number);
                    }
                }
                _ => {
                    // The number of the step is the time.
                    let waiting = model.iter().filter(|(_, entry)| entry.1 <= number);
                    let expected = waiting.min_by_key(|(_, entry)| entry.0).map(|(number, _)| *number);
                    assert_eq!(lru.close_least_recently_used(number), expected.is_some());
                    if let Some(expected) = expected {
                        let ended = tasks.join_next().await.expect("it was aborted").expect_err("by the table");
                        assert_eq!(numbers[&ended.id()], expected);
                        model.remove(&expected);
                    }
                }
            }
            assert!(lru.0.len() <= 2 * model.len() + ENDED_MAX + 64, "entries of ended sessions are removed");
        }
    }
}
