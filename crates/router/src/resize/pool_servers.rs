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
    /// Of several uses of the pool, the last value in the order of [`FlushNew`].
    pub(crate) flush_new: FlushNew,
}

/// Whether a server that joins a pool is flushed: `"flush_new_servers"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlushNew {
    /// It is trusted: it is another cluster's, or a router.
    #[default]
    Never,
    /// If the pool, or the server, is one of this cluster. The servers of a pool under a new name may be another
    /// cluster's: they must be empty.
    OfKnownPools,
    Always,
}

impl ConfigServers {
    pub(crate) fn of(config: &RouterConfig) -> ConfigServers {
        let mut pools: BTreeMap<String, PoolServers> = BTreeMap::new();
        let mut warm_up = Duration::ZERO;
        for pool in config.pool_uses() {
            let flush_new = match pool.flush_new_servers {
                // Its servers are routers.
                _ if pool.keep_routing_prefix => FlushNew::Never,
                Some(false) => FlushNew::Never,
                None => FlushNew::OfKnownPools,
                Some(true) => FlushNew::Always,
            };
            warm_up = warm_up.max(Duration::from_secs(pool.resize_warm_up_s));
            let of_pool = pools.entry(pool.name).or_default();
            of_pool.servers.extend(pool.servers);
            of_pool.flush_new = of_pool.flush_new.max(flush_new);
        }
        ConfigServers { pools, all: config.servers(), warm_up }
    }
}
