//! What a seed decides once for a run.

use super::guarantee::DisabledGuarantee;
use super::names::{ROUTERS_MAX, RouterName, gutters, servers, spares};
use std::{ops::Range, time::Duration};

/// One run in this many has one fault at a time.
const SINGLE_FAULTS_ONE_IN: u8 = 4;
/// One run in this many whose routers know of each other has resizes.
const RESIZES_ONE_IN: u8 = 2;
/// One run in this many with all guarantees has commits that demand flushes.
const FLUSHES_ONE_IN: u8 = 4;
/// One commit in this many does then: each flush costs the cluster its hits.
const COMMITS_PER_FLUSH: u64 = 50;
/// One run in this many has clients that read servers directly.
const DIRECT_CLIENTS_ONE_IN: u8 = 2;
/// One run in this many has clients that know no leases.
const PLAIN_CLIENTS_ONE_IN: u64 = 4;
/// One run in this many has clients that stall between a miss and its fill.
const STALLING_CLIENTS_ONE_IN: u8 = 2;
/// One run in this many with resizes has a shared history.
const HISTORIES_ONE_IN: u8 = 2;
/// Servers of a pool, at first.
const SERVERS: std::ops::RangeInclusive<usize> = 2..=3;
/// Servers that are not in the pool at first, in a run with resizes.
const FURTHER_SERVERS: usize = 2;
/// Gutter servers of a pool at first, and of a pool that changes.
const GUTTERS: usize = 1;
const GUTTERS_MAX: usize = 2;
/// The time between two faults in a region, in milliseconds.
const FAULT_INTERVAL_MS: Range<u64> = 50..800;
const FAULT_INTERVAL_MS_RARE: Range<u64> = 1_000..30_000;
/// How long applications run and faults are injected, in simulated time.
const LOAD_DURATION: Duration = Duration::from_secs(8);
/// Long enough for routers to forget a configuration and to meet it again, for many backlogs, and for addresses that
/// are blind at first.
const LOAD_DURATION_LONG: Duration = Duration::from_secs(24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpoolMode {
    Off,
    Large,
    /// So small that it overflows and servers are flushed.
    Small,
}

impl SpoolMode {
    fn random(rng: &mut fastrand::Rng) -> SpoolMode {
        match rng.u8(0..4) {
            0 | 1 => SpoolMode::Off,
            2 => SpoolMode::Large,
            _ => SpoolMode::Small,
        }
    }
}

/// How an application whose client knows no leases uses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlainConnections {
    /// All of its tasks use the same.
    Shared,
    /// Each task has its own.
    Own,
    /// All of its tasks have a pool, and take any connection for each command.
    Pool,
}

/// Connections of a pool to one router.
pub(super) const POOL_CONNECTIONS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunPlan {
    /// Routers of each cluster.
    routers: usize,
    pub(super) spool_mode: SpoolMode,
    /// Whether no fault begins before the one before it has been repaired.
    pub(super) has_single_faults: bool,
    /// Whether faults are rare, for a long run.
    has_rare_faults: bool,
    /// Whether half of the faults cut a router off from a server and then replace the router.
    pub(super) favours_backlogs: bool,
    /// Whether many of the faults upgrade a router.
    pub(super) favours_upgrades: bool,
    /// Whether the servers of pools change.
    pub(super) has_resizes: bool,
    /// Whether routers lose the file of the configurations that they cover.
    pub(super) has_lost_coverages: bool,
    /// Whether the routers of a cluster share the history of changes, and lose those files all at once.
    pub(super) has_history: bool,
    /// One commit in this many names its key by a flush, as a row rule does for a change that it cannot express; `None`
    /// if all name it by itself.
    pub(super) commits_per_flush: Option<u64>,
    /// Whether applications also read servers directly.
    pub(super) has_direct_clients: bool,
    /// Whether applications also have clients that stall between a miss and its fill.
    pub(super) has_stalling_clients: bool,
    /// Whether the region has a pool of remote markers.
    pub(super) has_marker_pool: bool,
    /// Servers of a pool at first.
    servers: usize,
    /// `None` if the clients of applications know leases.
    pub(super) plain_connections: Option<PlainConnections>,
}

