//! Keeps repeated events from filling the log.
//!
//! | type | for |
//! |---|---|
//! | [`LogThrottle`] | events that clients or failures can repeat at will: a limited number of lines in each window of time |
//! | [`OnChange`] | conditions that last: a line when they begin and a line when they end |

use std::ops::Add;
use std::time::Duration;

/// Allows a number of log lines in each window of time, and counts the ones in between.
///
/// `T` is the clock that the caller reads: an `Instant` of std or tokio, or a [`Duration`] since any fixed moment.
///
/// ```
/// # use lookaside_telemetry::LogThrottle;
/// # use std::time::Duration;
/// let mut throttle = LogThrottle::new(1, Duration::from_secs(60));
/// # let now = Duration::from_secs(1_700_000_000);
/// if let Some(suppressed) = throttle.allow(now) {
///     println!("login refused; {suppressed} others before it were not logged");
/// }
/// # assert_eq!(throttle.allow(now), None);
/// ```
#[derive(Clone, Debug)]
pub struct LogThrottle<T> {
    lines_max: u32,
    window: Duration,
    /// When the window of the last line began; `None` before the first line.
    began: Option<T>,
    lines: u32,
    suppressed: u64,
}

impl<T: Copy + PartialOrd + Add<Duration, Output = T>> LogThrottle<T> {
    /// Allows `lines_max` lines, at least 1, in each `window`. A window begins with a line.
    pub const fn new(lines_max: u32, window: Duration) -> LogThrottle<T> {
        assert!(lines_max > 0, "a throttle lets some lines through");
        LogThrottle { lines_max, window, began: None, lines: 0, suppressed: 0 }
    }

    /// Counts an event. `Some` if it may be logged, with the number of events since the last line that were not;
    /// `None` if it may not.
    pub fn allow(&mut self, now: T) -> Option<u64> {
        if self.began.is_none_or(|began| began + self.window <= now) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines >= self.lines_max {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }

    /// The moment from which the next line is allowed; `None` if it is allowed at any time.
    pub fn next_at(&self) -> Option<T> {
        self.began.filter(|_| self.lines >= self.lines_max).map(|began| began + self.window)
    }
}

/// The last value of a condition; tells whether a new one differs, so that each change is logged once.
///
/// ```
/// # use lookaside_telemetry::OnChange;
/// # let is_reachable = false;
/// let mut is_failing = OnChange::new(false);
/// if is_failing.update(!is_reachable) {
///     println!("{}", if is_reachable { "reachable again" } else { "unreachable" });
/// }
/// # assert!(!is_failing.update(true));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnChange<T>(T);

impl<T: PartialEq> OnChange<T> {
    /// Begins with `value`, which counts as logged.
    pub const fn new(value: T) -> OnChange<T> {
        OnChange(value)
    }

    /// Stores `value`; true if it differs from the last one.
    pub fn update(&mut self, value: T) -> bool {
        let is_changed = self.0 != value;
        self.0 = value;
        is_changed
    }

    /// The last value.
    pub fn value(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn lines_beyond_the_limit_are_counted() {
        let mut throttle = LogThrottle::new(5, WINDOW);
        let mut allow = |after_ms: u64| throttle.allow(Duration::from_millis(1_700_000_000_000 + after_ms));
        let first: Vec<Option<u64>> = (0..20).map(&mut allow).collect();
        assert_eq!(first.iter().flatten().count(), 5);
        assert_eq!(allow(9_999), None);
        assert_eq!((allow(10_000), allow(10_000)), (Some(16), Some(0)));
    }

    #[test]
    fn next_line_is_allowed_when_the_window_has_passed() {
        let mut throttle = LogThrottle::new(1, WINDOW);
        let start = std::time::Instant::now();
        assert_eq!(throttle.next_at(), None);
        assert_eq!(throttle.allow(start), Some(0));
        assert_eq!(throttle.next_at(), Some(start + WINDOW));
        assert_eq!(throttle.allow(start + WINDOW / 2), None);
        assert_eq!(throttle.allow(start + WINDOW), Some(1));
        assert_eq!(throttle.next_at(), Some(start + WINDOW * 2));
    }

    #[test]
    fn clock_that_goes_back_opens_no_window() {
        let mut throttle = LogThrottle::new(1, WINDOW);
        assert_eq!(throttle.allow(WINDOW * 3), Some(0));
        assert_eq!(throttle.allow(WINDOW), None);
    }

    #[test]
    fn only_changes_are_reported() {
        let mut is_failing = OnChange::new(false);
        let changes = [false, true, true, false, false].map(|value| is_failing.update(value));
        assert_eq!(changes, [false, true, false, true, false]);
        assert!(!is_failing.value());
    }
}
