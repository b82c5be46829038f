//! The former owners of keys in a tree ([ADR 012](../../../../docs/adr/012-resize.md)): after a change of a pool's
//! servers, for `resize_warm_up_s` of the pool. Each use of such a pool by a `PoolRoute` becomes a [`FormerOwnerRoute`].
//!
//! The pool of the former configuration is that of the same name, if all its uses there have one hash. Its servers are
//! reached through the destinations by which they get deletes, so a fenced or TKO one is not read.

use super::DestinationFactory;
use super::active_configs::FormerConfig;
use super::covering::CoveredPlaces;
use crate::config::router_config::PoolUse;
use lookaside_routing::{Destinations as _, FormerOwnerRoute, Handle, Owners, PoolRouteConfig, Route};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The pools of the configuration that was read before.
pub(super) struct FormerOwners {
    config: FormerConfig,
    pools: BTreeMap<String, PoolUse>,
    places: Arc<CoveredPlaces>,
}

impl FormerOwners {
    pub(super) fn new(config: FormerConfig, places: Arc<CoveredPlaces>) -> Arc<FormerOwners> {
        Arc::new(FormerOwners { pools: config.config.pool_routes(), config, places })
    }

    /// `route`, with the former owners of its keys if `handle` is a pool that asks for them.
    pub(super) fn wrap(
        self: &Arc<FormerOwners>,
        handle: &Handle,
        route: Arc<dyn Route>,
        factory: &mut DestinationFactory<'_>,
    ) -> Arc<dyn Route> {
        let Some(PoolRouteConfig { pool, hash, .. }) = handle.config::<PoolRouteConfig>() else { return route };
        let Some(PoolUse { pool: former, hash: former_hash }) = self.pools.get(&pool.name) else { return route };
        let is_changed = former.servers != pool.servers || *former_hash != *hash;
        if pool.resize_warm_up_s == 0 || !is_changed || former.keep_routing_prefix {
            return route;
        }
        let mut leaf = |(at, server)| factory.build_leaf(&self.config.config, server, &former.settings_of(at));
        let owners = Owners {
            servers: pool.servers.clone(),
            hash: hash.clone(),
            former: former.servers.iter().enumerate().map(&mut leaf).collect(),
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
