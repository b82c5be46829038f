//! PostgreSQL servers of `lookaside up`: a master, and replicas by logical replication of all of its tables.
//!
//! Replication is logical, since the invalidator of a region reads its replica through a replication slot, and a
//! physical standby before version 16 has none. So a replica has the rows of the master's tables, but neither its
//! tables, which are created in each database, nor its messages: keys are named by rows of the outbox.

use super::{APPLICATION, DatabasePlan, programs};
use crate::process::{Account, Process, ProcessSpec};
use anyhow::{Context, Result, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    source::postgres::{PostgresConnection, PostgresOptions, Purpose, QueryError, Row},
};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The superuser, who sets replication up; its password is in the file `password` of each home.
const ADMINISTRATOR: &str = "lookaside_up";
const PUBLICATION: &str = "lookaside_regions";
/// The account of the system that runs the servers if this process runs as root, which PostgreSQL refuses to.
const ACCOUNT: &str = "postgres";
/// Where Debian keeps the programs of each version, out of the path.
const VERSIONS_DIR: &str = "/usr/lib/postgresql";
/// How the data directory is named until it is complete; the process id follows.
const UNFINISHED_PREFIX: &str = "data.new-";
const START_TIME_MAX: Duration = Duration::from_secs(60);
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
const SETTINGS: [&str; 4] = ["wal_level=logical", "shared_buffers=16MB", "fsync=off", "max_slot_wal_keep_size=1GB"];

/// Running servers.
pub struct Postgres {
    /// The superuser's passwords, in the order of the regions.
    passwords: Vec<String>,
}

impl Postgres {
    /// Starts the servers, and creates the application's account and database in each.
    pub async fn start(plans: &[DatabasePlan], log_dir: &Path) -> Result<(Postgres, Vec<Process>)> {
        let (server, installer) = find_programs()?;
        let account = match rustix::process::geteuid().is_root() {
            true => Some(Account::find(ACCOUNT)?),
            false => None,
        };
        let mut postgres = Postgres { passwords: Vec::new() };
        let mut processes = Vec::new();
        for plan in plans {
            postgres.passwords.push(install(&installer, plan, account).await?);
            let program = program(server.clone(), plan, account);
            processes.push(Process::start(&format!("postgres-{}", plan.region), program, log_dir)?);
        }
        for (index, (plan, process)) in plans.iter().zip(&mut processes).enumerate() {
            postgres.wait_until_ready(index, plan, process).await?;
            postgres.create_application(index, plan).await?;
        }
        Ok((postgres, processes))
    }

    /// Publishes the master's tables, and lets the replicas subscribe.
    pub async fn follow_master(&self, plans: &[DatabasePlan]) -> Result<()> {
        let mut master = self.connect(0, &plans[0], APPLICATION).await?;
        let exists = format!("SELECT 1 FROM pg_publication WHERE pubname = '{PUBLICATION}'");
        if query(&mut master, &exists).await?.is_empty() {
            query(&mut master, &format!("CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")).await?;
        }
        for (index, plan) in plans.iter().enumerate().skip(1) {
            let mut replica = self.connect(index, plan, APPLICATION).await?;
            let name = subscription_of(plan);
            let connection = format!(
                "host=127.0.0.1 port={} user={ADMINISTRATOR} password={} dbname={APPLICATION}",
                plan.link_port, self.passwords[0]
            );
            let exists = format!("SELECT 1 FROM pg_subscription WHERE subname = '{name}'");
            let follow = match query(&mut replica, &exists).await?.is_empty() {
                true => format!("CREATE SUBSCRIPTION {name} CONNECTION '{connection}' PUBLICATION {PUBLICATION}"),
                false => format!("ALTER SUBSCRIPTION {name} CONNECTION '{connection}'"),
            };
            let done = query(&mut replica, &follow).await;
            done.with_context(|| format!("the replica in region {} cannot follow the master", plan.region))?;
            // Applications write to the master alone: a row that a replica changes itself stops replication later.
            let read_only =
                format!("ALTER ROLE {APPLICATION} IN DATABASE {APPLICATION} SET default_transaction_read_only = on");
            query(&mut replica, &read_only).await?;
        }
        Ok(())
    }

    /// Creates a table in the replicas, and copies the rows that the master has.
    pub async fn replicate_table(&self, plans: &[DatabasePlan], create: &str) -> Result<()> {
        for (index, plan) in plans.iter().enumerate().skip(1) {
            let mut replica = self.connect(index, plan, APPLICATION).await?;
            let refresh = format!("ALTER SUBSCRIPTION {} REFRESH PUBLICATION", subscription_of(plan));
            for statement in [&format!("SET ROLE {APPLICATION}"), create, "RESET ROLE", &refresh] {
                query(&mut replica, statement).await?;
            }
        }
        Ok(())
    }

