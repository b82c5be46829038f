//! Routes inside one cluster, from a tree's top down to its servers, and the registry of their types.
//!
//! **To add a route handle**: write `cluster/my_route.rs`, and add its `mod` and its `TYPE` in [`REGISTRY`] here, in
//! alphabetical order. The file has everything that is specific to the route:
//!
//! * its head, with a table of its effect on each verb;
//! * the route, which implements [`Route`](crate::Route);
//! * `TYPE`, a [`RouteType`](crate::configuration::RouteType): the name, and the parsers of the object and the short
//!   form;
//! * the arguments, a struct that implements [`RouteConfig`](crate::RouteConfig): its name, and how the route is built.
//!
//! Add a row to `tests/every_verb.rs`, and if users of the crate construct the route themselves, a `pub use` in
//! `lib.rs`. `dev_null_route.rs` is the shortest example, `migrate_route.rs` one with children and numbers. Code that
//! several routes share is in `support/`.

pub(crate) mod all_async_route;
pub(crate) mod all_fastest_route;
pub(crate) mod all_initial_route;
pub(crate) mod all_majority_route;
pub(crate) mod all_sync_route;
pub(crate) mod big_value_route;
pub(crate) mod destination_route;
pub(crate) mod dev_null_route;
pub(crate) mod error_route;
pub(crate) mod failover_route;
pub(crate) mod failover_with_exptime_route;
pub(crate) mod former_owner_route;
pub(crate) mod hash_route;
pub(crate) mod host_id_route;
pub(crate) mod key_split_route;
pub(crate) mod l1_l2_cache_route;
pub(crate) mod l1_l2_size_split_route;
pub(crate) mod latency_injection_route;
pub(crate) mod latest_route;
pub(crate) mod lease_route;
pub(crate) mod load_balancer_route;
pub(crate) mod logging_route;
pub(crate) mod migrate_route;
pub(crate) mod miss_failover_route;
pub(crate) mod modify_exptime_route;
pub(crate) mod modify_key_route;
pub(crate) mod no_route;
pub(crate) mod null_route;
pub(crate) mod only_gets_route;
pub(crate) mod operation_selector_route;
pub(crate) mod original_client_hash_route;
pub(crate) mod outstanding_limit_route;
pub(crate) mod pool_route;
pub(crate) mod prefix_selector_route;
pub(crate) mod random_route;
pub(crate) mod rate_limit_route;
pub(crate) mod routing_group_route;
pub(crate) mod salted_failover_route;
pub(crate) mod shadow_route;
pub(crate) mod shard_split_route;
pub(crate) mod slow_warm_up_route;
pub(crate) mod spare_route;
pub(crate) mod staging_route;
pub(crate) mod support;
pub(crate) mod warm_up_route;

use crate::configuration::Registry;

/// The types of routes that a configuration can use.
pub(crate) static REGISTRY: Registry = Registry {
    types: &[
        all_async_route::TYPE,
        all_fastest_route::TYPE,
        all_initial_route::TYPE,
        all_majority_route::TYPE,
        all_sync_route::TYPE,
        big_value_route::TYPE,
        dev_null_route::TYPE,
        error_route::TYPE,
        failover_route::TYPE,
        failover_with_exptime_route::TYPE,
        hash_route::TYPE,
        host_id_route::TYPE,
        key_split_route::TYPE,
        l1_l2_cache_route::TYPE,
        l1_l2_size_split_route::TYPE,
        latency_injection_route::TYPE,
        latest_route::TYPE,
        lease_route::TYPE,
        load_balancer_route::TYPE,
        logging_route::TYPE,
        migrate_route::TYPE,
        miss_failover_route::TYPE,
        modify_exptime_route::TYPE,
        modify_key_route::TYPE,
        null_route::TYPE,
        operation_selector_route::TYPE,
        original_client_hash_route::TYPE,
        outstanding_limit_route::TYPE,
        pool_route::TYPE,
        prefix_selector_route::TYPE,
        random_route::TYPE,
        rate_limit_route::TYPE,
        routing_group_route::TYPE,
        salted_failover_route::TYPE,
        shadow_route::TYPE,
        shard_split_route::TYPE,
        staging_route::TYPE,
        warm_up_route::TYPE,
    ],
    unsupported: &["BlackholeRoute", "HashStopAllowListRoute"],
    no_children: error_route::no_children,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_lists_each_type_once_in_alphabetical_order() {
        let names: Vec<&str> = REGISTRY.types.iter().map(|route| route.name()).collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        assert!(REGISTRY.unsupported.iter().all(|name| !names.contains(name)), "{names:?}");
    }
}
