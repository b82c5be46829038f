//! Injects faults: cuts, slows and heals links; kills, restarts, upgrades, reconfigures and hangs programs.

use super::SimulatedRegion;
use super::guarantee::DisabledGuarantee;
use super::lost_coverage::link;
use super::names::{RouterName, application_host, cluster_name, clusters, invalidator_host};
use super::plan::RunPlan;
use super::router_program::RouterCommand;
use crate::fault_log::{AFTERMATH, FailedPart};
use std::time::Duration;
use tokio::{task::JoinSet, time::Instant};

/// One fault in this many lasts long enough for spares to serve and for the fences of silent routers to expire.
const LONG_ONE_IN: u8 = 5;
/// One fault in this many changes the servers of a pool, in runs in which they change.
const RESIZE_ONE_IN: u8 = 5;
/// One fault in this many upgrades a router, in runs that are about upgrades.
const UPGRADE_ONE_IN: u8 = 4;
/// One fault in this many takes the file of its covered configurations from a router, in runs in which that may happen.
const LOST_COVERAGE_ONE_IN: u8 = 12;
/// One fault in this many takes it from all routers of a cluster at once, in runs in which they share a history.
const LOST_COVERAGES_ONE_IN: u8 = 8;

/// One restart of a server in this many is one with its items, and another one is an upgrade.
const ITEMS_KEPT_ONE_IN: u8 = 4;
/// The longest pause of a server that is upgraded, in milliseconds.
const UPGRADE_PAUSE_MS_MAX: u64 = 100;

/// The largest extra delay of a slow link, in milliseconds: more than a router waits for a server.
const EXTRA_DELAY_MS_MAX: u64 = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CutServer,
    CutPeer,
    CutInvalidator,
    CutApplication,
    SlowServer,
    RestartServer,
    RestartRouter,
    RestartInvalidator,
    HangServer,
    HangRouter,
    HangInvalidator,
    HangApplication,
    ReplaceRouterWithBacklog,
    UpgradeRouter,
    ChangeTimeouts,
    RewriteServers,
    ChangeSpares,
    Resize,
    LoseCoverage,
    LoseAllCoverages,
}

/// One of these is drawn for each fault, unless it is another one.
const KINDS: [Kind; 26] = [
    Kind::CutServer,
    Kind::CutServer,
    Kind::CutServer,
    Kind::CutServer,
    Kind::CutPeer,
    Kind::CutInvalidator,
    Kind::CutInvalidator,
    Kind::CutApplication,
    Kind::SlowServer,
    Kind::RestartServer,
    Kind::RestartServer,
    Kind::RestartServer,
    Kind::RestartRouter,
    Kind::RestartInvalidator,
    Kind::HangServer,
    Kind::HangServer,
    Kind::HangRouter,
    Kind::HangRouter,
    Kind::HangInvalidator,
    Kind::HangApplication,
    Kind::ReplaceRouterWithBacklog,
    Kind::ReplaceRouterWithBacklog,
    Kind::UpgradeRouter,
    Kind::ChangeTimeouts,
    Kind::RewriteServers,
    Kind::ChangeSpares,
];

/// What a fault concerns: its kind decides which of them.
struct Target {
    router: RouterName,
    /// Another router of the cluster, or the same.
    peer: RouterName,
    server: String,
}

impl Target {
    /// In this region.
    fn random(rng: &mut fastrand::Rng, region: usize, plan: &RunPlan) -> Target {
        let cluster = rng.usize(clusters(region));
        let (routers, mut servers): (Vec<RouterName>, _) = (plan.routers(cluster).collect(), plan.all_servers(cluster));
        let (router, peer) = (routers[rng.usize(0..routers.len())], routers[rng.usize(0..routers.len())]);
        Target { router, peer, server: servers.swap_remove(rng.usize(0..servers.len())) }
    }
}

impl Kind {
    /// The part that may be stale; `None` if nothing may be.
    fn failed_part(self, target: &Target, plan: &RunPlan) -> Option<FailedPart> {
        match self {
            Kind::CutApplication | Kind::HangApplication => None,
            Kind::ChangeTimeouts | Kind::RewriteServers | Kind::ChangeSpares | Kind::Resize => None,
            Kind::HangRouter | Kind::RestartRouter | Kind::UpgradeRouter => {
                let is_only_one = plan.routers(target.router.cluster).count() == 1;
                Some(if is_only_one { FailedPart::Delivery } else { FailedPart::Router })
            }
            Kind::HangInvalidator | Kind::RestartInvalidator => Some(FailedPart::Invalidator),
            Kind::HangServer | Kind::RestartServer => Some(FailedPart::Server(target.server.clone())),
            Kind::CutServer
            | Kind::CutPeer
            | Kind::CutInvalidator
            | Kind::SlowServer
            | Kind::LoseCoverage
            | Kind::LoseAllCoverages
            | Kind::ReplaceRouterWithBacklog => Some(FailedPart::Delivery),
        }
    }
}

