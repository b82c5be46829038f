//! The gate of the binlog source: readers of a real MariaDB or MySQL see what has passed it.

use crate::fakes::{Fixture, UncheckedDisk, until};
use crate::gate_switch::TwoPipelines;
use crate::mysql_server::{
    Client, DEADLINE, Server, TABLES,
    fetched::{mysqld, newer_mariadbd},
    keys_of,
};
use bytes::Bytes;
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    Source, Start,
    pipeline::{
        Pipeline,
        delivery::{DeleteResult, Delivery, Refusal},
    },
    source::mysql::{MysqlLog, MysqlOptions},
};
use lookaside_routing::BoxFuture;
use std::{
    future::ready,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn a_row_that_readers_do_not_see_waits_at_the_gate_of_mariadb() {
    check_invisible_rows(&Server::start(&[]).await, ("master", "slave")).await;
}

#[tokio::test]
async fn a_row_that_readers_do_not_see_waits_at_the_gate_of_mysql() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    server.client().await.run("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'").await;
    check_invisible_rows(&server, ("source", "replica")).await;
}

/// It does not say where the events of a transaction end.
#[tokio::test]
async fn a_row_that_readers_do_not_see_waits_at_the_gate_of_newer_mariadb() {
    let Some(mariadbd) = newer_mariadbd() else { return };
    check_invisible_rows(&Server::start_newer_mariadb(&mariadbd, &[]).await, ("master", "slave")).await;
}

/// Commits wait for a replica that does not exist: they are in the log, and readers do not see them. Without the gate a
/// cache would be filled with their absence.
async fn check_invisible_rows(server: &Server, (role, replica): (&str, &str)) {
    let mut client = server.client().await;
    client.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    for setting in ["timeout = 600000".into(), "wait_point = AFTER_SYNC".into(), format!("wait_no_{replica} = ON")] {
        client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_{setting}")).await;
    }
    for (id, is_prepared) in [(1, false), (2, true)] {
        let insert = format!("INSERT INTO app.user VALUES ({id}, '') /* lookaside: {id} */");
        let mut writer = server.client().await;
        let commit = match is_prepared {
            false => insert,
            true => {
                writer.run(&format!("XA START 'x'; {insert}; XA END 'x'; XA PREPARE 'x'")).await;
                "XA COMMIT 'x'".into()
            }
        };
        client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = ON")).await;
        let writing = tokio::spawn(async move { drop(writer.run(&commit).await) });
        let mut read = Vec::new();
        let position = loop {
            let commits = timeout(DEADLINE, source.next(10)).await.expect("in time").expect("commits");
            read.extend(keys_of(&commits.commits));
            if !read.is_empty() {
                break commits.position;
            }
        };
        assert_eq!(read, [id.to_string()]);
        let count = format!("SELECT COUNT(*) FROM app.user WHERE id = {id}");
        assert_eq!(client.one(&count).await, "0", "it is in the log, and readers do not see it");
        let gate = source.wait_until_visible(&position);
        tokio::pin!(gate);
        assert!(timeout(Duration::from_millis(300), &mut gate).await.is_err(), "the gate waits");
        assert_eq!(client.one(&count).await, "0");
        client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = OFF")).await;
        timeout(DEADLINE, gate).await.expect("in time").expect("it is visible");
        assert_eq!(client.one(&count).await, "1");
        writing.await.expect("it is committed");
    }
}

/// Each gate of the production pipeline, switched off: its delete arrives while readers do not see the row. It shows
/// that the gate is what holds the delete back, and that the test would find one that does not.
#[tokio::test]
async fn without_the_gate_the_delete_of_an_invisible_row_gets_through_of_mariadb() {
    check_without_gate(&Server::start(&[]).await, ("master", "slave")).await;
}

#[tokio::test]
async fn without_the_gate_the_delete_of_an_invisible_row_gets_through_of_mysql() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    server.client().await.run("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'").await;
    check_without_gate(&server, ("source", "replica")).await;
}

#[tokio::test]
async fn without_the_gate_the_delete_of_an_invisible_row_gets_through_of_newer_mariadb() {
    let Some(mariadbd) = newer_mariadbd() else { return };
    check_without_gate(&Server::start_newer_mariadb(&mariadbd, &[]).await, ("master", "slave")).await;
}

