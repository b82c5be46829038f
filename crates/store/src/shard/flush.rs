//! When all is to be forgotten (`flush_all`). Each stripe keeps its own schedule and looks at it before every verb, so
//! that what was stored before the moment is gone from that moment on, whoever asks first.

use crate::Now;
use crate::warm_restart::snapshot::{StateReader, StateWriter};

/// At most this many flushes can lie ahead; one more is refused.
const FLUSHES_MAX: usize = 8;

/// The flushes that lie ahead of one stripe.
#[derive(Default)]
pub(crate) struct FlushSchedule {
    /// Unix milliseconds, earliest first.
    at_ms: Vec<u64>,
}

impl FlushSchedule {
    /// Adds a flush; false when there are too many already. One that lies ahead already is not another.
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

    /// Writes down what lies ahead.
    pub fn save(&self, state: &mut StateWriter) {
        state.count(self.at_ms.len());
        self.at_ms.iter().for_each(|&at_ms| state.long(at_ms));
    }

    /// Takes up what was written down. What has become due meanwhile is due at once.
    pub fn restore(&mut self, state: &mut StateReader<'_>) -> Option<()> {
        self.at_ms = (0..state.count(FLUSHES_MAX)?).map(|_| state.long()).collect::<Option<Vec<_>>>()?;
        self.at_ms.is_sorted().then_some(())
    }

    /// When the next flush is due.
    pub fn next_ms(&self) -> u64 {
        self.at_ms.first().copied().unwrap_or(u64::MAX)
    }

    /// Whether a flush is due; those that are, are taken off.
    pub fn take_due(&mut self, now: Now) -> bool {
        let due = self.at_ms.partition_point(|&at_ms| at_ms <= now.unix_ms);
        self.at_ms.drain(..due);
        due > 0
    }
}
