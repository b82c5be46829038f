//! Changes of tables with a rule that PostgreSQL's log does not have: a real server, and a source that finds them in the
//! catalogue. Around the end of a process: `postgres_coverage.rs`.

use crate::postgres_server::Server;
use crate::row_rules::{common_types::POSTGRES_ENUM, flush};
use crate::watched_postgres::{PARTITIONED, USERS, keys_after, keys_with_flush, look, set_up, source, users, watched};
use lookaside_invalidator::source::postgres::rules_setup_sql;
use tokio::time::timeout;

/// Neither the truncation of a single partition nor its removal is in the log of a table that is published as a whole.
#[tokio::test]
async fn partitions_that_are_emptied_or_removed_are_found_in_the_catalogue() {
    let (_server, mut client, rules, mut source) = watched(PARTITIONED, &[]).await;
    for statement in ["TRUNCATE users_1", "ALTER TABLE users DETACH PARTITION users_1", "DROP TABLE users_2"] {
        client.run(statement).await;
        assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "{statement}");
    }
    let added = "CREATE TABLE users_4 PARTITION OF users FOR VALUES FROM (400) TO (500)";
    let keys = keys_after(&mut client, &mut source, &[added, "ALTER TABLE users_4 REPLICA IDENTITY FULL"]).await;
    assert_eq!(keys, [""; 0], "a new one has no rows that were cached");
    assert_eq!(rules.statistics.tables_at_fault(9), [("public.users".to_owned(), 3, 0)]);
}

/// Its rows were not in the publication before. Those of a partition that is created, or attached empty, are in the log.
#[tokio::test]
async fn a_partition_that_is_attached_with_rows_is_found_in_the_catalogue() {
    let tables = format!("{PARTITIONED}; ALTER TABLE users ALTER seen SET DEFAULT 0");
    let (_server, mut client, rules, mut source) = watched(&tables, &[]).await;
    // The statements that create a table, which then `before` is done to, and attach it.
    let partition = |number: u32, before: &str| {
        let (low, high) = (number * 100, number * 100 + 100);
        [
            format!("CREATE TABLE part_{number} (LIKE users); ALTER TABLE part_{number} REPLICA IDENTITY FULL{before}"),
            format!("ALTER TABLE users ATTACH PARTITION part_{number} FOR VALUES FROM ({low}) TO ({high})"),
        ]
    };
    for (number, is_one_transaction) in [(3, false), (4, true)] {
        let [create, attach] = partition(number, &format!("; INSERT INTO part_{number} VALUES ({number}00)"));
        if is_one_transaction {
            client.run(&format!("BEGIN; {create}; {attach}; COMMIT")).await;
        } else {
            client.run(&create).await;
            client.run(&attach).await;
        }
        let found = keys_with_flush(&mut source).await;
        assert_eq!(found, [flush(), "all".into()], "in one transaction: {is_one_transaction}");
    }
    client
        .run(
            "BEGIN; ALTER TABLE users DETACH PARTITION users_2; INSERT INTO users_2 (id) VALUES (101); \
             ALTER TABLE users ATTACH PARTITION users_2 FOR VALUES FROM (100) TO (200); COMMIT",
        )
        .await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "it left for a moment");
    let [create, attach] = partition(5, "");
    let born = "BEGIN; CREATE TABLE users_6 PARTITION OF users FOR VALUES FROM (600) TO (700); \
                ALTER TABLE users_6 REPLICA IDENTITY FULL; INSERT INTO users VALUES (600); COMMIT";
    assert_eq!(keys_after(&mut client, &mut source, &[&create, &attach, born]).await, ["all", "u:600"]);
    look(&mut source).await;
    let rows = ["INSERT INTO users VALUES (500)", "DELETE FROM users WHERE id = 300"];
    assert_eq!(keys_after(&mut client, &mut source, &rows).await, ["all", "u:300", "u:500"]);
    // A level below: of the whole, and then one that is created in it.
    let nested = "CREATE TABLE middle (LIKE users) PARTITION BY RANGE (id); \
                  CREATE TABLE leaf_7 PARTITION OF middle FOR VALUES FROM (700) TO (750); \
                  ALTER TABLE leaf_7 REPLICA IDENTITY FULL; INSERT INTO middle VALUES (700)";
    client.run(nested).await;
    client.run("ALTER TABLE users ATTACH PARTITION middle FOR VALUES FROM (700) TO (800)").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "with its partition");
    let below = "BEGIN; CREATE TABLE leaf_8 PARTITION OF middle FOR VALUES FROM (750) TO (800); \
                 ALTER TABLE leaf_8 REPLICA IDENTITY FULL; INSERT INTO users VALUES (750); COMMIT";
    assert_eq!(keys_after(&mut client, &mut source, &[below]).await, ["all", "u:750"]);
    look(&mut source).await;
    assert_eq!(keys_after(&mut client, &mut source, &[]).await, [""; 0]);
    assert_eq!(rules.statistics.inexpressible.value(), 4);
}

