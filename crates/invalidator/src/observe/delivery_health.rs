//! The health of a pipeline's delivery, and when a change of it is logged.
//!
//! ```text
//! healthy -> retrying -> blocked     each step up is logged once, until delivery is healthy again
//!   ^___________|___________|
//! ```
//!
//! Health that flaps is logged at most once per [`LOG_INTERVAL_MIN`](super::LOG_INTERVAL_MIN). A message
//! that comes late reports the health at that time.

use super::log_throttle;
use lookaside_telemetry::LogThrottle;
use tokio::time::Instant;

/// Whether the deletes of a pipeline are acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeliveryHealth {
    /// The retry queue is empty.
    #[default]
    Healthy,
    /// Some keys are retried; the others proceed.
    Retrying,
    /// The retry queue is so full that reading waits.
    Blocked,
}

/// Decides which changes of the health are logged.
#[derive(Debug)]
pub(crate) struct HealthLogger {
    current: DeliveryHealth,
    logged: DeliveryHealth,
    throttle: LogThrottle<Instant>,
}

impl Default for HealthLogger {
    fn default() -> HealthLogger {
        HealthLogger { current: DeliveryHealth::Healthy, logged: DeliveryHealth::Healthy, throttle: log_throttle() }
    }
}

impl HealthLogger {
    /// Records the health at `now`. Returns it if it is to be logged.
    pub fn update(&mut self, health: DeliveryHealth, now: Instant) -> Option<DeliveryHealth> {
        self.current = health;
        let is_due = self.has_change() && self.throttle.allow(now).is_some();
        is_due.then(|| {
            self.logged = health;
            health
        })
    }

    /// When a change will be logged if the health stays as it is; `None` if there is no unlogged change.
    pub fn next_log_at(&self) -> Option<Instant> {
        self.throttle.next_at().filter(|_| self.has_change())
    }

    fn has_change(&self) -> bool {
        self.current > self.logged
            || (self.current == DeliveryHealth::Healthy && self.logged != DeliveryHealth::Healthy)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::LOG_INTERVAL_MIN, DeliveryHealth::*, *};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn flapping_is_logged_rarely_and_recovery_always() {
        let (mut logger, start) = (HealthLogger::default(), Instant::now());
        assert_eq!(logger.update(Healthy, start), None);
        let mut logged = Vec::new();
        for step in 0..200 {
            let now = start + Duration::from_millis(100) * step;
            let health = if step % 2 == 0 { Retrying } else { Healthy };
            logged.extend(logger.update(health, now));
        }
        assert_eq!(logged, [Retrying, Healthy, Retrying, Healthy], "one message per 5 s, in 20 s");
        assert_eq!(logger.update(Retrying, start + LOG_INTERVAL_MIN * 10), Some(Retrying));
        assert_eq!(logger.update(Healthy, start + LOG_INTERVAL_MIN * 10), None, "too soon");
        assert_eq!(logger.next_log_at(), Some(start + LOG_INTERVAL_MIN * 11));
        assert_eq!(logger.update(Healthy, start + LOG_INTERVAL_MIN * 11), Some(Healthy));
        assert_eq!((logger.update(Healthy, start + LOG_INTERVAL_MIN * 20), logger.next_log_at()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_up_is_logged_once() {
        let (mut logger, start) = (HealthLogger::default(), Instant::now());
        let steps = [Retrying, Blocked, Retrying, Blocked];
        let logged = (0..).zip(steps).filter_map(|(n, health)| logger.update(health, start + LOG_INTERVAL_MIN * n));
        assert_eq!(logged.collect::<Vec<_>>(), [Retrying, Blocked]);
    }
}
