//! The read permits of this process: which of them may still be in use
//! ([ADR 017](../../../docs/adr/017-direct-clients.md)). A client that reads servers directly does so for as long as a
//! permit lasts; what the router has read, it may read.
//!
//! There is no list of clients. The latest end of any permit is enough: a delete that is acknowledged behind a new fence,
//! and a configuration that is no longer read, wait until every permit from before has ended.
//!
//! ```text
//!   a session           record: a permit may be in use until E     then reads fences and configuration
//!   the spool           raises the fence                           then reads E, and waits
//! ```
//!
//! Both sides write first and then read, in one order that all threads see (`SeqCst`; [`lookaside_client::Fence`], too).
//! So the permit names the fence, or the spool sees the permit.

use lookaside_client::PERMIT_ENDS_AFTER;
use lookaside_sync::SharedCounter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tokio::time::Instant;

/// The permits of one process.
#[derive(Debug)]
pub struct ReadPermits {
    started: Instant,
    /// In microseconds since `started`, rounded up; 0 if none was given.
    latest_end_us: AtomicU64,
    /// Permits given.
    pub given: SharedCounter,
    /// Requests for a permit that were refused.
    pub refused: SharedCounter,
}

impl Default for ReadPermits {
    /// None was given.
    fn default() -> ReadPermits {
        let (given, refused) = (SharedCounter::default(), SharedCounter::default());
        ReadPermits { started: Instant::now(), latest_end_us: AtomicU64::new(0), given, refused }
    }
}

impl ReadPermits {
    /// None was given.
    pub fn new() -> Arc<ReadPermits> {
        Arc::default()
    }

    /// Records that a permit may be in use from now on. The caller reads what the permit says afterwards. A process that
    /// takes the place of another calls this, too, when the other can give none any more.
    pub fn record(&self) {
        let end = self.started.elapsed() + PERMIT_ENDS_AFTER;
        self.latest_end_us.fetch_max(end.as_micros() as u64 + 1, SeqCst);
    }

    /// When every permit that has been given will have ended.
    pub(crate) fn latest_end(&self) -> Instant {
        self.started + std::time::Duration::from_micros(self.latest_end_us.load(SeqCst))
    }

    /// When every permit will have ended that was given before `moment` in the past.
    pub(crate) fn end_of_permits_before(&self, moment: Instant) -> Instant {
        self.latest_end().min(moment + PERMIT_ENDS_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn permits_from_before_a_moment_end_whatever_is_given_later() {
        let (permits, started) = (ReadPermits::new(), Instant::now());
        assert_eq!(permits.latest_end(), started, "none was given");
        permits.record();
        advance(Duration::from_millis(100)).await;
        let fenced_at = Instant::now();
        let end = permits.end_of_permits_before(fenced_at);
        assert!(end > started + PERMIT_ENDS_AFTER && end < fenced_at + PERMIT_ENDS_AFTER, "the one that was given");
        advance(Duration::from_millis(50)).await;
        permits.record();
        assert_eq!(permits.end_of_permits_before(fenced_at), fenced_at + PERMIT_ENDS_AFTER);
        assert!(permits.latest_end() > permits.end_of_permits_before(fenced_at));
    }
}
