//! MariaDB servers of `lookaside up`: a master, and replicas that follow it by GTIDs.
//!
//! Accounts are created on each server by itself, outside of its log; all else comes from the master. Commits are not
//! synced to disk: a process that is killed loses none, a machine that crashes may.

use super::{APPLICATION, DatabasePlan, programs};
use crate::process::{Process, ProcessSpec};
use anyhow::{Context, Result, bail};
use mysql_async::{Conn, prelude::Queryable};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The account by which servers are configured, and replicas follow. Its password is new at each start.
const ADMINISTRATOR: &str = "lookaside_up";
const START_TIME_MAX: Duration = Duration::from_secs(60);
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
/// Also given to the installer, which writes the first log.
const STORAGE: [&str; 2] = ["--innodb-log-file-size=16M", "--innodb-use-native-aio=OFF"];

/// Running servers.
pub struct Mariadb {
    password: String,
}

/// Whether MariaDB is installed.
pub fn is_installed() -> bool {
    find_programs().is_ok()
}

fn find_programs() -> Result<(PathBuf, PathBuf)> {
    match (programs::find("mariadbd", &[]), programs::find("mariadb-install-db", &[])) {
        (Some(server), Some(installer)) => Ok((server, installer)),
        _ => bail!(
            "MariaDB is not installed: mariadbd or mariadb-install-db is missing (Debian: mariadb-server). \
             `--database sqlite` needs no installation"
        ),
    }
}

impl Mariadb {
    /// Starts the servers, and waits until they accept connections.
    pub async fn start(plans: &[DatabasePlan], log_dir: &Path) -> Result<(Mariadb, Vec<Process>)> {
        let (server, installer) = find_programs()?;
        let mariadb = Mariadb { password: programs::random_password()? };
        let installs = plans.iter().map(|plan| tokio::spawn(install(installer.clone(), plan.server_dir())));
        for install in installs.collect::<Vec<_>>() {
            install.await??;
        }
        let mut processes = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            mariadb.write_accounts(&plan.server_dir())?;
            let program = program(server.clone(), plan, index);
            processes.push(Process::start(&format!("mariadb-{}", plan.region), program, log_dir)?);
        }
        for (plan, process) in plans.iter().zip(&mut processes) {
            mariadb.wait_until_ready(plan, process).await?;
        }
        let mut master = mariadb.connect(&plans[0]).await?;
        let outbox = "CREATE TABLE IF NOT EXISTS app.lookaside_outbox (`key` VARBINARY(250) NOT NULL) ENGINE=InnoDB";
        master.query_drop(outbox).await.context("creating the outbox table")?;
        Ok((mariadb, processes))
    }

    /// Lets the replicas follow the master from where they are.
    pub async fn follow_master(&self, plans: &[DatabasePlan]) -> Result<()> {
        for plan in &plans[1..] {
            let follow = format!(
                "CHANGE MASTER TO master_host = '127.0.0.1', master_port = {}, master_user = '{ADMINISTRATOR}', \
                 master_password = '{}', master_use_gtid = slave_pos, master_connect_retry = 1",
                plan.link_port, self.password
            );
            let mut replica = self.connect(plan).await?;
            for statement in ["STOP SLAVE", &follow, "START SLAVE"] {
                let done = replica.query_drop(statement).await;
                done.with_context(|| format!("the replica in region {} cannot follow the master", plan.region))?;
            }
        }
        Ok(())
    }

    async fn connect(&self, plan: &DatabasePlan) -> Result<Conn> {
        let url = format!("mysql://{ADMINISTRATOR}:{}@127.0.0.1:{}", self.password, plan.port);
        Ok(Conn::from_url(url).await?)
    }

    async fn wait_until_ready(&self, plan: &DatabasePlan, process: &mut Process) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while let Err(error) = self.connect(plan).await {
            process.ensure_running()?;
            if Instant::now() > deadline {
                return Err(error.context(format!("MariaDB in region {} did not start", plan.region)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Writes the statements that the server runs when it starts.
    fn write_accounts(&self, home: &Path) -> Result<()> {
        let (administrator, application) =
            (format!("'{ADMINISTRATOR}'@'127.0.0.1'"), format!("'{APPLICATION}'@'127.0.0.1'"));
        let statements = [
            "SET sql_log_bin = 0;".to_owned(),
            format!("CREATE DATABASE IF NOT EXISTS {APPLICATION};"),
            format!("CREATE USER IF NOT EXISTS {application} IDENTIFIED BY '{APPLICATION}';"),
            format!("GRANT ALL ON {APPLICATION}.* TO {application};"),
            format!("GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR ON *.* TO {application};"),
            format!("CREATE OR REPLACE USER {administrator} IDENTIFIED BY '{}';", self.password),
            format!("GRANT ALL ON *.* TO {administrator};"),
        ];
        let file = accounts_file(home);
        fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok(fs::write(&file, statements.join("\n") + "\n")?)
    }
}

fn accounts_file(home: &Path) -> PathBuf {
    home.join("accounts.sql")
}

/// Creates the data directory, unless it is there.
async fn install(installer: PathBuf, home: PathBuf) -> Result<()> {
    let (data, temporary) = (home.join("data"), home.join("tmp"));
    fs::create_dir_all(&temporary)?;
    if data.join("mysql").is_dir() {
        return Ok(());
    }
    let mut command = Command::new(installer);
    command
        .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=socket"])
        .args(STORAGE)
        .args(as_root())
        .arg(format!("--datadir={}", data.display()))
        .env("TMPDIR", temporary);
    programs::run_to_end(command).await
}

fn program(server: PathBuf, plan: &DatabasePlan, index: usize) -> ProcessSpec {
    let dir = plan.server_dir();
    let home = dir.display();
    let mut arguments = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={home}/data"),
        format!("--init-file={}", accounts_file(&dir).display()),
        // Below the data directory: the path of a socket may have 107 bytes.
        "--socket=mysql.sock".to_owned(),
        format!("--port={}", plan.port),
        format!("--server-id={}", index + 1),
    ];
    let settings = [
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--log-bin=binlog",
        "--binlog-format=ROW",
        "--binlog-row-metadata=FULL",
        "--gtid-strict-mode=ON",
        "--log-slave-updates=ON",
        "--innodb-buffer-pool-size=32M",
        "--innodb-flush-log-at-trx-commit=2",
        "--sync-binlog=1",
    ];
    arguments.extend(settings.iter().chain(&STORAGE).map(|&setting| setting.to_owned()));
    arguments.extend(as_root());
    if index > 0 {
        arguments.push("--read-only=ON".to_owned());
    }
    // A server that starts removes the temporary tables of all in its folder.
    let environment = vec![("TMPDIR", format!("{home}/tmp"))];
    ProcessSpec { environment, stop_time_max: STOP_TIME_MAX, ..ProcessSpec::new(server, arguments) }
}

/// MariaDB refuses to run as root unless it is asked to.
fn as_root() -> Option<String> {
    rustix::process::geteuid().is_root().then(|| "--user=root".to_owned())
}
