//! Applications that read through the cache of their cluster and write to the database.

use super::names::{RouterName, address, application_host, cluster_name};
use super::plan::{POOL_CONNECTIONS, PlainConnections};
use super::stalling_application::STALLING_CLIENTS;
use super::{DisabledGuarantee, SimulatedRegion};
use crate::{
    checker::{Checker, ReadInProgress},
    process::Process,
    value::{value_of, version_of},
};
use bytes::Bytes;
use lookaside_client::config::{ConfigWatcher, Source};
use lookaside_client::tree::HostInfo;
use lookaside_client::{Client, DestinationOptions, DirectRoute, Lookup, Network, Origin, ReadOptions, TcpDestination};
use lookaside_routing::{DestinationRoute, HealthSettings, Route};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

/// Few keys, so that reads and writes collide.
const KEYS: usize = 12;
const READERS: usize = 5;
const WRITERS: usize = 2;
/// The longest time between two looks at a router's configuration file, in milliseconds.
const CONFIGURATION_INTERVAL_MS_MAX: u64 = 400;
/// One write in this many deletes the key in its own cluster at once (§4.1); the others leave that to the invalidator.
const OWN_DELETE_ONE_IN: u8 = 2;

pub(super) fn key(rng: &mut fastrand::Rng) -> String {
    format!("row:{}", rng.usize(0..KEYS))
}

impl SimulatedRegion {
    pub(super) fn start_applications(&self, rng: &mut fastrand::Rng) {
        for cluster in self.clusters() {
            let region = self.clone();
            let mut rng = rng.fork();
            let process = Process::default();
            let network = self.network.host(&application_host(cluster));
            self.programs.start(&application_host(cluster), process.clone(), async move {
                let connections = match region.plan.plain_connections {
                    Some(PlainConnections::Pool) => POOL_CONNECTIONS,
                    _ => 1,
                };
                let connect = |rng: &mut fastrand::Rng| -> Vec<Vec<Arc<dyn Route>>> {
                    let mut connect = |router: RouterName| -> Arc<dyn Route> {
                        let seed = rng.u64(..);
                        let options = DestinationOptions { server_timeout_ms: 800, seed, ..Default::default() };
                        let destination = TcpDestination::new(address(&router.host()), network.clone(), options);
                        Arc::new(DestinationRoute::new(Arc::new(destination), true))
                    };
                    let routers = region.plan.routers(cluster);
                    routers.map(|router| (0..connections).map(|_| connect(router)).collect()).collect()
                };
                let shared = connect(&mut rng);
                let mut tasks = JoinSet::new();
                let (texts, received) = mpsc::unbounded_channel();
                let direct = match region.plan.has_direct_clients {
                    true => {
                        tasks.spawn_local(process.task(region.clone().send_configurations(cluster, rng.fork(), texts)));
                        Some(region.direct_route(cluster, rng.u64(..), network.clone(), received).await)
                    }
                    false => None,
                };
                let start = |rng: &mut fastrand::Rng| {
                    let routes = match region.plan.plain_connections {
                        Some(PlainConnections::Own) => connect(rng),
                        Some(PlainConnections::Shared | PlainConnections::Pool) | None => shared.clone(),
                    };
                    let through_routers = routes.iter().map(|of_router| Client::new(of_router[0].clone()));
                    let directly = direct.iter().map(|direct| Client::new(direct.route.clone()));
                    let clients = through_routers.chain(directly).collect();
                    Application { region: region.clone(), clients, routes, cluster, rng: rng.fork() }
                };
                for _ in 0..READERS {
                    let application = start(&mut rng);
                    tasks.spawn_local(process.task(application.read_loop()));
                }
                for _ in 0..WRITERS {
                    let application = start(&mut rng);
                    tasks.spawn_local(process.task(application.write_loop()));
                }
                if region.plan.has_stalling_clients {
                    for number in 0..STALLING_CLIENTS {
                        let application = start(&mut rng);
                        tasks.spawn_local(process.task(application.stall_loop(number)));
                    }
                }
                while tasks.join_next().await.is_some() {}
            });
        }
    }
}

impl SimulatedRegion {
    /// A route that reads servers directly, by the configurations that arrive by `texts`.
    async fn direct_route(
        &self,
        cluster: usize,
        seed: u64,
        network: Arc<dyn Network>,
        texts: mpsc::UnboundedReceiver<String>,
    ) -> DirectUsage {
        let routers = self.plan.routers(cluster).map(|router| address(&router.host()));
        let health = HealthSettings { probe_initial_ms: 100, ..HealthSettings::default() };
        let builder = DirectRoute::builder(Source::Text(String::new()), routers)
            .network(network)
            .host(HostInfo::from_name("", 0))
            .destination_options(DestinationOptions { server_timeout_ms: 800, seed, health, ..Default::default() })
            .watcher(ConfigWatcher::of_texts(texts));
        let route = builder.build().await.expect("the configuration of a router is valid");
        DirectUsage { route, checker: self.checker.clone() }
    }

