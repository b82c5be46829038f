//! Applications in all regions: users that write to the master and read what they have written, and other readers.
//!
//! In the region of the master a write deletes its key in the cluster of its user. In the others it uses remote markers
//! ([`RegionalClient`]), and a miss is read from the database that they demand.

use super::{
    Regions,
    database::RegionDatabase,
    density::Density,
    wide_area::{NoAnswer, RoundTrip},
};
use crate::{
    checker::Checker,
    process::Process,
    region::{
        DisabledGuarantee, SimulatedRegion,
        names::{RouterName, address, application_host, cluster_name},
    },
    value::{value_of, version_of},
};
use bytes::Bytes;
use lookaside_client::{
    Client, DestinationOptions, MarkerForm, MarkerSettings, ReadFrom, ReadOptions, RegionalClient, TcpDestination,
};
use lookaside_routing::{DestinationRoute, Route};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// A call of an application ends after this time.
pub(super) const CALL_TIME_MAX: Duration = Duration::from_secs(1);
/// In each cluster.
const USERS: usize = 2;
const READERS: usize = 2;
/// Reads by a user after each of their writes.
const READS: usize = 3;
/// The longest time between them.
const OWN_READ_INTERVAL_MAX: Duration = Duration::from_millis(60);

impl Regions {
    pub(super) fn start_applications(&self, rng: &mut fastrand::Rng) {
        for region in self.all.iter() {
            for cluster in region.clusters() {
                self.start_application(region, cluster, rng.fork());
            }
        }
    }

    fn start_application(&self, region: &SimulatedRegion, cluster: usize, mut rng: fastrand::Rng) {
        let process = Process::default();
        let (regions, region, host) = (self.clone(), region.clone(), application_host(cluster));
        let network = region.network.host(&host);
        region.programs.clone().start(&host, process.clone(), async move {
            let connect = |router: RouterName| {
                let options = DestinationOptions { server_timeout_ms: 800, seed: rng.u64(..), ..Default::default() };
                let destination = TcpDestination::new(address(&router.host()), network.clone(), options);
                let route: Arc<dyn Route> = Arc::new(DestinationRoute::new(Arc::new(destination), true));
                let settings = MarkerSettings {
                    form: match regions.disabled {
                        DisabledGuarantee::MarkerTokens => MarkerForm::PerKey,
                        _ => MarkerForm::PerWrite,
                    },
                    seed: Some(rng.u64(..)),
                    ..MarkerSettings::default()
                };
                let client = Client::new(route.clone()).with_deadline(CALL_TIME_MAX);
                RegionalClient::new(client, route, settings).expect("the settings are valid")
            };
            let clients: Vec<RegionalClient> = region.plan.routers(cluster).map(connect).collect();
            let (mut tasks, begun) = (JoinSet::new(), Instant::now());
            for number in 0..USERS + READERS {
                let application = RegionalApplication {
                    databases: regions.databases.clone(),
                    master: regions.used_masters[cluster].clone(),
                    region: region.clone(),
                    cluster,
                    clients: clients.clone(),
                    density: regions.density,
                    begun,
                    rng: rng.fork(),
                };
                match number < USERS {
                    true => tasks.spawn_local(process.task(application.user_loop())),
                    false => tasks.spawn_local(process.task(application.read_loop())),
                };
            }
            while tasks.join_next().await.is_some() {}
        });
    }
}

struct RegionalApplication {
    /// By region.
    databases: Arc<[RegionDatabase]>,
    /// The region whose database this application uses as the master.
    master: Arc<AtomicUsize>,
    region: SimulatedRegion,
    cluster: usize,
    /// One for each router of the cluster.
    clients: Vec<RegionalClient>,
    density: Density,
    begun: Instant,
    rng: fastrand::Rng,
}

impl RegionalApplication {
    async fn user_loop(mut self) {
        loop {
            let key = self.key();
            if self.write(&key).await {
                for _ in 0..READS {
                    self.read(&key).await;
                    self.pause(OWN_READ_INTERVAL_MAX).await;
                }
            }
            self.pause(self.density.write_interval_max()).await;
        }
    }

    async fn read_loop(mut self) {
        loop {
            let key = self.key();
            self.read(&key).await;
            self.pause(self.density.read_interval_max()).await;
        }
    }

