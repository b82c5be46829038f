//! The SQLite source on real files: commits are read in order, and removed rows are detected.

use lookaside_invalidator::{
    CommitLog, OpenedSource, Position, Source, SourceError, Start,
    source::sqlite::{SqliteLog, create_journal, prune, triggers_sql},
};
use rusqlite::{Connection, OpenFlags};
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;
use tokio::time::timeout;

/// A database in WAL mode with one table whose changes are journaled.
struct Database {
    _directory: TempDir,
    path: PathBuf,
    connection: Connection,
}

impl Database {
    fn new() -> Database {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("app.db");
        let connection = Connection::open(&path).expect("a database");
        connection.pragma_update(None, "journal_mode", "wal").expect("WAL mode");
        create_journal(&connection).expect("a journal");
        let triggers = triggers_sql("users", "'user:' || {row}.id");
        connection.execute_batch("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)").expect("a table");
        connection.execute_batch(&triggers).expect("triggers");
        Database { _directory: directory, path, connection }
    }

    fn run(&self, sql: &str) {
        self.connection.execute_batch(sql).unwrap_or_else(|why| panic!("{sql}: {why}"));
    }

    async fn open(&self, start: Start) -> Result<OpenedSource, SourceError> {
        SqliteLog::new(&self.path).open(&start).await
    }

    async fn source(&self, start: Start) -> Box<dyn Source> {
        self.open(start).await.unwrap_or_else(|why| panic!("{why}")).source
    }

    fn rows(&self) -> i64 {
        self.connection.query_row("SELECT count(*) FROM lookaside_journal", [], |row| row.get(0)).expect("a count")
    }
}

fn at(seq: u64) -> Start {
    Start::At(Position(seq.to_string()))
}

/// Reads until `count` commits are there.
async fn keys(source: &mut dyn Source, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    let mut commits = 0;
    while commits < count {
        let read = timeout(Duration::from_secs(20), source.next(100)).await.expect("in time").expect("it reads");
        source.wait_until_visible(&read.position).await.expect("it is visible");
        commits += read.commits.len();
        for commit in read.commits {
            keys.extend(commit.keys.into_iter().map(|key| String::from_utf8(key).expect("text")));
        }
    }
    keys
}

#[tokio::test]
async fn commits_are_read_and_rollbacks_are_not() {
    let database = Database::new();
    let mut source = database.source(Start::Now).await;
    database.run("BEGIN; INSERT INTO users VALUES (1, 'a'); ROLLBACK");
    database.run("BEGIN; INSERT INTO users VALUES (2, 'b'); INSERT INTO users VALUES (3, 'c'); COMMIT");
    assert_eq!(keys(&mut *source, 2).await, ["user:2", "user:3"]);
    database.run("UPDATE users SET id = 4 WHERE id = 3");
    assert_eq!(keys(&mut *source, 2).await, ["user:3", "user:4"]);
    database.run("DELETE FROM users WHERE id = 2");
    assert_eq!(keys(&mut *source, 1).await, ["user:2"]);
}

#[tokio::test]
async fn uncommitted_rows_are_not_read() {
    let database = Database::new();
    let mut source = database.source(Start::Now).await;
    let other = Connection::open(&database.path).expect("a second connection");
    database.run("BEGIN IMMEDIATE; INSERT INTO lookaside_journal(key) VALUES ('open')");
    assert!(timeout(Duration::from_millis(100), source.next(100)).await.is_err(), "nothing is committed");
    drop(source);
    let mut source = database.source(Start::Now).await;
    database.run("COMMIT");
    other.execute_batch("INSERT INTO lookaside_journal(key) VALUES (X'6162')").expect("a second writer");
    assert_eq!(keys(&mut *source, 2).await, ["open", "ab"]);
}

/// The source reads as other readers do, so its gate can open at once. A source that reads uncommitted rows, which
/// connections with a shared cache may, names keys before readers see their rows.
#[tokio::test]
async fn readers_see_a_row_after_the_gate() {
    for journal_mode in ["wal", "delete"] {
        let database = Database::new();
        database.connection.pragma_update(None, "journal_mode", journal_mode).expect("the mode is set");
        let mut source = database.source(Start::Now).await;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_SHARED_CACHE;
        let writer = Connection::open_with_flags(&database.path, flags).expect("a writer");
        for id in 1..=3 {
            writer.execute_batch(&format!("BEGIN IMMEDIATE; INSERT INTO users VALUES ({id}, '')")).expect("written");
            let read = {
                let reading = source.next(100);
                tokio::pin!(reading);
                assert!(timeout(Duration::from_millis(100), &mut reading).await.is_err(), "it is not committed");
                writer.execute_batch("COMMIT").expect("it is committed");
                timeout(Duration::from_secs(20), reading).await.expect("in time").expect("it reads")
            };
            assert_eq!(read.commits[0].keys, [format!("user:{id}").into_bytes()]);
            source.wait_until_visible(&read.position).await.expect("it is visible");
            let count = database.connection.query_row("SELECT count(*) FROM users", [], |row| row.get::<_, i64>(0));
            assert_eq!(count, Ok(id), "{journal_mode}: a row is named and not visible");
        }
    }
}