/// Each row of the value has another text then, and no row is in the log.
#[tokio::test]
async fn a_label_of_an_enum_that_is_renamed_is_found_in_the_catalogue() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client
        .run(&format!("{POSTGRES_ENUM}; CREATE DOMAIN mood_of_day AS mood; CREATE DOMAIN mood_now AS mood_of_day"))
        .await;
    client.run("CREATE TABLE users (id int PRIMARY KEY, feels mood_now); INSERT INTO users VALUES (1, 'ok')").await;
    let rule = "[[rule]]\ntable = 'public.users'\nkeys = ['f:{feels}']\notherwise = 'flush-cluster'";
    let (mut client, rules) = set_up(&server, rule).await;
    let mut source = source(&server, &rules).await;
    client.run("ALTER TYPE mood RENAME VALUE 'ok' TO 'good'").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush()]);
    client.run("CREATE TYPE other AS ENUM ('a')").await;
    let others = ["ALTER TYPE other RENAME VALUE 'a' TO 'b'", "DELETE FROM users"];
    assert_eq!(keys_after(&mut client, &mut source, &others).await, ["f:good"]);
    look(&mut source).await;
    assert_eq!(keys_after(&mut client, &mut source, &[]).await, [""; 0]);
    assert_eq!(rules.statistics.inexpressible.value(), 1);
}

/// Between two looks at the catalogue; nothing showed it.
#[tokio::test]
async fn a_table_that_leaves_the_publication_for_a_moment_is_found_in_the_catalogue() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    for (leave, come_back) in [
        ("ALTER PUBLICATION lookaside DROP TABLE users", "ALTER PUBLICATION lookaside ADD TABLE users"),
        (
            "ALTER PUBLICATION lookaside SET (publish = 'insert')",
            "ALTER PUBLICATION lookaside SET (publish = 'insert, update, delete, truncate')",
        ),
    ] {
        client.run(&format!("BEGIN; {leave}; {come_back}; COMMIT")).await;
        assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "{leave}");
    }
    client.run("CREATE TABLE others (id int PRIMARY KEY)").await;
    client.run(&rules_setup_sql("lookaside", &rules.current())).await;
    let other = ["ALTER PUBLICATION lookaside ADD TABLE others", "VACUUM FULL pg_publication"];
    assert_eq!(keys_after(&mut client, &mut source, &other).await, [""; 0]);
    look(&mut source).await;
    assert_eq!(keys_after(&mut client, &mut source, &[]).await, [""; 0]);
    assert_eq!(rules.statistics.inexpressible.value(), 2);
}

