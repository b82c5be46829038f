//! Injects faults: cuts, slows and heals links; kills, restarts, upgrades, reconfigures and hangs programs.

use super::names::{CLUSTERS, RouterName, application_host, server_names};
use super::router::RouterCommand;
use super::{SimulatedRegion, invalidator};
use std::time::Duration;
use tokio::{task::JoinSet, time::Instant};

/// The longest time for which a program hangs.
const HANG_MS_MAX: u64 = 3_000;
/// One fault in this many lasts long enough for spares to serve and for the fences of silent routers to expire.
const LONG_ONE_IN: u8 = 5;

impl SimulatedRegion {
    /// Injects faults until `end`, then waits until all are repaired.
    pub(super) async fn inject_faults(&self, rng: &mut fastrand::Rng, end: Instant) {
        let mut faults = JoinSet::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(rng.u64(50..800))).await;
            self.checker.count(|tally| tally.faults += 1);
            let duration_ms = if rng.u8(0..LONG_ONE_IN) == 0 { rng.u64(2_000..6_000) } else { rng.u64(20..2_000) };
            faults.spawn_local(self.clone().inject_fault(rng.fork(), Duration::from_millis(duration_ms)));
        }
        while faults.join_next().await.is_some() {}
    }

    async fn inject_fault(self, mut rng: fastrand::Rng, duration: Duration) {
        let cluster = rng.usize(0..CLUSTERS);
        let servers = server_names(cluster);
        let server = &servers[rng.usize(0..servers.len())];
        let routers: Vec<RouterName> = self.plan.routers(cluster).collect();
        let router = routers[rng.usize(0..routers.len())];
        let host = &router.host();
        match rng.u8(0..24) {
            0..5 => self.cut(host, server, duration).await,
            5 => self.cut(host, &routers[rng.usize(0..routers.len())].host(), duration).await,
            6 | 7 => self.cut(invalidator::HOST, host, duration).await,
            8 => self.cut(&application_host(cluster), host, duration).await,
            9 => {
                self.network.slow_down(host, server, Duration::from_millis(rng.u64(1..300)));
                tokio::time::sleep(duration).await;
                self.network.slow_down(host, server, Duration::ZERO);
            }
            10..13 => self.restart_server(server, duration, &mut rng).await,
            13 => self.hang_host(server, &mut rng).await,
            14 => self.hang_host(host, &mut rng).await,
            15 => self.hang_host(invalidator::HOST, &mut rng).await,
            16 => self.hang_host(&application_host(cluster), &mut rng).await,
            17 => self.restart_router(router, duration, &mut rng).await,
            18 | 19 => {
                // The router may have spooled deletes for the server that it cannot reach.
                self.network.cut(host, server);
                tokio::time::sleep(duration / 2).await;
                match rng.bool() {
                    true => self.restart_router(router, duration / 2, &mut rng).await,
                    false => self.upgrade_router(router, &mut rng).await,
                }
                tokio::time::sleep(duration / 2).await;
                self.network.heal(host, server);
            }
            20 => self.upgrade_router(router, &mut rng).await,
            21 => self.change_timeouts(cluster, rng).await,
            _ => self.restart_invalidator(duration, &mut rng).await,
        }
    }

    async fn cut(&self, one: &str, other: &str, duration: Duration) {
        self.network.cut(one, other);
        tokio::time::sleep(duration).await;
        self.network.heal(one, other);
    }

    async fn hang_host(&self, host: &str, rng: &mut fastrand::Rng) {
        if !self.begin_fault(host) {
            return;
        }
        self.checker.count(|tally| tally.hangs += 1);
        self.hang(host, Duration::from_millis(rng.u64(20..HANG_MS_MAX))).await;
        self.end_fault(host);
    }

    async fn restart_server(&self, server: &str, duration: Duration, rng: &mut fastrand::Rng) {
        if !self.begin_fault(server) {
            return;
        }
        self.kill(server).await;
        tokio::time::sleep(duration).await;
        self.start_server(server, rng.u64(..));
        self.end_fault(server);
    }

    /// The machine of the router crashes.
    async fn restart_router(&self, router: RouterName, duration: Duration, rng: &mut fastrand::Rng) {
        let host = &router.host();
        if !self.begin_fault(host) {
            return;
        }
        self.routers.borrow_mut().remove(&router);
        self.kill(host).await;
        if let Some(disk) = self.spools.borrow().get(&router) {
            disk.crash(|unsynced_bytes| rng.usize(0..=unsynced_bytes));
        }
        tokio::time::sleep(duration).await;
        self.start_router(router, rng.u64(..));
        self.end_fault(host);
    }

    /// A new process takes over the spool when the old one has answered what it had begun. Connections are closed.
    async fn upgrade_router(&self, router: RouterName, rng: &mut fastrand::Rng) {
        let host = &router.host();
        if !self.begin_fault(host) {
            return;
        }
        let running = self.routers.borrow_mut().remove(&router);
        if running.is_some_and(|running| running.send(RouterCommand::Exit).is_ok()) {
            self.checker.count(|tally| tally.upgrades += 1);
            self.wait_for_end(host).await;
        }
        self.start_router(router, rng.u64(..));
        self.end_fault(host);
    }

    async fn restart_invalidator(&self, duration: Duration, rng: &mut fastrand::Rng) {
        if !self.begin_fault(invalidator::HOST) {
            return;
        }
        self.kill(invalidator::HOST).await;
        tokio::time::sleep(duration).await;
        self.start_invalidator(rng.u64(..));
        self.end_fault(invalidator::HOST);
    }
}
