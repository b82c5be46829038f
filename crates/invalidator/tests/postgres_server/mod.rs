//! A real PostgreSQL on a fresh data directory and a free port of 127.0.0.1, stopped when dropped.

use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{
    PostgresConnection, PostgresLog, PostgresOptions, PostgresSource, Purpose, Row, setup_sql,
};
use lookaside_invalidator::{Commit, Position, Source, SourceError, Start};
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::chown,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

/// Everything a test waits for happens within this, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub const PASSWORD: &str = "p@ss word";

const MISSING: &str = "is needed by these tests: install Debian's postgresql (`make test` does)";

pub struct Server {
    child: Child,
    dir: TempDir,
    pub port: u16,
    arguments: Vec<String>,
}

impl Server {
    /// Starts a server with `wal_level=logical`, login by SCRAM, and `arguments` besides.
    pub async fn start(arguments: &[&str]) -> Server {
        let dir = TempDir::new().expect("a temporary directory");
        own_by_server(dir.path());
        copy(&template(), &dir.path().join("data"));
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let child = spawn(dir.path(), port, &arguments);
        let mut server = Server { child, dir, port, arguments };
        server.wait_ready().await;
        server
    }

    /// Starts a physical standby of `primary`, which receives its log asynchronously.
    pub async fn start_standby_of(primary: &Server) -> Server {
        let dir = TempDir::new().expect("a temporary directory");
        own_by_server(dir.path());
        let output = as_user(Command::new(program("pg_basebackup")))
            .env("PGPASSWORD", PASSWORD)
            .args(["-h", "127.0.0.1", "-U", "postgres", "-p", &primary.port.to_string()])
            .args(["-R", "--checkpoint=fast", "--no-sync", "-D"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap_or_else(|error| panic!("pg_basebackup {MISSING}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let port = free_port();
        let child = spawn(dir.path(), port, &[]);
        let mut server = Server { child, dir, port, arguments: Vec::new() };
        server.wait_ready().await;
        server
    }

    /// A fast shutdown.
    pub fn stop(&mut self) {
        let _ = Command::new("kill").arg("-INT").arg(self.child.id().to_string()).status();
        self.child.wait().expect("the server is ours");
    }

    /// Sends SIGKILL to the server and waits for the end of it.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server is ours");
        self.child.wait().expect("the server is ours");
    }

    pub async fn restart(&mut self) {
        self.child = spawn(self.dir.path(), self.port, &self.arguments);
        self.wait_ready().await;
    }

    /// Starts the killed server as a standby without a primary, which with `hot_standby=off` refuses logins.
    pub fn restart_as_standby(&mut self) {
        fs::write(self.dir.path().join("data/standby.signal"), "").expect("written");
        own_by_server(&self.dir.path().join("data/standby.signal"));
        self.child = spawn(self.dir.path(), self.port, &self.arguments);
    }

    /// Makes the standby a primary.
    pub fn promote(&self) {
        let data = self.dir.path().join("data");
        let promoted = as_user(Command::new(program("pg_ctl"))).args(["promote", "--no-wait", "-D"]).arg(data).output();
        let output = promoted.unwrap_or_else(|error| panic!("pg_ctl {MISSING}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    async fn wait_ready(&mut self) {
        let ready = async {
            loop {
                match PostgresConnection::open(&TcpNetwork, &self.options(), Purpose::Queries).await {
                    Ok(_) => break,
                    Err(SourceError::Unusable { why }) => panic!("{why}"),
                    Err(_) => {}
                }
                if let Some(status) = self.child.try_wait().expect("the server is ours") {
                    panic!("the server ended with {status}:\n{}", self.log());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ready = tokio::time::timeout(DEADLINE, ready).await;
        assert!(ready.is_ok(), "the server does not become ready:\n{}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions { port: self.port, password: PASSWORD.into(), ..PostgresOptions::default() }
    }

    pub async fn client(&self) -> Client {
        Client::open(&self.options()).await
    }

    /// A client, in a database that is set up.
    pub async fn set_up(&self) -> Client {
        let mut client = self.client().await;
        client.run(&setup_sql("lookaside", "lookaside_outbox")).await;
        client
    }

    pub fn commit_log(&self) -> PostgresLog {
        PostgresLog::new(self.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now))
    }

    pub async fn source(&self, start: Start) -> PostgresSource {
        self.try_source(self.options(), start).await.expect("a source")
    }

    pub async fn try_source(&self, options: PostgresOptions, start: Start) -> Result<PostgresSource, SourceError> {
        let log = PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
        PostgresSource::open(&log, &start).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGQUIT ends all processes of the server at once; SIGKILL would leave its children for a moment.
        let _ = Command::new("kill").arg("-QUIT").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// Another program that uses the database.
pub struct Client(PostgresConnection);

impl Client {
    pub async fn open(options: &PostgresOptions) -> Client {
        Client(PostgresConnection::open(&TcpNetwork, options, Purpose::Queries).await.expect("a connection"))
    }

    pub async fn run(&mut self, sql: &str) -> Vec<Row> {
        self.0.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    pub async fn one(&mut self, sql: &str) -> String {
        self.0.query_one(sql).await.expect(sql).expect(sql)
    }
}

/// A statement that commits the key `end`.
pub const END: &str = "SELECT lookaside_invalidate('end')";

/// Waits until `check` returns something.
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{what} does not happen"))
}

/// The keys of `commits`, in order.
pub fn keys_of(commits: &[Commit]) -> Vec<String> {
    let keys = commits.iter().flat_map(|commit| &commit.keys);
    keys.map(|key| String::from_utf8(key.clone()).expect("text")).collect()
}

/// Reads until a commit names `key`.
pub async fn read_until(source: &mut dyn Source, key: &str) -> Vec<Commit> {
    let mut commits = Vec::new();
    let read = async {
        while !keys_of(&commits).iter().any(|other| other == key) {
            commits.extend(source.next(1_000).await.expect("the log is read").commits);
        }
    };
    let read = tokio::time::timeout(DEADLINE, read).await;
    assert!(read.is_ok(), "{key} does not arrive; read: {:?}", keys_of(&commits));
    commits
}

pub fn last_position(commits: &[Commit]) -> Position {
    commits.last().expect("a commit").position.clone()
}

/// Commits wait from now on for a synchronous standby that does not exist.
pub async fn add_absent_standby(server: &Server) {
    let mut client = server.client().await;
    client.run("ALTER SYSTEM SET synchronous_standby_names = 'absent'").await;
    client.run("SELECT pg_reload_conf()").await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let mut is_in_force = false;
    while !is_in_force {
        let mut writer = server.client().await;
        let commit = tokio::spawn(async move {
            writer.run("SELECT pg_logical_emit_message(true, 'probe', '')").await;
        });
        eventually("a commit ends or waits", async || {
            is_in_force = client.one(waiting).await == "1";
            (is_in_force || commit.is_finished()).then_some(())
        })
        .await;
        client.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").await;
        commit.await.expect("the commit is done");
    }
}

pub async fn remove_absent_standby(client: &mut Client) {
    client.run("ALTER SYSTEM RESET synchronous_standby_names").await;
    client.run("SELECT pg_reload_conf()").await;
}

/// The newest installed version of one of PostgreSQL's programs. Debian keeps them out of the path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(name)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| name.into())
}

/// An initialised data directory, made once for all tests and kept beside the build. Its copies are one system to
/// PostgreSQL.
fn template() -> PathBuf {
    let version = Command::new(program("initdb")).arg("--version").output();
    let version = version.unwrap_or_else(|error| panic!("initdb {MISSING}: {error}")).stdout;
    let name: String = String::from_utf8_lossy(&version).chars().filter(char::is_ascii_alphanumeric).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !path.exists() {
        // Not beside the build, which that user may not reach.
        let dir = TempDir::new().expect("a temporary directory");
        let password = dir.path().join("password");
        fs::write(&password, PASSWORD).expect("written");
        for path in [dir.path(), &password] {
            own_by_server(path);
        }
        let output = as_user(Command::new(program("initdb")))
            .args(["--username=postgres", "--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"])
            .arg(format!("--pwfile={}", password.display()))
            .arg(dir.path().join("data"))
            .output()
            .unwrap_or_else(|error| panic!("initdb {MISSING}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        copy(&dir.path().join("data"), &made.path().join("data"));
        // Another test may have created it meanwhile; then that one is used.
        let _ = fs::rename(made.path().join("data"), &path);
    }
    path
}

/// Copies a directory with its owner and modes.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(copied.success(), "{} is not copied to {}", from.display(), to.display());
}

/// The user `postgres` if this is root: the server refuses to run as root.
fn postgres_user() -> Option<(u32, u32)> {
    let uid = Command::new("id").arg("-u").output().expect("id runs").stdout;
    if uid.trim_ascii() != b"0" {
        return None;
    }
    let number = |flag: &str| {
        let output = Command::new("id").args([flag, "postgres"]).output().expect("id runs");
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("the user postgres {MISSING}"))
    };
    Some((number("-u"), number("-g")))
}

fn as_user(mut command: Command) -> Command {
    if let Some((uid, gid)) = postgres_user() {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/tmp");
    command
}

pub fn own_by_server(path: &Path) {
    if let Some((uid, gid)) = postgres_user() {
        chown(path, Some(uid), Some(gid)).expect("root may do this");
    }
}

fn spawn(dir: &Path, port: u16, arguments: &[String]) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).expect("the log");
    as_user(Command::new(program("postgres")))
        .arg("-D")
        .arg(dir.join("data"))
        .args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-F"])
        .args(["-c", "wal_level=logical", "-c", "max_wal_senders=10", "-c", "shared_buffers=16MB"])
        .args(arguments.iter().flat_map(|argument| ["-c", argument]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("postgres {MISSING}: {error}"))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").port()
}
