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
    /// Keys whose markers were looked for: missed ones, and those that are read past the cache.
    searches,
    /// Of these, the keys that had a marker, and are read from the master.
    found,
    /// Of these, the keys for which the pool did not say whether they have a marker.
    unknown,
    /// Keys that the application has demanded from the master ([`crate::RegionalClient::read_master`]).
    demanded,
}
