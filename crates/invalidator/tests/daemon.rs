//! The built binary, with a SQLite file and a router of a few lines.

use rusqlite::Connection;
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// A router that acknowledges and records every delete. It ends with the test's process.
struct Router {
    address: String,
    deleted: Arc<Mutex<Vec<String>>>,
}

impl Router {
    fn new(address: &str) -> Router {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let router = Router { address, deleted: deleted.clone() };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let deleted = deleted.clone();
                thread::spawn(move || serve(stream, &deleted));
            }
        });
        router
    }

    fn deleted(&self) -> BTreeSet<String> {
        self.deleted.lock().expect("no panic").iter().cloned().collect()
    }
}

fn serve(stream: TcpStream, deleted: &Mutex<Vec<String>>) {
    let mut out = stream.try_clone().expect("a second handle");
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let reply = match line.strip_prefix("delete ") {
            Some(key) => {
                deleted.lock().expect("no panic").push(key.to_string());
                "DELETED\r\n"
            }
            None if line.starts_with("version") => "VERSION test\r\n",
            None => "ERROR\r\n",
        };
        if out.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// The daemon, killed when the test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Fixture {
    directory: TempDir,
    connection: Connection,
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().expect("a directory");
        let connection = Connection::open(directory.path().join("app.db")).expect("a database");
        connection.pragma_update(None, "journal_mode", "wal").expect("WAL mode");
        connection.pragma_update(None, "synchronous", "off").expect("no syncs");
        lookaside_invalidator::source::sqlite::create_journal(&connection).expect("a journal");
        Fixture { directory, connection }
    }

    fn commit(&self, key: &str) {
        self.connection.execute("INSERT INTO lookaside_journal(key) VALUES (?1)", [key]).expect("it commits");
    }

    fn command(&self, routers: &str, listen: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lookaside-invalidator"));
        command
            .arg("--source")
            .arg(format!("sqlite://{}", self.directory.path().join("app.db").display()))
            .arg("--state-dir")
            .arg(self.directory.path().join("state"))
            .args(["--cluster", &format!("front={routers}"), "--listen", listen, "--from", "earliest"])
            .stdin(Stdio::null());
        command
    }

    fn start(&self, routers: &str, listen: &str) -> Daemon {
        Daemon(self.command(routers, listen).spawn().expect("it starts"))
    }

    fn position(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("state/front.position.json")).unwrap_or_default()
    }
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").to_string()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        thread::yield_now();
    }
}

fn send_command(address: &str, command: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let mut reply = String::new();
    let _ = stream.write_all(format!("{command}\r\nquit\r\n").as_bytes());
    let _ = stream.read_to_string(&mut reply);
    reply
}

fn terminate(mut daemon: Daemon) -> Option<i32> {
    let killed = Command::new("kill").args(["-TERM", &daemon.0.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    daemon.0.wait().expect("it ends").code()
}

#[test]
fn commit_reaches_the_router_and_the_statistics() {
    let fixture = Fixture::new();
    let (router, listen) = (Router::new("127.0.0.1:0"), free_address());
    let daemon = fixture.start(&router.address, &listen);
    fixture.commit("user:1");
    until("it is deleted", || router.deleted().contains("user:1"));
    until("it is counted", || send_command(&listen, "stats").contains("STAT commits_in_all_clusters 1\r\n"));
    let stats = send_command(&listen, "stats");
    assert!(stats.contains("STAT cluster:front:state running\r\n"), "{stats}");
    assert!(send_command(&listen, "version").starts_with("VERSION "));
    assert_eq!(terminate(daemon), Some(0));
    assert!(fixture.position().contains(r#""position":"1""#), "{}", fixture.position());
}

#[test]
fn killed_daemon_resumes_from_its_position() {
    let fixture = Fixture::new();
    let router = Router::new("127.0.0.1:0");
    let all: BTreeSet<String> = (0..3000).map(|n| format!("k{n}")).collect();
    let mut daemon = fixture.start(&router.address, "127.0.0.1:0");
    for (number, key) in all.iter().enumerate() {
        fixture.commit(key);
        if number % 1000 == 500 {
            until("some are deleted", || router.deleted().len() > number / 2);
            drop(daemon);
            daemon = fixture.start(&router.address, "127.0.0.1:0");
        }
    }
    until("all are deleted", || router.deleted() == all);
    until("the position is saved", || fixture.position().contains(r#""position":"3000""#));
    drop(daemon);
    let sent = router.deleted.lock().expect("no panic").len();
    let _daemon = fixture.start(&router.address, "127.0.0.1:0");
    fixture.commit("last");
    until("it is deleted", || router.deleted().contains("last"));
    let more = router.deleted.lock().expect("no panic").len() - sent;
    assert_eq!(more, 1, "deletes before the saved position are not sent again");
}

#[test]
fn delivery_skips_and_waits_for_routers_that_are_down() {
    let fixture = Fixture::new();
    let (dead, late) = (free_address(), free_address());
    fixture.commit("early");
    let _daemon = fixture.start(&format!("{dead},{late}"), "127.0.0.1:0");
    let router = Router::new(&late);
    until("it is deleted through the second", || router.deleted().contains("early"));
}

#[test]
fn missing_database_is_waited_for() {
    let fixture = Fixture::new();
    let file = |name: &str| fixture.directory.path().join(name);
    fixture.commit("a");
    let aside = |from: &Path, to: &Path| std::fs::rename(from, to).expect("it moves");
    fixture.connection.pragma_update(None, "wal_checkpoint", "truncate").expect("a checkpoint");
    fixture.connection.pragma_update(None, "journal_mode", "delete").expect("one file");
    aside(&file("app.db"), &file("elsewhere"));
    let (router, listen) = (Router::new("127.0.0.1:0"), free_address());
    let _daemon = fixture.start(&router.address, &listen);
    until("the reason is shown", || {
        send_command(&listen, "stats").contains("STAT cluster:front:why the database cannot be reached")
    });
    aside(&file("elsewhere"), &file("app.db"));
    until("it is deleted", || router.deleted().contains("a"));
}

fn run_to_exit(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn usage_errors_and_conflicts_are_refused_with_advice() {
    let fixture = Fixture::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, stderr) = run_to_exit(fixture.command("127.0.0.1:1", &address));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&address) && stderr.contains("--listen"), "{stderr}");

    let mut unknown = fixture.command("127.0.0.1:1", "127.0.0.1:0");
    unknown.args(["--cluster", "front=127.0.0.1:2"]);
    let (code, stderr) = run_to_exit(unknown);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("twice"), "{stderr}");

    let mut bad = Command::new(env!("CARGO_BIN_EXE_lookaside-invalidator"));
    bad.args(["--source", "oracle://x", "--state-dir", "x", "--cluster", "a=h:1"]);
    let (code, stderr) = run_to_exit(bad);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("sqlite:///PATH"), "{stderr}");

    let listen = free_address();
    let _first = fixture.start("127.0.0.1:1", &listen);
    until("the first runs", || !send_command(&listen, "version").is_empty());
    let (code, stderr) = run_to_exit(fixture.command("127.0.0.1:1", "127.0.0.1:0"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("another lookaside-invalidator"), "{stderr}");
}
