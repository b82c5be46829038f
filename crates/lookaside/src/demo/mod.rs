//! The application of `lookaside up --demo`: in each region it reads users through the cache of each cluster, which is
//! filled from the region's own database, and changes some of them in the master database.

mod commits;
mod database;
mod postgres;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use commits::Commits;
pub use database::CREATE_TABLE;
use database::{DemoDatabase, ROWS, key};
use lookaside_client::{Client, DestinationOptions, ReadOptions, TcpDestination, TcpNetwork};
use lookaside_routing::{Address, DestinationRoute};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Readers per cluster; each reads a page of users, then pauses.
const READERS_PER_CLUSTER: u64 = 4;
/// Users on a page: as many keys as the paper's average batch (§3.1).
const PAGE_KEYS: usize = 24;
const READER_PAUSE: Duration = Duration::from_millis(20);
const WRITER_PAUSE: Duration = Duration::from_millis(20);
/// Between two measurements of the lag of a replica.
const LAG_PAUSE: Duration = Duration::from_millis(100);
/// The resolution of the lag.
const LAG_POLL: Duration = Duration::from_millis(5);

/// The activity of the application in a region.
#[derive(Debug, Default)]
pub struct DemoCounters {
    database_reads: AtomicU64,
    failures: AtomicU64,
    stale_reads: AtomicU64,
    lag_us: AtomicU64,
}

impl DemoCounters {
    /// Database queries since the start.
    pub fn database_reads(&self) -> u64 {
        self.database_reads.load(Ordering::Relaxed)
    }

    /// Failed reads and writes of the database since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Values since the start that were older than a commit that had been acknowledged when the read began.
    pub fn stale_reads(&self) -> u64 {
        self.stale_reads.load(Ordering::Relaxed)
    }

    /// How long the region's database took to show the last commit that was watched, or, if it does not show it yet, for
    /// how long it has not; in microseconds. 0 in the master region.
    pub fn lag_us(&self) -> u64 {
        self.lag_us.load(Ordering::Relaxed)
    }
}

/// A region in which the application runs.
#[derive(Clone, Debug)]
pub struct DemoRegion {
    /// The URL of the database that it reads.
    pub database: String,
    /// The endpoints of its clusters.
    pub routers: Vec<String>,
}

/// The running application. It stops when this is dropped.
pub struct Demo {
    counters: Vec<Arc<DemoCounters>>,
    /// Dropping the set aborts its tasks.
    _tasks: tokio::task::JoinSet<()>,
}

/// Creates the journal if the database is SQLite.
pub async fn prepare(url: &str) -> Result<()> {
    if let Some(path) = url.strip_prefix("sqlite://") {
        let connection = rusqlite::Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        lookaside_invalidator::source::sqlite::create_journal(&connection)?;
    }
    Ok(())
}

/// Creates and fills the table of the application in the master database.
pub async fn create_table(url: &str) -> Result<()> {
    DemoDatabase::connect(url, false)?.create_table().await
}

/// Explains how to invalidate a key, for the announcement. Replicas of PostgreSQL get no messages.
pub fn invalidation_help(url: &str, has_replicas: bool) -> String {
    match url.strip_prefix("sqlite://") {
        Some(path) => format!(
            "In a transaction: INSERT INTO lookaside_journal (key) VALUES ('user:42'), as in\n  \
             sqlite3 {path} \"INSERT INTO lookaside_journal (key) VALUES ('user:42')\""
        ),
        None if url.starts_with("postgres") && has_replicas => {
            "In a transaction: INSERT INTO lookaside_outbox (key) VALUES ('user:42')".to_owned()
        }
        None if url.starts_with("postgres") => {
            "In a transaction: SELECT lookaside_invalidate('user:42'), or INSERT INTO lookaside_outbox".to_owned()
        }
        None => "In a statement: UPDATE ... /* lookaside: user:42 */, or INSERT INTO lookaside_outbox".to_owned(),
    }
}

