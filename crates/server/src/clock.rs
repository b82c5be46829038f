//! The only place that reads a clock. A worker reads it once per round and passes the time on.
//!
//! The wall clock is read once, at the start. After that a monotonic clock is added to it, so that time never goes back
//! and all threads agree. If the wall clock is set later, exptimes given as Unix times are off by that much until a
//! restart.

use lookaside_store::Now;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads the time. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Now,
    started_at: Instant,
}

impl Clock {
    /// A clock that starts at the wall clock's time; at 1970 if that is earlier.
    pub fn start() -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Now { unix_ms: since_epoch.as_millis() as u64 }, started_at: Instant::now() }
    }

    /// The same clock, set forward so that it started no earlier than `earliest`.
    pub fn not_before(self, earliest: Now) -> Clock {
        Clock { started: self.started.max(earliest), ..self }
    }

    /// The current time.
    pub fn now(&self) -> Now {
        Now { unix_ms: self.started.unix_ms + self.started_at.elapsed().as_millis() as u64 }
    }

    /// How long it has been running, in microseconds.
    pub(crate) fn elapsed_us(&self) -> u64 {
        self.started_at.elapsed().as_micros() as u64
    }

    /// The number of seconds from the start to `now`.
    pub fn uptime_s(&self, now: Now) -> u32 {
        ((now.unix_ms - self.started.unix_ms) / 1000) as u32
    }

    /// When the clock was started.
    pub fn started(&self) -> Now {
        self.started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_never_behind_the_previous_process() {
        let clock = Clock::start();
        let ahead = Now { unix_ms: clock.now().unix_ms + 30_000 };
        assert!(clock.not_before(ahead).now() >= ahead);
        assert!(clock.not_before(Now { unix_ms: 7 }).now() < ahead);
    }

    #[test]
    fn never_goes_back() {
        let clock = Clock::start();
        let copy = clock;
        let mut last = clock.started();
        for _ in 0..1000 {
            let now = copy.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last.unix_ms > 1_600_000_000_000, "Unix time in milliseconds, got {last:?}");
    }
}
