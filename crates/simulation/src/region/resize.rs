//! Changes of a pool's servers: some leave, return emptied or not, join, are exchanged or get other weights, and each
//! router sees it at a moment of its own.

use super::SimulatedRegion;
use super::configuration::ClusterConfiguration;
use super::names::{RouterName, spares};
use super::reconfigure::{Delivery, ROLLOUT};
use crate::checker::Violation;
use std::time::Duration;
use tokio::time::Instant;

/// How long the former servers may be away before they return. Routers forget a configuration after five seconds.
const AWAY_MS_MAX: u64 = 12_000;
/// How long the last change may take when nothing fails.
const LAST_CHANGE_MAX: Duration = Duration::from_secs(60);

/// The servers of a pool.
#[derive(Clone)]
struct PoolServers {
    hosts: Vec<String>,
    weights: Option<Vec<u8>>,
}

impl PoolServers {
    fn of(configuration: &ClusterConfiguration) -> PoolServers {
        PoolServers { hosts: configuration.servers.clone(), weights: configuration.weights.clone() }
    }

    /// Other servers, another order, or other weights.
    fn changed(&self, all: &[String], rng: &mut fastrand::Rng) -> PoolServers {
        let PoolServers { mut hosts, .. } = self.clone();
        let absent: Vec<&String> = all.iter().filter(|host| !hosts.contains(host)).collect();
        let at = rng.usize(0..hosts.len());
        match rng.u8(0..4) {
            0 if hosts.len() > 1 => _ = hosts.remove(at),
            1 if !absent.is_empty() => hosts.insert(at, absent[rng.usize(0..absent.len())].clone()),
            2 if !absent.is_empty() => hosts[at] = absent[rng.usize(0..absent.len())].clone(),
            _ => rng.shuffle(&mut hosts),
        }
        let is_weighted = rng.u8(0..4) == 0;
        let weights = is_weighted.then(|| hosts.iter().map(|_| rng.u8(1..=10)).collect());
        PoolServers { hosts, weights }
    }
}

impl SimulatedRegion {
    /// Changes the servers of a cluster's pool. They may change again within a second, and the former ones may return.
    pub(super) async fn resize(&self, cluster: usize, rng: &mut fastrand::Rng) {
        let all = self.plan.all_pool_servers(cluster);
        let former = PoolServers::of(&self.configuration(RouterName { cluster, index: 0 }));
        let changed = former.changed(&all, rng);
        self.change_servers(cluster, &changed, |_| Delivery::random(rng, ROLLOUT)).await;
        match rng.u8(0..4) {
            0 => {}
            1 => {
                tokio::time::sleep(Duration::from_millis(rng.u64(0..1_000))).await;
                self.change_servers(cluster, &changed.changed(&all, rng), |_| Delivery::random(rng, ROLLOUT)).await;
            }
            _ => {
                tokio::time::sleep(Duration::from_millis(rng.u64(0..AWAY_MS_MAX))).await;
                for host in former.hosts.iter().filter(|host| !changed.hosts.contains(host)) {
                    if rng.bool() {
                        self.restart_server(host, Duration::ZERO, rng).await;
                    }
                }
                self.change_servers(cluster, &former, |_| Delivery::random(rng, ROLLOUT)).await;
            }
        }
    }

    /// Gives the pool of a cluster other servers. Each router sees it when `delivery` says so. Returns when all of them
    /// have been sent it.
    async fn change_servers(
        &self,
        cluster: usize,
        servers: &PoolServers,
        delivery: impl FnMut(RouterName) -> Delivery,
    ) {
        let PoolServers { hosts, weights } = servers.clone();
        let change = move |configuration: &mut ClusterConfiguration| {
            configuration.servers = hosts.clone();
            configuration.weights = weights.clone();
        };
        self.reconfigure(cluster, change, delivery).await;
    }

    /// Gives the pool of a cluster all servers, when nothing fails any more, and waits until all routers have forgotten
    /// all other configurations.
    pub(super) async fn return_all_servers(&self, cluster: usize) {
        let last = ClusterConfiguration {
            servers: self.plan.all_pool_servers(cluster),
            spares: spares(cluster),
            ..ClusterConfiguration::of(self.plan, cluster)
        };
        let text = last.text(self.disabled);
        let change = move |configuration: &mut ClusterConfiguration| *configuration = last.clone();
        self.reconfigure(cluster, change, |_| Delivery::After(Duration::ZERO)).await;
        let deadline = Instant::now() + LAST_CHANGE_MAX;
        for router in self.plan.routers(cluster) {
            while !self.is_steady(router, &text) {
                if Instant::now() >= deadline {
                    return self.checker.record_violation(Violation::UnfinishedChange { router: router.host() });
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Whether a router reads by the configuration `text`, and covers no other.
    fn is_steady(&self, router: RouterName, text: &str) -> bool {
        let routers = self.routers.borrow();
        let active = routers.get(&router).map(|running| running.active.borrow().clone());
        active.is_some_and(|active| !active.is_changing() && active.reads().text() == text)
    }
}
