//! A router: the production daemon's router with its configuration language, on a simulated network.

use super::{Region, SERVERS, address, server_names};
use lookaside_client::DestinationOptions;
use lookaside_router::{Fleet, Identity, Plan, Router, Settings, Tree};
use lookaside_routing::{Defaults, HealthSettings};
use std::sync::Arc;
use tokio::sync::watch;

/// What failed-over values live for, in seconds.
const GUTTER_EXPTIME_S: u32 = 4;
const SERVER_TIMEOUT_MS: u64 = 200;

pub(super) fn host(cluster: usize) -> String {
    format!("router-{cluster}")
}

/// As `lookaside up` configures a cluster.
fn configuration(cluster: usize) -> String {
    let servers: Vec<String> = server_names(cluster).map(|name| format!("{:?}", address(&name).0)).collect();
    let (wildcard, gutter) = servers.split_at(SERVERS);
    format!(
        r#"{{
            "pools": {{ "wildcard": {{ "servers": [{}] }}, "gutter": {{ "servers": [{}] }} }},
            "route": {{
                "type": "OperationSelectorRoute",
                "operation_policies": {{
                    "delete": {{ "type": "AllSyncRoute", "children": ["PoolRoute|wildcard", "PoolRoute|gutter"] }}
                }},
                "default_policy": {{
                    "type": "FailoverWithExptimeRoute",
                    "normal": "PoolRoute|wildcard",
                    "failover": ["PoolRoute|gutter"],
                    "failover_exptime": {GUTTER_EXPTIME_S}
                }}
            }}
        }}"#,
        wildcard.join(", "),
        gutter.join(", "),
    )
}

impl Region {
    /// Starts the router of a cluster.
    pub(super) fn start_router(&self, cluster: usize, seed: u64) {
        let host = host(cluster);
        let (network, address) = (self.network.host(&host), address(&host));
        self.start(&host, async move {
            let defaults = Defaults { server_timeout_ms: SERVER_TIMEOUT_MS, ..Defaults::default() };
            let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
            let options = DestinationOptions { health, ..DestinationOptions::default() };
            let plan = Plan::read(&configuration(cluster), &defaults, &options).expect("the configuration is good");
            let tree = Tree::build(&Arc::new(plan), network.clone(), seed, None);
            let fleet = Fleet::new(Identity { pid: 1, started_unix_s: 0 }, "simulation");
            let listener = network.listen(&address).await.expect("a simulated network listens");
            // Nobody asks it to stop: it is killed.
            let (_running, shutdown) = watch::channel(false);
            Router::new(Settings::default(), fleet, tree).serve(listener, shutdown).await;
        });
    }
}
