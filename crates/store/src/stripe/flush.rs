//! Flushes that are scheduled (`flush_all`). Each stripe has its own schedule and checks it before every verb, so that
//! no item stored before a flush is shown after it.

use crate::Now;
use crate::snapshot_codec::{SnapshotReader, SnapshotWriter};

const FLUSHES_MAX: usize = 8;

/// The scheduled flushes of one stripe.
#[derive(Default)]
pub(crate) struct FlushSchedule {
    /// Unix milliseconds, earliest first.
    at_ms: Vec<u64>,
}

impl FlushSchedule {
    /// Schedules a flush; `false` if there are too many. One at the same time as another is not counted again.
    pub fn add(&mut self, at: Now) -> bool {
        if self.at_ms.contains(&at.unix_ms) {
            return true;
        }
        if self.at_ms.len() == FLUSHES_MAX {
            return false;
        }
        let place = self.at_ms.partition_point(|&at_ms| at_ms <= at.unix_ms);
        self.at_ms.insert(place, at.unix_ms);
        true
    }

    pub fn save(&self, snapshot: &mut SnapshotWriter) {
        snapshot.put_count(self.at_ms.len());
        self.at_ms.iter().for_each(|&at_ms| snapshot.put_u64(at_ms));
    }

    /// Restores what [`FlushSchedule::save`] saved. A flush whose time has come meanwhile is due at once.
    pub fn restore(&mut self, snapshot: &mut SnapshotReader<'_>) -> Option<()> {
        self.at_ms = (0..snapshot.get_count(FLUSHES_MAX)?).map(|_| snapshot.get_u64()).collect::<Option<Vec<_>>>()?;
        self.at_ms.is_sorted().then_some(())
    }

    /// The time of the next flush, in Unix milliseconds.
    pub fn next_ms(&self) -> u64 {
        self.at_ms.first().copied().unwrap_or(u64::MAX)
    }

    /// Whether a flush is due. Removes those that are.
    pub fn remove_due(&mut self, now: Now) -> bool {
        let due = self.at_ms.partition_point(|&at_ms| at_ms <= now.unix_ms);
        self.at_ms.drain(..due);
        due > 0
    }
}
