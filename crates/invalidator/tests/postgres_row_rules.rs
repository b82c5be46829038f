//! Row rules against a real PostgreSQL: each type, replica identities, partitions, the gate.

use crate::postgres_server::{
    DEADLINE, Server, add_absent_standby, eventually, last_position, read_until, remove_absent_standby,
};
use crate::row_rules::{
    common_types::{POSTGRES_ENUM, TypedValue, postgres_types},
    flush, while_rules_are_loaded,
};
use crate::watched_postgres::{PARTITIONED, RULE, keys_after, options, parse, set_up, source, users};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    Source as _, Start,
    source::postgres::{PostgresOptions, check_rules, rules_setup_sql},
};
use std::time::Duration;
use tokio::time::timeout;

/// Types that MySQL does not have.
const OWN_TYPES: &[TypedValue] = &[
    ("bit(64)", "B'1111111111111111111111111111111111111111111111111111111111111111'", "18446744073709551615"),
    ("text COLLATE \"C\"", "'b '", "b "),
    ("name", "'ada'", "ada"),
    ("mood_of_day", "'ok'", "ok"),
    ("price", "1.5", "1.50"),
    ("nested_price", "1.5", "1.50"),
    ("code", "'x'", "x"),
    ("uuid", "'8D4B9A3E-0a51-4c0e-9d2f-0c7a52b1f0aa'", "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa"),
];

const DECLARED_TYPES: &str = "CREATE DOMAIN mood_of_day AS mood; \
    CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0); CREATE DOMAIN nested_price AS price; \
    CREATE DOMAIN code AS char(5)";

/// Settings of a role and of a database that change how values are written as text.
const OTHER_TEXTS: &str = "ALTER DATABASE postgres SET DateStyle = 'SQL, DMY'; \
    ALTER ROLE postgres SET TimeZone = 'Asia/Kolkata'; ALTER ROLE postgres SET bytea_output = 'escape'";

#[tokio::test]
async fn every_type_is_written_as_specified() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(&format!("{POSTGRES_ENUM}; {DECLARED_TYPES}")).await;
    client.run(OTHER_TEXTS).await;
    let types = postgres_types(OWN_TYPES);
    let each = |text: &dyn Fn(usize) -> String| (0..types.len()).map(text).collect::<Vec<_>>().join(", ");
    client.run(&format!("CREATE TABLE t ({})", each(&|at| format!("c{at} {}", types[at].0)))).await;
    let keys = each(&|at| format!("'c{at}:{{c{at}}}'"));
    let (_, rules) = set_up(&server, &format!("[[rule]]\ntable = 'public.t'\nkeys = [{keys}]")).await;
    assert_eq!(check_rules(&TcpNetwork, &options(&server, &rules), &rules.current()).await, Ok(vec![]));
    let mut client = server.client().await;
    let mut source = source(&server, &rules).await;
    // A key with a space is none: `b ` is checked by the count of refused keys.
    let spaced = types.iter().filter(|(_, _, text)| text.contains(' ')).count() as u64;
    let mut expected: Vec<String> =
        (0..types.len()).filter(|at| !types[*at].2.contains(' ')).map(|at| format!("c{at}:{}", types[at].2)).collect();
    expected.sort();
    let insert = format!("INSERT INTO t VALUES ({})", each(&|at| types[at].1.to_owned()));
    let nulls = format!("UPDATE t SET {}", each(&|at| format!("c{at} = NULL")));
    let values = format!("UPDATE t SET {}", each(&|at| format!("c{at} = {}", types[at].1)));
    for statement in [insert.as_str(), &nulls, &values, "DELETE FROM t"] {
        let found = keys_after(&mut client, &mut source, &[statement]).await;
        assert_eq!(found, expected, "{}", &statement[..6]);
    }
    assert_eq!(rules.statistics.inexpressible.value(), 0, "{:?}", rules.statistics.tables_at_fault(9));
    assert_eq!((rules.statistics.changes.value(), rules.statistics.keys_refused.value()), (4, 4 * spaced));
}

