//! Applications: they read through the cache of their cluster, and write to the database.

use super::{Broken, CLUSTERS, Region, address, cluster_name, router};
use bytes::Bytes;
use lookaside_client::{Client, DestinationOptions, Lookup, Origin, ReadOptions, TcpDestination};
use lookaside_routing::DestinationRoute;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::task::JoinSet;

/// Few, so that reads and writes meet.
const KEYS: usize = 12;
const READERS: usize = 5;
const WRITERS: usize = 2;
/// One writer in so many deletes in its own cluster at once, as §4.1 has it; the others leave it to the invalidator.
const OWN_DELETE_ONE_IN: u8 = 2;

pub(super) fn host(cluster: usize) -> String {
    format!("app-{cluster}")
}

/// The version that a value holds.
pub(super) fn version_of(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("applications cache versions only")
}

fn value_of(version: u64) -> Bytes {
    Bytes::from(version.to_string())
}

fn key(rng: &mut fastrand::Rng) -> String {
    format!("row:{}", rng.usize(0..KEYS))
}

impl Region {
    /// Starts the application of every cluster.
    pub(super) fn start_applications(&self, rng: &mut fastrand::Rng) {
        for cluster in 0..CLUSTERS {
            let region = self.clone();
            let mut rng = rng.fork();
            self.start(&host(cluster), async move {
                let options = DestinationOptions { server_timeout_ms: 800, seed: rng.u64(..), ..Default::default() };
                let network = region.network.host(&host(cluster));
                let destination = TcpDestination::new(address(&router::host(cluster)), network, options);
                let client = Client::new(Arc::new(DestinationRoute::new(Arc::new(destination), true)));
                let mut tasks = JoinSet::new();
                for _ in 0..READERS {
                    let application =
                        Application { region: region.clone(), client: client.clone(), cluster, rng: rng.fork() };
                    tasks.spawn_local(application.read());
                }
                for _ in 0..WRITERS {
                    let application =
                        Application { region: region.clone(), client: client.clone(), cluster, rng: rng.fork() };
                    tasks.spawn_local(application.write());
                }
                while tasks.join_next().await.is_some() {}
            });
        }
    }
}

struct Application {
    region: Region,
    client: Client,
    cluster: usize,
    rng: fastrand::Rng,
}

impl Application {
    async fn read(mut self) {
        loop {
            match self.rng.u8(0..4) {
                0 => self.read_page().await,
                _ if self.region.broken == Broken::Leases => self.read_without_lease().await,
                _ => self.read_one().await,
            }
            self.rest(8_000).await;
        }
    }

    async fn write(mut self) {
        loop {
            let key = key(&mut self.rng);
            self.region.database.write(&key).await;
            if self.rng.u8(0..OWN_DELETE_ONE_IN) == 0 {
                let _ = self.client.delete(&key).await;
            }
            self.rest(60_000).await;
        }
    }

    async fn read_one(&mut self) {
        let key = key(&mut self.rng);
        let begun = self.region.checker.read_begins(&cluster_name(self.cluster), &key);
        let options = self.options();
        let load = || self.load(&key);
        let read = self.client.read(&key, &options, load).await.expect("loading does not fail");
        self.region.checker.read_ends(begun, version_of(&read.value), read.origin);
    }

    async fn read_page(&mut self) {
        let mut keys: Vec<String> = (0..4).map(|_| key(&mut self.rng)).collect();
        keys.dedup();
        let cluster = cluster_name(self.cluster);
        let begun: Vec<_> = keys.iter().map(|key| self.region.checker.read_begins(&cluster, key)).collect();
        let options = self.options();
        let load = async |missed: Vec<Bytes>| {
            let mut values = Vec::new();
            for key in missed {
                values.push(self.load(std::str::from_utf8(&key).expect("our keys are text")).await?);
            }
            Ok::<_, Infallible>(values)
        };
        let read = self.client.read_many(&keys, &options, load).await.expect("loading does not fail");
        for (begun, read) in begun.into_iter().zip(read) {
            self.region.checker.read_ends(begun, version_of(&read.value), read.origin);
        }
    }

    /// What an application without leases does.
    async fn read_without_lease(&mut self) {
        let key = key(&mut self.rng);
        let begun = self.region.checker.read_begins(&cluster_name(self.cluster), &key);
        if let Ok(Lookup::Hit { value, .. }) = self.client.get(&key).await {
            return self.region.checker.read_ends(begun, version_of(&value), Origin::Cache);
        }
        let Ok(value) = self.load(&key).await;
        let _ = self.client.set(&key, value, 0, 0).await;
    }

    /// A query: somewhere in the time that it takes, it sees what is visible.
    async fn load(&self, key: &str) -> Result<Bytes, Infallible> {
        tokio::time::sleep(self.region.database.query_time()).await;
        let version = self.region.database.read(key);
        tokio::time::sleep(self.region.database.query_time()).await;
        Ok(value_of(version))
    }

    fn options(&mut self) -> ReadOptions {
        ReadOptions { allow_stale: self.rng.u8(0..4) == 0, exptime: 0, hot_miss_wait_ms: 50 }
    }

    async fn rest(&mut self, longest_us: u64) {
        tokio::time::sleep(Duration::from_micros(self.rng.u64(0..longest_us))).await;
    }
}
