//! The servers of a configuration, as far as a change of it needs them. No request passes here.

use crate::config::router_config::RouterConfig;
use lookaside_routing::{Address, Batch, BoxFuture, Destination, DestinationSettings, Destinations, Outcomes, Pool};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The servers of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigServers {
    /// By the pool's name. Pools without a name count as one.
    pub(crate) pools: BTreeMap<String, PoolServers>,
    /// All of them, spares included.
    pub(crate) all: BTreeSet<Address>,
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
        let mut collector = Collector::default();
        drop(config.configuration().build(&mut collector));
        collector.0
    }
}

#[derive(Default)]
struct Collector(ConfigServers);

impl Destinations for Collector {
    fn destination(&mut self, address: &Address, _: &DestinationSettings) -> Arc<dyn Destination> {
        self.0.all.insert(address.clone());
        Arc::new(NoDestination(address.clone()))
    }

    fn use_pool(&mut self, pool: &Pool) {
        let of_pool = self.0.pools.entry(pool.name.clone()).or_default();
        of_pool.servers.extend(pool.servers.iter().cloned());
        of_pool.flush_new |= pool.flush_new_servers && !pool.keep_routing_prefix;
    }
}

/// A destination that receives no requests.
struct NoDestination(Address);

impl Destination for NoDestination {
    fn send(&self, _: Batch) -> BoxFuture<'_, Outcomes> {
        unreachable!("the tree is dropped after it was built")
    }

    fn address(&self) -> &Address {
        &self.0
    }
}
