//! What looks have found, by the age of the delete.

use super::verdict::Verdict;
use serde::{Deserialize, Serialize};

/// The looks at one cluster at one age. Their sum is the number of samples that have reached the age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgeCounts {
    /// No value was there.
    pub absent: u64,
    /// A value was there that was stored after the commit.
    pub new: u64,
    /// A value was there that was stored before the commit.
    pub old: u64,
    /// A value was there that may be either.
    pub undecided: u64,
    /// There was no answer.
    pub failed: u64,
    /// Not asked: the time for it had passed, as the monitor was stopped or behind, or `--rate` was exceeded.
    pub late: u64,
}

impl AgeCounts {
    /// The names of all, as metrics and the summary show them.
    pub const NAMES: [&'static str; 6] = ["absent", "new", "old", "undecided", "failed", "late"];

    /// Counts a verdict.
    pub fn add(&mut self, verdict: Verdict) {
        let count = match verdict {
            Verdict::Absent => &mut self.absent,
            Verdict::New => &mut self.new,
            Verdict::Old => &mut self.old,
            Verdict::Undecided => &mut self.undecided,
            Verdict::Failed => &mut self.failed,
        };
        *count += 1;
    }

    /// The counts, in the order of [`AgeCounts::NAMES`].
    pub fn values(&self) -> [u64; 6] {
        [self.absent, self.new, self.old, self.undecided, self.failed, self.late]
    }

    /// Looks with an answer.
    pub fn answered(&self) -> u64 {
        self.absent + self.new + self.old + self.undecided
    }

    /// The part of the answered looks that found the old value: the curve of the paper's figure 11. `None` if there are
    /// none.
    pub fn old_share(&self) -> Option<f64> {
        (self.answered() > 0).then(|| self.old as f64 / self.answered() as f64)
    }

    /// The sum of two.
    pub fn plus(&self, other: &AgeCounts) -> AgeCounts {
        AgeCounts {
            absent: self.absent + other.absent,
            new: self.new + other.new,
            old: self.old + other.old,
            undecided: self.undecided + other.undecided,
            failed: self.failed + other.failed,
            late: self.late + other.late,
        }
    }
}

/// What was read and sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleCounts {
    /// Commits with keys that were read.
    pub commits: u64,
    /// Keys of these.
    pub deletes: u64,
    /// Of these, the ones that were chosen, and that clusters are asked about.
    pub sampled: u64,
    /// Chosen and given up: there were too many at a time, or the monitor's host was restarted.
    pub dropped: u64,
    /// Commits that demand a flush of a cluster or of pools, which is not watched.
    pub flushes: u64,
    /// How often the log no longer reached back to where the monitor had stopped.
    pub positions_lost: u64,
    /// Failures to read the log.
    pub source_failures: u64,
}