    async fn create_application(&self, index: usize, plan: &DatabasePlan) -> Result<()> {
        let mut connection = self.connect(index, plan, "postgres").await?;
        // Each by itself: an earlier start may have ended between the two.
        let missing = [
            (
                format!("SELECT 1 FROM pg_roles WHERE rolname = '{APPLICATION}'"),
                format!("CREATE ROLE {APPLICATION} LOGIN REPLICATION PASSWORD '{APPLICATION}'"),
            ),
            (
                format!("SELECT 1 FROM pg_database WHERE datname = '{APPLICATION}'"),
                format!("CREATE DATABASE {APPLICATION} OWNER {APPLICATION}"),
            ),
        ];
        for (exists, create) in missing {
            if query(&mut connection, &exists).await?.is_empty() {
                query(&mut connection, &create).await?;
            }
        }
        Ok(())
    }

    async fn connect(&self, index: usize, plan: &DatabasePlan, database: &str) -> Result<PostgresConnection> {
        let password = &self.passwords[index];
        let url = format!("postgres://{ADMINISTRATOR}:{password}@127.0.0.1:{}/{database}", plan.port);
        let options = PostgresOptions::from_url(&url)?;
        Ok(PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await?)
    }

    async fn wait_until_ready(&self, index: usize, plan: &DatabasePlan, process: &mut Process) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while let Err(error) = self.connect(index, plan, "postgres").await {
            process.ensure_running()?;
            if Instant::now() > deadline {
                return Err(error.context(format!("PostgreSQL in region {} did not start", plan.region)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// The subscription of a replica; its slot at the master has the same name.
fn subscription_of(plan: &DatabasePlan) -> String {
    format!("lookaside_{}", plan.region)
}

async fn query(connection: &mut PostgresConnection, sql: &str) -> Result<Vec<Row>> {
    let result: Result<_, QueryError> = connection.query_unlimited(sql).await;
    Ok(result.map_err(SourceError::from)?)
}

/// The server and the installer of the newest installed version.
fn find_programs() -> Result<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(VERSIONS_DIR).into_iter().flatten();
    let mut versions: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by_key(|version| std::cmp::Reverse(*version));
    let dirs: Vec<PathBuf> = versions.iter().map(|version| format!("{VERSIONS_DIR}/{version}/bin").into()).collect();
    match (programs::find("postgres", &dirs), programs::find("initdb", &dirs)) {
        (Some(server), Some(installer)) => Ok((server, installer)),
        _ => bail!(
            "PostgreSQL is not installed: postgres or initdb is missing (Debian: postgresql). \
             `--database sqlite` needs no installation"
        ),
    }
}

/// Creates the data directory, unless it is there; returns the superuser's password. The directory gets its name when
/// it is complete: what `initdb` leaves if it is killed can be neither started nor completed.
async fn install(installer: &Path, plan: &DatabasePlan, account: Option<Account>) -> Result<String> {
    let home = plan.server_dir();
    let (data, password_file) = (home.join("data"), home.join("password"));
    remove_unfinished(&home)?;
    if data.join("PG_VERSION").is_file() {
        return fs::read_to_string(&password_file).with_context(|| format!("cannot read {}", password_file.display()));
    }
    let unfinished = home.join(format!("{UNFINISHED_PREFIX}{}", std::process::id()));
    let password = programs::random_password()?;
    fs::write(&password_file, "")?;
    fs::set_permissions(&password_file, fs::Permissions::from_mode(0o600))?;
    fs::write(&password_file, &password)?;
    let mut command = Command::new(installer);
    command
        .args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"])
        .arg(format!("--username={ADMINISTRATOR}"))
        .arg(format!("--pwfile={}", password_file.display()))
        .arg(&unfinished)
        .current_dir("/");
    if let Some(Account { uid, gid }) = account {
        for path in [&home, &password_file] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
        }
        command.uid(uid).gid(gid);
    }
    let installed = programs::run_to_end(command).await;
    installed.with_context(|| match account {
        Some(_) => format!(
            "PostgreSQL does not run as root, and the account {ACCOUNT} must be able to reach {}",
            home.display()
        ),
        None => format!("creating a database in {}", home.display()),
    })?;
    fs::rename(&unfinished, &data).with_context(|| format!("cannot rename {}", unfinished.display()))?;
    Ok(password)
}

/// Removes what earlier starts have left that were killed. An `initdb` that outlives its start may still write there:
/// this start uses another name, and what is written after the removal is removed by the next start.
fn remove_unfinished(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home).with_context(|| format!("cannot list {}", home.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn program(server: PathBuf, plan: &DatabasePlan, account: Option<Account>) -> ProcessSpec {
    let data = plan.server_dir().join("data").display().to_string();
    let mut arguments: Vec<String> =
        ["-D", &data, "-p", &plan.port.to_string(), "-h", "127.0.0.1", "-k", ""].map(str::to_owned).into();
    arguments.extend(SETTINGS.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]));
    // SIGTERM would wait for clients to leave.
    ProcessSpec {
        account,
        stop_signal: Signal::INT,
        stop_time_max: STOP_TIME_MAX,
        ..ProcessSpec::new(server, arguments)
    }
}
