//! The one place that reads a clock. A worker reads it once per round and hands the moment on.
//!
//! The wall clock is read once, at the start; from then on a monotonic clock is added, so that time never goes back and
//! all threads agree. If the wall clock is set later, exptimes given as Unix times are off by that much until a restart.

use lookaside_store::Now;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Reads the time. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Now,
    monotonic_at_start_ms: u64,
}

impl Clock {
    /// A clock that starts from the wall clock's present time.
    pub fn start() -> Clock {
        let started = Now { unix_ms: milliseconds(clock_gettime(ClockId::Realtime)) };
        Clock { started, monotonic_at_start_ms: monotonic_ms() }
    }

    /// The present moment; up to 4 ms old, for it comes from the kernel's coarse clock, which costs next to nothing.
    pub fn now(&self) -> Now {
        let elapsed_ms = monotonic_ms().saturating_sub(self.monotonic_at_start_ms);
        Now { unix_ms: self.started.unix_ms + elapsed_ms }
    }

    /// When the clock was started.
    pub fn started(&self) -> Now {
        self.started
    }
}

fn monotonic_ms() -> u64 {
    milliseconds(clock_gettime(ClockId::MonotonicCoarse))
}

fn milliseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

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