#[tokio::test]
async fn values_that_other_databases_lack_are_inexpressible() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run("CREATE TABLE t (id int PRIMARY KEY, a numeric(5,2), b date, c timestamptz)").await;
    let rule = "[[rule]]\ntable = 'public.t'\nkeys = ['a:{a}', 'b:{b}', 'c:{c}', 'id:{id}']";
    let (mut client, rules) = set_up(&server, rule).await;
    let mut source = source(&server, &rules).await;
    let insert = "INSERT INTO t VALUES (1, 'NaN', 'infinity', '0044-03-15 12:00 BC')";
    assert_eq!(keys_after(&mut client, &mut source, &[insert]).await, ["id:1"]);
    assert_eq!(rules.statistics.inexpressible.value(), 1);
}

#[tokio::test]
async fn rows_messages_and_outbox_are_united() {
    let (_server, mut client, rules, mut source) = users(&["max_prepared_transactions=5"]).await;
    let insert = ["BEGIN; INSERT INTO users (id, email) VALUES (1, 'a'), (2, NULL); \
                   SELECT lookaside_invalidate('u:1', 'message'); COMMIT"];
    assert_eq!(keys_after(&mut client, &mut source, &insert).await, ["all", "e:a", "message", "u:1", "u:2"]);
    let transaction = [
        "BEGIN",
        "UPDATE users SET email = 'b' WHERE id = 1",
        "INSERT INTO lookaside_outbox (key) VALUES ('outbox'), ('e:a')",
        "SAVEPOINT here",
        "DELETE FROM users WHERE id = 2",
        "ROLLBACK TO here",
        "COMMIT",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &transaction).await, ["all", "e:a", "e:b", "outbox", "u:1"]);
    assert_eq!(keys_after(&mut client, &mut source, &["UPDATE users SET seen = 7"]).await, [""; 0]);
    assert_eq!(rules.statistics.without_key.value(), 0, "an ignored change is no fault");
    let both = ["UPDATE users SET id = id + 10, email = 'two words', seen = 8 WHERE id = 1"];
    assert_eq!(keys_after(&mut client, &mut source, &both).await, ["all", "e:b", "u:1", "u:11"]);
    assert_eq!(rules.statistics.keys_refused.value(), 1);
    let upsert = ["INSERT INTO users (id, email) VALUES (11, 'c'), (12, 'd') \
                   ON CONFLICT (id) DO UPDATE SET email = excluded.email"];
    assert_eq!(keys_after(&mut client, &mut source, &upsert).await, ["all", "e:c", "e:d", "u:11", "u:12"]);
    let prepared = ["BEGIN; DELETE FROM users WHERE id = 12; PREPARE TRANSACTION 'a'"];
    assert_eq!(keys_after(&mut client, &mut source, &prepared).await, [""; 0]);
    assert_eq!(keys_after(&mut client, &mut source, &["COMMIT PREPARED 'a'"]).await, ["all", "e:d", "u:12"]);
    assert_eq!(
        keys_after(&mut client, &mut source, &["DELETE FROM lookaside_outbox; TRUNCATE lookaside_outbox"]).await,
        [""; 0]
    );
    assert_eq!(keys_after(&mut client, &mut source, &["DELETE FROM users"]).await, ["all", "e:c", "u:11", "u:2"]);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
    assert_eq!(keys_after(&mut client, &mut source, &["TRUNCATE users"]).await, [flush(), "all".into()]);
    assert_eq!(rules.statistics.tables_at_fault(9), [("public.users".to_owned(), 1, 0)]);
}

/// In a row of over 2 KB some values are stored apart, and a new row in the log does not have those that are unchanged.
#[tokio::test]
async fn a_value_that_is_stored_apart_is_that_of_the_old_row() {
    const COLUMNS: usize = 30;
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    let each = |text: &dyn Fn(usize) -> String| (0..COLUMNS).map(text).collect::<Vec<_>>().join(", ");
    client.run(&format!("CREATE TABLE wide (id int PRIMARY KEY, {})", each(&|at| format!("c{at} text")))).await;
    client.run(&format!("ALTER TABLE wide {}", each(&|at| format!("ALTER c{at} SET STORAGE EXTERNAL")))).await;
    let keys = each(&|at| format!("'{at}:{{c{at}}}'"));
    let (mut client, rules) = set_up(&server, &format!("[[rule]]\ntable = 'public.wide'\nkeys = [{keys}]")).await;
    let mut source = source(&server, &rules).await;
    let mut expected: Vec<String> = (0..COLUMNS).map(|at| format!("{at}:{}", "x".repeat(200))).collect();
    expected.sort();
    let insert = format!("INSERT INTO wide VALUES (1, {})", each(&|_| "repeat('x', 200)".into()));
    assert_eq!(keys_after(&mut client, &mut source, &[&insert]).await, expected);
    assert_eq!(keys_after(&mut client, &mut source, &["UPDATE wide SET id = 2"]).await, expected);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
    client.run("ALTER TABLE wide REPLICA IDENTITY DEFAULT").await;
    let known = keys_after(&mut client, &mut source, &["UPDATE wide SET id = 3"]).await;
    assert!(known.len() < COLUMNS, "some are stored apart, and the old row is not in the log any more");
    assert_eq!(rules.statistics.inexpressible.value(), 1);
}

