//! What goes wrong: links are cut and healed, programs die and come back.

use super::{CLUSTERS, Region, application, invalidator, router, server_names};
use std::time::Duration;
use tokio::{task::JoinSet, time::Instant};

impl Region {
    /// Does harm until `end`, then mends everything.
    pub(super) async fn inject_faults(&self, rng: &mut fastrand::Rng, end: Instant) {
        let mut faults = JoinSet::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(rng.u64(50..800))).await;
            self.checker.fault();
            let lasts = Duration::from_millis(rng.u64(20..2_000));
            faults.spawn_local(self.clone().fault(rng.fork(), lasts));
        }
        while faults.join_next().await.is_some() {}
    }

    async fn fault(self, mut rng: fastrand::Rng, lasts: Duration) {
        let cluster = rng.usize(0..CLUSTERS);
        let servers: Vec<String> = server_names(cluster).collect();
        let server = servers[rng.usize(0..servers.len())].clone();
        let router = router::host(cluster);
        match rng.u8(0..11) {
            0..4 => self.cut(&router, &server, lasts).await,
            4 | 5 => self.cut(invalidator::HOST, &router, lasts).await,
            6 => self.cut(&application::host(cluster), &router, lasts).await,
            7 => {
                self.kill(&server).await;
                tokio::time::sleep(lasts).await;
                self.start_server(&server, rng.u64(..));
            }
            8 => self.restart_router(cluster, lasts, &mut rng).await,
            9 => {
                // It may have kept deletes for the server that it cannot reach.
                self.network.cut(&router, &server);
                tokio::time::sleep(lasts).await;
                self.restart_router(cluster, lasts / 2, &mut rng).await;
                tokio::time::sleep(lasts / 2).await;
                self.network.heal(&router, &server);
            }
            _ => {
                self.kill(invalidator::HOST).await;
                tokio::time::sleep(lasts).await;
                self.start_invalidator(rng.u64(..));
            }
        }
    }

    async fn restart_router(&self, cluster: usize, lasts: Duration, rng: &mut fastrand::Rng) {
        self.kill(&router::host(cluster)).await;
        tokio::time::sleep(lasts).await;
        self.start_router(cluster, rng.u64(..));
    }

    async fn cut(&self, one: &str, other: &str, lasts: Duration) {
        self.network.cut(one, other);
        tokio::time::sleep(lasts).await;
        self.network.heal(one, other);
    }
}