/// Two pipelines read the same log, one of them without its gate.
async fn check_without_gate(server: &Server, (role, replica): (&str, &str)) {
    let mut client = server.client().await;
    client.run(TABLES).await;
    let log = |is_gate_off| {
        let options = MysqlOptions { is_gate_off, ..server.options() };
        Arc::new(MysqlLog::new(options, Arc::new(TcpNetwork), Arc::new(SystemTime::now)))
    };
    let two = TwoPipelines::start(log(false), log(true)).await;
    for setting in ["timeout = 600000".into(), "wait_point = AFTER_SYNC".into(), format!("wait_no_{replica} = ON")] {
        client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_{setting}")).await;
    }
    client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = ON")).await;
    let mut writer = server.client().await;
    let writing = tokio::spawn(async move {
        writer.run("INSERT INTO app.user VALUES (1, '') /* lookaside: user:1 */").await;
    });
    two.check_only_without_gate("user:1").await;
    assert_eq!(client.one("SELECT COUNT(*) FROM app.user").await, "0", "it was deleted before readers see the row");
    client.run(&format!("SET GLOBAL rpl_semi_sync_{role}_enabled = OFF")).await;
    two.check_both("user:1").await;
    assert_eq!(client.one("SELECT COUNT(*) FROM app.user").await, "1");
    writing.await.expect("it is committed");
}

/// The end of MariaDB's log is ahead of its readers. A first start from there took the commit for deleted: a reader
/// filled a cache with the old row afterwards, and nothing deleted that.
#[tokio::test]
async fn a_start_from_the_present_waits_until_readers_see_it() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    for setting in ["timeout = 600000", "wait_point = AFTER_SYNC", "wait_no_slave = ON", "enabled = ON"] {
        client.run(&format!("SET GLOBAL rpl_semi_sync_master_{setting}")).await;
    }
    let logged = client.one("SELECT @@global.gtid_binlog_pos").await;
    let mut writer = server.client().await;
    let writing = tokio::spawn(async move {
        writer.run("INSERT INTO app.user VALUES (1, '') /* lookaside: user:1 */").await;
    });
    let in_log = async { while client.one("SELECT @@global.gtid_binlog_pos").await == logged {} };
    timeout(DEADLINE, in_log).await.expect("the commit is in the log");
    let mut fixture = Fixture::new(1);
    fixture.options.start = Start::Now;
    let log = Arc::new(MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now)));
    let pipeline =
        Pipeline { log, delivery: Arc::new(AppliesAll), positions: UncheckedDisk::new(), ..fixture.pipeline(0) };
    let before = snapshots(&mut client).await;
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    let check_not_running =
        || assert_ne!(fixture.stat("cluster:a:state"), "running", "readers do not see what is before the start");
    // The gate repeats its snapshot for as long as readers do not see the commit.
    let repeated = async {
        while snapshots(&mut client).await < before + 3 {
            check_not_running();
        }
    };
    timeout(DEADLINE, repeated).await.expect("the gate waits");
    check_not_running();
    assert_eq!(client.one("SELECT COUNT(*) FROM app.user").await, "0");
    client.run("SET GLOBAL rpl_semi_sync_master_enabled = OFF").await;
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    assert_eq!(client.one("SELECT COUNT(*) FROM app.user").await, "1");
    writing.await.expect("it is committed");
}

/// Eight writers insert rows and name them. A reader that queries a row when its key has passed the gate must find it.
#[tokio::test]
async fn readers_see_a_row_after_the_gate() {
    let insert = |id| format!("INSERT INTO app.user VALUES ({id}, '') /* lookaside: {id} */");
    check_gate(Server::start(&[]).await, 150, insert).await;
    let Some(mariadbd) = newer_mariadbd() else { return };
    check_gate(Server::start_newer_mariadb(&mariadbd, &[]).await, 150, insert).await;
}

/// A cluster that applies all.
struct AppliesAll;

