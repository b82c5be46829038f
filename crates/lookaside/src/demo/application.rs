//! The application in one region: its readers, its writer, and the watch of its database's lag.

use super::client::ClusterClient;
use super::commits::Commits;
use super::counters::DemoCounters;
use super::database::{DemoDatabase, ROWS, key};
use anyhow::{Context, Result};
use bytes::Bytes;
use lookaside_client::ReadFrom;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Users on a page: as many keys as the paper's average batch (§3.1).
const PAGE_KEYS: usize = 24;
const READER_PAUSE: Duration = Duration::from_millis(20);
const WRITER_PAUSE: Duration = Duration::from_millis(20);
/// Between two measurements of the lag of a replica.
const LAG_PAUSE: Duration = Duration::from_millis(100);
/// The resolution of the lag.
const LAG_POLL: Duration = Duration::from_millis(5);

/// The application in one region.
#[derive(Clone)]
pub(super) struct Application {
    /// One for each cluster.
    pub(super) clients: Vec<ClusterClient>,
    /// The region's own database.
    pub(super) local: DemoDatabase,
    /// The database that takes writes.
    pub(super) master: DemoDatabase,
    /// What has been committed, from any region.
    pub(super) commits: Arc<Commits>,
    pub(super) counters: Arc<DemoCounters>,
}

impl Application {
    /// Reads pages of users through one cluster.
    pub(super) async fn run_reader(self, client: ClusterClient, mut rng: fastrand::Rng) {
        loop {
            let ids: Vec<u32> = (0..PAGE_KEYS).map(|_| random_user_id(&mut rng)).collect();
            self.count_failure(&self.read_page(&client, &ids).await);
            tokio::time::sleep(READER_PAUSE).await;
        }
    }

    /// Changes users, each through one of the clusters.
    pub(super) async fn run_writer(self, mut rng: fastrand::Rng) {
        loop {
            let id = random_user_id(&mut rng);
            let client = &self.clients[rng.usize(0..self.clients.len())];
            self.count_failure(&self.write_and_read(client, id).await);
            tokio::time::sleep(WRITER_PAUSE).await;
        }
    }

    fn count_failure(&self, result: &Result<()>) {
        self.counters.failures.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
    }

    /// Reads users, and counts the values that are older than what had been committed before.
    async fn read_page(&self, client: &ClusterClient, ids: &[u32]) -> Result<()> {
        let committed: Vec<u64> = ids.iter().map(|&id| self.commits.newest(id)).collect();
        let visits = self.read(client, ids).await?;
        let stale = visits.iter().zip(committed).filter(|&(&visits, committed)| visits < committed).count();
        self.counters.stale_reads.fetch_add(stale as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The visits of users, from the cache or from the database that it is to be filled from.
    async fn read(&self, client: &ClusterClient, ids: &[u32]) -> Result<Vec<u64>> {
        let keys: Vec<String> = ids.iter().copied().map(key).collect();
        let load = |from, missed: Vec<Bytes>| {
            let loads = missed.len() as u64;
            self.counters.database_reads.fetch_add(loads, Ordering::Relaxed);
            let database = match from {
                ReadFrom::Replica => self.local.clone(),
                ReadFrom::Master => {
                    self.counters.master_reads.fetch_add(loads, Ordering::Relaxed);
                    self.master.clone()
                }
            };
            load_rows(database, missed)
        };
        let values = client.read_many(&keys, load).await?;
        values.iter().map(|value| parse_visits(&value.value)).collect()
    }

    /// Changes a user in the master database, as one of its users, and then reads it as that user.
    async fn write_and_read(&self, client: &ClusterClient, id: u32) -> Result<()> {
        let write = client.begin_write(key(id)).await?;
        let written = self.master.write(id, &write.markers()).await;
        if let Ok(visits) = written {
            self.commits.record(id, visits);
        }
        // Also if it is unknown whether the transaction was committed.
        let finished = write.finish().await;
        let written = written?;
        finished?;
        let is_stale = self.read(client, &[id]).await?[0] < written;
        self.counters.own_reads.fetch_add(1, Ordering::Relaxed);
        self.counters.own_stale_reads.fetch_add(u64::from(is_stale), Ordering::Relaxed);
        Ok(())
    }

    /// Measures how long commits take to be seen in the region's own database.
    pub(super) async fn run_lag_watch(self) {
        let mut watched = None;
        loop {
            tokio::time::sleep(LAG_PAUSE).await;
            let Some(commit) = self.commits.last().filter(|commit| watched != Some(commit.at)) else { continue };
            watched = Some(commit.at);
            loop {
                let is_seen = self.local.read(commit.id).await.is_ok_and(|visits| visits >= commit.visits);
                let lag_us = u64::try_from(commit.at.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.counters.lag_us.store(lag_us, Ordering::Relaxed);
                if is_seen {
                    break;
                }
                tokio::time::sleep(LAG_POLL).await;
            }
        }
    }
}

/// Low ids are far more frequent.
fn random_user_id(rng: &mut fastrand::Rng) -> u32 {
    (f64::from(ROWS) * rng.f64().powi(4)) as u32
}

/// The value that the application caches for a row.
fn to_value(id: u32, visits: u64) -> Bytes {
    format!("user {id} has visited {visits} times").into()
}

fn parse_visits(value: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(value)?;
    let visits = text.rsplit(' ').nth(1).and_then(|visits| visits.parse().ok());
    visits.with_context(|| format!("the cache has {text:?}, which this application has not stored"))
}

async fn load_rows(database: DemoDatabase, missed: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let mut values = Vec::with_capacity(missed.len());
    for key in missed {
        let id = std::str::from_utf8(&key)?.rsplit(':').next().unwrap_or_default().parse()?;
        values.push(to_value(id, database.read(id).await?));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_are_read_from_a_value_as_they_are_written() {
        assert_eq!(parse_visits(&to_value(7, 42)).unwrap(), 42);
        assert!(parse_visits(b"old").is_err());
    }

    /// The lag grew for as long as nothing was written, since the commit that was seen last was measured again.
    #[tokio::test(start_paused = true)]
    async fn the_lag_is_that_of_the_last_commit_however_long_ago_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", directory.path().join("region.db").display());
        super::super::prepare(&url).await.unwrap();
        let database = DemoDatabase::connect(&url, false).unwrap();
        database.create_table().await.unwrap();
        let (commits, counters) = (Arc::new(Commits::new(ROWS)), Arc::<DemoCounters>::default());
        let application = Application {
            clients: Vec::new(),
            local: database.clone(),
            master: database.clone(),
            commits: commits.clone(),
            counters: counters.clone(),
        };
        let watch = tokio::spawn(application.run_lag_watch());
        let measure = async |visits| {
            let before = counters.lag_us();
            commits.record(7, visits);
            tokio::time::advance(LAG_POLL).await;
            while counters.lag_us() == before {
                tokio::time::sleep(LAG_POLL).await;
            }
            counters.lag_us()
        };
        assert_eq!(database.write(7, &[]).await.unwrap(), 1);
        let lag_us = measure(1).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(counters.lag_us(), lag_us);
        assert!(!watch.is_finished());
        // One that is not replicated.
        measure(3).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(counters.lag_us() >= 9_000_000, "{}", counters.lag_us());
    }
}
