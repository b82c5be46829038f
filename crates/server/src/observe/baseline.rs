//! The counters at the last `stats reset`.

use crate::observe::counters::CounterSnapshot;
use lookaside_store::Statistics;

/// Numbers that `stats` shows as increases since the last reset.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    pub(crate) counters: CounterSnapshot,
    pub(crate) store: Statistics,
    pub(crate) connections_total: u64,
    pub(crate) connections_rejected: u64,
}
