//! A real MariaDB or MySQL on a fresh data directory and a free port of 127.0.0.1, stopped when dropped.

pub mod fetched;

use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::mysql::{MysqlConnection, MysqlOptions, MysqlSource, Row, text};
use lookaside_invalidator::{Commit, Position, Source, SourceError, Start};
use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

/// A schema with a table and an outbox.
pub const TABLES: &str = "CREATE DATABASE app; CREATE TABLE app.user (id INT PRIMARY KEY, name VARCHAR(200)) ENGINE=InnoDB; \
    CREATE TABLE app.lookaside_outbox (item VARBINARY(250), at TIMESTAMP(6) DEFAULT NOW(6)) ENGINE=InnoDB";

/// The last commit of a test: everything else is read before it.
pub const END: &str = "INSERT INTO app.user VALUES (999, '') /* lookaside: end */";

/// Everything a test waits for happens within this, also on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

const MISSING: &str = "is needed by these tests: install Debian's mariadb-server (`make test` does)";

pub struct Server {
    child: Child,
    dir: TempDir,
    pub port: u16,
    /// The program and its arguments.
    command: Vec<String>,
}

impl Server {
    /// Starts MariaDB with a log in rows, and `arguments` besides.
    pub async fn start(arguments: &[&str]) -> Server {
        Server::start_copy("mariadbd", &template(), &MARIADB_ARGUMENTS, arguments).await
    }

    /// Starts MySQL, by a program that runs its `mysqld`, with a log in rows and `arguments` besides.
    pub async fn start_mysql(mysqld: &str, arguments: &[&str]) -> Server {
        Server::start_copy(mysqld, &fetched::mysql_template(mysqld), &MYSQL_ARGUMENTS, arguments).await
    }

    /// Starts a newer MariaDB than the installed one, by a program that runs its `mariadbd`.
    pub async fn start_newer_mariadb(mariadbd: &str, arguments: &[&str]) -> Server {
        let base = fetched::base_arguments(mariadbd);
        let all: Vec<&str> = base.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Server::start_copy(mariadbd, &fetched::mariadb_template(mariadbd), &MARIADB_ARGUMENTS, &all).await
    }

    /// Starts `program` on a copy of the data directory `template`.
    async fn start_copy(program: &str, template: &Path, of_kind: &[&str], arguments: &[&str]) -> Server {
        let dir = TempDir::new().expect("a temporary directory");
        let copied = Command::new("cp").arg("-r").arg(template).arg(dir.path().join("data")).status();
        assert!(copied.expect("cp runs").success());
        // MySQL's UUID: each copy makes its own.
        let _ = fs::remove_file(dir.path().join("data/auto.cnf"));
        let port = free_port();
        let words = [program, "--no-defaults", "--bind-address=127.0.0.1", "--server-id=1", "--performance-schema=OFF"];
        let own = [
            format!("--datadir={}", dir.path().join("data").display()),
            format!("--socket={}", dir.path().join("socket").display()),
            format!("--port={port}"),
            user_argument(),
        ];
        let words = words.iter().chain(of_kind).map(ToString::to_string).chain(own);
        let command: Vec<String> = words.chain(arguments.iter().map(ToString::to_string)).collect();
        let child = spawn(dir.path(), &command);
        let mut server = Server { child, dir, port, command };
        server.wait_ready().await;
        server
    }

