//! The application of `lookaside up --demo`: it reads users through the cache of each cluster and changes some of them
//! in the database.

mod database;
mod postgres;

use anyhow::Result;
use bytes::Bytes;
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

/// The activity of the application.
#[derive(Debug, Default)]
pub struct DemoCounters {
    database_reads: AtomicU64,
    failures: AtomicU64,
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
}

/// The running application. It stops when this is dropped.
pub struct Demo {
    counters: Arc<DemoCounters>,
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

/// Explains how to invalidate a key, for the announcement.
pub fn invalidation_help(url: &str) -> String {
    match url.strip_prefix("sqlite://") {
        Some(path) => format!(
            "In a transaction: INSERT INTO lookaside_journal (key) VALUES ('user:42'), as in\n  \
             sqlite3 {path} \"INSERT INTO lookaside_journal (key) VALUES ('user:42')\""
        ),
        None if url.starts_with("postgres") => {
            "In a transaction: SELECT lookaside_invalidate('user:42'), or INSERT INTO lookaside_outbox".to_owned()
        }
        None => "In a statement: UPDATE ... /* lookaside: user:42 */, or INSERT INTO lookaside_outbox".to_owned(),
    }
}

impl Demo {
    /// Starts readers on each router, and a writer. Must be called in a tokio runtime.
    pub async fn start(url: &str, routers: &[String]) -> Result<Demo> {
        let database = DemoDatabase::open(url).await?;
        let counters = Arc::new(DemoCounters::default());
        let mut tasks = tokio::task::JoinSet::new();
        let clients: Vec<Client> = (0..).zip(routers).map(|(seed, router)| client(router, seed)).collect();
        for (cluster, client) in clients.iter().enumerate() {
            for reader in 0..READERS_PER_CLUSTER {
                let rng = fastrand::Rng::with_seed(cluster as u64 * READERS_PER_CLUSTER + reader);
                tasks.spawn(run_reader(client.clone(), database.clone(), counters.clone(), rng));
            }
        }
        tasks.spawn(run_writer(clients, database, counters.clone(), fastrand::Rng::with_seed(u64::MAX)));
        Ok(Demo { counters, _tasks: tasks })
    }

    /// Its activity so far.
    pub fn counters(&self) -> Arc<DemoCounters> {
        self.counters.clone()
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

async fn run_reader(client: Client, database: DemoDatabase, counters: Arc<DemoCounters>, mut rng: fastrand::Rng) {
    loop {
        let ids: Vec<u32> = (0..PAGE_KEYS).map(|_| random_user_id(&mut rng)).collect();
        let keys: Vec<String> = ids.iter().copied().map(key).collect();
        let load = |missed: Vec<Bytes>| {
            counters.database_reads.fetch_add(missed.len() as u64, Ordering::Relaxed);
            load_rows(database.clone(), missed)
        };
        if client.read_many(&keys, &ReadOptions::default(), load).await.is_err() {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(READER_PAUSE).await;
    }
}

async fn load_rows(database: DemoDatabase, missed: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let mut values = Vec::with_capacity(missed.len());
    for key in missed {
        let id = std::str::from_utf8(&key)?.rsplit(':').next().unwrap_or_default().parse()?;
        values.push(Bytes::from(database.read(id).await?));
    }
    Ok(values)
}

async fn run_writer(clients: Vec<Client>, database: DemoDatabase, counters: Arc<DemoCounters>, mut rng: fastrand::Rng) {
    loop {
        let id = random_user_id(&mut rng);
        match database.write(id).await {
            // Delete in the writer's own cluster at once, so that it reads its own write; the invalidator deletes in
            // the others.
            Ok(()) => drop(clients[rng.usize(0..clients.len())].delete(key(id)).await),
            Err(_) => drop(counters.failures.fetch_add(1, Ordering::Relaxed)),
        }
        tokio::time::sleep(WRITER_PAUSE).await;
    }
}
