//! Counters of remote markers.

use lookaside_sync::{SharedCounter, counters};

counters! {
    pub(super) struct MarkerCounters(SharedCounter);

    /// Events at a [`crate::RegionalClient`] and its clones since it was made.
    pub struct MarkerStatistics;

    /// Keys of writes whose marker was set.
    marked,
    /// Keys of writes whose marker could not be set.
    not_marked,
    /// Missed keys whose markers were looked for.
    searches,
    /// Missed keys that were read from the master, since they had a marker.
    found,
    /// Missed keys for which the pool did not say whether they have a marker.
    unknown,
}
