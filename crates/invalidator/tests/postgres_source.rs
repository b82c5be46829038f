//! The source against a real PostgreSQL: the keys, positions, the slot, and the gate.

mod postgres_server;

use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{PostgresConnection, PostgresLog, PostgresOptions, Purpose};
use lookaside_invalidator::source::tls::DatabaseTls;
use lookaside_invalidator::{CommitLog as _, Position, Source as _, SourceError, Start};
use postgres_server::{Client, DEADLINE, Server, keys_of, last_position, read_until};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::{sleep, timeout};

const END: &str = "SELECT lookaside_invalidate('end')";

async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{what} does not happen"))
}

#[tokio::test]
async fn messages_and_outbox_rows_of_committed_transactions_name_keys() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (id int PRIMARY KEY, name text)").await;
    let mut source = server.source(Start::Now).await;
    client.run("BEGIN; INSERT INTO app VALUES (1, 'a'); SELECT lookaside_invalidate('user:1', 'list'); COMMIT").await;
    client.run("BEGIN; SELECT lookaside_invalidate('undone'); ROLLBACK").await;
    client.run("INSERT INTO lookaside_outbox (key) VALUES ('user:2'), ('user:2'), ('two words')").await;
    client.run("UPDATE app SET name = 'b'; TRUNCATE app; DELETE FROM lookaside_outbox").await;
    client.run("SELECT pg_logical_emit_message(false, 'lookaside', 'too:early')").await;
    client.run("SELECT pg_logical_emit_message(true, 'other', 'not:ours')").await;
    client.run("BEGIN; SAVEPOINT a; SELECT lookaside_invalidate('undone'); ROLLBACK TO a; SELECT lookaside_invalidate('kept'); COMMIT").await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    let keys: Vec<_> = commits.iter().map(|commit| keys_of(std::slice::from_ref(commit)).join(" ")).collect();
    assert_eq!(keys, ["list user:1", "user:2", "kept", "end"]);
    assert_eq!((source.keys_rejected(), source.anomalies().untransactional), (1, 1));
}

#[tokio::test]
async fn a_prepared_transaction_names_its_keys_when_it_is_committed() {
    let server = Server::start(&["max_prepared_transactions=5"]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("BEGIN; SELECT lookaside_invalidate('prepared'); PREPARE TRANSACTION 'a'").await;
    client.run("BEGIN; SELECT lookaside_invalidate('undone'); PREPARE TRANSACTION 'b'").await;
    client.run("SELECT lookaside_invalidate('between')").await;
    client.run("ROLLBACK PREPARED 'b'").await;
    client.run("COMMIT PREPARED 'a'").await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["between", "prepared", "end"]);
}

#[tokio::test]
async fn reading_resumes_after_a_position_and_repeats_nothing_before_it() {
    let mut server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("SELECT lookaside_invalidate('first')").await;
    let first = read_until(&mut source, "first").await;
    client.run("SELECT lookaside_invalidate('second')").await;
    read_until(&mut source, "second").await;
    drop(source);
    server.kill();
    server.restart().await;
    let mut source = server.source(Start::At(last_position(&first))).await;
    let mut client = server.client().await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["second", "end"]);
}

#[tokio::test]
async fn the_slot_is_confirmed_up_to_what_was_released_and_no_further() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let log = server.commit_log();
    let mut opened = log.open(&Start::Now).await.expect("a source");
    client.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut *opened.source, "first").await);
    client.run("SELECT lookaside_invalidate('second')").await;
    read_until(&mut *opened.source, "second").await;
    log.release(&first);
    let reader = tokio::spawn(async move { while opened.source.next(10).await.is_ok() {} });
    let confirmed = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
    let mut watcher = server.client().await;
    let wanted = first.0.clone();
    eventually("the slot is confirmed", async || (watcher.one(confirmed).await == wanted).then_some(())).await;
    let end = client.one("SELECT pg_switch_wal()::text").await;
    let reported = format!("SELECT coalesce(bool_and(write_lsn >= '{end}'), false)::text FROM pg_stat_replication");
    eventually("the reader reports", async || (watcher.one(&reported).await == "true").then_some(())).await;
    assert_eq!(client.one(confirmed).await, first.0, "the second commit was read but is not safe");
    reader.abort();
    let mut resumed = server.source(Start::At(first)).await;
    assert_eq!(keys_of(&read_until(&mut resumed, "second").await), ["second"]);
}

