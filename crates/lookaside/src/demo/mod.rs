//! The application that `lookaside up --demo` adds: it reads users through the cache of each cluster and changes some
//! of them in the database.

mod database;

use anyhow::{Result, bail};
use bytes::Bytes;
use database::{Database, ROWS, key};
use lookaside_client::{Client, DestinationOptions, ReadOptions, TcpDestination, TcpNetwork};
use lookaside_routing::{Address, DestinationRoute};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Readers a cluster; each asks for a page of users, then rests.
const READERS_PER_CLUSTER: u64 = 4;
/// Users on a page: as many keys as the paper's average batch (§3.1).
const PAGE_KEYS: usize = 24;
const READER_REST: Duration = Duration::from_millis(20);
const WRITER_REST: Duration = Duration::from_millis(20);

/// What the application did.
#[derive(Debug, Default)]
pub struct Counters {
    database_reads: AtomicU64,
    failures: AtomicU64,
}

impl Counters {
    /// Queries, since the start.
    pub fn database_reads(&self) -> u64 {
        self.database_reads.load(Ordering::Relaxed)
    }

    /// Reads and writes that the database refused, since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// The running application; it ends when this is dropped.
pub struct Demo {
    counters: Arc<Counters>,
    /// Held for its end: dropping a set ends its tasks.
    _tasks: tokio::task::JoinSet<()>,
}

/// Makes the embedded database with its journal, if it is one.
pub async fn prepare(url: &str) -> Result<()> {
    if let Some(path) = url.strip_prefix("sqlite://") {
        let connection = rusqlite::Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        lookaside_invalidator::source::sqlite::create_journal(&connection)?;
    } else if !url.starts_with("mysql://") && !url.starts_with("mariadb://") {
        bail!("a database is sqlite:///PATH, mysql://USER:PASSWORD@HOST:PORT/SCHEMA or mariadb://..., not {url}");
    }
    Ok(())
}

/// How a person makes a commit empty the caches, for the announcement.
pub fn how_to_invalidate(url: &str) -> String {
    match url.strip_prefix("sqlite://") {
        Some(path) => format!(
            "In a transaction: INSERT INTO lookaside_journal (key) VALUES ('user:42'), as in\n  \
             sqlite3 {path} \"INSERT INTO lookaside_journal (key) VALUES ('user:42')\""
        ),
        None => "In a statement: UPDATE ... /* lookaside: user:42 */, or INSERT INTO lookaside_outbox".to_owned(),
    }
}

impl Demo {
    /// Starts readers on each router, and a writer. Must be called in a tokio runtime.
    pub async fn start(url: &str, routers: &[String]) -> Result<Demo> {
        let database = Database::open(url).await?;
        let counters = Arc::new(Counters::default());
        let mut tasks = tokio::task::JoinSet::new();
        let clients: Vec<Client> = (0..).zip(routers).map(|(seed, router)| client(router, seed)).collect();
        for (cluster, client) in clients.iter().enumerate() {
            for reader in 0..READERS_PER_CLUSTER {
                let rng = fastrand::Rng::with_seed(cluster as u64 * READERS_PER_CLUSTER + reader);
                tasks.spawn(read(client.clone(), database.clone(), counters.clone(), rng));
            }
        }
        tasks.spawn(write(clients, database, counters.clone(), fastrand::Rng::with_seed(u64::MAX)));
        Ok(Demo { counters, _tasks: tasks })
    }

    /// What it has done so far.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }
}

fn client(router: &str, seed: u64) -> Client {
    let options = DestinationOptions { seed, ..DestinationOptions::default() };
    let destination = TcpDestination::new(Address(router.into()), Arc::new(TcpNetwork), options);
    Client::new(Arc::new(DestinationRoute::new(Arc::new(destination), true)))
}

/// A user, the popular ones far more often than the others.
fn popular(rng: &mut fastrand::Rng) -> u32 {
    (f64::from(ROWS) * rng.f64().powi(4)) as u32
}

async fn read(client: Client, database: Database, counters: Arc<Counters>, mut rng: fastrand::Rng) {
    loop {
        let ids: Vec<u32> = (0..PAGE_KEYS).map(|_| popular(&mut rng)).collect();
        let keys: Vec<String> = ids.iter().copied().map(key).collect();
        let load = |missed: Vec<Bytes>| {
            counters.database_reads.fetch_add(missed.len() as u64, Ordering::Relaxed);
            load(database.clone(), missed)
        };
        if client.read_many(&keys, &ReadOptions::default(), load).await.is_err() {
            counters.failures.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(READER_REST).await;
    }
}

async fn load(database: Database, missed: Vec<Bytes>) -> Result<Vec<Bytes>> {
    let mut values = Vec::with_capacity(missed.len());
    for key in missed {
        let id = std::str::from_utf8(&key)?.rsplit(':').next().unwrap_or_default().parse()?;
        values.push(Bytes::from(database.read(id).await?));
    }
    Ok(values)
}

async fn write(clients: Vec<Client>, database: Database, counters: Arc<Counters>, mut rng: fastrand::Rng) {
    loop {
        let id = popular(&mut rng);
        match database.write(id).await {
            // The writer's own cluster at once, so that its user reads what he wrote; the invalidator does the rest.
            Ok(()) => drop(clients[rng.usize(0..clients.len())].delete(key(id)).await),
            Err(_) => drop(counters.failures.fetch_add(1, Ordering::Relaxed)),
        }
        tokio::time::sleep(WRITER_REST).await;
    }
}