#[tokio::test]
async fn keys_of_the_identity_need_no_other_values() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run("CREATE TABLE posts (id int, slug text NOT NULL, body text, PRIMARY KEY (id) INCLUDE (body))").await;
    client.run("CREATE UNIQUE INDEX posts_slug ON posts (slug)").await;
    client.run("ALTER TABLE posts REPLICA IDENTITY USING INDEX posts_slug").await;
    client.run("CREATE TABLE tags (Id int PRIMARY KEY, name text)").await;
    let rules =
        "[[rule]]\ntable = 'public.posts'\nkeys = ['p:{slug}']\n[[rule]]\ntable = 'public.tags'\nkeys = ['t:{ID}']";
    let (mut client, rules) = set_up(&server, rules).await;
    let identities = "SELECT string_agg(relreplident::text, '' ORDER BY relname) FROM pg_class \
                      WHERE relname IN ('posts', 'tags')";
    assert_eq!(client.one(identities).await, "id", "the setup leaves them");
    let mut source = source(&server, &rules).await;
    let insert = ["INSERT INTO posts VALUES (1, 'a', 'x'), (2, 'b', 'x'); INSERT INTO tags VALUES (1, 'x')"];
    assert_eq!(keys_after(&mut client, &mut source, &insert).await, ["p:a", "p:b", "t:1"]);
    let update = ["UPDATE posts SET body = 'y', id = 7 WHERE id = 1; UPDATE tags SET name = 'y'"];
    assert_eq!(keys_after(&mut client, &mut source, &update).await, ["p:a", "t:1"]);
    let moved = ["UPDATE posts SET slug = 'c' WHERE id = 7; UPDATE tags SET id = 2"];
    assert_eq!(keys_after(&mut client, &mut source, &moved).await, ["p:a", "p:c", "t:1", "t:2"]);
    let delete = ["DELETE FROM posts; DELETE FROM tags"];
    assert_eq!(keys_after(&mut client, &mut source, &delete).await, ["p:b", "p:c", "t:2"]);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
}

#[tokio::test]
async fn a_replica_identity_that_is_taken_away_makes_changes_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let statements = ["INSERT INTO users VALUES (1, 'a'), (2, 'b')", "ALTER TABLE users REPLICA IDENTITY DEFAULT"];
    assert_eq!(keys_after(&mut client, &mut source, &statements).await, ["all", "e:a", "e:b", "u:1", "u:2"]);
    let update = keys_after(&mut client, &mut source, &["UPDATE users SET email = 'c' WHERE id = 1"]).await;
    assert_eq!(update, [&flush(), "all", "e:c", "u:1"]);
    assert_eq!(
        keys_after(&mut client, &mut source, &["DELETE FROM users WHERE id = 2"]).await,
        [&flush(), "all", "u:2"]
    );
    assert_eq!(rules.statistics.inexpressible.value(), 2);
    let mended = ["ALTER TABLE users REPLICA IDENTITY FULL", "UPDATE users SET email = 'd'"];
    assert_eq!(keys_after(&mut client, &mut source, &mended).await, ["all", "e:c", "e:d", "u:1"]);
}