impl Delivery for AppliesAll {
    fn delete(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<DeleteResult>> {
        Box::pin(ready(vec![DeleteResult::Applied; keys.len()]))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(ready(Ok(())))
    }
}

/// How many snapshots the gate of MariaDB has taken: the server counts them as transactions that were begun, and none
/// of the others is.
async fn snapshots(client: &mut Client) -> u64 {
    let row = client.run("SHOW GLOBAL STATUS LIKE 'Com_begin'").await.remove(0);
    let value = row[1].clone().expect("a value");
    String::from_utf8(value).expect("text").parse().expect("a number")
}

/// A burst of commits that name no key had a query of the gate for each read, of each cluster.
#[tokio::test]
async fn a_burst_without_keys_asks_the_gate_at_most_every_ten_milliseconds() {
    const WRITERS: u32 = 4;
    const COMMITS: u32 = 500;
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(TABLES).await;
    let fixture = Fixture::new(1);
    let log = Arc::new(MysqlLog::new(server.options(), Arc::new(TcpNetwork), Arc::new(SystemTime::now)));
    let pipeline =
        Pipeline { log, delivery: Arc::new(AppliesAll), positions: UncheckedDisk::new(), ..fixture.pipeline(0) };
    let _run = tokio::spawn(pipeline.run(fixture.shutdown.subscribe()));
    until("it runs", || fixture.stat("cluster:a:state") == "running").await;
    client.run("INSERT INTO app.user VALUES (0, '') /* lookaside: begin */").await;
    until("it is read", || fixture.stat("cluster:a:invalidations") == "1").await;
    let (before, begun) = (snapshots(&mut client).await, Instant::now());
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut client = server.client().await;
        writers.push(tokio::spawn(async move {
            for row in 0..COMMITS {
                client.run(&format!("INSERT INTO app.user VALUES ({}, '')", 1 + writer * COMMITS + row)).await;
            }
        }));
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    client.run("INSERT INTO app.user VALUES (10000, '') /* lookaside: end */").await;
    until("it is read", || fixture.stat("cluster:a:invalidations") == "2").await;
    let (queries, took) = (snapshots(&mut client).await - before, begun.elapsed());
    println!("{queries} queries of the gate for {} commits in {} ms", WRITERS * COMMITS, took.as_millis());
    // The last one may have waited for its commit.
    let most = took.as_millis() / 10 + 50;
    assert!(u128::from(queries) <= most, "{queries} queries in {} ms", took.as_millis());
}

#[tokio::test]
async fn readers_see_a_prepared_row_after_the_gate() {
    let insert = |id| {
        format!(
            "XA START 'x{id}'; INSERT INTO app.user VALUES ({id}, '') /* lookaside: {id} */; \
             XA END 'x{id}'; XA PREPARE 'x{id}'; XA COMMIT 'x{id}'"
        )
    };
    check_gate(Server::start(&[]).await, 150, insert).await;
    let Some(mariadbd) = newer_mariadbd() else { return };
    check_gate(Server::start_newer_mariadb(&mariadbd, &[]).await, 150, insert).await;
}

async fn check_gate(server: Server, rows: usize, insert: fn(usize) -> String) {
    const WRITERS: usize = 8;
    server.client().await.run(TABLES).await;
    let mut source = server.source(Start::Now).await;
    let mut reader = server.client().await;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let mut client = server.client().await;
        writers.push(tokio::spawn(async move {
            for row in 0..rows {
                let id = 1000 + writer * rows + row;
                client.run(&insert(id)).await;
            }
        }));
    }
    let mut seen = 0;
    let until = Instant::now() + DEADLINE;
    while seen < WRITERS * rows {
        assert!(Instant::now() < until, "only {seen} keys came");
        let commits = source.next(1000).await.expect("commits");
        let keys = keys_of(&commits.commits);
        if keys.is_empty() {
            continue;
        }
        let count = format!("SELECT COUNT(*) FROM app.user WHERE id IN ({})", keys.join(","));
        source.wait_until_visible(&commits.position).await.expect("visible");
        let visible: usize = reader.one(&count).await.parse().expect("a count");
        assert_eq!(visible, keys.len(), "a row is named and not visible");
        seen += keys.len();
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
}
