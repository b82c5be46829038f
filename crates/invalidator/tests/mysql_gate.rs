//! The gate of the binlog source: readers of a real MariaDB see what has passed it.

mod mysql_server;

use lookaside_invalidator::{Source, Start};
use mysql_server::{DEADLINE, Server, TABLES, keys_of};
use tokio::time::Instant;

/// Eight writers insert rows and name them. A reader that queries a row when its key has passed the gate must find it.
/// Without the gate some rows would be missing, and a cache would be filled with their absence.
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
    let (mut source, mut early) = (server.source(Start::Now).await, server.client().await);
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
    let (mut seen, mut batches, mut queried, mut too_early) = (0, 0, 0, 0);
    let until = Instant::now() + DEADLINE;
    while seen < WRITERS * rows {
        assert!(Instant::now() < until, "only {seen} keys came");
        let commits = source.next(1000).await.expect("commits");
        let keys = keys_of(&commits.commits);
        if keys.is_empty() {
            continue;
        }
        let count = format!("SELECT COUNT(*) FROM app.user WHERE id IN ({})", keys.join(","));
        // Only every other batch: during the query itself rows may become visible.
        batches += 1;
        if batches % 2 == 0 {
            let without_gate: usize = early.one(&count).await.parse().expect("a count");
            too_early += keys.len() - without_gate;
            queried += keys.len();
        }
        source.wait_until_visible(&commits.position).await.expect("visible");
        let visible: usize = reader.one(&count).await.parse().expect("a count");
        assert_eq!(visible, keys.len(), "a row is named and not visible");
        seen += keys.len();
    }
    for writer in writers {
        writer.await.expect("a writer");
    }
    println!("without the gate {too_early} of {queried} rows would not have been visible");
}
