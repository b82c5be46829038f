//! The databases that `lookaside up` starts itself: one for each region. The first is the master, which all
//! applications write to. The others are its replicas, and follow it over links ([`link`]).
//!
//! | | the master's log reaches a replica by | read-only replicas |
//! |---|---|---|
//! | MariaDB | its own replication, by GTIDs, in rows | `read_only` |
//! | PostgreSQL | logical replication of all tables: the invalidator needs a slot, which a standby before version 16 cannot have | read-only transactions |
//! | SQLite | a task that copies the file ([`sqlite`]) | not enforced |

mod forwarder;
pub mod link;
mod mariadb;
mod postgres;
mod programs;
mod sqlite;

use crate::process::Process;
use anyhow::{Context, Result, bail};
use forwarder::Forwarder;
use link::{LinkControl, LinkState};
use mariadb::Mariadb;
use postgres::Postgres;
use sqlite::Copier;
use std::{
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinSet};

/// The user, its password and the database of the applications and of the invalidators.
const APPLICATION: &str = "app";
/// Reports that wait to be printed; more are dropped.
const REPORTS_MAX: usize = 64;

/// A kind of database that can be started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind {
    /// MariaDB.
    Mariadb,
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

impl DatabaseKind {
    /// MariaDB if it is installed, otherwise SQLite, which always is.
    pub fn installed() -> DatabaseKind {
        if mariadb::is_installed() { DatabaseKind::Mariadb } else { DatabaseKind::Sqlite }
    }

    /// Whether it listens on ports.
    pub fn has_ports(self) -> bool {
        self != DatabaseKind::Sqlite
    }
}

impl FromStr for DatabaseKind {
    type Err = ();

    fn from_str(name: &str) -> Result<DatabaseKind, ()> {
        match name {
            "mariadb" => Ok(DatabaseKind::Mariadb),
            "postgres" => Ok(DatabaseKind::Postgres),
            "sqlite" => Ok(DatabaseKind::Sqlite),
            _ => Err(()),
        }
    }
}

/// Where the database of a region is to run.
#[derive(Clone, Debug)]
pub struct DatabasePlan {
    /// The region.
    pub region: &'static str,
    /// The folder of the region's files.
    pub home: PathBuf,
    /// The port of 127.0.0.1 where it listens.
    pub port: u16,
    /// The port of 127.0.0.1 by which this replica reaches the master.
    pub link_port: u16,
}

impl DatabasePlan {
    /// The folder of the files of a database that is a server.
    fn server_dir(&self) -> PathBuf {
        self.home.join("database")
    }

    /// The file of a SQLite database.
    fn sqlite_file(&self) -> PathBuf {
        self.home.join("region.db")
    }
}

/// Running databases, the master first. Dropping them stops them.
pub struct Databases {
    plans: Vec<DatabasePlan>,
    engine: Engine,
    processes: Vec<Process>,
    links: Vec<Arc<LinkControl>>,
    reports: (mpsc::Sender<String>, mpsc::Receiver<String>),
    /// Dropping the set aborts links and copiers.
    tasks: JoinSet<()>,
}

enum Engine {
    Mariadb(Mariadb),
    Postgres(Postgres),
    Sqlite,
}

impl Databases {
    /// Starts the databases. Replicas do not follow the master yet.
    pub async fn start(kind: DatabaseKind, plans: Vec<DatabasePlan>, log_dir: &Path) -> Result<Databases> {
        for plan in &plans {
            let dir = if kind.has_ports() { plan.server_dir() } else { plan.home.clone() };
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
        }
        std::fs::create_dir_all(log_dir)?;
        let (engine, processes) = match kind {
            DatabaseKind::Mariadb => {
                let (mariadb, processes) = Mariadb::start(&plans, log_dir).await?;
                (Engine::Mariadb(mariadb), processes)
            }
            DatabaseKind::Postgres => {
                let (postgres, processes) = Postgres::start(&plans, log_dir).await?;
                (Engine::Postgres(postgres), processes)
            }
            DatabaseKind::Sqlite => (Engine::Sqlite, Vec::new()),
        };
        let reports = mpsc::channel(REPORTS_MAX);
        Ok(Databases { plans, engine, processes, links: Vec::new(), reports, tasks: JoinSet::new() })
    }

    /// The URLs, as `--source` takes them.
    pub fn urls(&self) -> Vec<String> {
        self.plans.iter().map(|plan| self.url_at(plan)).collect()
    }

    fn url_at(&self, plan: &DatabasePlan) -> String {
        let at = |scheme| format!("{scheme}://{APPLICATION}:{APPLICATION}@127.0.0.1:{}/{APPLICATION}", plan.port);
        match &self.engine {
            Engine::Mariadb(_) => at("mariadb"),
            Engine::Postgres(_) => at("postgres"),
            Engine::Sqlite => format!("sqlite://{}", plan.sqlite_file().display()),
        }
    }

