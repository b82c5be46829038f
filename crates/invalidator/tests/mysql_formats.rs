//! What the settings of real servers do to the log: formats, row images, semi-synchronous commits; and a log that its
//! server continues after a crash, with prepared transactions. Each test runs on MariaDB and on MySQL.

use crate::mysql_server::{Client, DEADLINE, Kind, Server, keys_of, kinds, last_position, read_until};
use lookaside_invalidator::source::mysql::MysqlOptions;
use lookaside_invalidator::{Position, Source as _, SourceError, Start};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const TABLES: &str = "CREATE DATABASE app; CREATE TABLE app.user (id INT PRIMARY KEY, name VARCHAR(200)) ENGINE=InnoDB; \
    CREATE TABLE app.lookaside_outbox (item VARBINARY(250)) ENGINE=InnoDB";

const END: &str = "INSERT INTO app.user VALUES (999, '') /* lookaside: end */";

async fn refusal(server: &Server, options: MysqlOptions) -> String {
    match server.try_source(options, Start::Now).await.err() {
        Some(SourceError::UnsafeSettings { why }) => why,
        other => panic!("{other:?}"),
    }
}

/// The keys of a round of statements with comments, in the log's order.
async fn run_statements(client: &mut Client) -> Vec<&'static str> {
    client.run("INSERT INTO app.user VALUES (1, 'a'), (2, 'b') /* lookaside: user:1 user:2 */").await;
    client.run("START TRANSACTION").await;
    client.run("UPDATE app.user SET name = 'c' WHERE id = 1 /* lookaside: first */").await;
    client.run("UPDATE app.user SET name = '/* lookaside: fake */' WHERE id = 2 /* lookaside: second */").await;
    client.run("COMMIT").await;
    client.run("START TRANSACTION").await;
    client.run("DELETE FROM app.user WHERE id = 1 /* lookaside: undone */").await;
    client.run("ROLLBACK").await;
    client.run_prepared("UPDATE app.user SET name = 'd' WHERE id = 1 /* lookaside: prepared */").await;
    client.run("ALTER TABLE app.user COMMENT 'c' /* lookaside: schema */").await;
    client.run("DELETE FROM app.user /* lookaside: all */").await;
    vec!["user:1", "user:2", "first", "second", "prepared", "schema", "all"]
}

#[tokio::test]
async fn comments_name_keys_in_every_format() {
    for kind in kinds() {
        for format in ["STATEMENT", "MIXED", "ROW"] {
            let server = kind.start(&[&format!("--binlog-format={format}")]).await;
            let mut client = server.client().await;
            client.run(TABLES).await;
            if format != "ROW" {
                let why = refusal(&server, server.options()).await;
                assert!(why.contains("SET GLOBAL binlog_format = ROW") && why.contains(format), "{why}");
                let outbox = MysqlOptions { outbox_only: true, ..server.options() };
                assert!(refusal(&server, outbox).await.contains("SET GLOBAL binlog_format = ROW"));
            }
            let comments = MysqlOptions { comments_only: true, ..server.options() };
            let mut source = server.try_source(comments, Start::Now).await.expect("comments need no rows");
            let mut expected = run_statements(&mut client).await;
            client.run(END).await;
            expected.push("end");
            assert_eq!(keys_of(&read_until(&mut source, "end").await), expected, "{kind:?} {format}");
        }
    }
}

/// The start-up check reads the global format, but each session may have one of its own.
#[tokio::test]
async fn session_that_switches_the_format_is_read_and_reported() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let mut source = server.source(Start::Now).await;
        let mut expected = Vec::new();
        for format in ["STATEMENT", "ROW", "MIXED"] {
            client.run(&format!("SET SESSION binlog_format = {format}")).await;
            expected.extend(run_statements(&mut client).await);
        }
        client.run("SET SESSION binlog_format = ROW").await;
        client.run("INSERT INTO app.lookaside_outbox VALUES ('outbox:1')").await;
        client.run(END).await;
        expected.extend(["outbox:1", "end"]);
        assert_eq!(keys_of(&read_until(&mut source, "end").await), expected, "{kind:?}");
        let with_comments = source.anomalies().without_rows;
        assert!(with_comments >= 5, "{kind:?}: {with_comments} statements");

        client.run("SET SESSION binlog_format = STATEMENT").await;
        client.run("INSERT INTO app.lookaside_outbox VALUES ('lost')").await;
        client.run("SET SESSION binlog_format = ROW; DELETE FROM app.user").await;
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["end"], "its rows are not in the log");
        assert_eq!(source.anomalies().without_rows, with_comments + 1, "{kind:?}: but it is counted");
    }
}

#[tokio::test]
async fn inserted_rows_without_all_columns_have_their_keys() {
    for kind in kinds() {
        let server = kind.start(&["--binlog-row-image=MINIMAL"]).await;
        let mut client = server.client().await;
        // Inserted rows have the columns that were given a value: enough for an outbox.
        client.run(TABLES).await;
        let mut source = server.source(Start::Now).await;
        client.run("INSERT INTO app.lookaside_outbox VALUES ('outbox:1')").await;
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["outbox:1", "end"]);
    }
}

