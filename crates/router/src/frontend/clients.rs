//! The clients of one thread in the order of their last requests: at the limit on connections the least recently used one
//! is closed for a new client. No request waits for it.
//!
//! A session counts as used whenever it reads. It is closed only while it waits for its client, with nothing in progress:
//! a batch that has begun is always answered. So an order that is found when it is needed suffices: a heap has each
//! session by the use that was its last when it was put there, and one with a later use is put back.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tokio::task::AbortHandle;

/// The sessions that are looked at before a new client is refused, if all of them have a batch in progress.
const BUSY_MAX: usize = 64;

/// Entries of ended sessions are removed when there are as many as of others, and this number.
const ENDED_MAX: usize = 64;

/// What a session says about itself.
#[derive(Debug, Default)]
pub(crate) struct SessionActivity {
    /// The number of the last use in this thread.
    used_at: AtomicU64,
    is_waiting: AtomicBool,
}

impl SessionActivity {
    /// The session waits for its client from now on, with nothing in progress.
    pub(crate) fn begin_waiting(&self) {
        self.is_waiting.store(true, Relaxed);
    }

    /// The session has read something, as the use of this number.
    pub(crate) fn end_waiting(&self, used_at: u64) {
        self.is_waiting.store(false, Relaxed);
        self.used_at.store(used_at, Relaxed);
    }
}

/// Numbers the uses of a thread's sessions.
#[derive(Debug, Default)]
pub(crate) struct Uses(AtomicU64);

impl Uses {
    /// The next number. Only this thread counts.
    pub(crate) fn next(&self) -> u64 {
        let next = self.0.load(Relaxed) + 1;
        self.0.store(next, Relaxed);
        next
    }
}

/// The sessions of one thread.
#[derive(Debug, Default)]
pub(crate) struct Clients(BinaryHeap<Reverse<Client>>);

#[derive(Debug)]
struct Client {
    /// As it was when it was put into the heap.
    used_at: u64,
    activity: Arc<SessionActivity>,
    task: AbortHandle,
}

impl Client {
    fn has_ended(&self) -> bool {
        Arc::strong_count(&self.activity) == 1
    }
}

impl Clients {
    /// Adds a session, which holds `activity` as long as it lasts, and is ended by `task`.
    pub(crate) fn add(&mut self, activity: Arc<SessionActivity>, task: AbortHandle, running: usize) {
        if self.0.len() > 2 * running + ENDED_MAX {
            self.0.retain(|Reverse(client)| !client.has_ended());
        }
        self.0.push(Reverse(Client { used_at: activity.used_at.load(Relaxed), activity, task }));
    }

    /// Closes the least recently used of the sessions that wait for their clients. False if none was found.
    pub(crate) fn close_least_recently_used(&mut self) -> bool {
        let mut busy = Vec::new();
        let closed = loop {
            let Some(Reverse(client)) = self.0.pop() else { break false };
            let used_at = client.activity.used_at.load(Relaxed);
            if client.has_ended() {
                continue;
            }
            if used_at != client.used_at {
                self.0.push(Reverse(Client { used_at, ..client }));
            } else if client.activity.is_waiting.load(Relaxed) {
                client.task.abort();
                break true;
            } else {
                busy.push(Reverse(client));
                if busy.len() == BUSY_MAX {
                    break false;
                }
            }
        };
        self.0.extend(busy);
        closed
    }
}

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        self.used_at == other.used_at
    }
}

impl Eq for Client {}

impl PartialOrd for Client {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Client {
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
        let (uses, mut clients, mut tasks) = (Uses::default(), Clients::default(), JoinSet::new());
        // By number: the last use, whether it waits, and what the session holds.
        let mut model: BTreeMap<u64, (u64, bool, Arc<SessionActivity>)> = BTreeMap::new();
        let mut numbers: BTreeMap<tokio::task::Id, u64> = BTreeMap::new();
        for number in 0..5_000 {
            match rng.u32(0..10) {
                0..3 => {
                    let activity = Arc::new(SessionActivity::default());
                    let used_at = uses.next();
                    activity.end_waiting(used_at);
                    activity.begin_waiting();
                    let task = tasks.spawn(std::future::pending::<()>());
                    numbers.insert(task.id(), number);
                    clients.add(activity.clone(), task, model.len());
                    model.insert(number, (used_at, true, activity));
                }
                3..8 => {
                    let at = rng.usize(0..model.len().max(1));
                    if let Some((used_at, waits, activity)) = model.values_mut().nth(at) {
                        *waits = rng.u32(0..5) > 0;
                        *used_at = uses.next();
                        activity.end_waiting(*used_at);
                        if *waits {
                            activity.begin_waiting();
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
                    let expected = model.iter().filter(|(_, entry)| entry.1).min_by_key(|(_, entry)| entry.0);
                    let expected = expected.map(|(number, _)| *number);
                    assert_eq!(clients.close_least_recently_used(), expected.is_some());
                    if let Some(expected) = expected {
                        let ended = tasks.join_next().await.expect("it was aborted").expect_err("by the table");
                        assert_eq!(numbers[&ended.id()], expected);
                        model.remove(&expected);
                    }
                }
            }
            assert!(clients.0.len() <= 2 * model.len() + ENDED_MAX + 64, "entries of ended sessions are removed");
        }
    }
}