#[tokio::test]
async fn commits_of_two_connections_come_in_order_and_in_small_reads() {
    let database = Database::new();
    let mut source = database.source(Start::Earliest).await;
    let path = database.path.clone();
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let path = path.clone();
            std::thread::spawn(move || {
                let connection = Connection::open(path).expect("a connection");
                connection.busy_timeout(Duration::from_secs(20)).expect("a timeout");
                for n in 0..100 {
                    let sql = format!("INSERT INTO lookaside_journal(key) VALUES ('w{writer}:{n}')");
                    connection.execute_batch(&sql).expect("it is written");
                }
            })
        })
        .collect();
    let mut positions = Vec::new();
    let mut found = Vec::new();
    while found.len() < 200 {
        let read = timeout(Duration::from_secs(20), source.next(7)).await.expect("in time").expect("it reads");
        assert!(read.commits.len() <= 7);
        for commit in read.commits {
            positions.push(commit.position.0.parse::<u64>().expect("a number"));
            found.extend(commit.keys);
            let age = SystemTime::now().duration_since(commit.committed_at).unwrap_or_default();
            assert!(age < Duration::from_secs(60), "the time of the commit is a time of day: {age:?}");
        }
    }
    assert_eq!(positions, (1..=200).collect::<Vec<_>>());
    for writer in 0..2 {
        let of: Vec<_> = found.iter().filter(|key| key.starts_with(format!("w{writer}:").as_bytes())).collect();
        assert_eq!(of.len(), 100);
    }
    writers.into_iter().for_each(|writer| writer.join().expect("it wrote all"));
}

#[tokio::test]
async fn reading_resumes_from_a_position() {
    let database = Database::new();
    database.run("INSERT INTO lookaside_journal(key) VALUES ('a'), ('b'), ('c')");
    assert_eq!(keys(&mut *database.source(Start::Earliest).await, 3).await, ["a", "b", "c"]);
    assert_eq!(keys(&mut *database.source(at(1)).await, 2).await, ["b", "c"]);
    let now = database.open(Start::Now).await.expect("it opens");
    assert_eq!(now.position, Position("3".into()));
}

#[tokio::test]
async fn invalid_keys_are_ignored() {
    let database = Database::new();
    let mut source = database.source(Start::Now).await;
    let long = "k".repeat(251);
    database.run(&format!("INSERT INTO lookaside_journal(key) VALUES ('two words'), ('{long}'), (''), (7), ('good')"));
    assert_eq!(keys(&mut *source, 5).await, ["7", "good"]);
}

#[tokio::test]
async fn lost_position_is_detected() {
    let database = Database::new();
    database.run("INSERT INTO lookaside_journal(key) VALUES ('a'), ('b'), ('c'), ('d')");
    database.run("DELETE FROM lookaside_journal WHERE seq <= 2");
    let lost = |result: Result<OpenedSource, SourceError>| matches!(result, Err(SourceError::PositionLost { .. }));
    assert!(lost(database.open(at(1)).await), "row 2 is gone");
    assert!(!lost(database.open(at(2)).await), "all rows after 2 exist");
    assert!(lost(database.open(at(5)).await), "the journal never had 5 rows");
    database.run("DELETE FROM lookaside_journal");
    assert!(lost(database.open(at(3)).await), "row 4 is gone");
    assert!(!lost(database.open(at(4)).await), "there were no rows after 4");
}

#[tokio::test]
async fn unread_removed_rows_are_detected() {
    let database = Database::new();
    for rest in ["", "INSERT INTO lookaside_journal(key) VALUES ('later')"] {
        let mut source = database.source(Start::Now).await;
        database.run(&format!(
            "BEGIN; INSERT INTO lookaside_journal(key) VALUES ('unread'); DELETE FROM lookaside_journal; {rest}; COMMIT"
        ));
        let error = timeout(Duration::from_secs(20), source.next(100)).await.expect("in time");
        assert!(matches!(error, Err(SourceError::PositionLost { .. })), "{error:?}");
    }
}