#[tokio::test]
async fn rows_of_partitions_are_rows_of_the_table() {
    let server = Server::start(&[]).await;
    server.client().await.run(PARTITIONED).await;
    let (mut client, rules) = set_up(&server, RULE).await;
    assert_eq!(check_rules(&TcpNetwork, &options(&server, &rules), &rules.current()).await, Ok(vec![]));
    let mut source = source(&server, &rules).await;
    let insert = ["INSERT INTO users (id, email) VALUES (1, 'a'), (101, 'b')", "INSERT INTO users_2 (id) VALUES (102)"];
    assert_eq!(keys_after(&mut client, &mut source, &insert).await, ["all", "e:a", "e:b", "u:1", "u:101", "u:102"]);
    let moved = ["UPDATE users SET id = 103, email = 'c' WHERE id = 1"];
    assert_eq!(keys_after(&mut client, &mut source, &moved).await, ["all", "e:a", "e:c", "u:1", "u:103"]);
    let update = ["UPDATE users_2 SET email = 'd' WHERE id = 101"];
    assert_eq!(keys_after(&mut client, &mut source, &update).await, ["all", "e:b", "e:d", "u:101"]);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
    // A new partition has an identity of its own. The server sends what it lacks as NULL.
    let added = [
        "CREATE TABLE users_3 PARTITION OF users (PRIMARY KEY (id)) FOR VALUES FROM (200) TO (300)",
        "INSERT INTO users (id, email) VALUES (201, 'e')",
        "DELETE FROM users WHERE id = 201",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &added).await, [&flush(), "all", "e:e", "u:201"]);
    assert_eq!(rules.statistics.inexpressible.value(), 1);
    assert_eq!(keys_after(&mut client, &mut source, &["TRUNCATE users"]).await[..2], [flush(), "all".into()]);
}

/// Rows are read long after their table was altered. They must not get its present columns.
#[tokio::test]
async fn rows_from_before_an_alter_table_have_the_names_of_their_time() {
    let (server, mut client, rules, source) = users(&[]).await;
    let start = Start::At(source.position());
    drop(source);
    client.run("INSERT INTO users (id, email, bio) VALUES (1, 'a', 'A')").await;
    client.run("ALTER TABLE users RENAME email TO other").await;
    client.run("UPDATE users SET bio = 'unnamed'").await;
    client.run("ALTER TABLE users RENAME bio TO email").await;
    client.run("UPDATE users SET email = 'b', other = 'c'").await;
    client.run("ALTER TABLE users ADD tenant int DEFAULT 9, DROP COLUMN other").await;
    client.run("UPDATE users SET email = 'd'").await;
    let mut late = server.try_source(options(&server, &rules), start).await.expect("a source");
    let keys = keys_after(&mut client, &mut late, &[]).await;
    assert_eq!(keys, [&flush(), "all", "e:a", "e:b", "e:d", "e:unnamed", "u:1"]);
    assert_eq!(rules.statistics.inexpressible.value(), 1, "the rule did not fit while there was no such column");
}

