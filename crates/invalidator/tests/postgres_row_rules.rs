//! Row rules against a real PostgreSQL: each type, replica identities, partitions, what is not in the log, the gate.

use crate::postgres_server::{
    Client, DEADLINE, END, Server, add_absent_standby, eventually, keys_of, last_position, read_until,
    remove_absent_standby,
};
use crate::row_rules::{
    common_types::{POSTGRES_ENUM, TypedValue, postgres_types},
    flush, sorted_keys, while_rules_are_loaded,
};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    Source as _, Start,
    rules::{RowRules, Rules},
    source::postgres::{PostgresOptions, PostgresSource, check_rules, rules_setup_sql},
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// A database that is set up for these rules.
async fn set_up(server: &Server, rules: &str) -> (Client, Arc<RowRules>) {
    let mut client = server.set_up().await;
    let rules = parse(rules);
    client.run(&rules_setup_sql("lookaside", &rules)).await;
    (client, RowRules::new(rules))
}

fn parse(rules: &str) -> Rules {
    Rules::parse(rules).expect("a valid rule file")
}

/// A source that looks at the catalogue all the time.
fn options(server: &Server, rules: &Arc<RowRules>) -> PostgresOptions {
    let catalogue_interval = Duration::from_millis(20);
    PostgresOptions { row_rules: rules.clone(), catalogue_interval, ..server.options() }
}

async fn source(server: &Server, rules: &Arc<RowRules>) -> PostgresSource {
    let mut source = server.try_source(options(server, rules), Start::Now).await.expect("a source");
    // The catalogue as it is now is what later ones are compared with.
    let mut client = server.client().await;
    client.run("SELECT lookaside_invalidate('begun')").await;
    read_until(&mut source, "begun").await;
    source
}

/// Runs the statements and returns the keys that the log then names, sorted, without repetitions.
async fn keys_after(client: &mut Client, source: &mut PostgresSource, statements: &[&str]) -> Vec<String> {
    for statement in statements.iter().chain(&[END]) {
        client.run(statement).await;
    }
    sorted_keys(&read_until(source, "end").await)
}

/// Lets the source look at the catalogue some times. The log has nothing new.
async fn look(source: &mut PostgresSource) {
    let read = timeout(Duration::from_millis(200), source.next(1_000)).await;
    assert!(read.is_err(), "{read:?}");
}

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

const USERS: &str = "CREATE TABLE users (id int PRIMARY KEY, email text, seen int NOT NULL DEFAULT 0, bio text)";

const RULE: &str = "[[rule]]\ntable = 'public.users'\nkeys = ['u:{id}', 'e:{email}', 'all']\nignore_columns = ['seen']\n\
    otherwise = 'flush-cluster'";

async fn users(arguments: &[&str]) -> (Server, Client, Arc<RowRules>, PostgresSource) {
    let server = Server::start(arguments).await;
    server.client().await.run(USERS).await;
    let (client, rules) = set_up(&server, RULE).await;
    let source = source(&server, &rules).await;
    (server, client, rules, source)
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

const PARTITIONED: &str = "CREATE TABLE users (id int, email text, seen int, bio text) PARTITION BY RANGE (id); \
    CREATE TABLE users_1 PARTITION OF users FOR VALUES FROM (1) TO (100); \
    CREATE TABLE users_2 (bio text, id int NOT NULL, dropped int, email text, seen int); \
    ALTER TABLE users_2 DROP dropped; \
    ALTER TABLE users ATTACH PARTITION users_2 FOR VALUES FROM (100) TO (200)";

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

/// Neither the truncation of a single partition nor its removal is in the log of a table that is published as a whole.
#[tokio::test]
async fn partitions_that_are_emptied_or_removed_are_found_in_the_catalogue() {
    let server = Server::start(&[]).await;
    server.client().await.run(PARTITIONED).await;
    let (mut client, rules) = set_up(&server, RULE).await;
    let mut source = source(&server, &rules).await;
    for statement in ["TRUNCATE users_1", "ALTER TABLE users DETACH PARTITION users_1", "DROP TABLE users_2"] {
        client.run(statement).await;
        assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "{statement}");
    }
    let added = "CREATE TABLE users_4 PARTITION OF users FOR VALUES FROM (400) TO (500)";
    let keys = keys_after(&mut client, &mut source, &[added, "ALTER TABLE users_4 REPLICA IDENTITY FULL"]).await;
    assert_eq!(keys, [""; 0], "a new one has no rows that were cached");
    assert_eq!(rules.statistics.tables_at_fault(9), [("public.users".to_owned(), 3, 0)]);
}

