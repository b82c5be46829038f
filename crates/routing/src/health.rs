//! Whether a server may be sent to: the state machine that marks a failing destination TKO and clears the mark.
//!
//! Every request checks [`Health::may_send`] first. While a destination is TKO, requests fail at once, so that the
//! failover children (the gutter, §3.3 of the paper) are asked without a timeout.
//!
//! ```text
//!             N timeouts in a row (soft), one connect error (hard)
//!    up  ------------------------------------------------------------->  TKO
//!     ^                                                                   | a probe is due at next_probe_at_ms()
//!     |   a probe or a late reply succeeds                                | a failed probe: wait 1.5 times as long
//!     +-------------------------------------------------------------------+ (plus jitter), up to the longest wait
//! ```
//!
//! Invariants: `may_send()` is true exactly while no probe is scheduled. Any reply, including an error line, proves
//! that the server lives. A lost connection proves nothing: the next connection attempt decides.
//!
//! Absent on purpose: sending probes, clocks and random numbers. The owner of the connection drives this; `now_ms` is
//! milliseconds since any fixed moment, and jitter comes in as a number.

use crate::{Failure, Outcome};

/// When a destination becomes TKO, and how often it is probed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HealthSettings {
    /// Consecutive timeouts until the destination is TKO. Default 3, at least 1. With 1, a single slow reply is enough;
    /// with a large number, clients wait for that many timeouts first.
    pub timeouts_until_tko: u32,
    /// The wait before the first probe, in milliseconds. Default 1000 (mcrouter: 10000), at least 1.
    pub probe_initial_ms: u64,
    /// The longest wait between two probes before jitter, in milliseconds. Default 60000.
    pub probe_max_ms: u64,
    /// Whether the destination never becomes TKO, whatever fails. Default false. With it each request waits for a dead
    /// server.
    pub is_never_tko: bool,
}

impl Default for HealthSettings {
    fn default() -> Self {
        HealthSettings { timeouts_until_tko: 3, probe_initial_ms: 1_000, probe_max_ms: 60_000, is_never_tko: false }
    }
}

/// A change of the state, for the log and the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// TKO after consecutive timeouts.
    SoftTko,
    /// TKO after a failed connection attempt.
    HardTko,
    /// No longer TKO.
    Returned,
}

/// The state of one destination.
#[derive(Clone, Debug)]
pub struct Health {
    settings: HealthSettings,
    timeouts_in_a_row: u32,
    probe: Option<Probe>,
}

/// The next probe of a TKO destination.
#[derive(Clone, Copy, Debug)]
struct Probe {
    at_ms: u64,
    wait_ms: u64,
}

impl Health {
    /// The state of a destination without known failures.
    pub fn new(settings: HealthSettings) -> Self {
        Health { settings, timeouts_in_a_row: 0, probe: None }
    }

    /// Whether requests may be sent; else they fail with [`Failure::Tko`].
    pub fn may_send(&self) -> bool {
        self.probe.is_none()
    }

    /// Records a reply. The same as [`Health::on_outcome`] of one, without a clock.
    pub fn on_reply(&mut self) -> Option<HealthChange> {
        self.mark_up()
    }

    /// Records the outcome of a request.
    pub fn on_outcome(&mut self, outcome: &Outcome, now_ms: u64) -> Option<HealthChange> {
        match outcome {
            Ok(_) => self.on_reply(),
            Err(Failure::TimedOut | Failure::QueueTimedOut) => {
                self.timeouts_in_a_row = self.timeouts_in_a_row.saturating_add(1);
                if self.timeouts_in_a_row < self.settings.timeouts_until_tko {
                    return None;
                }
                self.mark_tko(HealthChange::SoftTko, now_ms)
            }
            Err(Failure::ConnectFailed | Failure::ConnectTimedOut) => self.mark_tko(HealthChange::HardTko, now_ms),
            Err(Failure::OfServer { failure, .. }) => self.on_outcome(&Err((**failure).clone()), now_ms),
            Err(
                Failure::Tko(_)
                | Failure::Busy
                | Failure::TooManyPending { .. }
                | Failure::NoRoute(_)
                | Failure::NoTree
                | Failure::Refused { .. }
                | Failure::ConnectionLost
                | Failure::ReadFailed(_)
                | Failure::Malformed
                | Failure::DatagramLost { .. }
                | Failure::Spooled,
            ) => None,
        }
    }

    /// When the next probe is due, on the clock of `now_ms`; `None` if the destination is not TKO.
    pub fn next_probe_at_ms(&self) -> Option<u64> {
        self.probe.map(|probe| probe.at_ms)
    }

    /// Records the result of a probe. `jitter` in `0.0..1.0` spreads the probes of many routers: it adds 5 to 50
    /// percent to the wait.
    pub fn on_probe(&mut self, ok: bool, now_ms: u64, jitter: f64) -> Option<HealthChange> {
        if ok {
            return self.mark_up();
        }
        if let Some(probe) = &mut self.probe {
            probe.wait_ms = (probe.wait_ms + probe.wait_ms.div_ceil(2)).min(self.settings.probe_max_ms);
            probe.at_ms = now_ms.saturating_add(with_jitter_ms(probe.wait_ms, jitter));
        }
        None
    }

    /// Delays the due probe by 5 to 50 percent of its wait (`jitter` as in [`Health::on_probe`]), so that routers that
    /// saw the same outage do not all come at once.
    pub fn delay_probe(&mut self, jitter: f64) {
        if let Some(probe) = &mut self.probe {
            probe.at_ms = probe.at_ms.saturating_add(with_jitter_ms(probe.wait_ms, jitter) - probe.wait_ms);
        }
    }

