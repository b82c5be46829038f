//! The source against a real PostgreSQL: the keys, positions, and the gate.

use crate::gate_switch::TwoPipelines;
use crate::postgres_server::{
    Client, DEADLINE, END, Server, add_absent_standby, eventually, keys_of, last_position, read_until,
    remove_absent_standby,
};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{
    PostgresConnection, PostgresLog, PostgresOptions, PostgresSource, Purpose, setup_sql,
};
use lookaside_invalidator::{CommitLog as _, Position, Source, SourceError, Start};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{task::JoinHandle, time::timeout};

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

/// A message has the bytes that it was given; rows are converted for the client.
#[tokio::test]
async fn keys_are_in_utf_8_whatever_the_encoding_of_the_database_is() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    for (database, encoding) in [("latin", "LATIN1"), ("bytes", "SQL_ASCII")] {
        client.run(&format!("CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")).await;
        let options = PostgresOptions { database: database.into(), slot: database.into(), ..server.options() };
        let mut application = Client::open(&options).await;
        application.run(&setup_sql("lookaside", "lookaside_outbox")).await;
        let mut source = server.try_source(options, Start::Now).await.expect("a source");
        application.run("SELECT lookaside_invalidate('message:Zoë')").await;
        application.run("INSERT INTO lookaside_outbox (key) VALUES ('row:Zoë')").await;
        application.run(END).await;
        let keys = keys_of(&read_until(&mut source, "end").await);
        assert_eq!(keys, ["message:Zoë", "row:Zoë", "end"], "{encoding}");
    }
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
async fn wrong_settings_are_named_with_what_corrects_them() {
    let server = Server::start(&[]).await;
    let unusable = |error: Option<SourceError>| match error {
        Some(SourceError::Unusable { why }) => why,
        other => panic!("{other:?}"),
    };
    let error = unusable(server.try_source(server.options(), Start::Now).await.err());
    assert!(error.contains("`lookaside invalidator setup"), "{error}");
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

/// Commits a row of `app` that names a key, by `client`. Readers do not see it before the absent standby is removed.
fn commit_row(mut client: Client) -> JoinHandle<()> {
    tokio::spawn(async move {
        client.run("BEGIN; INSERT INTO app VALUES (1); SELECT lookaside_invalidate('user:1'); COMMIT").await;
    })
}

/// Checks that the gate at `position` opens when readers see the row of `writer`, and not before.
async fn check_gate(source: &mut PostgresSource, position: &Position, reader: &mut Client, writer: JoinHandle<()>) {
    const COUNT: &str = "SELECT count(*) FROM app";
    assert_eq!(reader.one(COUNT).await, "0", "the log is ahead of the readers");
    let gate = source.wait_until_visible(position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_millis(300), &mut gate).await.is_err(), "the gate is closed");
    remove_absent_standby(reader).await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens");
    assert_eq!(reader.one(COUNT).await, "1");
    writer.await.expect("the commit is done");
}

/// A synchronous standby that never confirms: the commit is in the log, and readers do not see it yet.
#[tokio::test]
async fn the_gate_waits_until_readers_see_a_commit() {
    let server = Server::start(&[]).await;
    let (mut client, mut reader) = (server.set_up().await, server.client().await);
    client.run("CREATE TABLE app (id int)").await;
    let mut source = server.source(Start::Now).await;
    add_absent_standby(&server).await;
    let writer = commit_row(client);
    let position = last_position(&read_until(&mut source, "user:1").await);
    check_gate(&mut source, &position, &mut reader, writer).await;
}

/// The gate of the production pipeline, switched off: the delete arrives while readers do not see the row. It shows
/// that the gate is what holds the delete back, and that the test would find one that does not.
#[tokio::test]
async fn without_the_gate_the_delete_of_an_invisible_row_gets_through() {
    let server = Server::start(&[]).await;
    let (mut client, mut reader) = (server.set_up().await, server.client().await);
    client.run("CREATE TABLE app (id int)").await;
    let log = |slot: &str, is_gate_off| {
        let options = PostgresOptions { slot: slot.into(), is_gate_off, ..server.options() };
        Arc::new(PostgresLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now)))
    };
    let two = TwoPipelines::start(log("gated", false), log("open", true)).await;
    add_absent_standby(&server).await;
    let writer = commit_row(client);
    two.check_only_without_gate("user:1").await;
    assert_eq!(reader.one("SELECT count(*) FROM app").await, "0", "it was deleted before readers see the row");
    remove_absent_standby(&mut reader).await;
    two.check_both("user:1").await;
    assert_eq!(reader.one("SELECT count(*) FROM app").await, "1");
    writer.await.expect("the commit is done");
}

