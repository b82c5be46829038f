//! A router: the production code with its configuration language, on a simulated network. The disk of its spool
//! survives it.

use super::names::{SERVERS, address, router_host, server_names};
use super::{DisabledGuarantee, SimulatedRegion};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_router::{
    Identity, MemoryDisk, Proxy, RouterConfig, Settings, SharedState, Spares, Spool, SpoolSettings, Tree,
};
use lookaside_routing::{Defaults, HealthSettings};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// The expiry of failed-over values, in seconds.
const GUTTER_EXPTIME_S: u32 = 4;
const SERVER_TIMEOUT_MS: u64 = 200;
/// How long a server is down before its spare serves. Some outages are longer.
const SPARE_AFTER_MS: u64 = 600;
/// The size of a small spool, in bytes: a few deletes per server.
const SPOOL_BYTES_SMALL: u64 = 200;

#[derive(Clone, Copy, Debug)]
pub(super) enum SpoolMode {
    Off,
    Large,
    /// So small that it overflows and servers are flushed.
    Small,
}

impl SpoolMode {
    pub(super) fn random(rng: &mut fastrand::Rng) -> SpoolMode {
        match rng.u8(0..4) {
            0 | 1 => SpoolMode::Off,
            2 => SpoolMode::Large,
            _ => SpoolMode::Small,
        }
    }

    fn settings(self) -> Option<SpoolSettings> {
        let timeout = Duration::from_millis(SERVER_TIMEOUT_MS);
        match self {
            SpoolMode::Off => None,
            SpoolMode::Large => Some(SpoolSettings { timeout, ..SpoolSettings::default() }),
            SpoolMode::Small => {
                Some(SpoolSettings { timeout, bytes_max: SPOOL_BYTES_SMALL, ..SpoolSettings::default() })
            }
        }
    }
}

/// The configuration of a cluster as in `lookaside up`, with a spare. Deletes reach the spare unless `disabled` is
/// [`DisabledGuarantee::Spares`].
fn configuration(cluster: usize, disabled: DisabledGuarantee) -> String {
    let servers: Vec<String> = server_names(cluster).map(|name| format!("{:?}", address(&name).0)).collect();
    let (wildcard, rest) = servers.split_at(SERVERS);
    let (gutter, spare) = rest.split_at(1);
    let delete_pool = if disabled == DisabledGuarantee::Spares { "servers" } else { "wildcard" };
    format!(
        r#"{{
            "pools": {{
                "servers": {{ "servers": [{wildcard}] }},
                "wildcard": {{ "inherit": "servers", "spares": [{}], "spare_after_ms": {SPARE_AFTER_MS} }},
                "gutter": {{ "servers": [{}] }}
            }},
            "route": {{
                "type": "OperationSelectorRoute",
                "operation_policies": {{
                    "delete": {{ "type": "AllSyncRoute", "children": ["PoolRoute|{delete_pool}", "PoolRoute|gutter"] }}
                }},
                "default_policy": {{
                    "type": "FailoverWithExptimeRoute",
                    "normal": "PoolRoute|wildcard",
                    "failover": ["PoolRoute|gutter"],
                    "failover_exptime": {GUTTER_EXPTIME_S}
                }}
            }}
        }}"#,
        spare.join(", "),
        gutter.join(", "),
        wildcard = wildcard.join(", "),
    )
}

impl SimulatedRegion {
    pub(super) fn start_router(&self, cluster: usize, seed: u64) {
        let host = router_host(cluster);
        let (network, address) = (self.network.host(&host), address(&host));
        let tko_trackers = TkoTrackers::new();
        let spool = self.open_spool(cluster, &tko_trackers);
        let spares = Spares::new(tko_trackers.clone());
        let configuration = configuration(cluster, self.disabled);
        self.start(&host, async move {
            let defaults = Defaults { server_timeout_ms: SERVER_TIMEOUT_MS, ..Defaults::default() };
            let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
            let tko_trackers = Some(tko_trackers);
            let options = DestinationOptions { health, tko_trackers, connect_eagerly: true, ..Default::default() };
            let plan = RouterConfig::parse(&configuration, &defaults, &options).expect("the configuration is valid");
            let plan = Arc::new(plan.with_spool(spool.clone()).with_spares(spares.clone()));
            let tree = Tree::build(&plan, network.clone(), seed, None);
            let shared = SharedState::new(Identity { pid: 1, started_unix_s: 0 }, "simulation");
            let listener = network.listen(&address).await.expect("a simulated network listens");
            // It is never shut down, only killed.
            let (_shutdown_sender, shutdown) = watch::channel(false);
            let run_spares = spares.run(network.clone());
            let replay = async {
                match spool {
                    Some(spool) => spool.replay(network, seed).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = replay => {}
                () = run_spares => {}
                () = Proxy::new(Settings::default(), shared, tree).serve(listener, shutdown) => {}
            }
        });
    }

    /// `None` in runs without a spool.
    fn open_spool(&self, cluster: usize, tko_trackers: &Arc<TkoTrackers>) -> Option<Arc<Spool>> {
        let settings = self.spool_mode.settings()?;
        let mut disks = self.spools.borrow_mut();
        let disk = disks.entry(cluster).or_default();
        if self.disabled == DisabledGuarantee::Spool {
            *disk = Arc::new(MemoryDisk::new());
        }
        // A fence in a tracker that the destinations do not share has no effect.
        let tko_trackers =
            if self.disabled == DisabledGuarantee::Fence { TkoTrackers::new() } else { tko_trackers.clone() };
        Some(Spool::open(disk.clone(), tko_trackers, settings).expect("its own files can be read"))
    }
}