impl SimulatedRegion {
    /// Injects faults until `end`, then waits until all are repaired.
    pub(crate) async fn inject_faults(&self, rng: &mut fastrand::Rng, end: Instant) {
        let mut faults = JoinSet::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(rng.u64(self.plan.fault_interval_ms()))).await;
            self.checker.count(|tally| tally.faults += 1);
            let duration_ms = if rng.u8(0..LONG_ONE_IN) == 0 { rng.u64(2_000..6_000) } else { rng.u64(20..2_000) };
            faults.spawn_local(self.clone().inject_fault(rng.fork(), Duration::from_millis(duration_ms)));
            if self.plan.has_single_faults {
                while faults.join_next().await.is_some() {}
                tokio::time::sleep(AFTERMATH).await;
            }
        }
        while faults.join_next().await.is_some() {}
    }

    async fn inject_fault(self, mut rng: fastrand::Rng, duration: Duration) {
        let kind = match KINDS[rng.usize(0..KINDS.len())] {
            _ if self.plan.favours_backlogs && rng.bool() => Kind::ReplaceRouterWithBacklog,
            _ if self.plan.favours_upgrades && rng.u8(0..UPGRADE_ONE_IN) == 0 => Kind::UpgradeRouter,
            _ if self.plan.has_resizes && rng.u8(0..RESIZE_ONE_IN) == 0 => Kind::Resize,
            _ if self.plan.has_history && rng.u8(0..LOST_COVERAGES_ONE_IN) == 0 => Kind::LoseAllCoverages,
            _ if self.plan.has_lost_coverages && rng.u8(0..LOST_COVERAGE_ONE_IN) == 0 => Kind::LoseCoverage,
            kind => kind,
        };
        let target = Target::random(&mut rng, self.index, &self.plan);
        let cluster = (kind != Kind::RestartInvalidator && kind != Kind::HangInvalidator)
            .then(|| cluster_name(target.router.cluster));
        let fault = kind.failed_part(&target, &self.plan).map(|part| self.faults.begin(cluster, part));
        self.inject(kind, &target, duration, rng).await;
        if let Some(fault) = fault {
            self.faults.end(fault);
        }
    }

    async fn inject(&self, kind: Kind, target: &Target, duration: Duration, mut rng: fastrand::Rng) {
        let Target { router, peer, server } = target;
        let (router, host, rng) = (*router, &router.host(), &mut rng);
        let application = &application_host(router.cluster);
        match kind {
            Kind::CutServer => self.cut(host, server, duration).await,
            Kind::CutPeer => self.cut_routers(router, *peer, duration).await,
            Kind::CutInvalidator => self.cut(&invalidator_host(self.index), host, duration).await,
            Kind::CutApplication => self.cut(application, host, duration).await,
            Kind::SlowServer => {
                self.network.slow_down(host, server, Duration::from_millis(rng.u64(1..EXTRA_DELAY_MS_MAX)));
                tokio::time::sleep(duration).await;
                self.network.slow_down(host, server, Duration::ZERO);
            }
            Kind::RestartServer => match rng.u8(0..ITEMS_KEPT_ONE_IN) {
                0 => self.restart_server_with_its_items(server, duration).await,
                1 => self.upgrade_server(server, rng).await,
                _ => self.restart_server(server, duration, rng).await,
            },
            Kind::RestartRouter => self.restart_router(router, duration, rng).await,
            Kind::RestartInvalidator => self.restart_invalidator(duration, rng).await,
            Kind::HangServer => self.hang_host(server, duration).await,
            Kind::HangRouter => self.hang_host(host, duration).await,
            Kind::HangInvalidator => self.hang_host(&invalidator_host(self.index), duration).await,
            Kind::HangApplication => self.hang_host(application, duration).await,
            Kind::ReplaceRouterWithBacklog => {
                // The router may have spooled deletes for the server that it cannot reach.
                self.network.cut(host, server);
                tokio::time::sleep(duration / 2).await;
                let is_crash = match self.disabled {
                    DisabledGuarantee::TakeoverSpool => false,
                    _ => rng.bool() || self.plan.favours_backlogs,
                };
                match is_crash {
                    true => self.restart_router(router, duration / 2, rng).await,
                    false => self.upgrade_router(router, rng).await,
                }
                tokio::time::sleep(duration / 2).await;
                self.network.heal(host, server);
            }
            Kind::UpgradeRouter => self.upgrade_router(router, rng).await,
            Kind::ChangeTimeouts => self.change_timeouts(router.cluster, rng).await,
            Kind::RewriteServers => self.rewrite_servers(router.cluster, rng).await,
            Kind::ChangeSpares => self.change_spares(router.cluster, rng).await,
            Kind::Resize => self.resize(router.cluster, rng).await,
            Kind::LoseAllCoverages => self.lose_all_coverages(router.cluster, duration, rng).await,
            Kind::LoseCoverage => self.lose_coverage(router, duration, rng).await,
        }
    }

    pub(crate) async fn cut(&self, one: &str, other: &str, duration: Duration) {
        self.network.cut(one, other);
        tokio::time::sleep(duration).await;
        self.network.heal(one, other);
    }

    async fn cut_routers(&self, router: RouterName, peer: RouterName, duration: Duration) {
        let link = link(router, peer);
        if self.programs.begin_fault(&link) {
            self.cut(&router.host(), &peer.host(), duration).await;
            self.programs.end_fault(&link);
        }
    }

    pub(crate) async fn hang_host(&self, host: &str, duration: Duration) {
        if !self.programs.begin_fault(host) {
            return;
        }
        self.checker.count(|tally| tally.hangs += 1);
        self.programs.hang(host, duration).await;
        self.programs.end_fault(host);
    }

    pub(super) async fn restart_server(&self, server: &str, duration: Duration, rng: &mut fastrand::Rng) {
        if !self.programs.begin_fault(server) {
            return;
        }
        self.programs.kill(server).await;
        tokio::time::sleep(duration).await;
        self.start_server(server, rng.u64(..));
        self.programs.end_fault(server);
    }

    /// A server that is stopped and started with `--warm-restart`. It has missed the deletes between.
    async fn restart_server_with_its_items(&self, server: &str, duration: Duration) {
        if !self.programs.begin_fault(server) {
            return;
        }
        self.checker.count(|tally| tally.warm_restarts += 1);
        self.programs.kill(server).await;
        tokio::time::sleep(duration).await;
        self.start_server_with_its_items(server);
        self.programs.end_fault(server);
    }

    /// A new process takes over the items of a server and its connections. Requests wait meanwhile.
    async fn upgrade_server(&self, server: &str, rng: &mut fastrand::Rng) {
        if !self.programs.begin_fault(server) {
            return;
        }
        self.checker.count(|tally| tally.server_upgrades += 1);
        self.void_leases(server);
        self.programs.hang(server, Duration::from_millis(rng.u64(0..UPGRADE_PAUSE_MS_MAX))).await;
        self.programs.end_fault(server);
    }

    /// The machine of the router crashes.
    async fn restart_router(&self, router: RouterName, duration: Duration, rng: &mut fastrand::Rng) {
        let host = &router.host();
        if !self.programs.begin_fault(host) {
            return;
        }
        self.crash_router(router, rng).await;
        tokio::time::sleep(duration).await;
        self.start_router(router, rng.u64(..));
        self.programs.end_fault(host);
    }

    /// Kills a router. Its disk loses what was not synced.
    pub(super) async fn crash_router(&self, router: RouterName, rng: &mut fastrand::Rng) {
        self.routers.borrow_mut().remove(&router);
        self.programs.kill(&router.host()).await;
        if let Some(disk) = self.spools.borrow().get(&router) {
            disk.crash(|unsynced_bytes| rng.usize(0..=unsynced_bytes));
        }
    }

    /// A new process takes over the spool and the covered configurations when the old one has answered what it had
    /// begun. Connections are closed.
    async fn upgrade_router(&self, router: RouterName, rng: &mut fastrand::Rng) {
        let host = &router.host();
        if !self.programs.begin_fault(host) {
            return;
        }
        let running = self.routers.borrow_mut().remove(&router);
        let is_changing = running.as_ref().is_some_and(|running| running.active.borrow().is_changing());
        if running.is_some_and(|running| running.commands.send(RouterCommand::Exit).is_ok()) {
            self.checker.count(|tally| {
                tally.upgrades += 1;
                tally.upgrades_in_changes += u64::from(is_changing);
            });
            self.programs.wait_for_end(host).await;
            self.take_over_router(router, rng.u64(..));
        } else {
            self.start_router(router, rng.u64(..));
        }
        self.programs.end_fault(host);
    }

    async fn restart_invalidator(&self, duration: Duration, rng: &mut fastrand::Rng) {
        let host = &invalidator_host(self.index);
        if !self.programs.begin_fault(host) {
            return;
        }
        self.programs.kill(host).await;
        tokio::time::sleep(duration).await;
        self.start_invalidator(rng.u64(..));
        self.programs.end_fault(host);
    }
}