/// The cluster was flushed while a commit before the new position was still invisible: readers filled the old row after
/// the flush, and the delete of that commit was never sent.
#[tokio::test]
async fn the_gate_waits_for_commits_before_the_position_where_reading_began() {
    let server = Server::start(&[]).await;
    let (mut client, mut reader) = (server.set_up().await, server.client().await);
    client.run("CREATE TABLE app (id int)").await;
    drop(server.source(Start::Now).await);
    add_absent_standby(&server).await;
    let writer = commit_row(client);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually("the commit waits", async || (reader.one(waits).await == "1").then_some(())).await;
    let mut source = server.source(Start::Now).await;
    let position = source.position();
    check_gate(&mut source, &position, &mut reader, writer).await;
}

/// The reader would have been a standby that every commit waits for, and it waited for the commits.
#[tokio::test]
async fn a_server_that_would_wait_for_the_reader_is_refused() {
    let server = Server::start(&[]).await;
    server.set_up().await;
    let mut source = server.source(Start::Now).await;
    let mut client = server.client().await;
    for names in ["*", "ANY 1 (standby, \"lookaside-invalidator 1\")"] {
        client.run(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await;
        client.run("SELECT pg_reload_conf()").await;
        eventually("the start is refused", async || match server.try_source(server.options(), Start::Now).await {
            Err(SourceError::Unusable { why }) => why.contains("synchronous_standby_names").then_some(()),
            _ => None,
        })
        .await;
    }
    let mut writer = server.client().await;
    let commit = tokio::spawn(async move { writer.run("SELECT lookaside_invalidate('user:1')").await });
    let commits = read_until(&mut source, "user:1").await;
    let error = timeout(DEADLINE / 2, source.wait_until_visible(&last_position(&commits))).await.expect("in time");
    assert!(matches!(error, Err(SourceError::Unusable { .. })), "a stream that had begun before ends: {error:?}");
    client.run("ALTER SYSTEM RESET synchronous_standby_names").await;
    client.run("SELECT pg_reload_conf()").await;
    commit.await.expect("the commit is done");
}

/// Transactions are not streamed while they are in progress (protocol version 1): the server writes what exceeds its
/// memory to its disk, and sends it after the commit.
#[tokio::test]
async fn a_transaction_beyond_the_servers_memory_arrives_whole_and_only_when_it_is_committed() {
    let server = Server::start(&["logical_decoding_work_mem=64kB"]).await;
    let (mut writer, mut client) = (server.set_up().await, server.client().await);
    let mut source = server.source(Start::Now).await;
    let many = |prefix: &str| {
        format!("SELECT lookaside_invalidate(VARIADIC array_agg('{prefix}' || i)) FROM generate_series(1, 10000) i")
    };
    writer.run(&format!("BEGIN; {}", many("committed:"))).await;
    client.run(&format!("BEGIN; {}; ROLLBACK", many("undone:"))).await;
    client.run("SELECT lookaside_invalidate('between')").await;
    let spilled = "SELECT (spill_txns + stream_txns > 0)::text FROM pg_stat_replication_slots";
    assert_eq!(keys_of(&read_until(&mut source, "between").await), ["between"]);
    writer.run("COMMIT").await;
    client.run(END).await;
    let keys = keys_of(&read_until(&mut source, "end").await);
    assert_eq!(keys.len(), 10_001);
    assert!(keys[..10_000].iter().all(|key| key.starts_with("committed:")));
    eventually("the server reports it", async || (client.one(spilled).await == "true").then_some(())).await;
    let streamed = client.one("SELECT stream_txns::text FROM pg_stat_replication_slots").await;
    assert_eq!(streamed, "0");
}

#[tokio::test]
async fn rows_of_a_partitioned_outbox_name_keys_and_truncate_names_none() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client
        .run(
            "CREATE TABLE lookaside_outbox (day int NOT NULL, key text NOT NULL) PARTITION BY RANGE (day); \
             CREATE TABLE outbox_1 PARTITION OF lookaside_outbox FOR VALUES FROM (1) TO (2); \
             CREATE TABLE outbox_2 PARTITION OF lookaside_outbox FOR VALUES FROM (2) TO (3)",
        )
        .await;
    server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("INSERT INTO lookaside_outbox VALUES (1, 'user:1'), (2, 'user:2')").await;
    client.run("INSERT INTO outbox_1 VALUES (1, 'user:3')").await;
    client.run("TRUNCATE outbox_1").await;
    client.run("ALTER TABLE lookaside_outbox DETACH PARTITION outbox_2").await;
    client.run("TRUNCATE lookaside_outbox").await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["user:1", "user:2", "user:3", "end"]);
}

