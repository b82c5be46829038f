//! When a warm-up is over (§4.3 of the paper: when the cold cluster's hit rate stabilizes).
//!
//! What the warm cluster brings is the difference between the hit rates with and without it: a value that the cold
//! cluster refused, as it was deleted a moment ago, is not brought. Once it brings next to nothing, the hit rate has
//! settled, and asking it for every miss is work for nothing.
//!
//! ```text
//!   window    60 s and 1,000 reads, whichever takes longer
//!   calm      the warm cluster brought at most the part `share` of the reads, and answered nine tenths of what it was asked
//!   over      when all windows of `after_s` seconds were calm
//! ```
//!
//! A warm cluster that does not answer brings nothing either: such a window is not calm. What is over stays over until
//! the next configuration: a cluster that was emptied anew is warmed up by loading one.
//!
//! All trees of one configuration share one progress, so that the threads of a router end together.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The shortest window, in seconds.
const WINDOW_S: u64 = 60;

/// The fewest reads that a window says something about.
const WINDOW_READS: u64 = 1_000;

/// When a warm-up ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUpEnd {
    /// The part of all reads that the warm cluster may still bring; 0 to 1.
    pub share: f64,
    /// For so many seconds.
    pub after_s: u64,
}

impl Default for WarmUpEnd {
    /// A hundredth, for five minutes.
    fn default() -> Self {
        WarmUpEnd { share: 0.01, after_s: 300 }
    }
}

/// How far a warm-up is.
#[derive(Debug, Default)]
pub struct WarmUpProgress {
    is_over: AtomicBool,
    window: Mutex<Window>,
}

/// What one batch came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reads {
    /// Reads that the cold cluster answered.
    pub(crate) answered: u64,
    /// Of these, those that the warm cluster was asked for,
    pub(crate) asked: u64,
    /// that it did not answer,
    pub(crate) failed: u64,
    /// and that it had, and cold took.
    pub(crate) filled: u64,
}

#[derive(Debug, Default)]
struct Window {
    since_s: Option<u64>,
    reads: Reads,
    converged_since_s: Option<u64>,
}

impl WarmUpProgress {
    /// Whether the warm cluster is asked no more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Counts a batch; whether the warm-up has ended by it.
    pub(crate) fn record(&self, reads: Reads, end: WarmUpEnd, now_s: u64) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let since_s = *window.since_s.get_or_insert(now_s);
        window.reads = window.reads.add(reads);
        if now_s < since_s + WINDOW_S || window.reads.answered < WINDOW_READS {
            return false;
        }
        let is_converged = window.reads.is_converged(end.share);
        let converged_since_s = window.converged_since_s.filter(|_| is_converged).or(is_converged.then_some(since_s));
        *window = Window { since_s: Some(now_s), reads: Reads::default(), converged_since_s };
        let is_over = converged_since_s.is_some_and(|converged_since_s| now_s >= converged_since_s + end.after_s);
        is_over && !self.is_over.swap(true, Relaxed)
    }
}

impl Reads {
    fn add(self, other: Reads) -> Reads {
        Reads {
            answered: self.answered + other.answered,
            asked: self.asked + other.asked,
            failed: self.failed + other.failed,
            filled: self.filled + other.filled,
        }
    }

    fn is_converged(self, share: f64) -> bool {
        self.filled as f64 <= share * self.answered as f64 && self.failed * 10 <= self.asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: WarmUpEnd = WarmUpEnd { share: 0.01, after_s: 300 };

    /// Notes one window a minute; in which minute the warm-up ended.
    fn ends_in_minute(minutes: &[Reads]) -> Option<usize> {
        let progress = WarmUpProgress::default();
        progress.record(Reads::default(), END, 1_000);
        let ended = minutes.iter().zip(1..).find(|(reads, minute)| progress.record(**reads, END, 1_000 + 60 * minute));
        assert_eq!(progress.is_over(), ended.is_some());
        ended.map(|(_, minute)| minute as usize)
    }

    const CONVERGED: Reads = Reads { answered: 2_000, asked: 100, failed: 0, filled: 20 };
    const FILLING: Reads = Reads { filled: 21, ..CONVERGED };
    const UNREACHABLE: Reads = Reads { failed: 11, filled: 0, ..CONVERGED };

    #[test]
    fn it_ends_after_five_calm_minutes_in_a_row() {
        assert_eq!(ends_in_minute(&[CONVERGED; 9]), Some(5));
        assert_eq!(
            ends_in_minute(&[
                FILLING, CONVERGED, CONVERGED, CONVERGED, CONVERGED, FILLING, CONVERGED, CONVERGED, CONVERGED,
                CONVERGED
            ]),
            None
        );
        assert_eq!(ends_in_minute(&[FILLING, CONVERGED, CONVERGED, CONVERGED, CONVERGED, CONVERGED]), Some(6));
    }

    #[test]
    fn it_does_not_end_because_nobody_asks_or_nobody_answers() {
        assert_eq!(ends_in_minute(&[UNREACHABLE; 20]), None);
        assert_eq!(ends_in_minute(&[Reads { answered: 10, ..Reads::default() }; 20]), None);
    }
}
