//! Where a key goes: a tree of routes, from the configuration down to destinations. No sockets, no clock of its own.
//!
//! Requests travel through the tree in batches, so that the keys of one multiget, or all that a client pipelined,
//! cost each route handle once: a handle splits the batch among its children and puts the replies back in order.
//!
//! ```text
//!   configuration/   mcrouter's language -> a description -> the tree
//!   region/          the root: which cluster's tree, by routing prefix
//!   cluster/         one file a route: each opens with what it does to which verb
//!   split.rs         a batch among children, at the same time, and back in order
//!   hash.rs  key.rs  meta.rs  verb.rs     what routes choose by
//!   health.rs        when a destination is taken out and let back in
//! ```
//!
//! Absent on purpose: how a destination is reached. `client` implements [`Destination`] over sockets, tests by
//! recording fakes, `simulation` by a network of its own.
#![forbid(unsafe_code)]

mod cluster;
mod configuration;
mod hash;
mod health;
mod key;
mod meta;
mod region;
mod route;
mod split;
mod verb;

pub use cluster::{
    all_sync_route::AllSyncRoute,
    destination_route::DestinationRoute,
    error_route::ErrorRoute,
    failover_errors::{FailoverError, FailoverErrorSet, FailoverErrors},
    failover_route::FailoverRoute,
    failover_with_exptime_route::{FAILOVER_EXPTIME_S, FailoverWithExptimeRoute},
    hash_route::HashRoute,
    modify_exptime_route::{ExptimeAction, ModifyExptimeRoute},
    null_route::NullRoute,
    operation_selector_route::OperationSelectorRoute,
    pool_route::PoolRoute,
    prefix_selector_route::PrefixSelectorRoute,
};
pub use configuration::{
    Configuration, ConfigurationError, ConfigurationWarning, Defaults, DestinationSettings, Destinations, Handle, Pool,
};
pub use hash::{HashFunction, KeyHash, SERVERS_MAX};
pub use health::{Health, HealthChange, HealthSettings};
pub use region::{
    root_route::{NoDefaultTree, RootRoute},
    routing_prefix::{RoutingPrefix, RoutingPrefixError},
};
pub use route::{Address, Batch, BoxFuture, Context, Destination, Failure, Outcome, Outcomes, Route};
pub use verb::{Kind, Verb};