impl RunPlan {
    /// Draws a plan in which `disabled` matters.
    pub(super) fn random(rng: &mut fastrand::Rng, disabled: DisabledGuarantee) -> RunPlan {
        use DisabledGuarantee::{
            CopyLeases, Coverage, Fence, Gutter, History, LeaseVoids, Nothing, Peers, Permits, Resize, Spool, Takeover,
            TakeoverSpool,
        };
        let (routers, spool_mode) = (rng.usize(1..=ROUTERS_MAX), SpoolMode::random(rng));
        let spool_mode = match (disabled, spool_mode) {
            (Fence | Peers | Coverage, SpoolMode::Off) | (Permits | Spool | TakeoverSpool, _) => SpoolMode::Large,
            _ => spool_mode,
        };
        let favours_backlogs = matches!(disabled, Fence | Permits | Spool | TakeoverSpool);
        let has_single_faults = rng.u8(0..SINGLE_FAULTS_ONE_IN) == 0 && !favours_backlogs;
        let servers = rng.usize(SERVERS);
        let has_resizes = rng.u8(0..RESIZES_ONE_IN) == 0;
        let routers = match disabled {
            // A peer would still fence the server, or forward the delete to it.
            Fence | Permits | Spool | TakeoverSpool => 1,
            Peers | Coverage => routers.max(2),
            CopyLeases | History | LeaseVoids | Takeover if spool_mode == SpoolMode::Off => 1,
            _ => routers,
        };
        // Routers that are not each other's peers do not agree on a change.
        let knows_others = routers == 1 || spool_mode != SpoolMode::Off && disabled != Peers;
        let is_about_resizes =
            matches!(disabled, Resize | Gutter | Coverage | History | CopyLeases | LeaseVoids | Takeover);
        let has_resizes = knows_others && has_resizes || is_about_resizes;
        // Without a peer that knows them, it is a first start.
        let has_lost_coverages = has_resizes && routers > 1 && spool_mode != SpoolMode::Off;
        // From a copy of the generator: the rest of the run is the same with and without them.
        let mut extras = rng.clone();
        let has_flushes = disabled == Nothing && extras.u8(0..FLUSHES_ONE_IN) == 0;
        let commits_per_flush = has_flushes.then_some(COMMITS_PER_FLUSH);
        let has_direct_clients = extras.u8(0..DIRECT_CLIENTS_ONE_IN) == 0 || disabled == Permits;
        let has_stalling_clients = match disabled {
            Nothing => extras.u8(0..STALLING_CLIENTS_ONE_IN) == 0,
            disabled => disabled == LeaseVoids,
        };
        let has_history = match disabled {
            Nothing => has_resizes && extras.u8(0..HISTORIES_ONE_IN) == 0,
            disabled => disabled == History,
        };
        RunPlan {
            routers,
            spool_mode,
            has_single_faults,
            has_rare_faults: false,
            favours_backlogs,
            favours_upgrades: disabled == Takeover,
            has_resizes,
            has_lost_coverages,
            has_history,
            commits_per_flush,
            has_direct_clients,
            has_stalling_clients,
            has_marker_pool: false,
            servers,
            plain_connections: None,
        }
    }

    /// A region of several: small clusters with a pool of remote markers, whose pools do not change. The pool is never
    /// flushed, since its markers would be lost: spools do not overflow, and have no peers.
    pub(crate) fn of_several(rng: &mut fastrand::Rng, has_rare_faults: bool) -> RunPlan {
        let (routers, spool_mode) = match rng.u8(0..3) {
            0 => (1, SpoolMode::Off),
            1 => (1, SpoolMode::Large),
            _ => (2, SpoolMode::Off),
        };
        RunPlan {
            routers,
            spool_mode,
            has_single_faults: rng.u8(0..SINGLE_FAULTS_ONE_IN) == 0,
            has_rare_faults,
            favours_backlogs: false,
            favours_upgrades: false,
            has_resizes: false,
            has_lost_coverages: false,
            has_history: false,
            commits_per_flush: None,
            has_direct_clients: false,
            has_stalling_clients: false,
            has_marker_pool: true,
            servers: 2,
            plain_connections: None,
        }
    }

    /// Small clusters whose routers are each other's peers.
    #[cfg(test)]
    pub(super) fn of_peers(routers: usize) -> RunPlan {
        let plan = RunPlan::of_several(&mut fastrand::Rng::with_seed(0), false);
        RunPlan { routers, spool_mode: SpoolMode::Large, has_marker_pool: false, ..plan }
    }

    /// The plan with clients that know no leases, in some runs. `disabled` matters in it.
    pub(super) fn with_plain_clients(self, seed: u64, disabled: DisabledGuarantee) -> RunPlan {
        use DisabledGuarantee::{Nothing, PlainLeases};
        let has_plain = disabled == PlainLeases || disabled == Nothing && seed.is_multiple_of(PLAIN_CLIENTS_ONE_IN);
        let connections = match seed / PLAIN_CLIENTS_ONE_IN % 3 {
            0 => PlainConnections::Shared,
            1 => PlainConnections::Own,
            _ => PlainConnections::Pool,
        };
        RunPlan { plain_connections: has_plain.then_some(connections), ..self }
    }

    pub(crate) fn load_duration(self) -> Duration {
        let is_long = self.has_resizes || self.favours_backlogs || self.plain_connections.is_some();
        if is_long { LOAD_DURATION_LONG } else { LOAD_DURATION }
    }

    /// The time between two faults, in milliseconds.
    pub(super) fn fault_interval_ms(self) -> Range<u64> {
        if self.has_rare_faults { FAULT_INTERVAL_MS_RARE } else { FAULT_INTERVAL_MS }
    }

    /// The servers of a cluster's pool at first.
    pub(super) fn pool_servers(self, cluster: usize) -> Vec<String> {
        servers(cluster, self.servers)
    }

    /// The servers that a pool may have, at some time.
    pub(super) fn all_pool_servers(self, cluster: usize) -> Vec<String> {
        servers(cluster, self.servers + if self.has_resizes { FURTHER_SERVERS } else { 0 })
    }

    /// The gutter servers of a cluster at first.
    pub(super) fn gutters(self, cluster: usize) -> Vec<String> {
        gutters(cluster, GUTTERS)
    }

    /// The gutter servers that a cluster may have, at some time.
    pub(super) fn all_gutters(self, cluster: usize) -> Vec<String> {
        gutters(cluster, if self.has_resizes { GUTTERS_MAX } else { GUTTERS })
    }

    /// All servers of a cluster.
    pub(crate) fn all_servers(self, cluster: usize) -> Vec<String> {
        [self.all_pool_servers(cluster), self.all_gutters(cluster), spares(cluster)].concat()
    }

    /// The routers of a cluster.
    pub(crate) fn routers(self, cluster: usize) -> impl Iterator<Item = RouterName> {
        (0..self.routers).map(move |index| RouterName { cluster, index })
    }
}
