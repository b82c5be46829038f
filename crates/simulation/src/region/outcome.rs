//! The outcome of a run.

use crate::checker::{Tally, Violation};
use lookaside_monitor::sampling::AgeCounts;
use std::collections::BTreeMap;

/// The outcome of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// The run's seed.
    pub seed: u64,
    /// The first violation; `None` if all guarantees held.
    pub violation: Option<Violation>,
    /// The reads and faults that were exercised.
    pub tally: Tally,
    /// What monitors have found; empty without monitors.
    pub deletes: DeleteCurve,
}

/// What monitors have found of deletes, by their age.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteCurve {
    /// The deletes that monitors have asked about, each counted once in each region.
    pub samples: u64,
    /// The looks at each age in seconds. Each cluster is asked about each sample by its routers and server by server.
    pub by_age_s: BTreeMap<u32, AgeCounts>,
}

impl DeleteCurve {
    /// Adds what others have found.
    pub fn add(&mut self, other: &DeleteCurve) {
        self.samples += other.samples;
        for (age_s, found) in &other.by_age_s {
            let sum = self.by_age_s.entry(*age_s).or_default();
            *sum = sum.plus(found);
        }
    }
}
