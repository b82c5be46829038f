//! The binlog source against a real MySQL: keys, compressed and prepared transactions, tags, settings, purged logs.

use crate::mysql_server::{Server, fetched::mysqld, keys_of, last_position, read_until};
use lookaside_invalidator::source::mysql::MysqlOptions;
use lookaside_invalidator::{Position, SourceError, Start};
use std::time::SystemTime;

const TABLES: &str = "CREATE DATABASE app; CREATE TABLE app.user (id INT PRIMARY KEY, name VARCHAR(200)); \
    CREATE TABLE app.lookaside_outbox (item VARBINARY(250), at TIMESTAMP(6) DEFAULT NOW(6))";

const END: &str = "INSERT INTO app.user VALUES (999, '') /* lookaside: end */";

#[tokio::test]
async fn keys_are_read_in_order_compressed_or_not() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    let start = SystemTime::now();
    for compression in ["OFF", "ON"] {
        client.run(&format!("SET SESSION binlog_transaction_compression = {compression}")).await;
        client.run("INSERT INTO app.user VALUES (1, 'a'), (2, 'b') /* lookaside: user:1 user:2 */").await;
        client.run("START TRANSACTION").await;
        client.run("INSERT INTO app.user VALUES (3, 'c') /* lookaside: undone */").await;
        client.run("ROLLBACK").await;
        client.run("START TRANSACTION").await;
        client.run("DELETE FROM app.user WHERE id = 1 /* lookaside: first */").await;
        client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('outbox:1'), ('outbox:2')").await;
        client.run("COMMIT").await;
        client.run("UPDATE app.user SET name = '/* lookaside: fake */' WHERE id = 2").await;
        client.run("TRUNCATE TABLE app.user /* lookaside: truncated */").await;
        client.run("FLUSH BINARY LOGS").await;
    }
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    let round = ["user:1", "user:2", "first", "outbox:1", "outbox:2", "truncated"];
    let mut expected = [round, round].concat();
    expected.push("end");
    assert_eq!(keys_of(&commits), expected);
    for commit in &commits {
        assert!(commit.committed_at >= start && commit.committed_at <= SystemTime::now(), "MySQL logs microseconds");
    }
    assert_eq!(last_position(&commits).0, client.one("SELECT @@global.gtid_executed").await);
    for at in 0..commits.len() - 1 {
        let mut resumed = server.source(Start::At(commits[at].position.clone())).await;
        assert_eq!(keys_of(&read_until(&mut resumed, "end").await), keys_of(&commits[at + 1..]));
    }
    let uuid = client.one("SELECT @@server_uuid").await;
    assert_eq!(source.identity(), format!("mysql:{uuid}"));
}

#[tokio::test]
async fn prepared_and_tagged_transactions_are_read() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    for (xid, end) in [("'kept','branch',7", "COMMIT"), ("'undone'", "ROLLBACK")] {
        client.run(&format!("XA START {xid}")).await;
        client.run(&format!("INSERT INTO app.user VALUES (1, 'a') /* lookaside: {end} */")).await;
        client.run(&format!("XA END {xid}; XA PREPARE {xid}")).await;
        let mut other = server.client().await;
        other.run(&format!("INSERT INTO app.lookaside_outbox (item) VALUES ('before:{end}')")).await;
        client.run(&format!("XA {end} {xid}; DELETE FROM app.user")).await;
    }
    client.run("SET SESSION gtid_next = 'AUTOMATIC:blue'").await;
    client.run("INSERT INTO app.user VALUES (5, '') /* lookaside: tagged */").await;
    client.run("SET SESSION gtid_next = 'AUTOMATIC'").await;
    client.run(END).await;
    let commits = read_until(&mut source, "end").await;
    assert_eq!(keys_of(&commits), ["before:COMMIT", "COMMIT", "before:ROLLBACK", "tagged", "end"]);
    assert!(last_position(&commits).0.contains(":blue:1"), "{:?}", last_position(&commits));
    client.run("INSERT INTO app.user VALUES (6, '') /* lookaside: later */").await;
    let mut resumed = server.source(Start::At(last_position(&commits))).await;
    assert_eq!(keys_of(&read_until(&mut resumed, "later").await), ["later"]);
}

#[tokio::test]
async fn wrong_settings_are_named_and_logins_work() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &[]).await;
    let mut client = server.client().await;
    let error = server.try_source(server.options(), Start::Now).await.err().expect("no texts");
    assert!(error.to_string().contains("SET GLOBAL binlog_rows_query_log_events = ON"), "{error}");
    client.run("SET GLOBAL binlog_rows_query_log_events = ON").await;
    client.run("CREATE USER reader@'%' IDENTIFIED BY 'secret'").await;
    client.run("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'").await;
    let named = |password: &str| MysqlOptions { user: "reader".into(), password: password.into(), ..server.options() };
    let error = server.try_source(named("wrong"), Start::Now).await.err().expect("wrong password");
    assert!(matches!(&error, SourceError::Unusable { why } if why.contains("'reader'")), "{error}");
    // The first login uses the server's public key, the second its cache.
    for _ in 0..2 {
        let mut source = server.try_source(named("secret"), Start::Now).await.expect("a source");
        client.run("CREATE DATABASE d /* lookaside: d */; DROP DATABASE d /* lookaside: end */").await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["d", "end"]);
    }
    let old = Position(client.one("SELECT @@global.gtid_executed").await);
    client.run("CREATE DATABASE d; FLUSH BINARY LOGS").await;
    let newest = client.log_files().await.pop().expect("a log");
    // The sources above may still count as readers of it.
    client.purge_log_before(&newest).await;
    for position in [old.0.as_str(), "00000000-0000-0000-0000-000000000001:1"] {
        let start = Start::At(Position(position.into()));
        let error = server.try_source(server.options(), start).await.err().expect(position);
        assert!(matches!(error, SourceError::PositionLost { .. }), "{error}");
    }
}
