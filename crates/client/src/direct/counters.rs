//! The counters of a direct client.

use lookaside_sync::{SharedCounter, counters};

counters! {
    /// The counters of one direct client.
    pub(super) struct DirectCounters(SharedCounter);

    /// A snapshot of the counters of a [`crate::DirectRoute`].
    pub struct DirectStatistics;

    /// Reads that were sent to servers directly.
    direct_reads,
    /// Other batches that were sent to servers directly, by their requests.
    direct_updates,
    /// Requests that were sent through a router, reads without a permit among them.
    router_requests,
    /// Reads that were sent through a router because there was no valid permit.
    unpermitted_reads,
    /// Reads that a router answered from within the tree, because it stores what it finds elsewhere: those below a
    /// `WarmUpRoute` or a `StagingRoute`, and those that the first cache of a `L1L2CacheRoute` did not answer. They are
    /// among `direct_reads` and `router_requests`, too.
    reads_filled_by_routers,
    /// Plain gets that were sent as `lease-get`: the client takes leases itself, as its routers do for plain clients.
    /// They are among `direct_reads` or `router_requests`, too.
    leased_reads,
    /// Plain sets that were stored under the token of their miss.
    lease_sets_stored,
    /// Plain sets that were refused because a delete or another set came after their miss, or it had no token.
    lease_sets_refused,
    /// Plain sets without a miss, which were sent to a router.
    lease_sets_without_miss,
    /// Keys whose misses were forgotten because not all of them had a set.
    lease_misses_expired,
    /// Misses that there was no space for: plain sets of other keys are refused for a while.
    lease_misses_dropped,
    /// Permits received that the client could use.
    permits,
    /// Permits received for a configuration that the client does not have.
    permits_of_other_configurations,
    /// Permits received of routers with other options than the client's.
    permits_of_other_options,
    /// Permits received for a configuration all of whose reads go through routers: a route that stores elsewhere what
    /// it reads (`WarmUpRoute`, `StagingRoute`, `L1L2CacheRoute`) is below one that does more with reads than to pass
    /// them on.
    permits_of_filling_routes,
    /// Requests for a permit that a router refused.
    permits_refused,
    /// Requests for a permit that no router answered in time.
    permits_unanswered,
    /// Configurations that were read and are valid, without one that the route was built with.
    configurations,
    /// Configurations that could not be read or are not valid.
    configurations_refused,
}
