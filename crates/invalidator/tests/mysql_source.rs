//! The binlog source against a real MariaDB: the keys and their order, and which servers are refused.

use crate::mysql_server::{DEADLINE, END, Server, TABLES, fetched, keys_of, kinds, last_position, read_until};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::mysql::{KEYS_OF_COMMIT_MAX, MysqlLog, MysqlOptions};
use lookaside_invalidator::{CommitLog, Source, SourceError, Start};
use std::{
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

#[tokio::test]
async fn comments_of_all_statements_name_keys() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    client.run("INSERT INTO app.user VALUES (1, 'a'), (2, 'b'), (3, 'c') /* lookaside: user:1 user:2 user:3 */").await;
    client.run("UPDATE app.user /* lookaside: user:1 */ SET name = 'd' WHERE id = 1").await;
    client.run("DELETE /* lookaside: user:2 */ FROM app.user /* lookaside: user:2 list */ WHERE id = 2").await;
    client.run("START TRANSACTION").await;
    client.run("UPDATE app.user SET name = 'e' WHERE id = 1 /* lookaside: first */").await;
    client.run("UPDATE app.user SET name = 'e' WHERE id = 3 /* lookaside: second */").await;
    client.run("COMMIT").await;
    client.run("ALTER TABLE app.user ADD COLUMN extra INT /* lookaside: schema */").await;
    client.run("UPDATE app.user SET name = '/* lookaside: fake */', extra = 1 WHERE id = 1").await;
    client.run("TRUNCATE TABLE app.user /* lookaside: truncated */").await;
    client.run("INSERT INTO app.user VALUES (999, '', 0) /* lookaside: end */").await;
    let commits = read_until(&mut source, "end").await;
    let keys: Vec<_> = commits.iter().map(|commit| keys_of(std::slice::from_ref(commit)).join(" ")).collect();
    assert_eq!(
        keys,
        ["user:1 user:2 user:3", "user:1", "user:2 list", "first second", "schema", "truncated", "end"],
        "one commit per transaction, each key once in it, and none out of a literal"
    );
}

#[tokio::test]
async fn mariadb_shell_and_prepared_statements_keep_comments() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    let output = Command::new("mariadb")
        .args(["--no-defaults", "--comments", "--host=127.0.0.1", "--user=root", &format!("--port={}", server.port)])
        .args(["-e", "INSERT INTO app.user VALUES (1, 'a') /* lookaside: shell */"])
        .output()
        .expect("the mariadb shell is installed with the server");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    client.run("PREPARE renaming FROM 'UPDATE app.user SET name = ? WHERE id = ? /* lookaside: prepared */'").await;
    client.run("SET @name = 'it''s /* lookaside: fake */', @id = 1").await;
    client.run("EXECUTE renaming USING @name, @id").await;
    client.run_prepared("UPDATE app.user SET name = 'binary' WHERE id = 1 /* lookaside: driver */").await;
    client.run(END).await;
    // The server logs the parameter with \', which may end the literal in another session's mode: a delete too many.
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["shell", "fake", "prepared", "driver", "end"]);
}

#[tokio::test]
async fn rolled_back_changes_name_no_keys() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    client.run("START TRANSACTION").await;
    client.run("INSERT INTO app.user VALUES (1, 'a') /* lookaside: undone */").await;
    client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('undone:outbox')").await;
    client.run("ROLLBACK").await;
    client.run("START TRANSACTION").await;
    client.run("INSERT INTO app.user VALUES (2, 'b') /* lookaside: kept */").await;
    client.run("SAVEPOINT here").await;
    client.run("INSERT INTO app.user VALUES (3, 'c') /* lookaside: undone:savepoint */").await;
    client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('undone:outbox')").await;
    client.run("ROLLBACK TO SAVEPOINT here").await;
    client.run("INSERT INTO app.user VALUES (4, 'd') /* lookaside: kept:too */").await;
    client.run("COMMIT").await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["kept", "kept:too", "end"]);
}

