//! The application of `lookaside up --demo`: in each region it reads users through the cache of each cluster, which is
//! filled from the region's own database, and changes some of them in the master database. A user that has written
//! reads its own write next, also in a replica region: by remote markers (§5).

mod application;
mod client;
mod commits;
mod counters;
mod database;
mod postgres;

use anyhow::Result;
use application::Application;
use client::ClusterClient;
use commits::Commits;
pub use counters::DemoCounters;
pub use database::CREATE_TABLE;
use database::{DemoDatabase, ROWS};
use std::sync::Arc;

/// Readers per cluster; each reads a page of users, then pauses.
const READERS_PER_CLUSTER: u64 = 4;

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
    /// Starts readers on each router and a writer in each region; the first region is the master. The table exists.
    /// Must be called in a tokio runtime.
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
            let connect = |(router, seed): (&String, u64)| ClusterClient::new(router, seed, index > 0);
            let clients = region.routers.iter().zip(&mut seeds).map(connect).collect::<Result<Vec<_>>>()?;
            let regional = clients.iter().filter_map(ClusterClient::regional).cloned().collect();
            let application = Application {
                clients,
                local,
                master: master.clone(),
                commits: commits.clone(),
                counters: Arc::new(DemoCounters::new(regional)),
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