#[tokio::test]
async fn a_position_moves_on_without_keys_so_that_the_log_can_be_removed() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (id int)").await;
    let mut source = server.source(Start::Now).await;
    let before = source.position();
    client.run("INSERT INTO app SELECT generate_series(1, 1000)").await;
    let commits = timeout(DEADLINE, source.next(10)).await.expect("in time").expect("the log is read");
    assert!(commits.commits.is_empty() && commits.position != before);
}

#[tokio::test]
async fn a_slot_that_is_missing_or_confirmed_by_another_loses_the_position() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let source = server.source(Start::Now).await;
    let before = source.position();
    drop(source);
    client.run("SELECT lookaside_invalidate('skipped')").await;
    let end = client.one("SELECT pg_current_wal_flush_lsn()::text").await;
    client.run(&format!("SELECT pg_replication_slot_advance('lookaside', '{end}')")).await;
    let lost = |error: Option<SourceError>| match error {
        Some(SourceError::PositionLost { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let error = server.try_source(server.options(), Start::At(before.clone())).await.err();
    assert!(lost(error).contains("another reader"));
    client.run("SELECT pg_drop_replication_slot('lookaside')").await;
    let error = server.try_source(server.options(), Start::At(before)).await.err();
    assert!(lost(error).contains("does not exist"));
    let mut source = server.source(Start::Now).await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"], "a new slot reads on");
}

#[tokio::test]
async fn a_slot_whose_log_was_removed_loses_the_position_and_is_replaced() {
    let server = Server::start(&["max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB"]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (text text)").await;
    let source = server.source(Start::Now).await;
    let before = source.position();
    drop(source);
    for _ in 0..4 {
        client.run("INSERT INTO app SELECT repeat(md5(i::text), 100) FROM generate_series(1, 5000) i").await;
        client.run("SELECT pg_switch_wal()").await;
        client.run("CHECKPOINT").await;
    }
    assert_eq!(client.one("SELECT wal_status FROM pg_replication_slots").await, "lost");
    let error = server.try_source(server.options(), Start::At(before)).await.err();
    assert!(matches!(error, Some(SourceError::PositionLost { .. })), "{error:?}");
    let mut source = server.source(Start::Now).await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"]);
}

#[tokio::test]
async fn wrong_settings_are_named_with_what_corrects_them() {
    let server = Server::start(&[]).await;
    let unusable = |error: Option<SourceError>| match error {
        Some(SourceError::Unusable { why }) => why,
        other => panic!("{other:?}"),
    };
    let error = unusable(server.try_source(server.options(), Start::Now).await.err());
    assert!(error.contains("CREATE PUBLICATION"), "{error}");
    server.set_up().await;
    let options = PostgresOptions { password: "wrong".into(), ..server.options() };
    let error = unusable(server.try_source(options, Start::Now).await.err());
    assert!(error.contains("password"), "{error}");
    let options = PostgresOptions { database: "none".into(), ..server.options() };
    assert!(unusable(server.try_source(options, Start::Now).await.err()).contains("none"));
    drop(server);
    let server = Server::start(&["wal_level=replica"]).await;
    let error = unusable(server.try_source(server.options(), Start::Now).await.err());
    assert!(error.contains("wal_level = logical"), "{error}");
    let error = unusable(server.try_source(server.options(), Start::At(Position("x".into()))).await.err());
    assert!(error.contains("wal_level"), "{error}");
}

/// Commits wait from now on for a synchronous standby that does not exist.
async fn add_absent_standby(server: &Server) {
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

async fn remove_absent_standby(client: &mut Client) {
    client.run("ALTER SYSTEM RESET synchronous_standby_names").await;
    client.run("SELECT pg_reload_conf()").await;
}

/// A synchronous standby that never confirms: the commit is in the log, and readers do not see it yet.
#[tokio::test]
async fn the_gate_waits_until_readers_see_a_commit() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (id int)").await;
    let mut source = server.source(Start::Now).await;
    let mut reader = server.client().await;
    add_absent_standby(&server).await;
    let writer = tokio::spawn(async move {
        client.run("BEGIN; INSERT INTO app VALUES (1); SELECT lookaside_invalidate('user:1'); COMMIT").await;
    });
    let commits = read_until(&mut source, "user:1").await;
    assert_eq!(reader.one("SELECT count(*) FROM app").await, "0", "the log is ahead of the readers");
    let position = last_position(&commits);
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_millis(300), &mut gate).await.is_err(), "the gate is closed");
    remove_absent_standby(&mut reader).await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens");
    assert_eq!(reader.one("SELECT count(*) FROM app").await, "1");
    writer.await.expect("the commit is done");
}

/// The cluster was flushed while a commit before the new position was still invisible: readers filled the old row after
/// the flush, and the delete of that commit was never sent.
#[tokio::test]
async fn the_gate_waits_for_commits_before_the_position_where_reading_began() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (id int)").await;
    drop(server.source(Start::Now).await);
    let mut reader = server.client().await;
    add_absent_standby(&server).await;
    let writer = tokio::spawn(async move {
        client.run("BEGIN; INSERT INTO app VALUES (1); SELECT lookaside_invalidate('user:1'); COMMIT").await;
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually("the commit waits", async || (reader.one(waits).await == "1").then_some(())).await;
    let mut source = server.source(Start::Now).await;
    let position = source.position();
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_millis(300), &mut gate).await.is_err(), "the gate is closed");
    remove_absent_standby(&mut reader).await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens");
    assert_eq!(reader.one("SELECT count(*) FROM app").await, "1");
    writer.await.expect("the commit is done");
}

