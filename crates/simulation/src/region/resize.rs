//! Changes of the servers of a pool, or of the gutter: some leave, return emptied or not, join, are exchanged or get
//! other weights, and each router sees it at a moment of its own. Meanwhile servers are killed.

use super::SimulatedRegion;
use super::configuration::{ClusterConfiguration, StoredKeys};
use super::guarantee::DisabledGuarantee;
use super::names::{RouterName, cluster_name, spares};
use super::reconfigure::{Delivery, ROLLOUT};
use crate::{checker::Violation, fault_log::FailedPart};
use std::time::Duration;
use tokio::{task::JoinSet, time::Instant};

/// How long the former servers may be away before they return. Routers forget a configuration after five seconds.
const AWAY_MS_MAX: u64 = 12_000;
/// How long the last change may take when nothing fails.
const LAST_CHANGE_MAX: Duration = Duration::from_secs(60);

/// The most servers that are killed while a pool changes twice.
const KILLED_MAX: usize = 2;
const KILLED_MS_MAX: u64 = 3_000;
/// One change in this many concerns the gutter.
const GUTTER_ONE_IN: u8 = 4;
/// One change in this many concerns the names under which keys are stored.
const STORED_KEYS_ONE_IN: u8 = 4;
/// One of the other changes in this many follows one of the spares, and as many one of the limit of deletes.
const SPARES_ONE_IN: u8 = 4;
const LIMIT_ONE_IN: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResizedPool {
    Servers,
    Gutter,
}

/// The servers of a pool.
#[derive(Clone)]
pub(super) struct PoolServers {
    pool: ResizedPool,
    hosts: Vec<String>,
    weights: Option<Vec<u8>>,
}

impl PoolServers {
    pub(super) fn of(configuration: &ClusterConfiguration, pool: ResizedPool) -> PoolServers {
        let (hosts, weights) = match pool {
            ResizedPool::Servers => (configuration.servers.clone(), configuration.weights.clone()),
            ResizedPool::Gutter => (configuration.gutters.clone(), None),
        };
        PoolServers { pool, hosts, weights }
    }

    /// Writes them into `configuration`.
    fn apply(&self, configuration: &mut ClusterConfiguration) {
        let PoolServers { pool, hosts, weights } = self.clone();
        match pool {
            ResizedPool::Servers => (configuration.servers, configuration.weights) = (hosts, weights),
            ResizedPool::Gutter => configuration.gutters = hosts,
        }
    }

    /// Other servers, another order, or other weights.
    pub(super) fn changed(&self, all: &[String], rng: &mut fastrand::Rng) -> PoolServers {
        let PoolServers { pool, mut hosts, .. } = self.clone();
        let absent: Vec<&String> = all.iter().filter(|host| !hosts.contains(host)).collect();
        let at = rng.usize(0..hosts.len());
        match rng.u8(0..4) {
            0 if hosts.len() > 1 => _ = hosts.remove(at),
            1 if !absent.is_empty() => hosts.insert(at, absent[rng.usize(0..absent.len())].clone()),
            2 if !absent.is_empty() => hosts[at] = absent[rng.usize(0..absent.len())].clone(),
            _ => rng.shuffle(&mut hosts),
        }
        let is_weighted = pool == ResizedPool::Servers && rng.u8(0..4) == 0;
        let weights = is_weighted.then(|| hosts.iter().map(|_| rng.u8(1..=10)).collect());
        PoolServers { pool, hosts, weights }
    }
}

