//! Look-ups of the end of the log at real databases: how far a position is behind, and what they fail for.

use crate::{mysql_server, mysql_server::TABLES, postgres_server};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    CommitLog, LogLookup, Position, Source, SourceError, Start,
    source::mysql::{MysqlLog, MysqlOptions},
};
use std::{sync::Arc, time::SystemTime};

fn log_of(options: MysqlOptions) -> MysqlLog {
    MysqlLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now))
}

/// The bytes of all files.
fn bytes(lookup: &LogLookup) -> u64 {
    lookup.files.iter().map(|file| file.bytes).sum()
}

/// Reads one commit with this key.
async fn read(source: &mut dyn Source, key: &str) -> Position {
    loop {
        let commits = tokio::time::timeout(mysql_server::DEADLINE, source.next(1)).await.expect("in time").expect(key);
        if commits.commits.iter().any(|commit| commit.keys.iter().any(|found| found == key.as_bytes())) {
            return commits.position;
        }
    }
}

#[tokio::test]
async fn bytes_are_counted_over_the_files_of_the_log() {
    let mariadb = mysql_server::Server::start(&[]).await;
    count_bytes(&mariadb).await;
    if let Some(mysqld) = mysql_server::fetched::mysqld() {
        count_bytes(&mysql_server::Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await).await;
    }
}

async fn count_bytes(server: &mysql_server::Server) {
    let mut client = server.client().await;
    client.run(TABLES).await;
    let log = log_of(server.options());
    let opened = log.open(&Start::Now).await.expect("a source");
    let (mut source, begin) = (opened.source, opened.position);
    let at_begin = log.look_up().await.expect("looked up");
    assert_eq!(log.bytes_behind(&begin, &at_begin), Some(0));
    client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: one */").await;
    let at_one = log.look_up().await.expect("looked up");
    assert_eq!(log.bytes_behind(&begin, &at_one), None, "its place is not known before something is read");
    let one = read(&mut *source, "one").await;
    assert_eq!(log.bytes_behind(&one, &at_one), Some(0));
    client.run("FLUSH BINARY LOGS").await;
    client.run("INSERT INTO app.user VALUES (2, '') /* lookaside: two */").await;
    let at_two = log.look_up().await.expect("looked up");
    let behind = log.bytes_behind(&begin, &at_two).expect("known");
    // The mark of the beginning is after the first event of the first transaction.
    let exact = bytes(&at_two) - bytes(&at_begin);
    assert!((exact - 100..=exact).contains(&behind), "{behind} of {exact}");
    assert_eq!(log.bytes_behind(&one, &at_two), Some(bytes(&at_two) - bytes(&at_one)));
    let two = read(&mut *source, "two").await;
    assert_eq!(log.bytes_behind(&two, &at_two), Some(0));
    assert_eq!(log.distance(&one, &two).transactions, Some(1));
    assert_eq!(log.bytes_behind(&begin, &at_two), None, "one that was passed is forgotten");
}

#[tokio::test]
async fn an_account_that_may_not_list_files_sees_all_but_bytes() {
    let server = mysql_server::Server::start(&[]).await;
    let mut client = server.client().await;
    client.run("CREATE USER reader@'%' IDENTIFIED BY 'secret'; GRANT REPLICATION SLAVE ON *.* TO reader@'%'").await;
    let log = log_of(MysqlOptions { user: "reader".into(), password: "secret".into(), ..server.options() });
    let lookup = log.look_up().await.expect("the rest is looked up");
    assert!(lookup.incomplete.as_ref().is_some_and(|why| why.contains("SHOW BINARY LOGS")), "{lookup:?}");
    assert_eq!(log.bytes_behind(&lookup.newest, &lookup), None);
}

#[tokio::test]
async fn settings_that_hide_keys_are_no_refused_login() {
    let server = mysql_server::Server::start(&[]).await;
    let mut client = server.client().await;
    client
        .run("CREATE USER reader@'%' IDENTIFIED BY 'secret'; GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO reader@'%'")
        .await;
    let log = log_of(MysqlOptions { user: "reader".into(), password: "secret".into(), ..server.options() });
    assert_eq!(log.look_up().await.map(|lookup| lookup.incomplete), Ok(None));
    client.run("SET GLOBAL binlog_annotate_row_events = OFF").await;
    let hidden = log.look_up().await;
    assert!(matches!(&hidden, Err(SourceError::UnsafeSettings { why }) if why.contains("annotate")), "{hidden:?}");
    client.run("SET GLOBAL binlog_annotate_row_events = ON; SET PASSWORD FOR reader@'%' = PASSWORD('other')").await;
    let refused = log.look_up().await;
    assert!(matches!(&refused, Err(SourceError::Unusable { .. })), "{refused:?}");
}

#[tokio::test]
async fn ids_of_transactions_of_postgresql_are_looked_up() {
    let server = postgres_server::Server::start(&[]).await;
    let mut client = server.set_up().await;
    let log = server.commit_log();
    let first = log.look_up().await.expect("looked up");
    for _ in 0..5 {
        client.run("INSERT INTO lookaside_outbox (key) VALUES ('k')").await;
    }
    let second = log.look_up().await.expect("looked up");
    let ids = |lookup: &LogLookup| lookup.next_transaction_id.expect("PostgreSQL has them");
    // Others of the server's own may come in between.
    assert!((5..50).contains(&(ids(&second) - ids(&first))), "{first:?} {second:?}");
    assert!(log.bytes_behind(&first.newest, &second).is_some_and(|bytes| bytes > 0));
}
