//! Routes inside one cluster: from a tree's top down to its servers.

pub(crate) mod all_sync_route;
pub(crate) mod destination_route;
pub(crate) mod error_route;
pub(crate) mod failover_errors;
pub(crate) mod failover_route;
pub(crate) mod failover_with_exptime_route;
pub(crate) mod hash_route;
pub(crate) mod modify_exptime_route;
pub(crate) mod no_route;
pub(crate) mod null_route;
pub(crate) mod operation_selector_route;
pub(crate) mod pool_route;
pub(crate) mod prefix_selector_route;