#[tokio::test]
async fn a_commit_of_many_keys_and_large_messages_do_not_stop_the_reader() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("SELECT lookaside_invalidate(VARIADIC array_agg('k' || i)) FROM generate_series(1, 25000) i").await;
    client.run("SELECT pg_logical_emit_message(true, 'other', repeat('x', 20 * 1024 * 1024))").await;
    client.run("CREATE TABLE app (text text)").await;
    client.run("ALTER PUBLICATION lookaside ADD TABLE app").await;
    client.run(&format!("INSERT INTO app VALUES ('{}')", "x".repeat(20 << 20))).await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    assert_eq!(keys_of(&commits).len(), 25_001);
    assert!(commits.iter().all(|commit| commit.keys.len() <= 10_000));
    assert_eq!(source.anomalies().oversized, 2);
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

/// The server names the right that is missing, and not what grants it.
#[tokio::test]
async fn a_missing_right_or_publication_is_named_with_what_mends_it() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    for statement in ["CREATE ROLE reader LOGIN PASSWORD 'secret'", "CREATE DATABASE shop"] {
        client.run(statement).await;
    }
    client.run("REVOKE CONNECT ON DATABASE shop FROM PUBLIC").await;
    let reader = |database: &str| PostgresOptions {
        user: "reader".into(),
        password: "secret".into(),
        database: database.into(),
        ..server.options()
    };
    let why = async |options| match server.try_source(options, Start::Now).await.err() {
        Some(SourceError::Unusable { why }) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(reader("postgres")).await.contains("ALTER ROLE \"reader\" REPLICATION"));
    client.run("ALTER ROLE reader REPLICATION").await;
    assert!(why(reader("shop")).await.contains("GRANT CONNECT ON DATABASE \"shop\" TO \"reader\""));
    let missing = why(reader("postgres")).await;
    assert!(missing.contains("lookaside invalidator setup") && missing.lines().count() == 1, "{missing}");
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

/// Reads until everything up to `newest` has been read.
async fn read_until_covered(log: &PostgresLog, source: &mut dyn Source, newest: &Position) {
    while !log.covers(&source.next(10).await.expect("the log is read").position, newest) {}
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
    let read = read_until_covered(&log, &mut *opened.source, &newest);
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
    // A synchronous commit flushes the one before it, too.
    client.run("SET synchronous_commit = on").await;
    client.run("SELECT lookaside_invalidate('flushed')").await;
    let commits = read_until(&mut *opened.source, "flushed").await;
    let unflushed = commits.iter().find(|commit| keys_of(std::slice::from_ref(commit)) == ["unflushed"]);
    assert!(log.covers(&newest, &unflushed.expect("it was read").position));
    assert!(log.covers(&last_position(&commits), &newest), "the newest position is reached");
}

/// The buffer grew by 64 bytes at a time, so each read had one commit, and each commit cost a call of the gate.
#[tokio::test]
async fn commits_that_have_arrived_are_read_together() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    let mut source = server.source(Start::Now).await;
    client.run("SELECT lookaside_invalidate('first')").await;
    read_until(&mut source, "first").await;
    let many = "FOR i IN 1..1000 LOOP PERFORM lookaside_invalidate('k' || i); COMMIT; END LOOP";
    client.run(&format!("DO $$ BEGIN {many}; END $$")).await;
    let end = client.one("SELECT pg_current_wal_flush_lsn()::text").await;
    let sent = format!("SELECT coalesce(bool_and(sent_lsn >= '{end}'), false)::text FROM pg_stat_replication");
    eventually("all are sent", async || (client.one(&sent).await == "true").then_some(())).await;
    let (mut reads, mut commits) = (0, 0);
    while commits < 1_000 {
        commits +=
            timeout(DEADLINE, source.next(10_000)).await.expect("in time").expect("the log is read").commits.len();
        reads += 1;
    }
    assert!(reads < 100, "{reads} reads");
}

/// The server ends the stream of a silent reader, and the gate is a pause in reading.
#[tokio::test]
async fn the_stream_outlives_a_long_wait_at_the_gate() {
    let server = Server::start(&[]).await;
    let mut client = server.set_up().await;
    // The limit of the source's session is thrice its heartbeat.
    let heartbeat = Duration::from_millis(400);
    let options = PostgresOptions { heartbeat, ..server.options() };
    let mut source = server.try_source(options, Start::Now).await.expect("a source");
    let mut watcher = server.client().await;
    add_absent_standby(&server).await;
    let writer = tokio::spawn(async move {
        client.run("SELECT lookaside_invalidate('user:1')").await;
    });
    let position = last_position(&read_until(&mut source, "user:1").await);
    let pid = watcher.one("SELECT pid FROM pg_stat_replication").await;
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(heartbeat * 6, &mut gate).await.is_err(), "twice the server's limit has passed");
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