impl SimulatedRegion {
    /// Changes the servers of a cluster's pool, or of its gutter, perhaps after its spares or the limit of deletes, or
    /// under which names they store keys. They may change again within a second while servers are killed, and the
    /// former ones may return.
    pub(super) async fn resize(&self, cluster: usize, rng: &mut fastrand::Rng) {
        // From a copy of the generator, and not its next number, which decides between servers and gutter.
        let mut extras = rng.clone();
        extras.u64(..);
        if self.disabled == DisabledGuarantee::Nothing {
            if extras.u8(0..STORED_KEYS_ONE_IN) == 0 {
                return self.change_stored_keys(cluster, rng).await;
            }
            if extras.u8(0..SPARES_ONE_IN) == 0 {
                self.change_spares(cluster, &mut extras).await;
            }
            if extras.u8(0..LIMIT_ONE_IN) == 0 {
                self.change_limit(cluster, &mut extras).await;
            }
        }
        let is_gutter = rng.u8(0..GUTTER_ONE_IN) == 0 || self.disabled == DisabledGuarantee::Gutter;
        let (pool, all) = match is_gutter {
            true => (ResizedPool::Gutter, self.plan.all_gutters(cluster)),
            false => (ResizedPool::Servers, self.plan.all_pool_servers(cluster)),
        };
        let former = PoolServers::of(&self.configuration(RouterName { cluster, index: 0 }), pool);
        let changed = former.changed(&all, rng);
        self.change_servers(cluster, &changed, |_| Delivery::random(rng, ROLLOUT)).await;
        match rng.u8(0..4) {
            0 => {}
            1 => {
                let restarts = self.restart_some_servers(cluster, rng);
                tokio::time::sleep(Duration::from_millis(rng.u64(0..1_000))).await;
                self.change_servers(cluster, &changed.changed(&all, rng), |_| Delivery::random(rng, ROLLOUT)).await;
                restarts.join_all().await;
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

    /// Limits the deletes of a cluster, or no longer. From then on they may be late, as routers see the change at moments
    /// of their own.
    async fn change_limit(&self, cluster: usize, rng: &mut fastrand::Rng) {
        self.faults.begin(Some(cluster_name(cluster)), FailedPart::Delivery);
        let is_limited = !self.configuration(RouterName { cluster, index: 0 }).limits_deletes;
        let change = move |configuration: &mut ClusterConfiguration| configuration.limits_deletes = is_limited;
        self.reconfigure(cluster, change, |_| Delivery::random(rng, ROLLOUT)).await;
    }

    /// Lets a cluster store keys under other names, and perhaps under their own ones again.
    async fn change_stored_keys(&self, cluster: usize, rng: &mut fastrand::Rng) {
        let former = self.configuration(RouterName { cluster, index: 0 }).stored_keys;
        let mut others = vec![StoredKeys::Unchanged, StoredKeys::Suffixed, StoredKeys::Split];
        others.retain(|stored_keys| *stored_keys != former);
        let changed = others[rng.usize(0..others.len())];
        let to = |stored_keys| move |configuration: &mut ClusterConfiguration| configuration.stored_keys = stored_keys;
        self.reconfigure(cluster, to(changed), |_| Delivery::random(rng, ROLLOUT)).await;
        if rng.u8(0..4) > 0 {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..AWAY_MS_MAX))).await;
            self.reconfigure(cluster, to(former), |_| Delivery::random(rng, ROLLOUT)).await;
        }
    }

    /// Kills some servers within a second, and starts each again after a time of its own.
    fn restart_some_servers(&self, cluster: usize, rng: &mut fastrand::Rng) -> JoinSet<()> {
        let mut servers = self.plan.all_servers(cluster);
        rng.shuffle(&mut servers);
        let mut restarts = JoinSet::new();
        for server in servers.into_iter().take(rng.usize(0..=KILLED_MAX)) {
            let (region, mut rng) = (self.clone(), rng.fork());
            restarts.spawn_local(async move {
                tokio::time::sleep(Duration::from_millis(rng.u64(0..1_000))).await;
                let part = FailedPart::Server(server.clone());
                let fault = region.faults.begin(Some(cluster_name(cluster)), part);
                let duration = Duration::from_millis(rng.u64(0..KILLED_MS_MAX));
                region.restart_server(&server, duration, &mut rng).await;
                region.faults.end(fault);
            });
        }
        restarts
    }

    /// Gives the pool of a cluster other servers. Each router sees it when `delivery` says so. Returns when all of them
    /// have been sent it.
    pub(super) async fn change_servers(
        &self,
        cluster: usize,
        servers: &PoolServers,
        delivery: impl FnMut(RouterName) -> Delivery,
    ) {
        let servers = servers.clone();
        let change = move |configuration: &mut ClusterConfiguration| servers.apply(configuration);
        self.reconfigure(cluster, change, delivery).await;
    }

    /// Gives the pool of a cluster all servers, when nothing fails any more, and waits until all routers have forgotten
    /// all other configurations.
    pub(super) async fn return_all_servers(&self, cluster: usize) {
        let last = ClusterConfiguration {
            servers: self.plan.all_pool_servers(cluster),
            gutters: self.plan.all_gutters(cluster),
            spares: spares(cluster),
            ..ClusterConfiguration::of(self.plan, cluster)
        };
        let text = self.text_of(&last);
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