/// Its rows were not in the publication before. Those of a partition that is created, or attached empty, are in the log.
#[tokio::test]
async fn a_partition_that_is_attached_with_rows_is_found_in_the_catalogue() {
    let server = Server::start(&[]).await;
    let mut client = server.client().await;
    client.run(PARTITIONED).await;
    client.run("ALTER TABLE users ALTER seen SET DEFAULT 0").await;
    let (mut client, rules) = set_up(&server, RULE).await;
    let mut source = source(&server, &rules).await;
    // The rows of the table before it is a partition, and after it.
    let partition = |number: u32, before: &str, after: &str| {
        let (low, high) = (number * 100, number * 100 + 100);
        [
            format!("CREATE TABLE part_{number} (LIKE users); ALTER TABLE part_{number} REPLICA IDENTITY FULL{before}"),
            format!("ALTER TABLE users ATTACH PARTITION part_{number} FOR VALUES FROM ({low}) TO ({high}){after}"),
        ]
    };
    for (number, is_one_transaction) in [(3, false), (4, true)] {
        let [create, attach] = partition(number, &format!("; INSERT INTO part_{number} VALUES ({number}00)"), "");
        if is_one_transaction {
            client.run(&format!("BEGIN; {create}; {attach}; COMMIT")).await;
        } else {
            client.run(&create).await;
            client.run(&attach).await;
        }
        let found = keys_of(&read_until(&mut source, &flush()).await);
        assert_eq!(found, [flush(), "all".into()], "in one transaction: {is_one_transaction}");
    }
    client
        .run(
            "BEGIN; ALTER TABLE users DETACH PARTITION users_2; INSERT INTO users_2 (id) VALUES (101); \
             ALTER TABLE users ATTACH PARTITION users_2 FOR VALUES FROM (100) TO (200); COMMIT",
        )
        .await;
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "it left for a moment");
    let [create, attach] = partition(5, "", "");
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
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "with its partition");
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
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush()]);
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
        assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "{leave}");
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
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()]);
    let (mut altering, mut open) = (server.client().await, server.client().await);
    // The transaction is newer than the change of the publication, so no snapshot shows that it is open.
    altering.run("BEGIN; ALTER PUBLICATION lookaside ADD TABLE users").await;
    open.run("BEGIN; INSERT INTO users VALUES (1, 'a')").await;
    altering.run("COMMIT").await;
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "it is published");
    assert_eq!(keys_after(&mut client, &mut source, &[]).await, [""; 0], "the transaction is open");
    open.run("COMMIT").await;
    assert_eq!(
        keys_of(&read_until(&mut source, &flush()).await),
        [flush(), "all".into()],
        "its row was not in the log"
    );
    let update = ["UPDATE users SET email = 'b'"];
    assert_eq!(keys_after(&mut client, &mut source, &update).await, ["all", "e:a", "e:b", "u:1"]);
    assert_eq!(rules.statistics.inexpressible.value(), 3);
}

/// DDL in progress locks its table, and looking at partitions waits for the lock: no delete of any table was sent until
/// it was over.
#[tokio::test]
async fn a_table_that_is_locked_delays_no_deletes() {
    let server = Server::start(&[]).await;
    server.client().await.run(PARTITIONED).await;
    let (mut client, rules) = set_up(&server, RULE).await;
    let mut source = source(&server, &rules).await;
    let mut altering = server.client().await;
    altering.run("BEGIN; ALTER TABLE users ADD COLUMN extra int; ALTER TABLE users_2 RENAME TO users_b").await;
    let read = keys_after(&mut client, &mut source, &["SELECT lookaside_invalidate('during')"]);
    let keys = timeout(server.options().reply_wait_max / 2, read).await.expect("the reader does not wait for the lock");
    assert_eq!(keys, ["during"]);
    altering.run("COMMIT").await;
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()]);
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
        assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "{statement}");
    }
    let unseen = [USERS, "INSERT INTO users VALUES (1, 'a')"];
    assert_eq!(keys_after(&mut client, &mut source, &unseen).await, [""; 0]);
    client.run(&rules_setup_sql("lookaside", &rules.current())).await;
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "what was not seen");
    let seen = ["UPDATE users SET email = 'b'"];
    assert_eq!(keys_after(&mut client, &mut source, &seen).await, ["all", "e:a", "e:b", "u:1"]);
    for publish in ["insert, delete, truncate", "insert, update, delete, truncate"] {
        client.run(&format!("ALTER PUBLICATION lookaside SET (publish = '{publish}')")).await;
        assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "{publish}");
    }
    client.run("ALTER PUBLICATION lookaside SET TABLE lookaside_outbox, users WHERE (id > 7)").await;
    assert_eq!(keys_of(&read_until(&mut source, &flush()).await), [flush(), "all".into()], "a row filter");
    assert_eq!(rules.statistics.tables_at_fault(9), [("public.users".to_owned(), 12, 0)]);
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