impl Demo {
    /// Starts readers on each router and a writer in each region; the first region is the master. The table exists. Must
    /// be called in a tokio runtime.
    pub async fn start(regions: &[DemoRegion]) -> Result<Demo> {
        let master = DemoDatabase::connect(&regions[0].database, regions.len() > 1)?;
        let commits = Arc::new(Commits::new(ROWS));
        let (mut counters, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
        let mut seeds = 0..;
        for (index, region) in regions.iter().enumerate() {
            let local = match index {
                0 => master.clone(),
                _ => DemoDatabase::connect(&region.database, false)?,
            };
            local.wait_until_filled().await?;
            let application = Application {
                clients: region.routers.iter().zip(&mut seeds).map(|(router, seed)| client(router, seed)).collect(),
                local,
                master: master.clone(),
                commits: commits.clone(),
                counters: Arc::default(),
            };
            counters.push(application.counters.clone());
            for client in &application.clients {
                for _ in 0..READERS_PER_CLUSTER {
                    let rng = fastrand::Rng::with_seed(seeds.next().expect("endless"));
                    tasks.spawn(application.clone().run_reader(client.clone(), rng));
                }
            }
            let rng = fastrand::Rng::with_seed(seeds.next().expect("endless"));
            tasks.spawn(application.clone().run_writer(rng));
            if index > 0 {
                tasks.spawn(application.run_lag_watch());
            }
        }
        Ok(Demo { counters, _tasks: tasks })
    }

    /// Its activity so far, by region.
    pub fn counters(&self) -> &[Arc<DemoCounters>] {
        &self.counters
    }
}

fn client(router: &str, seed: u64) -> Client {
    let options = DestinationOptions { seed, ..DestinationOptions::default() };
    let destination = TcpDestination::new(Address(router.into()), Arc::new(TcpNetwork), options);
    Client::new(Arc::new(DestinationRoute::new(Arc::new(destination), true)))
}

/// Low ids are far more frequent.
fn random_user_id(rng: &mut fastrand::Rng) -> u32 {
    (f64::from(ROWS) * rng.f64().powi(4)) as u32
}

/// The application in one region.
#[derive(Clone)]
struct Application {
    /// One for each cluster.
    clients: Vec<Client>,
    /// The region's own database.
    local: DemoDatabase,
    /// The database that takes writes.
    master: DemoDatabase,
    /// What has been committed, from any region.
    commits: Arc<Commits>,
    counters: Arc<DemoCounters>,
}

impl Application {
    async fn run_reader(self, client: Client, mut rng: fastrand::Rng) {
        loop {
            let ids: Vec<u32> = (0..PAGE_KEYS).map(|_| random_user_id(&mut rng)).collect();
            if self.read_page(&client, &ids).await.is_err() {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(READER_PAUSE).await;
        }
    }

    /// Reads users, and counts the values that are older than what had been committed before.
    async fn read_page(&self, client: &Client, ids: &[u32]) -> Result<()> {
        let keys: Vec<String> = ids.iter().copied().map(key).collect();
        let committed: Vec<u64> = ids.iter().map(|&id| self.commits.newest(id)).collect();
        let load = |missed: Vec<Bytes>| {
            self.counters.database_reads.fetch_add(missed.len() as u64, Ordering::Relaxed);
            load_rows(self.local.clone(), missed)
        };
        let values = client.read_many(&keys, &ReadOptions::default(), load).await;
        let values = values.map_err(|error| anyhow!("{error}"))?;
        let mut stale = 0;
        for (value, committed) in values.iter().zip(committed) {
            stale += u64::from(parse_visits(&value.value)? < committed);
        }
        self.counters.stale_reads.fetch_add(stale, Ordering::Relaxed);
        Ok(())
    }

    async fn run_writer(self, mut rng: fastrand::Rng) {
        loop {
            let id = random_user_id(&mut rng);
            let client = &self.clients[rng.usize(0..self.clients.len())];
            if self.write(client, id).await.is_err() {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(WRITER_PAUSE).await;
        }
    }

    /// Changes a user in the master database, and deletes it in the writer's own cluster at once, so that a reader there
    /// does not find the value from before; the invalidators delete in the others. In a replica region the next reader
    /// may load the old row and cache it, until replication brings the delete (§5).
    async fn write(&self, client: &Client, id: u32) -> Result<()> {
        let visits = self.master.write(id).await?;
        self.commits.record(id, visits);
        // A cluster that does not answer gets the delete from the invalidator.
        let _ = client.delete(key(id)).await;
        Ok(())
    }

    /// Measures how long commits take to be seen in the region's own database.
    async fn run_lag_watch(self) {
        loop {
            tokio::time::sleep(LAG_PAUSE).await;
            let Some(commit) = self.commits.last() else { continue };
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
}