#[tokio::test]
async fn the_gate_waits_for_positions_of_an_earlier_run() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let now = client.one(kind.of("SELECT @@gtid_binlog_pos", "SELECT @@global.gtid_executed")).await;
        let later = match kind {
            Kind::Mariadb => "0-1-4000".into(),
            Kind::Mysql => format!("{}:1-4000", client.one("SELECT @@server_uuid").await),
        };
        let options = MysqlOptions { visible_wait_max: Duration::from_millis(200), ..server.options() };
        let mut source = server.try_source(options, Start::Now).await.expect("a source");
        source.wait_until_visible(&Position(now)).await.expect("it has been visible for long");
        let error = source.wait_until_visible(&Position(later)).await.expect_err("it is not there yet");
        assert!(matches!(error, SourceError::Unreachable { .. }), "{kind:?}: {error}");
    }
}

/// A server that waits for a semi-synchronous replica has its commits in the log seconds before readers see them. The
/// source is no such replica: it must not acknowledge what it does not store, and its gate must wait.
#[tokio::test]
async fn semi_synchronous_commits_wait_for_real_replicas_and_the_gate_for_them() {
    const WAIT_MS: u64 = 1_500;
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let mut source = server.source(Start::Now).await;
        client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: first */").await;
        read_until(&mut source, "first").await;
        let role = client.wait_for_replicas(kind, Duration::from_millis(WAIT_MS)).await;
        let mut writer = server.client().await;
        let start = Instant::now();
        let writing = tokio::spawn(async move {
            writer.run("INSERT INTO app.user VALUES (2, '') /* lookaside: second */").await;
        });
        let commits = timeout(DEADLINE, source.next(10)).await.expect("in time").expect("commits");
        let (read, count) = (start.elapsed(), "SELECT COUNT(*) FROM app.user WHERE id = 2");
        assert_eq!(keys_of(&commits.commits), ["second"]);
        if read < Duration::from_millis(WAIT_MS / 2) {
            assert_eq!(client.one(count).await, "0", "{kind:?}: in the log after {read:?}, and not visible");
        }
        source.wait_until_visible(&commits.position).await.expect("visible");
        assert_eq!(client.one(count).await, "1", "{kind:?}: the gate has waited");
        assert!(start.elapsed() >= Duration::from_millis(WAIT_MS), "{kind:?}: no replica has acknowledged it");
        writing.await.expect("it is committed");
        let clients = format!("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_{role}_clients'");
        let rows = client.run(&clients).await;
        assert_eq!(rows[0][1].as_deref(), Some(&b"0"[..]), "{kind:?}: the source is no replica");
    }
}

/// XA PREPARE is in the log before a crash of the server, XA COMMIT after it; the reader has restarted, too.
#[tokio::test]
async fn prepared_transactions_outlive_crashes_of_the_server_and_of_the_reader() {
    for kind in kinds() {
        let mut server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let mut source = server.source(Start::Now).await;
        for xid in ["kept", "undone"] {
            client.run(&format!("XA START '{xid}'")).await;
            client.run(&format!("INSERT INTO app.user VALUES ({}, 'a') /* lookaside: {xid} */", xid.len())).await;
            client.run(&format!("XA END '{xid}'; XA PREPARE '{xid}'")).await;
            client = server.client().await;
        }
        client.run("INSERT INTO app.user VALUES (10, 'b') /* lookaside: between */").await;
        let before = read_until(&mut source, "between").await;
        assert_eq!(keys_of(&before), ["between"], "{kind:?}");
        let position = last_position(&before);
        drop(source);
        server.kill();
        server.restart().await;
        let mut client = server.client().await;
        let mut source = server.source(Start::At(position)).await;
        client.run("XA COMMIT 'kept'").await;
        client.run("XA ROLLBACK 'undone'").await;
        client.run(END).await;
        let keys = keys_of(&read_until(&mut source, "end").await);
        assert!(keys.contains(&"kept".into()) && !keys.contains(&"undone".into()), "{kind:?}: {keys:?}");
    }
}

/// A transaction of many rows is compressed by tens of megabytes to one event. It was decompressed as a whole.
#[tokio::test]
async fn large_compressed_transactions_are_read_in_parts() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let compress = kind.of(
            "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10",
            "SET SESSION binlog_transaction_compression = ON",
        );
        client.run(compress).await;
        let mut source = server.source(Start::Now).await;
        client.run("START TRANSACTION").await;
        for n in 0..25 {
            let rows: Vec<String> = (0..1_000).map(|row| format!("('row:{n}:{row}:{}')", "x".repeat(200))).collect();
            client.run(&format!("INSERT INTO app.lookaside_outbox VALUES {}", rows.join(","))).await;
        }
        client.run("COMMIT").await;
        client.run(END).await;
        let keys = keys_of(&read_until(&mut source, "end").await);
        assert_eq!(keys.len(), 25_001, "{kind:?}");
        assert!(keys[24_999].starts_with("row:24:999:"), "{kind:?}: {}", keys[24_999]);
    }
}
