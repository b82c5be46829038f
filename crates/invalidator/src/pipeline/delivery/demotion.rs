//! Routers that answer probes and do not apply what another one applies, as when they do not reach a server. They are
//! asked after the others of their cluster, for a while that grows.
//!
//! | a router is demoted when | |
//! |---|---|
//! | it refused [`REFUSALS_MAX`] deletes that another one applied | within [`REFUSALS_WINDOW`] |
//! | it did not answer a batch, at all or within the hedge delay | and another one did |
//!
//! If no router answers a batch in time, its server hangs, and none is demoted. A router that does not answer probes is
//! TKO ([`super::router`]).

use std::time::Duration;
use tokio::time::Instant;

/// A router is demoted after it refused this many deletes within [`REFUSALS_WINDOW`] that another one applied.
const REFUSALS_MAX: u32 = 10;
const REFUSALS_WINDOW: Duration = Duration::from_secs(1);

/// The first and the longest pause. One that follows within the longest of the end of the last one is twice as long. At
/// the end of each pause some deletes may be late by the hedge delay again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Whether a router is demoted, and what counts towards that.
#[derive(Debug)]
pub(super) struct Demotion {
    /// The end of the last pause, and its length; `None` before the first one.
    pause: Option<(Instant, Duration)>,
    refusals_since: Instant,
    refusals: u32,
}

impl Demotion {
    pub fn new(now: Instant) -> Demotion {
        Demotion { pause: None, refusals_since: now, refusals: 0 }
    }

    /// Until when the router is demoted; `None` if it is not.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.pause.map(|(until, _)| until).filter(|until| now < *until)
    }

    /// Demotes the router. Returns for how long; `None` if it is demoted already.
    pub fn demote(&mut self, now: Instant) -> Option<Duration> {
        let length = match self.pause {
            Some((until, _)) if now < until => return None,
            Some((until, length)) if now < until + PAUSE_MAX => (length * 2).min(PAUSE_MAX),
            _ => PAUSE_MIN,
        };
        self.pause = Some((now + length, length));
        Some(length)
    }

    /// Records that the router refused deletes that another one applied. True if it is to be demoted.
    pub fn record_refusals(&mut self, deletes: u32, now: Instant) -> bool {
        if now.duration_since(self.refusals_since) >= REFUSALS_WINDOW {
            (self.refusals_since, self.refusals) = (now, 0);
        }
        self.refusals = self.refusals.saturating_add(deletes);
        let are_many = self.refusals >= REFUSALS_MAX;
        if are_many {
            self.refusals = 0;
        }
        are_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_while_one_follows_the_other() {
        let mut now = Instant::now();
        let mut demotion = Demotion::new(now);
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let length = demotion.demote(now).expect("it is not demoted");
            assert_eq!(demotion.demote(now + length / 2), None, "once for each pause");
            assert_eq!(demotion.until(now + length / 2), Some(now + length));
            assert_eq!(demotion.until(now + length), None);
            lengths.push(length.as_secs());
            now += length + SECOND;
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(demotion.demote(now + PAUSE_MAX), Some(PAUSE_MIN));
    }

    #[test]
    fn refusals_of_one_second_count() {
        let start = Instant::now();
        let mut demotion = Demotion::new(start);
        assert!(!demotion.record_refusals(REFUSALS_MAX - 1, start));
        assert!(!demotion.record_refusals(REFUSALS_MAX - 1, start + REFUSALS_WINDOW));
        assert!(demotion.record_refusals(1, start + REFUSALS_WINDOW));
        assert!(!demotion.record_refusals(1, start + REFUSALS_WINDOW), "they are counted once");
    }
}