    /// A path in the server's directory, beside its data.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server is ours");
        self.child.wait().expect("the server is ours");
    }

    /// Sends a signal by name. After STOP the server is silent, and its connections stay open.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    pub async fn restart(&mut self) {
        self.child = spawn(self.dir.path(), &self.command);
        self.wait_ready().await;
    }

    async fn wait_ready(&mut self) {
        let ready = async {
            loop {
                match MysqlConnection::open(&TcpNetwork, &self.options()).await {
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

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn options(&self) -> MysqlOptions {
        MysqlOptions { port: self.port, heartbeat: Duration::from_secs(1), ..MysqlOptions::default() }
    }

    pub async fn client(&self) -> Client {
        Client(MysqlConnection::open(&TcpNetwork, &self.options()).await.expect("a connection"))
    }

    pub async fn source(&self, start: Start) -> MysqlSource {
        self.try_source(self.options(), start).await.expect("a source")
    }

    pub async fn try_source(&self, options: MysqlOptions, start: Start) -> Result<MysqlSource, SourceError> {
        MysqlSource::open(options, &start, Arc::new(TcpNetwork), Arc::new(SystemTime::now)).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mariadb,
    Mysql,
}

/// Both kinds, or MariaDB alone where MySQL has not been fetched.
pub fn kinds() -> Vec<Kind> {
    let mysql = fetched::mysqld().map(|_| Kind::Mysql);
    [Some(Kind::Mariadb), mysql].into_iter().flatten().collect()
}

impl Kind {
    pub async fn start(self, arguments: &[&str]) -> Server {
        match self {
            Kind::Mariadb => Server::start(arguments).await,
            Kind::Mysql => {
                let mysqld = fetched::mysqld().expect("it was there");
                let plugins = fetched::plugin_dir(&mysqld);
                let more = [&[plugins.as_str(), "--binlog-rows-query-log-events=ON"], arguments].concat();
                Server::start_mysql(&mysqld, &more).await
            }
        }
    }

    pub fn of<'a>(self, mariadb: &'a str, mysql: &'a str) -> &'a str {
        if self == Kind::Mariadb { mariadb } else { mysql }
    }
}

/// Another program that uses the database.
pub struct Client(MysqlConnection);

impl Client {
    pub async fn run(&mut self, sql: &str) -> Vec<Row> {
        self.0.query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Prepares and executes by the binary protocol, as drivers do. The statement has no parameters and no answer.
    pub async fn run_prepared(&mut self, sql: &str) {
        let prepared = self.0.command(&[b"\x16", sql.as_bytes()].concat()).await.expect(sql);
        assert_eq!(prepared[0], 0, "{sql}: {}", prepared.escape_ascii());
        let executed = self.0.command(&[b"\x17", &prepared[1..5], b"\0\x01\0\0\0"].concat()).await.expect(sql);
        assert_eq!(executed[0], 0, "{sql}: {}", executed.escape_ascii());
    }

    pub async fn one(&mut self, sql: &str) -> String {
        self.0.query_one(sql).await.expect(sql).expect(sql)
    }

    /// From now on commits wait up to `wait_max` for replicas, and there are none: they are in the log, and readers do
    /// not see them. Returns the server's word for its role.
    pub async fn wait_for_replicas(&mut self, kind: Kind, wait_max: Duration) -> &'static str {
        let (role, replicas) = (kind.of("master", "source"), kind.of("slave", "replica"));
        if kind == Kind::Mysql {
            self.run("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'").await;
        }
        self.run(&format!("SET GLOBAL rpl_semi_sync_{role}_timeout = {}", wait_max.as_millis())).await;
        self.run(&format!("SET GLOBAL rpl_semi_sync_{role}_wait_point = AFTER_SYNC")).await;
        self.run(&format!("SET GLOBAL rpl_semi_sync_{role}_wait_no_{replicas} = ON")).await;
        self.run(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = ON")).await;
        role
    }

    /// The names of the files of the log, the oldest first.
    pub async fn log_files(&mut self) -> Vec<String> {
        let rows = self.run("SHOW BINARY LOGS").await;
        rows.iter().map(|row| text(row, 0).expect("a name")).collect()
    }

    /// Removes the files of the log before `file`. The server keeps one that is being read, and that of a reader which
    /// is gone until it has noticed that.
    pub async fn purge_log_before(&mut self, file: &str) {
        let purged = async {
            while self.log_files().await.first().is_some_and(|oldest| oldest != file) {
                self.run(&format!("PURGE BINARY LOGS TO '{file}'")).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, purged).await.expect("no file before it is read");
    }
}

/// The same as in a pipeline. With fewer keys a read never reaches its limit of events.
const KEYS_MAX: usize = 4_096;

/// Reads until `last` is among the keys, through the gate, and returns all commits.
pub async fn read_until(source: &mut MysqlSource, last: &str) -> Vec<Commit> {
    let mut all: Vec<Commit> = Vec::new();
    let reading = async {
        while !all.iter().any(|commit| commit.keys.iter().any(|key| key == last.as_bytes())) {
            let commits = source.next(KEYS_MAX).await.expect("commits");
            source.wait_until_visible(&commits.position).await.expect("visible");
            all.extend(commits.commits);
        }
    };
    let read = tokio::time::timeout(DEADLINE, reading).await;
    assert!(read.is_ok(), "{last} does not come; there are {:?}", keys_of(&all));
    all
}

pub fn keys_of(commits: &[Commit]) -> Vec<String> {
    commits.iter().flat_map(|commit| &commit.keys).map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

pub fn last_position(commits: &[Commit]) -> Position {
    commits.last().expect("a commit").position.clone()
}

/// An initialised data directory of the installed MariaDB.
fn template() -> PathBuf {
    template_of("mariadbd", |data, temporary| {
        let mut command = Command::new("mariadb-install-db");
        command
            .env("TMPDIR", temporary) // A server that starts removes the temporary tables of all in its folder.
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args(["--innodb-log-file-size=8M", &user_argument()])
            .arg(format!("--datadir={}", data.display()));
        command
    })
}

/// An initialised data directory of `program`, made once for all tests by the command `initialise` and kept beside the
/// build.
fn template_of(program: &str, initialise: impl FnOnce(&Path, &Path) -> Command) -> PathBuf {
    let version = Command::new(program).args(["--no-defaults", "--version"]).output();
    let version = version.unwrap_or_else(|error| panic!("{program} ({error}) {MISSING}")).stdout;
    let name: String = String::from_utf8_lossy(&version).chars().filter(char::is_ascii_alphanumeric).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !path.exists() {
        let [dir, temporary] =
            [(); 2].map(|()| TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory"));
        let data = dir.path().join("data");
        let mut command = initialise(&data, temporary.path());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?} ({error}) {MISSING}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        // Another test may have created it meanwhile; then that one is used.
        let _ = fs::rename(data, &path);
    }
    path
}

const MARIADB_ARGUMENTS: [&str; 8] = [
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--gtid-strict-mode=ON",
    "--skip-name-resolve",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=16M",
    "--sync-binlog=1",
    ROW_METADATA,
];

/// Row rules need the names of columns.
const ROW_METADATA: &str = "--binlog-row-metadata=FULL";

/// Each test copies a data directory.
const SMALL_MYSQL: &str = "--innodb-redo-log-capacity=16M";

const MYSQL_ARGUMENTS: [&str; 7] = [
    SMALL_MYSQL,
    ROW_METADATA,
    "--mysqlx=OFF",
    "--secure-file-priv=NULL",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--innodb-buffer-pool-size=32M",
];

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address").port()
}

/// A server runs as root only with `--user=root`.
fn user_argument() -> String {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if is_root { "--user=root".into() } else { "--skip-networking=0".into() }
}

fn spawn(dir: &Path, command: &[String]) -> Child {
    let log = fs::File::options().append(true).create(true).open(dir.join("log")).expect("the log");
    Command::new(&command[0])
        .env("TMPDIR", dir)
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{} ({error}) {MISSING}", command[0]))
}
