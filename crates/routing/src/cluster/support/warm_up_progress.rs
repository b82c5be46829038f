//! The end of a warm-up (§4.3 of the paper: when the cold cluster's hit rate stabilizes).
//!
//! The benefit of the warm cluster is the difference between the hit rates with and without it; a value that the cold
//! cluster refused, because of a recent delete, is no benefit. Once the benefit is close to zero, asking the warm
//! cluster is wasted work.
//!
//! ```text
//!   window       60 s and 1,000 reads, whichever takes longer
//!   converged    the warm cluster filled at most `share` of the reads, and answered nine tenths of its requests
//!   over         when all windows of `after_s` seconds were converged
//! ```
//!
//! A window in which the warm cluster does not reply is not converged. The end is final until the next configuration:
//! load one to warm up a cluster that was flushed again. All threads of a router share the progress and end together.

use lookaside_sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The shortest window, in seconds.
const WINDOW_S: u64 = 60;

/// The minimum number of reads of a window.
const WINDOW_READS: u64 = 1_000;

/// When a warm-up ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUpEnd {
    /// The part of all reads that the warm cluster may still fill; 0 to 1.
    pub share: f64,
    /// How long the share must not be exceeded, in seconds.
    pub after_s: u64,
}

impl Default for WarmUpEnd {
    /// A hundredth, for five minutes.
    fn default() -> Self {
        WarmUpEnd { share: 0.01, after_s: 300 }
    }
}

/// The progress of a warm-up.
#[derive(Debug, Default)]
pub struct WarmUpProgress {
    is_over: AtomicBool,
    window: Mutex<Window>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reads {
    /// Reads that the cold cluster answered.
    pub(crate) answered: u64,
    /// Of these, reads that were sent to the warm cluster.
    pub(crate) asked: u64,
    /// Of `asked`, reads that failed.
    pub(crate) failed: u64,
    /// Of `asked`, values that were found and stored in the cold cluster.
    pub(crate) filled: u64,
}

#[derive(Debug, Default)]
struct Window {
    since_s: Option<u64>,
    reads: Reads,
    converged_since_s: Option<u64>,
}

impl WarmUpProgress {
    /// Whether the warm-up has ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Counts a batch. Returns whether this ended the warm-up.
    pub(crate) fn record(&self, reads: Reads, end: WarmUpEnd, now_s: u64) -> bool {
        let mut window = self.window.lock();
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

    /// Records one window per minute. Returns the minute in which the warm-up ended.
    fn minute_of_end(minutes: &[Reads]) -> Option<usize> {
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
    fn it_ends_after_five_converged_minutes_in_a_row() {
        assert_eq!(minute_of_end(&[CONVERGED; 9]), Some(5));
        assert_eq!(
            minute_of_end(&[
                FILLING, CONVERGED, CONVERGED, CONVERGED, CONVERGED, FILLING, CONVERGED, CONVERGED, CONVERGED,
                CONVERGED
            ]),
            None
        );
        assert_eq!(minute_of_end(&[FILLING, CONVERGED, CONVERGED, CONVERGED, CONVERGED, CONVERGED]), Some(6));
    }

    #[test]
    fn it_does_not_end_without_reads_or_without_replies() {
        assert_eq!(minute_of_end(&[UNREACHABLE; 20]), None);
        assert_eq!(minute_of_end(&[Reads { answered: 10, ..Reads::default() }; 20]), None);
    }
}