    /// The commands that open a shell on each database.
    pub fn shells(&self) -> Vec<String> {
        let shell = |plan: &DatabasePlan| match &self.engine {
            Engine::Mariadb(_) => {
                format!("mariadb --comments -h127.0.0.1 -P{} -u{APPLICATION} -p{APPLICATION} {APPLICATION}", plan.port)
            }
            Engine::Postgres(_) => format!("psql {}", self.url_at(plan)),
            Engine::Sqlite => format!("sqlite3 {}", plan.sqlite_file().display()),
        };
        self.plans.iter().map(shell).collect()
    }

    /// Lets the replicas follow the master, without a delay; the file of each link is in `link_dir`.
    pub async fn follow_master(&mut self, link_dir: &Path) -> Result<()> {
        for replica in &self.plans[1..] {
            let link = Arc::new(LinkControl::create(link_dir.join(format!("{}.link", replica.region)))?);
            let (sender, region) = (self.reports.0.clone(), replica.region);
            // If the channel is full, the view does not print.
            let report = move |what: String| drop(sender.try_send(format!("{region}: {what}")));
            match &self.engine {
                Engine::Sqlite => {
                    let (master, replica) = (self.plans[0].sqlite_file(), replica.sqlite_file());
                    let copier = Copier::open(&master, &replica, link.receiver())?;
                    self.tasks.spawn(copier.run(report.clone()));
                }
                Engine::Mariadb(_) | Engine::Postgres(_) => {
                    let forwarder = Forwarder::bind(replica.link_port, self.plans[0].port, link.receiver()).await?;
                    self.tasks.spawn(forwarder.run());
                }
            }
            self.tasks.spawn(link.clone().run(report));
            self.links.push(link);
        }
        match &self.engine {
            Engine::Mariadb(mariadb) => mariadb.follow_master(&self.plans).await,
            Engine::Postgres(postgres) => postgres.follow_master(&self.plans).await,
            Engine::Sqlite => Ok(()),
        }
    }

    /// Sees to it that the replicas have a table that the master has; `create` is the statement that creates it, empty,
    /// unless it exists.
    pub async fn replicate_table(&self, create: &str) -> Result<()> {
        match &self.engine {
            Engine::Postgres(postgres) => postgres.replicate_table(&self.plans, create).await,
            Engine::Mariadb(_) | Engine::Sqlite => Ok(()),
        }
    }

    /// Sets the delay of every link.
    pub fn set_delay(&self, delay: Duration) -> Result<()> {
        self.links.iter().try_for_each(|link| link.set(LinkState::Delayed(delay)))
    }

    /// The files of the links, in the order of the replicas.
    pub fn link_files(&self) -> Vec<PathBuf> {
        self.links.iter().map(|link| link.path().clone()).collect()
    }

    /// Restarts processes that have died. Returns a notice about each, and what links have reported. Fails if a task of
    /// a link has ended, which none does by itself: the replica would silently follow no more.
    pub fn supervise(&mut self) -> Result<Vec<String>> {
        if let Some(ended) = self.tasks.try_join_next() {
            let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
            bail!("a task that brings commits to a replica has ended{why}. Start the regions again");
        }
        let notices = self.processes.iter_mut().map(Process::supervise).collect::<Result<Vec<_>>>()?;
        let mut notices: Vec<String> = notices.into_iter().flatten().collect();
        while let Ok(report) = self.reports.1.try_recv() {
            notices.push(report);
        }
        Ok(notices)
    }
}

impl Drop for Databases {
    fn drop(&mut self) {
        self.processes.iter().for_each(Process::terminate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copier that panicked once was silent: its replica followed the master no more.
    #[tokio::test]
    async fn a_task_that_has_ended_is_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let plan = |region| {
            let home = directory.path().join(region);
            DatabasePlan { region, home, port: 0, link_port: 0 }
        };
        let plans = vec![plan("east"), plan("west")];
        let mut databases = Databases::start(DatabaseKind::Sqlite, plans, directory.path()).await.unwrap();
        databases.follow_master(directory.path()).await.unwrap();
        assert_eq!(databases.supervise().unwrap(), Vec::<String>::new());
        databases.tasks.spawn(sqlite::run_step::<()>(|| panic!("a bug")));
        let fails = async {
            loop {
                if let Err(error) = databases.supervise() {
                    break error.to_string();
                }
                tokio::task::yield_now().await;
            }
        };
        let why = tokio::time::timeout(Duration::from_secs(60), fails).await.unwrap();
        assert!(why.contains("panicked"), "{why}");
    }
}