    /// Returns whether the write is complete, so that it must be read from now on.
    async fn write(&mut self, key: &str) -> bool {
        let master = self.master.load(Relaxed);
        let version = match master == self.region.index {
            true => self.write_here(key).await,
            false => self.write_remotely(key, master).await,
        };
        if let Some(version) = version {
            self.region.checker.record_own_write(&cluster_name(self.cluster), key, version);
        }
        version.is_some()
    }

    async fn write_here(&mut self, key: &str) -> Option<u64> {
        let version = self.databases[self.region.index].write(key, Vec::new()).await?;
        self.client().client().delete(key).await.ok()?;
        self.region.checker.record_applied(&cluster_name(self.cluster), key, version);
        Some(version)
    }

    async fn write_remotely(&mut self, key: &str, master: usize) -> Option<u64> {
        let client = self.client();
        let write = match self.region.disabled {
            DisabledGuarantee::Markers => None,
            _ => Some(client.begin_write(&[key]).await.ok()?),
        };
        let names = write.iter().flat_map(|write| write.keys());
        let markers: Vec<Bytes> = names.filter(|name| name[..] != *key.as_bytes()).cloned().collect();
        let (database, row) = (self.databases[master].clone(), key.to_owned());
        let commit = async move { database.write(&row, markers).await };
        let outcome = RoundTrip::random(&mut self.rng).execute(commit).await;
        if let (Ok(None), Some(write)) = (&outcome, &write) {
            // The database has refused it.
            let _ = write.abort().await;
            return None;
        }
        let deleted = match &write {
            Some(write) => write.finish().await.is_ok(),
            None => client.client().delete(key).await.is_ok(),
        };
        let is_unknown = outcome == Err(NoAnswer);
        let version = outcome.ok().flatten().filter(|_| deleted);
        self.region.checker.count(|tally| {
            tally.remote_writes += u64::from(version.is_some());
            tally.unknown_writes += u64::from(is_unknown);
        });
        version
    }

    async fn read(&mut self, key: &str) {
        let owners = self.region.owners(self.cluster, key);
        let read_in_progress = self.region.checker.begin_read(&cluster_name(self.cluster), key, owners);
        let (client, loader) = (self.client(), self.loader(key));
        let options = ReadOptions { hot_miss_wait_ms: 50, ..ReadOptions::default() };
        let is_replica = self.master.load(Relaxed) != self.region.index;
        let read = match is_replica && self.region.disabled != DisabledGuarantee::Markers {
            true => client.read(key, &options, |from| loader.load(from)).await,
            false => client.client().read(key, &options, || loader.load(ReadFrom::Replica)).await,
        };
        // Others have no outcome: the database or the time was out of reach.
        if let Ok(read) = read {
            self.region.checker.end_read(read_in_progress, version_of(&read.value), read.origin);
        }
    }

    fn loader(&mut self, key: &str) -> Loader {
        Loader {
            databases: self.databases.clone(),
            region: self.region.index,
            master: self.master.clone(),
            round_trip: RoundTrip::random(&mut self.rng),
            key: key.to_owned(),
            checker: self.region.checker.clone(),
        }
    }

    fn key(&mut self) -> String {
        format!("row:{}", self.density.key(self.begun.elapsed(), &mut self.rng))
    }

    /// Any of the clients.
    fn client(&mut self) -> RegionalClient {
        self.clients[self.rng.usize(0..self.clients.len())].clone()
    }

    async fn pause(&mut self, longest: Duration) {
        tokio::time::sleep(Duration::from_micros(self.rng.u64(0..longest.as_micros() as u64))).await;
    }
}

/// Loads a key from the database of its region, or from the master.
struct Loader {
    databases: Arc<[RegionDatabase]>,
    region: usize,
    master: Arc<AtomicUsize>,
    round_trip: RoundTrip,
    key: String,
    checker: Checker,
}

impl Loader {
    async fn load(self, from: ReadFrom) -> Result<Bytes, NoAnswer> {
        let source = match from {
            ReadFrom::Master => self.master.load(Relaxed),
            ReadFrom::Replica => self.region,
        };
        let (database, key) = (self.databases[source].clone(), self.key);
        let version = match source == self.region {
            true => database.query(&key).await,
            false => {
                self.checker.count(|tally| tally.master_reads += 1);
                self.round_trip.execute(async move { database.query(&key).await }).await?
            }
        };
        Ok(value_of(version))
    }
}