    /// Sends a client the configuration that one of the routers has in its file, at moments of its own.
    async fn send_configurations(self, cluster: usize, mut rng: fastrand::Rng, texts: mpsc::UnboundedSender<String>) {
        let routers: Vec<RouterName> = self.plan.routers(cluster).collect();
        let mut last = String::new();
        loop {
            let text = self.configuration_file(routers[rng.usize(0..routers.len())]);
            if text != last && texts.send(text.clone()).is_err() {
                return;
            }
            last = text;
            tokio::time::sleep(Duration::from_millis(rng.u64(0..CONFIGURATION_INTERVAL_MS_MAX))).await;
        }
    }
}

/// Counts the direct reads of an application when it ends.
struct DirectUsage {
    route: Arc<DirectRoute>,
    checker: Checker,
}

impl Drop for DirectUsage {
    fn drop(&mut self) {
        self.checker.count(|tally| tally.direct_reads += self.route.statistics().direct_reads);
    }
}

pub(super) struct Application {
    pub(super) region: SimulatedRegion,
    /// One for each router of the cluster, and perhaps one that reads servers directly.
    clients: Vec<Client>,
    /// The connections to each router.
    pub(super) routes: Vec<Vec<Arc<dyn Route>>>,
    pub(super) cluster: usize,
    pub(super) rng: fastrand::Rng,
}

impl Application {
    async fn read_loop(mut self) {
        loop {
            match self.rng.u8(0..4) {
                _ if self.region.plan.plain_connections.is_some() => self.read_plain().await,
                0 => self.read_page().await,
                _ if self.region.disabled == DisabledGuarantee::Leases => self.read_without_lease().await,
                _ => self.read_one().await,
            }
            self.pause(8_000).await;
        }
    }

    async fn write_loop(mut self) {
        loop {
            let key = key(&mut self.rng);
            let version = self.region.database.write(&key).await;
            if self.rng.u8(0..OWN_DELETE_ONE_IN) == 0 && self.client().delete(&key).await.is_ok() {
                self.region.checker.record_applied(&cluster_name(self.cluster), &key, version);
            }
            self.pause(60_000).await;
        }
    }

    async fn read_one(&mut self) {
        let key = key(&mut self.rng);
        let read_in_progress = self.begin_read(&key);
        let (options, client) = (self.options(), self.client());
        let load = || self.load(&key);
        let read = client.read(&key, &options, load).await.expect("loading does not fail");
        self.region.checker.end_read(read_in_progress, version_of(&read.value), read.origin);
    }

    async fn read_page(&mut self) {
        let mut keys: Vec<String> = (0..4).map(|_| key(&mut self.rng)).collect();
        keys.dedup();
        let reads_in_progress: Vec<_> = keys.iter().map(|key| self.begin_read(key)).collect();
        let (options, client) = (self.options(), self.client());
        let load = async |missed: Vec<Bytes>| {
            let mut values = Vec::new();
            for key in missed {
                values.push(self.load(std::str::from_utf8(&key).expect("our keys are text")).await?);
            }
            Ok::<_, Infallible>(values)
        };
        let read = client.read_many(&keys, &options, load).await.expect("loading does not fail");
        for (read_in_progress, read) in reads_in_progress.into_iter().zip(read) {
            self.region.checker.end_read(read_in_progress, version_of(&read.value), read.origin);
        }
    }

    pub(super) fn begin_read(&self, key: &str) -> ReadInProgress {
        let owners = self.region.owners(self.cluster, key);
        self.region.checker.begin_read(&cluster_name(self.cluster), key, owners)
    }

    async fn read_without_lease(&mut self) {
        let key = key(&mut self.rng);
        let read_in_progress = self.begin_read(&key);
        let client = self.client();
        if let Ok(Lookup::Hit { value, .. }) = client.get(&key).await {
            return self.region.checker.end_read(read_in_progress, version_of(&value), Origin::Cache);
        }
        let Ok(value) = self.load(&key).await;
        let _ = client.set(&key, value, 0, 0).await;
    }

    /// A query: at some moment during its run it reads the visible version.
    pub(super) async fn load(&self, key: &str) -> Result<Bytes, Infallible> {
        tokio::time::sleep(self.region.database.query_time()).await;
        let version = self.region.database.read(key);
        tokio::time::sleep(self.region.database.query_time()).await;
        Ok(value_of(version))
    }

    /// Any of the clients.
    fn client(&mut self) -> Client {
        self.clients[self.rng.usize(0..self.clients.len())].clone()
    }

    fn options(&mut self) -> ReadOptions {
        ReadOptions { allow_stale: self.rng.u8(0..4) == 0, hot_miss_wait_ms: 50, ..ReadOptions::default() }
    }

    pub(super) async fn pause(&mut self, longest_us: u64) {
        tokio::time::sleep(Duration::from_micros(self.rng.u64(0..longest_us))).await;
    }
}
