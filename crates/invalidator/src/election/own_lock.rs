//! The lock of this process, and whether it may be used.

use super::{
    record::{RecordError, RecordStore},
    session_lock::{LockAttempt, SessionLock},
};
use crate::observe::election_stats::ElectionStatistics;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The lock of this process.
pub(super) struct OwnLock {
    /// Returns another number at each call, in each process.
    random: fn() -> u64,
    is_given_up: AtomicBool,
    statistics: Arc<ElectionStatistics>,
}

impl OwnLock {
    pub fn new(random: fn() -> u64, statistics: Arc<ElectionStatistics>) -> OwnLock {
        OwnLock { random, is_given_up: AtomicBool::new(false), statistics }
    }

    /// The lock that the session of `store` holds now; `None` if it holds none.
    pub async fn hold(&self, store: &dyn RecordStore) -> Result<Option<SessionLock>, RecordError> {
        if self.is_given_up.load(Relaxed) {
            return Ok(None);
        }
        match store.hold_lock((self.random)()).await? {
            LockAttempt::Held(lock) => Ok(Some(lock)),
            LockAttempt::Refused(why) => {
                self.give_up(&why);
                Ok(None)
            }
        }
    }

    /// Takes no lock any more, until the process ends.
    pub fn give_up(&self, why: &str) {
        self.statistics.set_session_lock(false);
        if !self.is_given_up.swap(true, Relaxed) {
            tracing::warn!(
                why,
                "no session lock from now on: if this process is killed or hangs, a standby takes over after 3 s. \
                 --shared-state should lead to the database itself; start this process again to try again"
            );
        }
    }
}