#[tokio::test]
async fn outbox_rows_name_keys_in_any_schema_and_width() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    client.run("CREATE DATABASE other").await;
    client
        .run(
            "CREATE TABLE other.lookaside_outbox (item TEXT, a TINYINT, b SMALLINT, c MEDIUMINT, d INT, e BIGINT, \
             f FLOAT, g DOUBLE, h DECIMAL(23,7), i DATE, j DATETIME(3), k TIME(6), l TIMESTAMP(1) NULL, m YEAR, \
             n CHAR(200) CHARACTER SET utf8mb4, o VARCHAR(300), p LONGBLOB, q ENUM('x','y'), r SET('x','y'), \
             s BIT(12), t JSON, u INET6, v UUID, w BINARY(3), x POINT, z VARCHAR(5))",
        )
        .await;
    let mut source = server.source(Start::Now).await;
    client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('one'), ('two'), ('three'), ('two')").await;
    client
        .run(
            "INSERT INTO other.lookaside_outbox VALUES \
             ('wide:1', 1, 2, 3, 4, 5, 1.5, 2.5, 1234567890123456.7654321, '2026-01-02', '2026-01-02 03:04:05.678', \
              '-12:34:56.789', '2026-01-02 03:04:05', 2026, 'ä', REPEAT('o', 290), REPEAT('p', 70000), 'y', 'x,y', \
              b'101', '{}', '::1', '123e4567-e89b-12d3-a456-426655440000', 'w', POINT(1, 2), 'zz'), \
             ('wide:2', NULL, 2, NULL, 4, NULL, 1.5, NULL, -0.5, NULL, '2026-01-02 03:04:05.678', NULL, NULL, NULL, \
              'n', NULL, '', NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL), \
             ('wide:3', 1, 2, 3, 4, 5, 1.5, 2.5, 0, '2026-01-02', '2026-01-02', '00:00:00', NULL, 1999, '', '', NULL, \
              'x', 'x', 0, '[1]', '::', NULL, 'www', NULL, 'z')",
        )
        .await;
    client.run("UPDATE app.lookaside_outbox SET item = 'changed' WHERE item = 'one'").await;
    client.run("DELETE FROM app.lookaside_outbox").await;
    client.run("INSERT INTO app.lookaside_outbox (item) VALUES (NULL), ('not a key'), (REPEAT('k', 250))").await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    let long = "k".repeat(250);
    assert_eq!(keys_of(&commits), ["one", "two", "three", "wide:1", "wide:2", "wide:3", &long, "end"]);
    assert_eq!(source.keys_rejected(), 2);
}

#[tokio::test]
async fn blackhole_outbox_works() {
    let server = Server::start(&["--plugin-load-add=ha_blackhole"]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    client.run("CREATE DATABASE hole; CREATE TABLE hole.lookaside_outbox (item VARCHAR(250)) ENGINE=BLACKHOLE").await;
    let mut source = server.source(Start::Now).await;
    client.run("START TRANSACTION").await;
    client.run("INSERT INTO hole.lookaside_outbox VALUES ('undone')").await;
    client.run("ROLLBACK").await;
    client.run("START TRANSACTION").await;
    client.run("INSERT INTO hole.lookaside_outbox VALUES ('hole:1'), ('hole:2')").await;
    client.run("INSERT INTO app.user VALUES (1, 'a')").await;
    client.run("COMMIT").await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["hole:1", "hole:2", "end"]);
}

