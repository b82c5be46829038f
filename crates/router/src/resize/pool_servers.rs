//! The servers of a configuration, as far as a change of it needs them. No request passes here.

use crate::config::router_config::RouterConfig;
use lookaside_routing::Address;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The servers of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigServers {
    /// By the pool's name. Pools without a name count as one.
    pub(crate) pools: BTreeMap<String, PoolServers>,
    /// All of them, spares included.
    pub(crate) all: BTreeSet<Address>,
    /// How long former owners of keys are read after a change to this configuration: the longest of its pools.
    pub(crate) warm_up: Duration,
}

/// The servers of a pool. Its spares are not among them: they are flushed before they serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolServers {
    pub(crate) servers: BTreeSet<Address>,
    /// Whether a server that joins the pool is flushed.
    pub(crate) flush_new: bool,
}

impl ConfigServers {
    pub(crate) fn of(config: &RouterConfig) -> ConfigServers {
        let mut pools: BTreeMap<String, PoolServers> = BTreeMap::new();
        let mut warm_up = Duration::ZERO;
        for pool in config.pool_uses() {
            // The servers of a pool that keeps routing prefixes are routers.
            let flush_new = pool.flush_new_servers && !pool.keep_routing_prefix;
            warm_up = warm_up.max(Duration::from_secs(pool.resize_warm_up_s));
            let of_pool = pools.entry(pool.name).or_default();
            of_pool.servers.extend(pool.servers);
            of_pool.flush_new |= flush_new;
        }
        ConfigServers { pools, all: config.servers(), warm_up }
    }
}
