//! When something that has failed is tried again.

use std::time::Duration;
use tokio::time::Instant;

const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(30);

/// Delays that double from [`DELAY_MIN`] to [`DELAY_MAX`] while attempts fail one after another.
#[derive(Debug, Default)]
pub struct Backoff {
    delay: Option<Duration>,
    retry_at: Option<Instant>,
}

impl Backoff {
    /// An attempt has failed.
    pub fn fail(&mut self, now: Instant) {
        let delay = self.delay.map_or(DELAY_MIN, |delay| (delay * 2).min(DELAY_MAX));
        *self = Backoff { delay: Some(delay), retry_at: Some(now + delay) };
    }

    /// An attempt has succeeded.
    pub fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// When the next attempt may be made; `None` if it may be made at any time.
    #[cfg(test)]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether no attempt may be made now.
    pub fn is_waiting(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_end_with_a_success() {
        let (now, mut backoff) = (Instant::now(), Backoff::default());
        assert!(!backoff.is_waiting(now));
        let mut delays = Vec::new();
        for _ in 0..12 {
            backoff.fail(now);
            delays.push(backoff.retry_at().expect("it has failed") - now);
        }
        assert_eq!(delays[..3], [100, 200, 400].map(Duration::from_millis));
        assert_eq!(delays.last(), Some(&DELAY_MAX));
        assert!(backoff.is_waiting(now + DELAY_MAX / 2) && !backoff.is_waiting(now + DELAY_MAX));
        backoff.reset();
        assert!(!backoff.is_waiting(now));
    }
}
