//! The gate of the binlog source: readers of a real MariaDB or MySQL see what has passed it.

use crate::mysql_server::{DEADLINE, Server, TABLES, fetched::mysqld, keys_of};
use lookaside_invalidator::{Source, Start};
use std::time::Duration;
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

/// Eight writers insert rows and name them. A reader that queries a row when its key has passed the gate must find it.
#[tokio::test]
async fn readers_see_a_row_after_the_gate() {
    check_gate(150, |id| format!("INSERT INTO app.user VALUES ({id}, '') /* lookaside: {id} */")).await;
}

#[tokio::test]
async fn readers_see_a_prepared_row_after_the_gate() {
    check_gate(150, |id| {
        format!(
            "XA START 'x{id}'; INSERT INTO app.user VALUES ({id}, '') /* lookaside: {id} */; \
             XA END 'x{id}'; XA PREPARE 'x{id}'; XA COMMIT 'x{id}'"
        )
    })
    .await;
}

async fn check_gate(rows: usize, insert: fn(usize) -> String) {
    const WRITERS: usize = 8;
    let server = Server::start(&[]).await;
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