#[tokio::test]
async fn the_account_needs_no_privilege_on_the_tables() {
    let server = Server::start(&[]).await;
    let mut owner = server.client().await;
    owner.run("CREATE SCHEMA private; CREATE TYPE private.mood AS ENUM ('ok')").await;
    owner.run("CREATE TABLE private.t (id int PRIMARY KEY, feels private.mood) PARTITION BY RANGE (id)").await;
    owner.run("CREATE TABLE private.t_1 PARTITION OF private.t FOR VALUES FROM (0) TO (9)").await;
    owner.run("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret'").await;
    let (mut client, rules) = set_up(&server, "[[rule]]\ntable = 'private.t'\nkeys = ['t:{feels}']").await;
    let options = PostgresOptions { user: "reader".into(), password: "secret".into(), ..options(&server, &rules) };
    assert_eq!(check_rules(&TcpNetwork, &options, &rules.current()).await, Ok(vec![]));
    let mut source = server.try_source(options, Start::Now).await.expect("a source");
    assert_eq!(keys_after(&mut client, &mut source, &["INSERT INTO private.t VALUES (1, 'ok')"]).await, ["t:ok"]);
    client.run("TRUNCATE private.t_1").await;
    eventually("the truncation is noticed", async || {
        let read = timeout(Duration::from_millis(100), source.next(10)).await;
        read.is_ok_and(|read| read.is_ok()).then_some(())?;
        (rules.statistics.inexpressible.value() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_transaction_beyond_the_servers_memory_names_the_keys_of_its_rows() {
    let (_server, mut client, _, mut source) = users(&["logical_decoding_work_mem=64kB"]).await;
    let many = "INSERT INTO users SELECT i, 'm' || i FROM generate_series(1, 12000) i";
    let undone = format!("BEGIN; {many}; ROLLBACK");
    let keys = keys_after(&mut client, &mut source, &[&undone, many]).await;
    assert_eq!(keys.len(), 24_001);
}

#[tokio::test]
async fn a_row_that_is_too_long_to_be_read_is_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let insert = ["INSERT INTO users (id, bio) VALUES (1, repeat('x', 20 * 1024 * 1024))"];
    assert_eq!(keys_after(&mut client, &mut source, &insert).await, [flush(), "all".into()]);
    assert_eq!((rules.statistics.inexpressible.value(), source.anomalies().oversized), (1, 1));
    assert_eq!(source.messages_oversized(), 1);
}

#[tokio::test]
async fn rules_that_are_loaded_again_in_the_middle_of_a_statement_miss_none_of_its_rows() {
    const ROWS: usize = 20_000;
    let server = Server::start(&[]).await;
    server.client().await.run(POSTGRES_ENUM).await;
    server.client().await.run("CREATE TABLE users (id int PRIMARY KEY, email text, feels mood)").await;
    let (mut client, rules) = set_up(&server, "[[rule]]\ntable = 'public.users'\nkeys = ['u:{id}', 'f:{feels}']").await;
    let mut source = source(&server, &rules).await;
    let insert = format!("INSERT INTO users SELECT i, 'x', 'ok' FROM generate_series(1, {ROWS}) i");
    let statements = [insert.as_str()];
    let reading = keys_after(&mut client, &mut source, &statements);
    let (keys, loads) = while_rules_are_loaded(&rules, reading).await;
    assert_eq!(keys.len(), ROWS + 1, "of each row, and of all");
    assert!(loads > 10, "{loads}: the statement is read in parts");
    client.run("CREATE TABLE posts (id int PRIMARY KEY)").await;
    let both = parse("[[rule]]\ntable = 'public.posts'\nkeys = ['post:{id}']");
    client.run(&rules_setup_sql("lookaside", &both)).await;
    rules.replace(both);
    let statements = ["INSERT INTO users VALUES (0)", "INSERT INTO posts VALUES (3)"];
    assert_eq!(keys_after(&mut client, &mut source, &statements).await, ["post:3"]);
}

/// A synchronous standby that never confirms: the row is in the log, and readers do not see it yet.
#[tokio::test]
async fn the_gate_waits_until_readers_see_a_row() {
    let (server, mut client, _, mut source) = users(&[]).await;
    let mut reader = server.client().await;
    add_absent_standby(&server).await;
    let writer = tokio::spawn(async move { client.run("INSERT INTO users (id) VALUES (1)").await });
    let commits = read_until(&mut source, "u:1").await;
    assert_eq!(reader.one("SELECT count(*) FROM users").await, "0", "the log is ahead of the readers");
    let position = last_position(&commits);
    let gate = source.wait_until_visible(&position);
    tokio::pin!(gate);
    assert!(timeout(Duration::from_millis(300), &mut gate).await.is_err(), "the gate is closed");
    remove_absent_standby(&mut reader).await;
    timeout(DEADLINE, gate).await.expect("in time").expect("the gate opens");
    assert_eq!(reader.one("SELECT count(*) FROM users").await, "1");
    writer.await.expect("the commit is done");
}

/// UPDATE and DELETE of a published table without a replica identity fail: the setup of rules must not make the
/// application's own statements fail.
#[tokio::test]
async fn the_setup_leaves_every_table_of_the_publication_writable() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run("CREATE TABLE lookaside_outbox (day int, key text NOT NULL) PARTITION BY RANGE (day)").await;
    client.run("CREATE TABLE outbox_1 PARTITION OF lookaside_outbox FOR VALUES FROM (1) TO (2)").await;
    client.run("CREATE TABLE \"Odd \"\"name%s\" (a int)").await;
    let rules = "[[rule]]\ntable = 'public.Odd \"name%s'\nkeys = ['constant']";
    let (mut client, rules) = set_up(&server, rules).await;
    let mut source = source(&server, &rules).await;
    let statements = [
        "INSERT INTO lookaside_outbox VALUES (1, 'outbox')",
        "UPDATE lookaside_outbox SET key = 'no'",
        "DELETE FROM lookaside_outbox",
        "INSERT INTO \"Odd \"\"name%s\" VALUES (1)",
        "UPDATE \"Odd \"\"name%s\" SET a = 2",
        "DELETE FROM \"Odd \"\"name%s\"",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &statements).await, ["constant", "outbox"]);
}