#[tokio::test]
async fn compressed_and_unchecked_logs_are_read() {
    let server =
        Server::start(&["--log-bin-compress=ON", "--log-bin-compress-min-len=10", "--binlog-checksum=NONE"]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Earliest).await;
    client.run(&format!("INSERT INTO app.user VALUES (1, '{}') /* lookaside: text */", "a".repeat(150))).await;
    let rows: Vec<String> = (0..100).map(|n| format!("('row:{n}')")).collect();
    client.run(&format!("INSERT INTO app.lookaside_outbox (item) VALUES {}", rows.join(","))).await;
    client.run("ALTER TABLE app.user COMMENT 'abcdefghijklmnopqrstuvwxyz' /* lookaside: definition */").await;
    client.run("SET GLOBAL binlog_checksum = CRC32").await;
    client.run(END).await;
    let keys = keys_of(&read_until(&mut source, "end").await);
    assert_eq!(keys.len(), 103, "{keys:?}");
    assert_eq!((keys[0].as_str(), keys[101].as_str()), ("text", "definition"));
}

#[tokio::test]
async fn prepared_transactions_are_held_until_their_commit() {
    check_prepared_transactions(Server::start(&[]).await).await;
}

#[tokio::test]
async fn prepared_transactions_of_newer_mariadb_are_held_until_their_commit() {
    let Some(mariadbd) = fetched::newer_mariadbd() else { return };
    check_prepared_transactions(Server::start_newer_mariadb(&mariadbd, &[]).await).await;
}

async fn check_prepared_transactions(server: Server) {
    let mut client = server.client().await;
    let mut other = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    for (xid, at) in [("'kept','branch',7", 1), ("'undone'", 2), ("'single'", 3)] {
        client.run(&format!("XA START {xid}")).await;
        client.run(&format!("INSERT INTO app.user VALUES ({at}, 'a') /* lookaside: xa:{at} */")).await;
        client.run(&format!("XA END {xid}")).await;
        if at == 3 {
            client.run(&format!("XA COMMIT {xid} ONE PHASE")).await;
        } else {
            client.run(&format!("XA PREPARE {xid}")).await;
        }
        // A prepared transaction is detached when its connection ends.
        client = server.client().await;
    }
    other.run("INSERT INTO app.user VALUES (10, 'b') /* lookaside: between */").await;
    let before = read_until(&mut source, "between").await;
    assert_eq!(keys_of(&before), ["xa:3", "between"], "a preparation is no commit");

    // A reader that restarts from here must not miss the held keys.
    let mut restarted = server.source(Start::At(last_position(&before))).await;
    other.run("XA COMMIT 'kept','branch',7").await;
    other.run("XA ROLLBACK 'undone'").await;
    other.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["xa:1", "end"]);
    let again = keys_of(&read_until(&mut restarted, "end").await);
    assert!(again.contains(&"xa:1".into()) && !again.contains(&"xa:2".into()), "{again:?}");
}

/// The keys of a transaction that was prepared before a start from the present are not read. Its commit was once
/// ignored silently, and later counted. Nothing was deleted or flushed.
#[tokio::test]
async fn start_from_the_present_waits_for_prepared_transactions() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let prepare = "XA START 'old'; INSERT INTO app.user VALUES (1, 'a') /* lookaside: old */; XA END 'old'; \
        XA PREPARE 'old'";
    client.run(prepare).await;
    let impatient = MysqlOptions { prepared_wait_max: Duration::from_millis(100), ..server.options() };
    let mut source = server.try_source(impatient, Start::Now).await.expect("a source, and a warning");
    let patient_log = MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    let opened = {
        let patient = patient_log.open(&Start::Now);
        tokio::pin!(patient);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut patient).await;
        assert!(early.is_err(), "it is not resolved yet");
        client.run("XA COMMIT 'old'").await;
        patient.await.expect("a source")
    };
    // It was committed before the start had ended. A source that is opened again there knows that.
    let reopened = patient_log.open(&Start::At(opened.position.clone())).await.expect("a source");
    client.run("DELETE FROM app.user /* lookaside: first */").await;
    for source in [opened.source, reopened.source].iter_mut() {
        loop {
            let commits = source.next(10).await.expect("no loss").commits;
            if keys_of(&commits) == ["first"] {
                break;
            }
        }
    }
    let mut patient_source = server.source(Start::Now).await;
    let lost = source.next(10).await.expect_err("the keys are not known");
    assert!(matches!(lost, SourceError::PositionLost { .. }), "{lost}");
    // A transaction without changes is not in the log, or is known to name no key: its commit is no loss.
    client.run("XA START 'empty'; SELECT 1; XA END 'empty'; XA PREPARE 'empty'; XA COMMIT 'empty'").await;
    client.run("DELETE FROM app.user; XA START 'new'; INSERT INTO app.user VALUES (2, 'no key'); XA END 'new'").await;
    client.run("XA PREPARE 'new'").await;
    client = server.client().await;
    client.run("INSERT INTO app.user VALUES (3, '') /* lookaside: between */").await;
    let between = last_position(&read_until(&mut patient_source, "between").await);
    let mut restarted = server.source(Start::At(between)).await;
    client.run("XA COMMIT 'new'").await;
    client.run(END).await;
    for source in [&mut patient_source, &mut restarted] {
        read_until(source, "end").await;
    }
}

