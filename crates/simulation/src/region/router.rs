//! A router: the production daemon's router with its configuration language, on a simulated network; in every other run
//! with a spool, on a disk that outlives it.

use super::{Broken, Region, SERVERS, address, server_names};
use lookaside_client::{DestinationOptions, TkoTrackers};
use lookaside_router::{Fleet, Identity, MemoryDisk, Plan, Router, Settings, Spares, Spool, SpoolSettings, Tree};
use lookaside_routing::{Defaults, HealthSettings};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// What failed-over values live for, in seconds.
const GUTTER_EXPTIME_S: u32 = 4;
const SERVER_TIMEOUT_MS: u64 = 200;
/// How long a server is dead before the spare serves: some outages are longer.
const SPARE_AFTER_MS: u64 = 600;
/// In some runs a server may owe only so much, in bytes: a few deletes.
const SPOOL_BYTES_SMALL: u64 = 200;

/// Whether routers keep deletes that their servers did not answer, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spooling {
    Off,
    Ample,
    /// So few that servers must be made to forget.
    Scarce,
}

impl Spooling {
    pub(super) fn draw(rng: &mut fastrand::Rng) -> Spooling {
        match rng.u8(0..4) {
            0 | 1 => Spooling::Off,
            2 => Spooling::Ample,
            _ => Spooling::Scarce,
        }
    }

    fn settings(self) -> Option<SpoolSettings> {
        let timeout = Duration::from_millis(SERVER_TIMEOUT_MS);
        match self {
            Spooling::Off => None,
            Spooling::Ample => Some(SpoolSettings { timeout, ..SpoolSettings::default() }),
            Spooling::Scarce => {
                Some(SpoolSettings { timeout, bytes_max: SPOOL_BYTES_SMALL, ..SpoolSettings::default() })
            }
        }
    }
}

pub(super) fn host(cluster: usize) -> String {
    format!("router-{cluster}")
}

/// As `lookaside up` configures a cluster, and with a spare. If `broken` has it so, deletes do not reach that.
fn configuration(cluster: usize, broken: Broken) -> String {
    let servers: Vec<String> = server_names(cluster).map(|name| format!("{:?}", address(&name).0)).collect();
    let (wildcard, rest) = servers.split_at(SERVERS);
    let (gutter, spare) = rest.split_at(1);
    let told = if broken == Broken::Spares { "servers" } else { "wildcard" };
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
                    "delete": {{ "type": "AllSyncRoute", "children": ["PoolRoute|{told}", "PoolRoute|gutter"] }}
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

impl Region {
    /// Starts the router of a cluster.
    pub(super) fn start_router(&self, cluster: usize, seed: u64) {
        let host = host(cluster);
        let (network, address) = (self.network.host(&host), address(&host));
        let tko_trackers = TkoTrackers::new();
        let spool = self.open_spool(cluster, &tko_trackers);
        let spares = Spares::new(tko_trackers.clone());
        let configuration = configuration(cluster, self.broken);
        self.start(&host, async move {
            let defaults = Defaults { server_timeout_ms: SERVER_TIMEOUT_MS, ..Defaults::default() };
            let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
            let tko_trackers = Some(tko_trackers);
            let options = DestinationOptions { health, tko_trackers, connect_eagerly: true, ..Default::default() };
            let plan = Plan::read(&configuration, &defaults, &options).expect("the configuration is good");
            let plan = Arc::new(plan.spooling(spool.clone()).sparing(spares.clone()));
            let tree = Tree::build(&plan, network.clone(), seed, None);
            let fleet = Fleet::new(Identity { pid: 1, started_unix_s: 0 }, "simulation");
            let listener = network.listen(&address).await.expect("a simulated network listens");
            // Nobody asks it to stop: it is killed.
            let (_running, shutdown) = watch::channel(false);
            let remedy = spares.run(network.clone());
            let replay = async {
                match spool {
                    Some(spool) => spool.replay(network, seed).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = replay => {}
                () = remedy => {}
                () = Router::new(Settings::default(), fleet, tree).serve(listener, shutdown) => {}
            }
        });
    }

    /// The spool of a router, with what its disk has kept.
    fn open_spool(&self, cluster: usize, tko_trackers: &Arc<TkoTrackers>) -> Option<Arc<Spool>> {
        let settings = self.spooling.settings()?;
        let mut disks = self.spools.borrow_mut();
        let disk = disks.entry(cluster).or_default();
        if self.broken == Broken::Spool {
            *disk = Arc::new(MemoryDisk::new());
        }
        // A fence that nobody else sees keeps nobody from reading.
        let tko_trackers = if self.broken == Broken::Fence { TkoTrackers::new() } else { tko_trackers.clone() };
        Some(Spool::open(disk.clone(), tko_trackers, settings).expect("its own files can be read"))
    }
}
