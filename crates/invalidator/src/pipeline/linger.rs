//! How long keys wait for others to share a batch with them, as in Nagle's algorithm (RFC 896).
//!
//! ```text
//! sent      |-- batch 1 ------------ answered
//! arrive    a                b  c         |
//! sent      [a] at once      |-- linger --[b c]  or when the linger is over, or when the batch is full
//! ```
//!
//! While no batch is unanswered, deletes leave as fast as they arrive, and a batch is sent at once. While one is, they
//! arrive faster than they leave: then a batch that is not full waits for more keys. Batches that are slow, as a server
//! that hangs makes them, and batches of the retry queue do not count. Keys of the retry queue do not wait.

use std::time::Duration;
use tokio::time::Instant;

/// When the next batch of fresh keys is to be sent.
#[derive(Debug, Default)]
pub(super) struct Linger {
    max: Duration,
    /// Since when the keys wait; `None` if none wait.
    since: Option<Instant>,
    has_waited: bool,
}

impl Linger {
    /// Keys wait for at most `max`.
    pub fn new(max: Duration) -> Linger {
        Linger { max, ..Linger::default() }
    }

    /// Records whether keys wait to be sent.
    pub fn update(&mut self, has_unsent: bool, now: Instant) {
        self.since = has_unsent.then(|| self.since.unwrap_or(now));
    }

    /// When the next batch may be sent: now unless it `may_linger`.
    pub fn send_at(&self, may_linger: bool, now: Instant) -> Instant {
        self.since.filter(|_| may_linger).map_or(now, |since| (since + self.max).max(now))
    }

    /// Whether the next batch is to wait.
    pub fn holds(&mut self, may_linger: bool, now: Instant) -> bool {
        let holds = self.send_at(may_linger, now) > now;
        self.has_waited |= holds;
        holds
    }

    /// Records that a batch was sent. The linger of the remaining keys begins now. Returns whether the batch has
    /// waited.
    pub fn restart(&mut self, has_unsent: bool, now: Instant) -> bool {
        self.since = has_unsent.then_some(now);
        std::mem::take(&mut self.has_waited)
    }
}