/// The log does not have the rows that they have changed before, and they commit after the table was found.
#[tokio::test]
async fn rows_of_transactions_that_are_open_while_their_table_is_published_are_found() {
    let (server, mut client, rules, mut source) = users(&[]).await;
    client.run("ALTER PUBLICATION lookaside DROP TABLE users").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()]);
    let (mut altering, mut open) = (server.client().await, server.client().await);
    // The transaction is newer than the change of the publication, so no snapshot shows that it is open.
    altering.run("BEGIN; ALTER PUBLICATION lookaside ADD TABLE users").await;
    open.run("BEGIN; INSERT INTO users VALUES (1, 'a')").await;
    altering.run("COMMIT").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "it is published");
    assert_eq!(keys_after(&mut client, &mut source, &[]).await, [""; 0], "the transaction is open");
    open.run("COMMIT").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "its row was not in the log");
    let update = ["UPDATE users SET email = 'b'"];
    assert_eq!(keys_after(&mut client, &mut source, &update).await, ["all", "e:a", "e:b", "u:1"]);
    assert_eq!(rules.statistics.inexpressible.value(), 3);
}

/// DDL in progress locks its table, and looking at partitions waits for the lock: no delete of any table was sent until
/// it was over.
#[tokio::test]
async fn a_table_that_is_locked_delays_no_deletes() {
    let (server, mut client, _rules, mut source) = watched(PARTITIONED, &[]).await;
    let mut altering = server.client().await;
    altering.run("BEGIN; ALTER TABLE users ADD COLUMN extra int; ALTER TABLE users_2 RENAME TO users_b").await;
    let read = keys_after(&mut client, &mut source, &["SELECT lookaside_invalidate('during')"]);
    let keys = timeout(server.options().reply_wait_max / 2, read).await.expect("the reader does not wait for the lock");
    assert_eq!(keys, ["during"]);
    altering.run("COMMIT").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()]);
}

/// A table that was created again is not in the publication: nothing in the log told, and its changes deleted nothing.
#[tokio::test]
async fn tables_whose_changes_are_not_in_the_log_are_found_in_the_catalogue() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let steps = [
        "ALTER TABLE users ADD COLUMN extra int",
        "ALTER TABLE users RENAME email TO mail",
        "ALTER TABLE users RENAME mail TO email",
        "ALTER TABLE users ALTER COLUMN extra TYPE bigint",
        "ALTER TABLE users DROP COLUMN extra",
        "ALTER TABLE users RENAME TO users_old",
        "ALTER TABLE users_old RENAME TO users",
        "DROP TABLE users",
    ];
    for statement in steps {
        client.run(statement).await;
        assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "{statement}");
    }
    let unseen = [USERS, "INSERT INTO users VALUES (1, 'a')"];
    assert_eq!(keys_after(&mut client, &mut source, &unseen).await, [""; 0]);
    client.run(&rules_setup_sql("lookaside", &rules.current())).await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "what was not seen");
    let seen = ["UPDATE users SET email = 'b'"];
    assert_eq!(keys_after(&mut client, &mut source, &seen).await, ["all", "e:a", "e:b", "u:1"]);
    for publish in ["insert, delete, truncate", "insert, update, delete, truncate"] {
        client.run(&format!("ALTER PUBLICATION lookaside SET (publish = '{publish}')")).await;
        assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "{publish}");
    }
    client.run("ALTER PUBLICATION lookaside SET TABLE lookaside_outbox, users WHERE (id > 7)").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "a row filter");
    assert_eq!(rules.statistics.tables_at_fault(9), [("public.users".to_owned(), 12, 0)]);
}

/// On some versions a transaction has another virtual id once it is prepared.
#[tokio::test]
async fn a_transaction_that_is_prepared_while_it_is_waited_for_is_waited_for() {
    let (server, mut client, _rules, mut source) = users(&["max_prepared_transactions=5"]).await;
    client.run("ALTER PUBLICATION lookaside DROP TABLE users").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()]);
    let mut open = server.client().await;
    open.run("BEGIN; INSERT INTO users VALUES (1, 'a')").await;
    client.run("ALTER PUBLICATION lookaside ADD TABLE users").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "it is published");
    open.run("PREPARE TRANSACTION 'prepared'").await;
    // It may look as if it had ended: what is found then comes before its row.
    keys_after(&mut client, &mut source, &[]).await;
    client.run("COMMIT PREPARED 'prepared'").await;
    assert_eq!(keys_with_flush(&mut source).await, [flush(), "all".into()], "its row was not in the log");
    look(&mut source).await;
}
