//! Where a key goes: a tree of routes, from the configuration down to destinations. No sockets and no clock of its own.
//!
//! Requests travel in batches, so that the keys of one multiget, or all pipelined requests of a client, cost each route
//! handle once: it splits the batch among its children and restores the order of the replies (`split.rs`).
//!
//! Begin with `route.rs`, which has the vocabulary. The head of each file in `cluster/` shows a route's effect on each
//! verb. `tree/` turns a configuration into a tree.
//!
//! Absent on purpose: how a destination is reached. `client` implements [`Destination`] over sockets, tests by
//! recording fakes, `simulation` by a network of its own.
#![forbid(unsafe_code)]

mod client_misses;
mod cluster;
mod configuration;
mod environment;
mod hash;
mod health;
mod key;
mod key_fraction;
mod meta;
mod outcome;
mod region;
mod route;
mod runtime_variables;
mod slot;
mod split;
mod statistics;
mod tree;
mod verb;

pub use client_misses::{
    ADDRESS_MISSES_MAX, ClientMisses, LeaseClients, LeaseCounters, LeaseScope, Leasing, MISSES_MAX, TOTAL_MISSES_MAX,
};
pub use cluster::{
    all_async_route::AllAsyncRoute,
    all_fastest_route::AllFastestRoute,
    all_initial_route::AllInitialRoute,
    all_majority_route::AllMajorityRoute,
    all_sync_route::{AllSyncRoute, AllSyncRouteConfig},
    big_value_route::{BIG_VALUE_FLAG, BigValueRoute, CHUNKS_MAX},
    destination_route::DestinationRoute,
    dev_null_route::DevNullRoute,
    error_route::{ErrorRoute, ErrorRouteConfig},
    failover_route::FailoverRoute,
    failover_with_exptime_route::{FAILOVER_EXPTIME_S, FailoverWithExptimeRoute},
    former_owner_route::{
        FORMER_OWNER_RETRY, FORMER_OWNER_TIMEOUT, FormerOwnerCounters, FormerOwnerRoute, IsOwned, Owners,
    },
    hash_route::HashRoute,
    host_id_route::HostIdRoute,
    key_split_route::{KEY_COPIES_MAX, KeySplitRoute},
    l1_l2_cache_route::{L1L2CacheRoute, L1L2Settings, NEGATIVE_FLAG, NEGATIVE_VALUE},
    l1_l2_size_split_route::{L1L2SizeSplitRoute, SENTINEL_FLAG, SizeSplitSettings},
    latency_injection_route::{Latency, LatencyInjectionRoute},
    latest_route::{LATEST_FAILOVER_COUNT, LatestRoute},
    lease_route::LeaseRoute,
    logging_route::LoggingRoute,
    migrate_route::{MIGRATE_INTERVAL_S, MigrateRoute},
    miss_failover_route::MissFailoverRoute,
    modify_exptime_route::{ExptimeAction, ModifyExptimeRoute},
    modify_key_route::{KeyChange, ModifyKeyRoute},
    null_route::NullRoute,
    operation_selector_route::OperationSelectorRoute,
    original_client_hash_route::OriginalClientHashRoute,
    outstanding_limit_route::{OUTSTANDING_WAITING_MAX, OutstandingLimitRoute},
    pool_route::{PoolRoute, PoolRouteConfig},
    prefix_selector_route::PrefixSelectorRoute,
    random_route::RandomRoute,
    rate_limit_route::{RateLimitRoute, Rates},
    shadow_route::{Copies, ShadowRoute, ShadowedKeys},
    shard_split_route::{FAN_OUT_REQUESTS_MAX, ShardSplitRoute},
    slow_warm_up_route::{SlowWarmUp, SlowWarmUpRoute},
    spare_route::SpareRoute,
    staging_route::StagingRoute,
    support::failover_errors::{FailoverErrorSet, FailoverErrors},
    support::failover_limit::FailoverLimit,
    support::failover_policy::{CANDIDATES_DEFAULT, FailoverPolicy, FirstChoice},
    support::lease_pairing::{LeasePairs, PAIR_TTL_S, PAIRS_MAX},
    support::shard_splits::{SHARD_SPLITS_MAX, ShardSplit, ShardSplits},
    support::token_bucket::Rate,
    support::warm_up_progress::{WarmUpEnd, WarmUpProgress},
    warm_up_route::{CopyExptime, WARM_UP_HOLD_OFF_MS, WarmUpRoute},
};
pub use configuration::{
    BigValueSettings, ConfigurationError, ConfigurationErrors, ConfigurationWarning, Defaults, DestinationSettings,
    DynEq, Handle, HotMisses, LeaseSettings, MacroConstant, MacroInputs, PlaceTimeouts, Pool, PoolEntries, Protocol,
    RouteConfig, Security, TkoLimit, TlsPolicy, Transport, TreeBuilder, UnleasedSet, nearest_name,
    parse_runtime_variables,
};
pub use environment::{
    BACKGROUND_TASKS_MAX, Background, BackgroundStatistics, Clock, Environment, Log, SHADOW_OUTSTANDING_MAX,
    SHADOW_TOKENS_MAX, ShadowSettings, Spawner,
};
pub(crate) use hash::NamesNeeded;
pub use hash::{
    Digest, HashFunction, KeyHash, KeyHashError, Picker, RING_SERVERS_MAX, SERVERS_MAX, WEIGHT_MAX, fnv1a_64,
};
pub use health::{Health, HealthChange, HealthSettings};
pub use key::stored_key;
pub use key_fraction::KeyFraction;
pub use outcome::{as_delete, is_busy, is_failed_delete, merge_deletes};
pub use region::{
    root_route::{NoDefaultTree, RootRoute},
    routing_prefix::{RoutingPrefix, RoutingPrefixError},
};
pub use route::{
    Address, Batch, BoxFuture, Context, DatagramLoss, Destination, FailoverError, Failure, NO_POLICY, NO_ROUTE,
    NO_TREE, Outcome, Outcomes, Route, TkoReason, UNKNOWN_COMMAND, is_no_route,
};
pub use runtime_variables::RuntimeVariables;
pub use slot::{Serving, Slot, choose_spare};
pub use statistics::{ErrorKind, RouteCounters, RouteCounts, RouteStatistics};
pub use tree::{Configuration, Destinations, LeasedKeys};
pub use verb::{Verb, VerbKind};