#[tokio::test]
async fn a_commit_of_many_keys_and_large_messages_do_not_stop_the_reader() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("SELECT lookaside_invalidate(VARIADIC array_agg('k' || i)) FROM generate_series(1, 25000) i").await;
    client.run("SELECT pg_logical_emit_message(true, 'other', repeat('x', 20 * 1024 * 1024))").await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    assert_eq!(keys_of(&commits).len(), 25_001);
    assert!(commits.iter().all(|commit| commit.keys.len() <= 10_000));
    assert_eq!(source.anomalies().oversized, 1);
}

#[tokio::test]
async fn tls_is_verified() {
    let server = Server::start(&[]).await;
    let (key, certificate) = (server.path("data/server.key"), server.path("data/server.crt"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args([
            "-subj",
            "/CN=db",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    postgres_server::own_by_server(&key);
    postgres_server::own_by_server(&certificate);
    let mut client = server.set_up().await;
    client.run("ALTER SYSTEM SET ssl = on").await;
    client.run("SELECT pg_reload_conf()").await;
    let options = |host: &str| PostgresOptions {
        host: host.into(),
        tls: Some(DatabaseTls::verify_full(certificate.clone())),
        ..server.options()
    };
    let encrypted = eventually("the server uses TLS", async || {
        PostgresConnection::open(&TcpNetwork, &options("localhost"), Purpose::Queries).await.ok()
    });
    let mut encrypted = encrypted.await;
    let is_used = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(encrypted.query_one(is_used).await, Ok(Some("t".into())));
    let error = PostgresConnection::open(&TcpNetwork, &options("127.0.0.1"), Purpose::Queries).await.err();
    assert!(matches!(&error, Some(SourceError::Unusable { why }) if why.contains("TLS")), "another name: {error:?}");
}

/// After a partition the server holds the slot for the lost connection: for a minute no reader could begin.
#[tokio::test]
async fn a_lost_session_of_the_same_process_is_ended_and_one_of_another_is_not() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let options = PostgresOptions { heartbeat: Duration::from_secs(60), ..server.options() };
    let log = PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    let mut lost = log.open(&Start::Now).await.expect("a source");
    client.run("SELECT lookaside_invalidate('first')").await;
    let first = last_position(&read_until(&mut *lost.source, "first").await);
    client.run(END).await;

    let mut other = server.source(Start::At(first.clone())).await;
    let error = other.next(10).await.expect_err("the slot is in use");
    assert!(matches!(&error, SourceError::Unreachable { why } if why.contains("55006")), "{error:?}");
    assert_eq!(keys_of(&read_until(&mut *lost.source, "end").await), ["end"], "it was not ended");

    let mut resumed = log.open(&Start::At(first)).await.expect("a source");
    let next = eventually("the slot is free", async || resumed.source.next(10).await.ok());
    let read = timeout(DEADLINE / 2, next).await.expect("before the server's own timeout of a minute");
    assert_eq!(keys_of(&read.commits), ["end"]);
}

#[tokio::test]
async fn a_server_gives_up_a_silent_reader_as_soon_as_the_reader_a_silent_server() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret'").await;
    let options = PostgresOptions {
        user: "reader".into(),
        password: "secret".into(),
        heartbeat: Duration::from_secs(5),
        ..server.options()
    };
    let mut connection =
        PostgresConnection::open(&TcpNetwork, &options, Purpose::Replication).await.expect("a connection");
    assert_eq!(connection.query_one("SHOW wal_sender_timeout").await, Ok(Some("15s".into())));
}

/// An attempt to log in to a server that hangs was repeated as often as one to connect to a server that is down.
#[tokio::test]
async fn a_server_that_accepts_and_does_not_answer_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let options = PostgresOptions {
        port: listener.local_addr().expect("bound").port(),
        connect_wait_max: Duration::from_millis(300),
        ..PostgresOptions::default()
    };
    let opened = PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await;
    assert!(matches!(opened.err(), Some(SourceError::Unreachable { why }) if why.contains("log in")));
    drop(listener);
    let opened = PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await;
    assert!(matches!(opened.err(), Some(SourceError::NotConnected { .. })));
}

/// A position that arrived soon after another was withheld until the server's next sign of life.
#[tokio::test]
async fn a_withheld_position_does_not_wait_for_the_next_message() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    client.run("CREATE TABLE app (id int)").await;
    let options = PostgresOptions { heartbeat: 2 * DEADLINE, ..server.options() };
    let log = PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    let mut opened = log.open(&Start::Now).await.expect("a source");
    client.run("SELECT lookaside_invalidate('first')").await;
    read_until(&mut *opened.source, "first").await;
    client.run("INSERT INTO app VALUES (1)").await;
    let newest = log.newest_position().await.expect("a position");
    let read =
        async { while !log.covers(&opened.source.next(10).await.expect("the log is read").position, &newest) {} };
    timeout(DEADLINE / 6, read).await.expect("the position arrives without a heartbeat");
}