/// An insert that is ignored may use up a number, so that the first row has number 2. That was treated as a removed
/// row, and the pipeline stopped (or flushed the cluster).
#[tokio::test]
async fn unused_number_is_no_loss() {
    let database = Database::new();
    let mut source = database.source(Start::Now).await;
    database.run("INSERT INTO lookaside_journal(seq, key) VALUES (2, 'second')");
    assert_eq!(keys(&mut *source, 1).await, ["second"]);
    assert_eq!(keys(&mut *database.source(at(0)).await, 1).await, ["second"]);
    database.run("INSERT INTO lookaside_journal(seq, key) VALUES (9, 'ninth')");
    assert_eq!(keys(&mut *source, 1).await, ["ninth"]);
    database.run("DELETE FROM lookaside_journal WHERE seq = 2");
    assert_eq!(keys(&mut *database.source(at(2)).await, 1).await, ["ninth"]);
    assert!(matches!(database.open(at(0)).await, Err(SourceError::PositionLost { .. })), "row 2 is gone");
}

/// The record of removals of a dropped journal does not apply to a new one.
#[tokio::test]
async fn recreated_journal_starts_without_removals() {
    let database = Database::new();
    database.source(Start::Now).await;
    database.run("INSERT INTO lookaside_journal(key) VALUES ('a'), ('b'), ('c'); DELETE FROM lookaside_journal");
    assert!(matches!(database.open(at(0)).await, Err(SourceError::PositionLost { .. })), "three rows are gone");
    database.run("DROP TABLE lookaside_journal");
    create_journal(&database.connection).expect("a journal");
    let mut source = database.source(at(0)).await;
    database.run("INSERT INTO lookaside_journal(key) VALUES ('new')");
    assert_eq!(keys(&mut *source, 1).await, ["new"]);
}

#[tokio::test]
async fn replaced_file_is_detected() {
    let (database, other) = (Database::new(), Database::new());
    database.run("INSERT INTO lookaside_journal(key) VALUES ('a')");
    let mut source = database.source(Start::Now).await;
    std::fs::rename(&other.path, &database.path).expect("it is replaced");
    let error = timeout(Duration::from_secs(20), source.next(100)).await.expect("in time");
    assert!(matches!(error, Err(SourceError::Unreachable { .. })), "{error:?}");
    drop(source);
    assert!(matches!(database.open(at(1)).await, Err(SourceError::PositionLost { .. })), "it has no row 1");
}

#[tokio::test]
async fn pruning_keeps_needed_rows() {
    let database = Database::new();
    database.run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
         INSERT INTO lookaside_journal(key) SELECT 'k' || i FROM n",
    );
    let positions = |of: &[&str]| of.iter().map(|p| Position(p.to_string())).collect::<Vec<_>>();
    let later = SystemTime::now() + Duration::from_secs(3601);
    let hour = Duration::from_secs(3600);
    let prune = |of: &[&str], now| prune(database.path.clone(), positions(of), hour, now);
    assert_eq!(prune(&[], later).await, Ok(0), "a cluster without a position needs all rows");
    assert_eq!(prune(&["2500"], SystemTime::now()).await, Ok(0), "the history is kept");
    assert_eq!(prune(&["2400", "2200"], later).await, Ok(2199), "all before the smallest position");
    assert_eq!(database.rows(), 301);
    assert_eq!(keys(&mut *database.source(at(2200)).await, 300).await.len(), 300);
    assert_eq!(prune(&["2500"], later).await, Ok(300), "the last row stays and shows that nothing is lost");
    assert!(database.open(at(2500)).await.is_ok());
}

#[tokio::test]
async fn unsuitable_databases_are_refused_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("app.db");
    let why = |result: Result<OpenedSource, SourceError>| result.err().expect("it is refused");
    let missing = SqliteLog::new(&path);
    assert!(matches!(why(missing.open(&Start::Now).await), SourceError::NotConnected { .. }));
    assert!(matches!(missing.identity().await, Err(SourceError::NotConnected { .. })));
    assert!(!path.exists(), "it is not created");
    Connection::open(&path).expect("a database").execute_batch("CREATE TABLE t (a)").expect("a table");
    let error = why(missing.open(&Start::Now).await).to_string();
    assert!(error.contains("CREATE TABLE IF NOT EXISTS lookaside_journal"), "{error}");
    assert!(missing.identity().await.expect("it is there").ends_with("app.db"));
    std::fs::write(&path, "this is no database, but long enough to be looked at as one".repeat(20)).expect("a file");
    assert!(matches!(why(missing.open(&Start::Now).await), SourceError::Unusable { .. }));
    assert!(matches!(why(missing.open(&Start::At(Position("gtid".into()))).await), SourceError::Unusable { .. }));
}