/// A process that was started again, or a standby that took over, knew of no transaction that was prepared before the
/// first start: its commit was taken for one whose deletes had been sent.
#[tokio::test]
async fn commit_of_what_was_prepared_before_the_first_start_is_a_loss_for_a_later_process() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        for xid in ["committed", "undone"] {
            let insert = format!("INSERT INTO app.user VALUES ({}, 'a') /* lookaside: {xid} */", xid.len());
            client.run(&format!("XA START '{xid}'; {insert}; XA END '{xid}'; XA PREPARE '{xid}'")).await;
            client = server.client().await;
        }
        let impatient = MysqlOptions { prepared_wait_max: Duration::from_millis(100), ..server.options() };
        let mut first = server.try_source(impatient, Start::Now).await.expect("a source, and a warning");
        client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: first */").await;
        let position = last_position(&read_until(&mut first, "first").await);
        drop(first);

        let later = MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
        let mut opened = later.open(&Start::At(position)).await.expect("a source").source;
        client.run("XA START 'new'; INSERT INTO app.user VALUES (2, '') /* lookaside: new */").await;
        client.run("XA END 'new'; XA PREPARE 'new'; XA COMMIT 'new'; XA ROLLBACK 'undone'").await;
        let mut keys = Vec::new();
        while keys != ["new"] {
            keys.extend(keys_of(&opened.next(10).await.expect("no loss").commits));
        }
        client.run("XA COMMIT 'committed'").await;
        let lost = loop {
            match tokio::time::timeout(DEADLINE, opened.next(10)).await.expect("in time") {
                Ok(commits) => assert!(commits.commits.iter().all(|commit| commit.keys.is_empty()), "{kind:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(lost, SourceError::PositionLost { .. }), "{kind:?}: {lost}");
    }
}

/// The first commit after an idle minute found the gate's connection closed, as the server's wait_timeout says.
#[tokio::test]
async fn gate_is_open_after_an_idle_time() {
    let server = Server::start(&["--wait-timeout=1"]).await;
    server.client().await.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    let commit = "INSERT INTO app.user VALUES (1, '') /* lookaside: one */";
    server.client().await.run(commit).await;
    read_until(&mut source, "one").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.client().await.run(END).await;
    read_until(&mut source, "end").await;
}

/// Under NO_BACKSLASH_ESCAPES the comment after a path that ends in a backslash was ignored.
#[tokio::test]
async fn keys_after_a_backslash_are_found_in_every_sql_mode() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    client.run("INSERT INTO app.user VALUES (1, 'a')").await;
    let mut source = server.source(Start::Now).await;
    client.run("SET sql_mode = 'NO_BACKSLASH_ESCAPES'").await;
    client.run(r"UPDATE app.user SET name = 'C:\' WHERE id = 1 /* lookaside: path */").await;
    client.run("SET sql_mode = 'ANSI_QUOTES'").await;
    client.run(r#"UPDATE app.user AS "u\" SET name = 'it\'s' WHERE id = 1 /* lookaside: ansi */"#).await;
    client.run("SET sql_mode = ''").await;
    client.run(r"UPDATE app.user SET name = 'It\'s' WHERE id = 1 /* lookaside: delivered */").await;
    client.run(END).await;
    assert_eq!(keys_of(&read_until(&mut source, "end").await), ["path", "ansi", "delivered", "end"]);
}

#[tokio::test]
async fn replica_that_does_not_log_its_changes_is_refused() {
    let server = Server::start(&["--server-id=2", "--log-slave-updates=OFF"]).await;
    let mut client = server.client().await;
    server.try_source(server.options(), Start::Now).await.expect("it is no replica");
    client.run("CREATE USER reader@'%'; GRANT REPLICATION SLAVE ON *.* TO reader@'%'").await;
    // Nothing listens there, but the server is a replica now.
    client.run("CHANGE MASTER TO master_host = '127.0.0.1', master_port = 1, master_user = 'x'").await;
    let error = server.try_source(server.options(), Start::Now).await.err().expect("half a log");
    assert!(matches!(&error, SourceError::UnsafeSettings { why } if why.contains("log_slave_updates=ON")), "{error}");
    // Without the privilege to query this there is only a warning: most servers are not replicas.
    let reader = MysqlOptions { user: "reader".into(), ..server.options() };
    server.try_source(reader, Start::Now).await.expect("a source with a warning");
}

#[tokio::test]
async fn replica_that_logs_all_is_accepted() {
    let server = Server::start(&["--log-slave-updates=ON"]).await;
    let mut client = server.client().await;
    client.run("CHANGE MASTER TO master_host = '127.0.0.1', master_port = 1, master_user = 'x'").await;
    let source = server.try_source(server.options(), Start::Now).await.expect("all is logged");
    assert!(source.warnings().is_empty(), "{:?}", source.warnings());
}

#[tokio::test]
async fn replica_that_drops_statements_is_refused() {
    let server = Server::start(&["--log-slave-updates=ON", "--replicate-annotate-row-events=OFF"]).await;
    let mut client = server.client().await;
    server.try_source(server.options(), Start::Now).await.expect("it is no replica");
    client.run("CHANGE MASTER TO master_host = '127.0.0.1', master_port = 1, master_user = 'x'").await;
    let error = server.try_source(server.options(), Start::Now).await.err().expect("no texts");
    assert!(error.to_string().contains("replicate_annotate_row_events=ON"), "{error}");
    let outbox_only = MysqlOptions { outbox_only: true, ..server.options() };
    server.try_source(outbox_only, Start::Now).await.expect("the outbox needs no texts");
}

#[tokio::test]
async fn large_transaction_is_split() {
    check_large_transaction(Server::start(&[]).await).await;
}

#[tokio::test]
async fn large_transaction_of_newer_mariadb_is_split() {
    let Some(mariadbd) = fetched::newer_mariadbd() else { return };
    check_large_transaction(Server::start_newer_mariadb(&mariadbd, &[]).await).await;
}

async fn check_large_transaction(server: Server) {
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    let begin = source.position().clone();
    let count = KEYS_OF_COMMIT_MAX * 5 / 2;
    client
        .run(&format!("INSERT INTO app.lookaside_outbox (item) SELECT CONCAT('k:', seq) FROM app.seq_1_to_{count}"))
        .await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    assert_eq!(keys_of(&commits).len(), count + 1);
    let sizes: Vec<_> = commits.iter().map(|commit| commit.keys.len()).collect();
    assert_eq!(sizes, [KEYS_OF_COMMIT_MAX, KEYS_OF_COMMIT_MAX, KEYS_OF_COMMIT_MAX / 2, 1]);
    assert_eq!((&commits[0].position, &commits[1].position), (&begin, &begin), "until the last part");
    assert_ne!(commits[2].position, begin);

    client.run("DELETE FROM app.user; XA START 'big'").await;
    client.run(&format!("INSERT INTO app.lookaside_outbox (item) SELECT seq FROM app.seq_1_to_{count}")).await;
    client.run("XA END 'big'; XA PREPARE 'big'; XA COMMIT 'big'").await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    let sizes: Vec<_> = commits.iter().map(|commit| commit.keys.len()).collect();
    assert_eq!(sizes, [KEYS_OF_COMMIT_MAX, KEYS_OF_COMMIT_MAX, KEYS_OF_COMMIT_MAX / 2, 1]);
    let mut resumed = server.source(Start::At(commits[1].position.clone())).await;
    let again = keys_of(&read_until(&mut resumed, "end").await);
    assert_eq!(again.len(), count + 1, "before the last part all of it is read again");
}

#[tokio::test]
async fn wrong_settings_are_named_in_errors() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run("CREATE USER reader@'%' IDENTIFIED BY 'secret'; CREATE USER nothing@'%'").await;
    client.run("GRANT REPLICATION SLAVE ON *.* TO reader@'%'").await;
    let named =
        |user: &str, password: &str| MysqlOptions { user: user.into(), password: password.into(), ..server.options() };
    let error_of = async |options: MysqlOptions| {
        let opened = server.try_source(options, Start::Now).await;
        match opened {
            Ok(mut source) => source.next(1).await.expect_err("nothing to read").to_string(),
            Err(error) => error.to_string(),
        }
    };
    let error = error_of(named("reader", "wrong")).await;
    assert!(error.contains("'reader'") && error.contains("password"), "{error}");
    let error = error_of(named("nothing", "")).await;
    assert!(error.contains("'nothing'") && error.contains("GRANT REPLICATION SLAVE"), "{error}");
    client.run("SET GLOBAL binlog_format = STATEMENT").await;
    let error = error_of(server.options()).await;
    assert!(error.contains("SET GLOBAL binlog_format = ROW"), "{error}");
    client.run("SET GLOBAL binlog_format = ROW, GLOBAL binlog_annotate_row_events = OFF").await;
    let error = error_of(server.options()).await;
    assert!(error.contains("SET GLOBAL binlog_annotate_row_events = ON"), "{error}");
    let outbox_only = MysqlOptions { outbox_only: true, ..named("reader", "secret") };
    server.try_source(outbox_only, Start::Now).await.expect("the outbox needs no texts");
    let closed_port = MysqlOptions { port: 1, ..server.options() };
    let start = Instant::now();
    let error = server.try_source(closed_port, Start::Now).await.err().expect("nothing listens there");
    assert!(matches!(error, SourceError::NotConnected { .. }) && error.to_string().contains("127.0.0.1:1"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn log_identifies_its_server_and_opens_sources() {
    let server = Server::start(&["--gtid-domain-id=4"]).await;
    let mut client = server.client().await;
    let log = MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now));
    assert_eq!(log.identity().await.expect("an identity"), "mariadb:4-1");
    client.run(TABLES).await;
    let mut opened = log.open(&Start::Now).await.expect("a source");
    assert_eq!(opened.position.0, client.one("SELECT @@gtid_binlog_pos").await);
    // A pipeline does this before it flushes a cluster and continues from the present.
    opened.source.wait_until_visible(&opened.position).await.expect("it is visible");
}

#[tokio::test]
async fn server_without_a_log_is_refused() {
    let server = Server::start(&["--skip-log-bin"]).await;
    let error = server.try_source(server.options(), Start::Now).await.err().expect("no log");
    assert!(matches!(&error, SourceError::UnsafeSettings { why } if why.contains("log_bin")), "{error}");
}
