//! Injects faults: cuts and heals links, kills and restarts programs.

use super::names::{CLUSTERS, application_host, router_host, server_names};
use super::{SimulatedRegion, invalidator};
use std::time::Duration;
use tokio::{task::JoinSet, time::Instant};

impl SimulatedRegion {
    /// Injects faults until `end`, then waits until all are repaired.
    pub(super) async fn inject_faults(&self, rng: &mut fastrand::Rng, end: Instant) {
        let mut faults = JoinSet::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(rng.u64(50..800))).await;
            self.checker.count_fault();
            let duration = Duration::from_millis(rng.u64(20..2_000));
            faults.spawn_local(self.clone().inject_fault(rng.fork(), duration));
        }
        while faults.join_next().await.is_some() {}
    }

    async fn inject_fault(self, mut rng: fastrand::Rng, duration: Duration) {
        let cluster = rng.usize(0..CLUSTERS);
        let servers: Vec<String> = server_names(cluster).collect();
        let server = servers[rng.usize(0..servers.len())].clone();
        let router = router_host(cluster);
        match rng.u8(0..11) {
            0..4 => self.cut(&router, &server, duration).await,
            4 | 5 => self.cut(invalidator::HOST, &router, duration).await,
            6 => self.cut(&application_host(cluster), &router, duration).await,
            7 => {
                self.kill(&server).await;
                tokio::time::sleep(duration).await;
                self.start_server(&server, rng.u64(..));
            }
            8 => self.restart_router(cluster, duration, &mut rng).await,
            9 => {
                // The router may have spooled deletes for the server that it cannot reach.
                self.network.cut(&router, &server);
                tokio::time::sleep(duration).await;
                self.restart_router(cluster, duration / 2, &mut rng).await;
                tokio::time::sleep(duration / 2).await;
                self.network.heal(&router, &server);
            }
            _ => {
                self.kill(invalidator::HOST).await;
                tokio::time::sleep(duration).await;
                self.start_invalidator(rng.u64(..));
            }
        }
    }

    async fn restart_router(&self, cluster: usize, duration: Duration, rng: &mut fastrand::Rng) {
        self.kill(&router_host(cluster)).await;
        tokio::time::sleep(duration).await;
        self.start_router(cluster, rng.u64(..));
    }

    async fn cut(&self, one: &str, other: &str, duration: Duration) {
        self.network.cut(one, other);
        tokio::time::sleep(duration).await;
        self.network.heal(one, other);
    }
}
