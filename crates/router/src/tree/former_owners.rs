//! The former owners of keys in a tree ([ADR 012](../../../../docs/adr/012-resize.md)): after a change of a pool's
//! servers, for `resize_warm_up_s` of the pool. Each use of such a pool by a `PoolRoute` becomes a
//! [`FormerOwnerRoute`].
//!
//! The pool of the former configuration is that of the same name, if all its uses there have one hash. Its servers are
//! reached through the destinations by which they get deletes, so a fenced or TKO one is not read.

use super::DestinationFactory;
use super::active_configs::FormerConfig;
use super::covering::CoveredPlaces;
use crate::config::router_config::{PoolUse, RouterConfig};
use lookaside_routing::{
    Address, DestinationSettings, Destinations as _, FormerOwnerRoute, Handle, Owners, PoolEntries, PoolRouteConfig,
    Route,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pools of the configuration that was read before.
pub(super) struct FormerOwners {
    config: FormerConfig,
    pools: BTreeMap<String, PoolUse>,
    places: Arc<CoveredPlaces>,
    /// Of the servers that the configuration in force names.
    in_force: BTreeMap<Address, DestinationSettings>,
}

impl FormerOwners {
    pub(super) fn new(config: FormerConfig, places: Arc<CoveredPlaces>, reads: &RouterConfig) -> Arc<FormerOwners> {
        let in_force = reads.leaves().into_iter().collect();
        Arc::new(FormerOwners { pools: config.config.pool_routes(), config, places, in_force })
    }

    /// `route`, with the former owners of its keys if `handle` is a pool that asks for them.
    pub(super) fn wrap(
        self: &Arc<FormerOwners>,
        handle: &Handle,
        route: Arc<dyn Route>,
        factory: &mut DestinationFactory<'_>,
    ) -> Arc<dyn Route> {
        let Some(PoolRouteConfig { entries: PoolEntries { pool, .. }, hash, .. }) = handle.config() else {
            return route;
        };
        let Some(PoolUse { pool: former, hash: former_hash }) = self.pools.get(&pool.name) else { return route };
        let is_changed = former.servers != pool.servers || *former_hash != *hash;
        if pool.resize_warm_up_s == 0 || !is_changed || former.keep_routing_prefix {
            return route;
        }
        // A server that stays has one destination, also for covering deletes, with the settings in force.
        let mut destination = |(at, server): (usize, &Address)| match self.in_force.get(server) {
            Some(settings) => match factory.leaves.get(server) {
                Some(destination) => destination.clone(),
                None => factory.build_leaf(factory.config, server, settings),
            },
            None => factory.build_leaf(&self.config.config, server, &former.settings_of(at)),
        };
        let owners = Owners {
            servers: pool.servers.clone(),
            hash: hash.clone(),
            former: former.servers.iter().enumerate().map(&mut destination).collect(),
            former_hash: former_hash.clone(),
            is_owned: {
                let this = self.clone();
                Box::new(move |former, owner, key| this.places.is_owned(&this.config.id, former, owner, key))
            },
            unleased_after: factory.config.unleased_copies_after(),
        };
        Arc::new(FormerOwnerRoute::new(route, owners, self.config.counters.clone(), factory.environment()))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::router_config::RouterConfig;
    use crate::tree::Tree;
    use crate::tree::active_configs::{ActiveConfigs, CoveredConfig, FormerConfig};
    use lookaside_client::{DestinationOptions, TcpNetwork};
    use lookaside_routing::Defaults;
    use std::sync::Arc;

    fn config(pools: &str) -> Arc<RouterConfig> {
        let text = format!(
            r#"{{ "pools": {pools}, "route": {{ "type": "AllSyncRoute", "children": ["PoolRoute|A", "PoolRoute|B"] }} }}"#
        );
        let config = RouterConfig::parse(&text, &Defaults::default(), &DestinationOptions::default());
        Arc::new(config.expect("the configuration is valid"))
    }

    /// A change that also turned on TLS, for example: covering deletes went to the servers that stay by the former
    /// settings, failed, and fenced them.
    #[tokio::test]
    async fn a_server_that_stays_has_the_settings_in_force() {
        let former = config(
            r#"{
                "A": { "servers": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:5"], "server_timeout": 500 },
                "B": { "servers": ["127.0.0.1:4"], "server_timeout": 500 }
            }"#,
        );
        let new = config(
            r#"{
                "A": { "servers": ["127.0.0.1:1", "127.0.0.1:3"], "server_timeout": 700, "resize_warm_up_s": 60 },
                "B": { "servers": ["127.0.0.1:2", "127.0.0.1:4"], "server_timeout": 700, "resize_warm_up_s": 60 }
            }"#,
        );
        let covered =
            CoveredConfig { id: "former".into(), config: former.clone(), departed: [].into(), is_released: false };
        let active = ActiveConfigs {
            covered: vec![covered],
            reads_at: 1,
            former: Some(FormerConfig { id: "former".into(), config: former, counters: Arc::default() }),
            ..ActiveConfigs::single(new)
        };
        let tree = Tree::build_active(&active, Arc::new(TcpNetwork), 1, None);
        let timeouts: Vec<_> =
            tree.destinations.settings().map(|(at, settings)| (&*at.0, settings.server_timeout_ms)).collect();
        let expected = [
            ("127.0.0.1:1", 700),
            ("127.0.0.1:2", 700),
            ("127.0.0.1:3", 700),
            ("127.0.0.1:4", 700),
            ("127.0.0.1:5", 500),
        ];
        assert_eq!(timeouts, expected);
    }
}