/// Readers see an asynchronous commit before it is flushed: a router that waited for the newest position could serve a
/// value that such a commit had made stale.
#[tokio::test]
async fn the_newest_position_covers_visible_commits_that_are_not_flushed() {
    let server = Server::start(&["wal_writer_delay=10s", "wal_writer_flush_after=1GB"]).await;
    let mut client = server.set_up().await;
    let log = server.commit_log();
    let mut opened = log.open(&Start::Now).await.expect("a source");
    client.run("SET synchronous_commit = off").await;
    client.run("SELECT lookaside_invalidate('unflushed')").await;
    let newest = log.newest_position().await.expect("a position");
    let commits = read_until(&mut *opened.source, "unflushed").await;
    assert!(log.covers(&newest, &last_position(&commits)));
    let read =
        async { while !log.covers(&opened.source.next(10).await.expect("the log is read").position, &newest) {} };
    timeout(DEADLINE, read).await.expect("the newest position is reached");
}

/// The server ends the stream of a silent reader, and the gate is a pause in reading.
#[tokio::test]
async fn the_stream_outlives_a_long_wait_at_the_gate() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    let mut watcher = server.client().await;
    add_absent_standby(&server).await;
    let writer = tokio::spawn(async move {
        client.run("SELECT lookaside_invalidate('user:1')").await;
    });
    let position = last_position(&read_until(&mut source, "user:1").await);
    let pid = watcher.one("SELECT pid FROM pg_stat_replication").await;
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_secs(6), &mut gate).await.is_err(), "twice the server's limit has passed");
    assert_eq!(watcher.one("SELECT min(pid) FROM pg_stat_replication").await, pid);
    remove_absent_standby(&mut watcher).await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens");
    writer.await.expect("the commit is done");
}

/// The reader of a log tries again after 200 ms at most if no connection could be made, and after a second if a server
/// fails later. A server that is down, and one that does not accept logins yet, are of the first kind.
#[tokio::test]
async fn a_server_that_is_down_or_starts_is_not_connected() {
    let mut server = Server::start(&["hot_standby=off"]).await;
    server.set_up().await;
    let log = server.commit_log();
    let refused = |error: SourceError| match error {
        SourceError::NotConnected { why } => why,
        other => panic!("{other:?}"),
    };
    let identity = log.identity().await.expect("the server is there");
    server.kill();
    let why = refused(log.identity().await.expect_err("the server is down"));
    assert!(why.contains("cannot connect"), "{why}");
    server.restart_as_standby();
    eventually("the server refuses logins", async || {
        let why = refused(log.identity().await.expect_err("the server is a standby"));
        why.contains("57P03").then_some(())
    })
    .await;
    server.promote();
    let back = eventually("the server is back", async || log.identity().await.map_err(refused).ok()).await;
    assert_eq!(back, identity);
}
