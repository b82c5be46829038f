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

/// Acknowledges every delete and remembers it. Dies with the test's process.
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
                thread::spawn(move || converse(stream, &deleted));
            }
        });
        router
    }

    fn deleted(&self) -> BTreeSet<String> {
        self.deleted.lock().expect("no panic").iter().cloned().collect()
    }
}

fn converse(stream: TcpStream, deleted: &Mutex<Vec<String>>) {
    let mut out = stream.try_clone().expect("a second handle");
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = match line.strip_prefix("delete ") {
            Some(key) => {
                deleted.lock().expect("no panic").push(key.to_string());
                "DELETED\r\n"
            }
            None if line.starts_with("version") => "VERSION test\r\n",
            None => "ERROR\r\n",
        };
        if out.write_all(answer.as_bytes()).is_err() {
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

struct Scene {
    directory: TempDir,
    connection: Connection,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let connection = Connection::open(directory.path().join("app.db")).expect("a database");
        connection.pragma_update(None, "journal_mode", "wal").expect("WAL mode");
        connection.pragma_update(None, "synchronous", "off").expect("no syncs");
        lookaside_invalidator::source::sqlite::create_journal(&connection).expect("a journal");
        Scene { directory, connection }
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
        assert!(Instant::now() < deadline, "never came to be: {what}");
        thread::yield_now();
    }
}

fn ask(address: &str, question: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let mut answer = String::new();
    let _ = stream.write_all(format!("{question}\r\nquit\r\n").as_bytes());
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn terminate(mut daemon: Daemon) -> Option<i32> {
    let killed = Command::new("kill").args(["-TERM", &daemon.0.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    daemon.0.wait().expect("it ends").code()
}

#[test]
fn a_commit_reaches_the_router_and_the_figures() {
    let scene = Scene::new();
    let (router, listen) = (Router::new("127.0.0.1:0"), free_address());
    let daemon = scene.start(&router.address, &listen);
    scene.commit("user:1");
    until("it is deleted", || router.deleted().contains("user:1"));
    until("it is counted", || ask(&listen, "stats").contains("STAT commits_to_last_cluster 1\r\n"));
    let stats = ask(&listen, "stats");
    assert!(stats.contains("STAT cluster:front:state running\r\n"), "{stats}");
    assert!(ask(&listen, "version").starts_with("VERSION "));
    assert_eq!(terminate(daemon), Some(0));
    assert!(scene.position().contains(r#""position":"1""#), "{}", scene.position());
}

#[test]
fn a_killed_daemon_goes_on_where_it_was() {
    let scene = Scene::new();
    let router = Router::new("127.0.0.1:0");
    let all: BTreeSet<String> = (0..3000).map(|n| format!("k{n}")).collect();
    let mut daemon = scene.start(&router.address, "127.0.0.1:0");
    for (number, key) in all.iter().enumerate() {
        scene.commit(key);
        if number % 1000 == 500 {
            until("some are deleted", || router.deleted().len() > number / 2);
            drop(daemon);
            daemon = scene.start(&router.address, "127.0.0.1:0");
        }
    }
    until("all are deleted", || router.deleted() == all);
    until("the position is saved", || scene.position().contains(r#""position":"3000""#));
    drop(daemon);
    let sent = router.deleted.lock().expect("no panic").len();
    let _daemon = scene.start(&router.address, "127.0.0.1:0");
    scene.commit("last");
    until("it is deleted", || router.deleted().contains("last"));
    let more = router.deleted.lock().expect("no panic").len() - sent;
    assert_eq!(more, 1, "what was saved as applied is not sent again");
}

#[test]
fn routers_that_are_down_are_waited_for_and_passed_over() {
    let scene = Scene::new();
    let (dead, late) = (free_address(), free_address());
    scene.commit("early");
    let _daemon = scene.start(&format!("{dead},{late}"), "127.0.0.1:0");
    let router = Router::new(&late);
    until("it is deleted through the second", || router.deleted().contains("early"));
}

#[test]
fn a_database_that_is_not_there_yet_is_waited_for() {
    let scene = Scene::new();
    let file = |name: &str| scene.directory.path().join(name);
    scene.commit("a");
    let aside = |from: &Path, to: &Path| std::fs::rename(from, to).expect("it moves");
    scene.connection.pragma_update(None, "wal_checkpoint", "truncate").expect("a checkpoint");
    scene.connection.pragma_update(None, "journal_mode", "delete").expect("one file");
    aside(&file("app.db"), &file("elsewhere"));
    let (router, listen) = (Router::new("127.0.0.1:0"), free_address());
    let _daemon = scene.start(&router.address, &listen);
    until("it says why", || ask(&listen, "stats").contains("STAT cluster:front:why the database cannot be reached"));
    aside(&file("elsewhere"), &file("app.db"));
    until("it is deleted", || router.deleted().contains("a"));
}

fn refused(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn bad_usage_and_taken_places_are_refused_with_advice() {
    let scene = Scene::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, said) = refused(scene.command("127.0.0.1:1", &address));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");

    let mut unknown = scene.command("127.0.0.1:1", "127.0.0.1:0");
    unknown.args(["--cluster", "front=127.0.0.1:2"]);
    let (code, said) = refused(unknown);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("twice"), "{said}");

    let mut bad = Command::new(env!("CARGO_BIN_EXE_lookaside-invalidator"));
    bad.args(["--source", "oracle://x", "--state-dir", "x", "--cluster", "a=h:1"]);
    let (code, said) = refused(bad);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("sqlite:///PATH"), "{said}");

    let listen = free_address();
    let _first = scene.start("127.0.0.1:1", &listen);
    until("the first runs", || !ask(&listen, "version").is_empty());
    let (code, said) = refused(scene.command("127.0.0.1:1", "127.0.0.1:0"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another lookaside-invalidator"), "{said}");
}
