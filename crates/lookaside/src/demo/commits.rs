//! What the application has committed, from any region: what a reader could have seen.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
use tokio::time::Instant;

/// Commits by row.
pub struct Commits {
    /// The most visits that were committed, by user.
    newest: Vec<AtomicU64>,
    last: Mutex<Option<Commit>>,
}

/// A change of a row that the master has acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// The user.
    pub id: u32,
    /// The user's visits since then.
    pub visits: u64,
    /// When the acknowledgement arrived.
    pub at: Instant,
}

impl Commits {
    /// No commits of `rows` rows.
    pub fn new(rows: u32) -> Commits {
        Commits { newest: (0..rows).map(|_| AtomicU64::new(0)).collect(), last: Mutex::new(None) }
    }

    /// Records a commit that was acknowledged just now.
    pub fn record(&self, id: u32, visits: u64) {
        self.newest[id as usize].fetch_max(visits, Ordering::Relaxed);
        *self.last.lock().expect("no writer panics") = Some(Commit { id, visits, at: Instant::now() });
    }

    /// The most visits of a user that were committed.
    pub fn newest(&self, id: u32) -> u64 {
        self.newest[id as usize].load(Ordering::Relaxed)
    }

    /// The last commit; `None` before the first.
    pub fn last(&self) -> Option<Commit> {
        *self.last.lock().expect("no writer panics")
    }
}
