//! The read permits of this process: which of them may still be in use
//! ([ADR 017](../../../docs/adr/017-direct-clients.md)). A client that reads servers directly does so for as long as a
//! permit lasts; what the router has read, it may read.
//!
//! There is no list of clients. The latest end of any permit is enough: a delete that is acknowledged behind a new
//! fence, and a configuration that is no longer read, wait until every permit from before has ended.
//!
//! ```text
//!   a session           record: a permit may be in use until E     then reads fences and configuration
//!   the spool           raises the fence                           then reads E, and waits
//! ```
//!
//! Both sides write first and then read, in one order that all threads see (`SeqCst`; [`lookaside_client::Fence`],
//! too). So the permit names the fence, or the spool sees the permit.

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

    /// Records that a permit may be in use from now on. The caller reads what the permit says afterwards. A process
    /// that takes the place of another calls this, too, when the other can give none any more.
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
    use lookaside_client::{Fence, TkoTrackers};
    use lookaside_routing::Address;
    use std::time::Duration;
    use tokio::time::advance;

    /// What a session and the spool do at the same time, step by step.
    struct Race {
        permits: ReadPermits,
        fence: Fence,
        trackers: Arc<TkoTrackers>,
        /// Whether the permit names the server as fenced.
        is_named: bool,
        /// Whether the spool waits for the permit.
        is_waited_for: bool,
    }

    type RaceStep = fn(&mut Race);

    fn record(race: &mut Race) {
        race.permits.record();
    }

    fn read_fences(race: &mut Race) {
        race.is_named = !race.trackers.fenced().is_empty();
    }

    fn raise_fence(race: &mut Race) {
        race.fence.raise();
    }

    fn read_end(race: &mut Race) {
        let now = Instant::now();
        race.is_waited_for = race.permits.end_of_permits_before(now - race.fence.raised_for()) > now;
    }

    /// Whether, in every order of the steps of both, the permit names the fence or the spool waits for the permit.
    fn is_always_seen(session: [RaceStep; 2], spool: [RaceStep; 2]) -> bool {
        // Each bit: the next step is the session's.
        (0..16u32).filter(|order| order.count_ones() == 2).all(|order| {
            let trackers = TkoTrackers::new();
            let fence = trackers.fence(&Address("a:1".into()));
            let permits = ReadPermits::default();
            let mut race = Race { permits, fence, trackers, is_named: false, is_waited_for: false };
            let (mut session, mut spool) = (session.iter(), spool.iter());
            for at in 0..4 {
                let steps = if order >> at & 1 == 1 { &mut session } else { &mut spool };
                steps.next().expect("two steps of each")(&mut race);
            }
            race.is_named || race.is_waited_for
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_names_a_fence_or_the_spool_waits_for_it() {
        assert!(is_always_seen([record, read_fences], [raise_fence, read_end]));
        assert!(!is_always_seen([read_fences, record], [raise_fence, read_end]), "the session's order matters");
        assert!(!is_always_seen([record, read_fences], [read_end, raise_fence]), "so does the spool's");
    }

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