    fn mark_up(&mut self) -> Option<HealthChange> {
        self.timeouts_in_a_row = 0;
        self.probe.take().map(|_| HealthChange::Returned)
    }

    fn mark_tko(&mut self, change: HealthChange, now_ms: u64) -> Option<HealthChange> {
        if self.settings.is_never_tko {
            return None;
        }
        if self.probe.is_some() {
            return None; // Requests in flight must not delay the scheduled probe.
        }
        let wait_ms = self.settings.probe_initial_ms.max(1);
        self.probe = Some(Probe { at_ms: now_ms.saturating_add(wait_ms), wait_ms });
        Some(change)
    }
}

fn with_jitter_ms(wait_ms: u64, jitter: f64) -> u64 {
    let share = 0.05 + 0.45 * jitter.clamp(0.0, 1.0);
    wait_ms.saturating_add((wait_ms as f64 * share) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookaside_protocol::{ErrorReply, Reply};

    const TIMED_OUT: Outcome = Err(Failure::TimedOut);

    fn tko_at(now_ms: u64) -> Health {
        let mut health = Health::new(HealthSettings::default());
        assert_eq!(health.on_outcome(&Err(Failure::ConnectFailed), now_ms), Some(HealthChange::HardTko));
        health
    }

    #[test]
    fn only_consecutive_timeouts_make_a_destination_tko() {
        let mut health = Health::new(HealthSettings::default());
        for outcome in [TIMED_OUT, TIMED_OUT, Ok(Reply::Miss), TIMED_OUT, TIMED_OUT] {
            assert_eq!(health.on_outcome(&outcome, 5), None);
            assert!(health.may_send());
        }
        assert_eq!(health.on_outcome(&TIMED_OUT, 5), Some(HealthChange::SoftTko));
        assert!(!health.may_send());
        assert_eq!(health.next_probe_at_ms(), Some(1_005));
    }

    #[test]
    fn one_failed_connection_makes_it_tko() {
        for failure in [Failure::ConnectFailed, Failure::ConnectTimedOut] {
            let mut health = Health::new(HealthSettings::default());
            assert_eq!(health.on_outcome(&Err(failure), 0), Some(HealthChange::HardTko));
            assert!(!health.may_send());
        }
    }

    #[test]
    fn a_destination_that_is_never_tko_stays_in_use() {
        let mut health = Health::new(HealthSettings { is_never_tko: true, ..HealthSettings::default() });
        for failure in [Failure::ConnectFailed, Failure::TimedOut, Failure::TimedOut, Failure::TimedOut] {
            assert_eq!(health.on_outcome(&Err(failure), 0), None);
            assert!(health.may_send());
        }
    }

    #[test]
    fn a_lost_connection_does_not_change_the_count() {
        let mut health = Health::new(HealthSettings::default());
        for failure in [Failure::TimedOut, Failure::TimedOut, Failure::ConnectionLost, Failure::Busy] {
            assert_eq!(health.on_outcome(&Err(failure), 0), None);
        }
        assert_eq!(health.on_outcome(&TIMED_OUT, 0), Some(HealthChange::SoftTko));
    }

    #[test]
    fn an_error_line_proves_that_the_server_lives() {
        let mut health = tko_at(0);
        let unknown_verb = Ok(Reply::Error(ErrorReply::Unknown));
        assert_eq!(health.on_outcome(&unknown_verb, 1), Some(HealthChange::Returned));
        assert!(health.may_send());
        assert_eq!(health.next_probe_at_ms(), None);
    }

    #[test]
    fn requests_in_flight_do_not_delay_the_probe() {
        let mut health = tko_at(0);
        assert_eq!(health.on_outcome(&Err(Failure::ConnectFailed), 900), None);
        assert_eq!(health.next_probe_at_ms(), Some(1_000));
    }

    #[test]
    fn the_first_probe_has_jitter_too() {
        for (jitter, at_ms) in [(0.0, 1_050), (1.0, 1_500)] {
            let mut health = tko_at(0);
            health.delay_probe(jitter);
            assert_eq!(health.next_probe_at_ms(), Some(at_ms));
        }
        let mut well = Health::new(HealthSettings::default());
        well.delay_probe(1.0);
        assert!(well.may_send());
    }

    #[test]
    fn waits_between_probes_grow_with_jitter_up_to_the_longest() {
        let mut health = tko_at(0);
        assert_eq!(health.on_probe(false, 1_000, 0.0), None);
        assert_eq!(health.next_probe_at_ms(), Some(1_000 + 1_575), "1500 ms and 5 percent");
        health.on_probe(false, 3_000, 1.0);
        assert_eq!(health.next_probe_at_ms(), Some(3_000 + 3_375), "2250 ms and 50 percent");
        for _ in 0..40 {
            health.on_probe(false, 10_000, 0.0);
        }
        assert_eq!(health.next_probe_at_ms(), Some(10_000 + 63_000), "60 s and 5 percent");
    }

    #[test]
    fn one_good_probe_clears_everything() {
        let mut health = tko_at(0);
        assert_eq!(health.on_probe(true, 1_000, 0.5), Some(HealthChange::Returned));
        assert!(health.may_send());
        assert_eq!(health.on_probe(true, 1_001, 0.5), None);
        assert_eq!(health.on_outcome(&TIMED_OUT, 2_000), None, "the count starts again");
    }
}
