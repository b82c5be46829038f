//! Row rules against a real MariaDB and MySQL: each type, the settings of the log, and
//! what cannot be expressed as keys.

use crate::mysql_server::{Client, Server, fetched::mysqld, kinds, read_until};
use crate::row_rules::{
    common_types::{TypedValue, mysql_types},
    flush, sorted_keys, while_rules_are_loaded,
};
use lookaside_invalidator::{
    Start,
    rules::{RowRules, Rules},
    source::mysql::{MysqlOptions, MysqlSource, UnsafeSetting},
};
use std::sync::Arc;

const END: [&str; 2] =
    ["CREATE TABLE IF NOT EXISTS app.done (a INT)", "INSERT INTO app.done VALUES (1) /* lookaside: end */"];

/// Names of columns are those of the catalogue, if the log has none.
const UNNAMED: &str = "--binlog-row-metadata=MINIMAL";

async fn source(server: &Server, rules: &Arc<RowRules>, start: Start) -> MysqlSource {
    let options = MysqlOptions { row_rules: rules.clone(), ..server.options() };
    server.try_source(options, start).await.expect("a source")
}

/// The same of an operator who accepts rows without names.
async fn accepting_source(server: &Server, rules: &Arc<RowRules>, start: Start) -> MysqlSource {
    let accepted = [UnsafeSetting::BinlogRowMetadata].into();
    let options = MysqlOptions { row_rules: rules.clone(), accepted, ..server.options() };
    server.try_source(options, start).await.expect("a source")
}

fn rules(text: &str) -> Arc<RowRules> {
    RowRules::new(Rules::parse(text).expect("a valid rule file"))
}

/// Runs the statements and returns the keys that the log then names, sorted, without repetitions.
async fn keys_after(client: &mut Client, source: &mut MysqlSource, statements: &[&str]) -> Vec<String> {
    for statement in statements.iter().chain(&END) {
        client.run(statement).await;
    }
    sorted_keys(&read_until(source, "end").await)
}

/// Types that PostgreSQL does not have.
const OWN_TYPES: &[TypedValue] = &[
    ("TINYINT", "-128", "-128"),
    ("TINYINT UNSIGNED", "255", "255"),
    ("YEAR", "2026", "2026"),
    ("SMALLINT UNSIGNED", "65535", "65535"),
    ("MEDIUMINT", "-8388608", "-8388608"),
    ("MEDIUMINT UNSIGNED", "16777215", "16777215"),
    ("INT(8) ZEROFILL", "42", "42"),
    ("BIGINT UNSIGNED", "18446744073709551615", "18446744073709551615"),
    ("BIT(60)", "1152921504606846975", "1152921504606846975"),
    ("VARCHAR(100) CHARACTER SET utf16", "'Zoë🦀'", "Zoë🦀"),
    ("VARCHAR(100) CHARACTER SET utf16le", "'Zoë🦀'", "Zoë🦀"),
    ("VARCHAR(100) CHARACTER SET utf32", "'Zoë🦀'", "Zoë🦀"),
    ("VARCHAR(100) CHARACTER SET ucs2", "'Zoë'", "Zoë"),
    ("VARCHAR(200) CHARACTER SET utf8mb4", "'Ada'", "Ada"),
    ("CHAR(255) CHARACTER SET utf8mb4", "'Ada'", "Ada"),
    ("CHAR(10) CHARACTER SET ascii", "'Ada'", "Ada"),
    ("CHAR(10) CHARACTER SET utf16", "'Ada'", "Ada"),
    ("TINYTEXT CHARACTER SET utf8mb4", "'a'", "a"),
    ("TEXT CHARACTER SET latin1", "'é'", "é"),
    ("LONGTEXT CHARACTER SET utf8mb4", "'c'", "c"),
    ("BINARY(4)", "x'00ff0000'", "00ff0000"),
    ("VARBINARY(4)", "x'00ff0000'", "00ff0000"),
    ("BLOB", "x'0aff'", "0aff"),
    ("ENUM('x','it''s','y,z')", "'it''s'", "it's"),
    ("ENUM('ä','b')", "'ä'", "ä"),
    ("SET('r','w','x')", "'x,r'", "r,x"),
    ("SET('a1','a2','a3','a4','a5','a6','a7','a8','a9')", "'a9,a1'", "a1,a9"),
    ("SET('r','w')", "''", ""),
    ("DATETIME(1)", "'2026-01-02 03:04:05.9'", "2026-01-02T03:04:05.9"),
    ("TIME", "'-838:59:59'", "-838:59:59"),
    ("TIME(2)", "'-00:00:01.25'", "-00:00:01.25"),
    ("TIME(6)", "'-01:00:00.000001'", "-01:00:00.000001"),
];

/// UUIDs of the versions that MariaDB sorts by time, of others, and of none.
const MARIADB_TYPES: &[TypedValue] = &[
    ("UUID", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("UUID", "'8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa'", "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa"),
    ("UUID", "'1ec9414c-232a-6b00-b3c8-9e6bdeced846'", "1ec9414c-232a-6b00-b3c8-9e6bdeced846"),
    ("UUID", "'017f22e2-79b0-7cc3-98c4-dc0c0c07398f'", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"),
    ("UUID", "'00000000-0000-0000-0000-000000000000'", "00000000-0000-0000-0000-000000000000"),
    ("UUID", "'8d4b9a3e-0a51-4c0e-9d2f-0c7a52b10000'", "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b10000"),
    ("UUID", "'00000000-0000-4c0e-0d2f-0c7a52b1f0aa'", "00000000-0000-4c0e-0d2f-0c7a52b1f0aa"),
];

/// The most columns of a table here: a rule has 64 keys at most.
const COLUMNS_MAX: usize = 60;

/// Inserts, updates and deletes rows with every type, and compares the keys.
async fn check_types(server: &Server, types: &[TypedValue]) {
    let mut client = server.client().await;
    client.run("SET sql_mode = '', time_zone = '+02:00', NAMES utf8mb4").await;
    client.run("CREATE DATABASE app").await;
    client.run("CREATE TABLE app.unwatched (a INT, b FLOAT)").await;
    for (number, types) in types.chunks(COLUMNS_MAX).enumerate() {
        check_table(server, &mut client, &format!("app.t{number}"), types).await;
    }
}

async fn check_table(server: &Server, client: &mut Client, table: &str, types: &[TypedValue]) {
    let each = |text: &dyn Fn(usize) -> String| (0..types.len()).map(text).collect::<Vec<_>>().join(", ");
    // The log may or may not have a character set of the first three.
    let columns = each(&|at| format!("c{at} {}", types[at].0));
    client.run(&format!("CREATE TABLE {table} (g GEOMETRY, j JSON, b BLOB, {columns})")).await;
    let keys = each(&|at| format!("'c{at}:{{c{at}}}'"));
    let rules = rules(&format!("[[rule]]\ntable = '{table}'\nkeys = [{keys}]"));
    let mut source = accepting_source(server, &rules, Start::Now).await;
    let mut expected: Vec<String> = (0..types.len()).map(|at| format!("c{at}:{}", types[at].2)).collect();
    expected.sort();
    let insert = format!("INSERT INTO {table} VALUES (NULL, NULL, NULL, {})", each(&|at| types[at].1.to_owned()));
    let nulls = format!("UPDATE {table} SET {}", each(&|at| format!("c{at} = NULL")));
    let values = format!("UPDATE {table} SET {}", each(&|at| format!("c{at} = {}", types[at].1)));
    let delete = format!("DELETE FROM {table}");
    for statement in [&insert, &nulls, &values, &delete] {
        let found = keys_after(client, &mut source, &["INSERT INTO app.unwatched VALUES (1, 2)", statement]).await;
        assert_eq!(found, expected, "{}", &statement[..6]);
    }
    assert_eq!(rules.statistics.inexpressible.value(), 0, "{:?}", rules.statistics.tables_at_fault(9));
    assert_eq!(rules.statistics.changes.value(), 4);
}

fn mariadb_types() -> Vec<TypedValue> {
    [mysql_types(OWN_TYPES).as_slice(), MARIADB_TYPES].concat()
}

#[tokio::test]
async fn every_type_is_written_as_specified() {
    check_types(&Server::start(&["--binlog-row-metadata=NO_LOG"]).await, &mariadb_types()).await;
}

#[tokio::test]
async fn every_type_is_written_as_specified_with_the_names_of_the_log() {
    check_types(&Server::start(&[]).await, &mariadb_types()).await;
}

#[tokio::test]
async fn every_type_is_written_as_specified_from_compressed_events() {
    let server = Server::start(&["--log-bin-compress=ON", "--log-bin-compress-min-len=10"]).await;
    check_types(&server, &mariadb_types()).await;
}

#[tokio::test]
async fn every_type_is_written_as_specified_by_mysql() {
    let Some(mysqld) = mysqld() else { return };
    for arguments in [
        &["--binlog-rows-query-log-events=ON", UNNAMED][..],
        &["--binlog-rows-query-log-events=ON", "--binlog-transaction-compression=ON"],
    ] {
        let server = Server::start_mysql(&mysqld, arguments).await;
        check_types(&server, &mysql_types(OWN_TYPES)).await;
    }
}

/// A new image then has differences of documents, after options that no other event has.
#[tokio::test]
async fn partial_updates_of_json_are_read_by_mysql() {
    let Some(mysqld) = mysqld() else { return };
    let server = Server::start_mysql(&mysqld, &["--binlog-rows-query-log-events=ON"]).await;
    let mut client = server.client().await;
    client.run("CREATE DATABASE app").await;
    client.run("CREATE TABLE app.t (id INT PRIMARY KEY, a JSON, name VARCHAR(50), b JSON, seen INT)").await;
    let document = r#"'{"list": [1, 2, 3], "text": "a text that is longer than its change"}'"#;
    client
        .run(&format!("INSERT INTO app.t VALUES (1, {document}, 'x', {document}, 7), (2, NULL, 'y', {document}, 7)"))
        .await;
    let rules = rules("[[rule]]\ntable = 'app.t'\nkeys = ['t:{id}:{name}:{seen}']");
    let mut source = source(&server, &rules, Start::Now).await;
    let statements = [
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE app.t SET a = JSON_SET(a, '$.list[0]', 9), b = JSON_SET(b, '$.text', 'short'), name = 'z'",
        "UPDATE app.t SET a = JSON_SET(a, '$.list[1]', 9), seen = 8 WHERE id = 1",
    ];
    let keys = keys_after(&mut client, &mut source, &statements).await;
    assert_eq!(keys, ["t:1:x:7", "t:1:z:7", "t:1:z:8", "t:2:y:7", "t:2:z:7"]);
}

const USERS: &str = "CREATE TABLE app.users (id INT PRIMARY KEY, email VARCHAR(100) CHARACTER SET utf8mb4, \
    name VARCHAR(100) CHARACTER SET utf8mb4, seen INT NOT NULL DEFAULT 0, bio TEXT)";

const RULE: &str = "[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}', 'e:{email}', 'all']\nignore_columns = ['seen']\n\
    otherwise = 'flush-cluster'";

async fn users(arguments: &[&str]) -> (Server, Client, Arc<RowRules>, MysqlSource) {
    let server = Server::start(arguments).await;
    let mut client = server.client().await;
    client.run("CREATE DATABASE app").await;
    client.run(USERS).await;
    let rules = rules(RULE);
    let source = source(&server, &rules, Start::Now).await;
    (server, client, rules, source)
}

#[tokio::test]
async fn rows_comments_and_outbox_are_united() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    client.run("CREATE TABLE app.lookaside_outbox (item VARBINARY(250))").await;
    let insert = ["INSERT INTO app.users (id, email) VALUES (1, 'a'), (2, NULL) /* lookaside: u:1 comment */"];
    assert_eq!(keys_after(&mut client, &mut source, &insert).await, ["all", "comment", "e:a", "u:1", "u:2"]);
    let transaction = [
        "START TRANSACTION",
        "UPDATE app.users SET email = 'b' WHERE id = 1",
        "INSERT INTO app.lookaside_outbox VALUES ('outbox'), ('e:a')",
        "SAVEPOINT here",
        "DELETE FROM app.users WHERE id = 2",
        "ROLLBACK TO here",
        "COMMIT",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &transaction).await, ["all", "e:a", "e:b", "outbox", "u:1"]);
    assert_eq!(keys_after(&mut client, &mut source, &["UPDATE app.users SET seen = 7"]).await, [""; 0]);
    assert_eq!(rules.statistics.without_key.value(), 0, "an ignored change is no fault");
    let both = ["UPDATE app.users SET id = id + 10, email = 'two words', seen = 8 WHERE id = 1"];
    assert_eq!(keys_after(&mut client, &mut source, &both).await, ["all", "e:b", "u:1", "u:11"]);
    assert_eq!(rules.statistics.keys_refused.value(), 1);
    assert_eq!(keys_after(&mut client, &mut source, &["DELETE FROM app.users"]).await, ["all", "u:11", "u:2"]);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
}

#[tokio::test]
async fn changes_of_the_whole_table_are_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let mut expected = 0;
    for statement in [
        "TRUNCATE TABLE app.users",
        "ALTER TABLE app.users ADD COLUMN extra INT FIRST",
        "RENAME TABLE app.users TO app.users_old",
        "RENAME TABLE app.users_old TO app.users",
        "DROP TABLE app.users",
    ] {
        let keys = keys_after(&mut client, &mut source, &[statement]).await;
        assert_eq!(keys, [flush(), "all".into()], "{statement}");
        expected += 1;
        assert_eq!(rules.statistics.inexpressible.value(), expected, "{statement}");
    }
    let created =
        keys_after(&mut client, &mut source, &[USERS, "INSERT INTO app.users (id, email) VALUES (3, 'c')"]).await;
    assert_eq!(created, ["all", "e:c", "u:3"], "the new table is read from the catalogue before its rows");
    assert_eq!(rules.statistics.tables_at_fault(9), [("app.users".to_owned(), 5, 0)]);
    // The columns have moved.
    let moved = [
        "ALTER TABLE app.users MODIFY email VARCHAR(100) CHARACTER SET utf8mb4 FIRST",
        "UPDATE app.users SET email = 'd'",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &moved).await, [&flush(), "all", "e:c", "e:d", "u:3"]);
}

/// `SET STATEMENT ... FOR` hid what follows it: neither the truncated rows nor the new columns were noticed.
#[tokio::test]
async fn statements_behind_settings_or_in_other_wrappings_are_noticed() {
    let (_server, mut client, _, mut source) = users(&[]).await;
    let in_statement_format = |statement: &str| {
        vec![
            "SET SESSION binlog_format = 'STATEMENT'".into(),
            statement.to_owned(),
            "SET SESSION binlog_format = 'ROW'".into(),
        ]
    };
    let one = |statement: &str| vec![statement.to_owned()];
    for statements in [
        one("SET STATEMENT max_statement_time=10 FOR TRUNCATE TABLE app.users"),
        one(
            "SET STATEMENT max_statement_time = 10, sort_buffer_size=100000 FOR ALTER TABLE app.users ADD COLUMN a INT FIRST",
        ),
        one(
            "/* a */set/* b */ statement\n-- for\n max_statement_time=length('for')for\t# c\nalter table app.users drop a",
        ),
        one("SET STATEMENT max_statement_time=1 FOR SET STATEMENT sort_buffer_size=100000 FOR TRUNCATE app.users"),
        one("/*!50000 TRUNCATE TABLE app.users */"),
        one("/*M!100100 ALTER TABLE*/ app.users ADD COLUMN b INT"),
        one("EXECUTE IMMEDIATE 'TRUNCATE TABLE app.users'"),
        one("SET STATEMENT max_statement_time=10 FOR EXECUTE IMMEDIATE 'TRUNCATE TABLE app.users'"),
        vec!["PREPARE s FROM 'ALTER TABLE app.users DROP b'".into(), "EXECUTE s".into()],
        one("BEGIN NOT ATOMIC TRUNCATE TABLE app.users; END"),
        one("SET STATEMENT max_statement_time=10 FOR BEGIN NOT ATOMIC TRUNCATE TABLE app.users; END"),
        in_statement_format("SET STATEMENT max_statement_time=10 FOR UPDATE app.users SET email = 'a'"),
        in_statement_format("ANALYZE UPDATE app.users SET email = 'b'"),
        in_statement_format("ANALYZE FORMAT=JSON DELETE FROM app.users"),
        in_statement_format("/*!50000 UPDATE */ app.users SET email = 'a'"),
        one("SET STATEMENT max_statement_time=10 FOR DROP TABLE app.users"),
        vec![USERS.into(), "CREATE OR REPLACE DATABASE app".into()],
    ] {
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        let keys = keys_after(&mut client, &mut source, &statements).await;
        assert_eq!(keys, [flush(), "all".into()], "{statements:?}");
    }
    let quiet = ["SET STATEMENT max_statement_time=10 FOR ANALYZE TABLE app.done", "ANALYZE TABLE app.done"];
    assert_eq!(keys_after(&mut client, &mut source, &quiet).await, [""; 0]);
}

/// The log is read long after an ALTER TABLE that has inserted a column: its rows had the values of other columns under
/// the names of the new ones.
#[tokio::test]
async fn rows_from_before_an_alter_table_do_not_get_its_names() {
    for (arguments, has_names) in [(&[UNNAMED][..], false), (&[][..], true)] {
        let (server, mut client, _, source_before) = users(arguments).await;
        let start = Start::At(source_before.position().clone());
        client.run("INSERT INTO app.users (id, email, name) VALUES (1, 'a', 'Ada')").await;
        client.run("ALTER TABLE app.users ADD COLUMN tenant INT NOT NULL DEFAULT 9 FIRST").await;
        client.run("UPDATE app.users SET email = 'b'").await;
        let rules = rules(RULE);
        let mut late = accepting_source(&server, &rules, start).await;
        let keys = keys_after(&mut client, &mut late, &[]).await;
        assert_eq!(keys, [&flush(), "all", "e:a", "e:b", "u:1"], "after it the columns are known");
        assert_eq!(rules.statistics.inexpressible.value(), if has_names { 1 } else { 2 }, "the ALTER, and the row");
    }
}

const EXCHANGE_NAMES: &str = "ALTER TABLE app.users CHANGE email name VARCHAR(100) CHARACTER SET utf8mb4, \
    CHANGE name email VARCHAR(100) CHARACTER SET utf8mb4";

/// Two columns had exchanged their names when the log was read. The rows look alike, so those of before had the keys of
/// the other column, and their own were not deleted.
#[tokio::test]
async fn rows_from_before_names_were_exchanged_have_the_names_of_the_log() {
    let (server, mut client, _, source_before) = users(&[]).await;
    let start = Start::At(source_before.position().clone());
    client.run("INSERT INTO app.users (id, email, name) VALUES (1, 'a', 'Ada')").await;
    client.run(EXCHANGE_NAMES).await;
    client.run("UPDATE app.users SET email = 'b'").await;
    let rules = rules(RULE);
    let mut late = source(&server, &rules, start).await;
    let keys = keys_after(&mut client, &mut late, &[]).await;
    assert_eq!(keys, [&flush(), "all", "e:Ada", "e:a", "e:b", "u:1"], "the names are exchanged by the ALTER");
    assert_eq!(rules.statistics.inexpressible.value(), 1, "the ALTER");
}

/// Columns had another character set when the log was read, or held bytes instead of text. The rows look alike, so
/// those of before had keys in the wrong encoding.
#[tokio::test]
async fn rows_from_before_another_character_set_do_not_get_it() {
    const UTF8: &str = "TEXT CHARACTER SET utf8mb4";
    const BINARY: &str = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
    let cases = [
        (UTF8, "BLOB", None, "416461"),
        ("VARCHAR(20) CHARACTER SET latin1", "VARBINARY(20)", None, "416461"),
        ("VARBINARY(20)", "VARCHAR(20) CHARACTER SET latin1", None, "Ada"),
        (UTF8, "TEXT CHARACTER SET latin1", None, "Ada"),
        (BINARY, "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", Some("t:Zoë"), "Ada"),
    ];
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run("SET NAMES utf8mb4; CREATE DATABASE app").await;
        for (before, after, row_before, row_after) in cases {
            client.run("DROP TABLE IF EXISTS app.t").await;
            client.run(&format!("CREATE TABLE app.t (id INT PRIMARY KEY, c {before})")).await;
            let rules = rules("[[rule]]\ntable = 'app.t'\nkeys = ['t:{c}']\notherwise = 'flush-cluster'");
            let begin = Start::At(source(&server, &rules, Start::Now).await.position().clone());
            client.run("INSERT INTO app.t VALUES (1, 'Zoë')").await;
            client.run(&format!("ALTER TABLE app.t MODIFY c {after}")).await;
            client.run("INSERT INTO app.t VALUES (2, 'Ada')").await;
            let mut late = source(&server, &rules, begin).await;
            let keys = keys_after(&mut client, &mut late, &[]).await;
            let row_after = format!("t:{row_after}");
            let expected: Vec<String> = [flush(), row_after].into_iter().chain(row_before.map(str::to_owned)).collect();
            assert_eq!(keys, expected, "{kind:?}: {before} to {after}");
            let inexpressible = 1 + u64::from(row_before.is_none());
            assert_eq!(rules.statistics.inexpressible.value(), inexpressible, "{kind:?}: {before} to {after}");
        }
    }
}

/// The same without names in the log. No row has the keys of another column: all are inexpressible, until the log has
/// names. An operator may accept the catalogue's names.
#[tokio::test]
async fn rows_without_names_are_inexpressible_unless_that_is_accepted() {
    for kind in kinds() {
        let server = kind.start(&[UNNAMED]).await;
        let mut client = server.client().await;
        client.run("CREATE DATABASE app").await;
        client.run(USERS).await;
        let [refusing, accepting] = [rules(RULE), rules(RULE)];
        let begin = source(&server, &refusing, Start::Now).await.position().clone();
        client.run("INSERT INTO app.users (id, email, name) VALUES (1, 'a', 'Ada')").await;
        client.run(EXCHANGE_NAMES).await;
        client.run("SET GLOBAL binlog_row_metadata = 'FULL'").await;
        client.run("UPDATE app.users SET email = 'b'").await;
        let mut late = source(&server, &refusing, Start::At(begin.clone())).await;
        let keys = keys_after(&mut client, &mut late, &[]).await;
        assert_eq!(keys, [&flush(), "all", "e:Ada", "e:b", "u:1"], "{kind:?}: of the UPDATE alone");
        assert_eq!(refusing.statistics.inexpressible.value(), 2, "{kind:?}: the INSERT and the ALTER");
        let mut late = accepting_source(&server, &accepting, Start::At(begin)).await;
        let keys = keys_after(&mut client, &mut late, &[]).await;
        assert!(keys.contains(&"e:Ada".to_owned()) && !keys.contains(&"e:a".to_owned()), "{kind:?}: {keys:?}");
        assert_eq!(accepting.statistics.inexpressible.value(), 1, "{kind:?}: the ALTER");
    }
}

/// The default of some hosts: the old image has the primary key, and the new one what has changed.
#[tokio::test]
async fn what_a_minimal_row_image_lacks_is_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&["--binlog-row-image=MINIMAL"]).await;
    let insert = keys_after(&mut client, &mut source, &["INSERT INTO app.users VALUES (1, 'a', 'Ada', 0, '')"]).await;
    assert_eq!(insert, ["all", "e:a", "u:1"]);
    assert_eq!(rules.statistics.inexpressible.value(), 0);
    let update = keys_after(&mut client, &mut source, &["UPDATE app.users SET email = 'b'"]).await;
    assert_eq!(update, [&flush(), "all", "e:b", "u:1"], "the old address is not in the log");
    let delete = keys_after(&mut client, &mut source, &["DELETE FROM app.users"]).await;
    assert_eq!(delete, [&flush(), "all", "u:1"]);
}

#[tokio::test]
async fn statements_without_rows_are_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let statements = [
        "INSERT INTO app.users (id) VALUES (1)",
        "SET SESSION binlog_format = 'STATEMENT'",
        "UPDATE app.users SET email = 'a'",
        "SET SESSION binlog_format = 'ROW'",
    ];
    assert_eq!(keys_after(&mut client, &mut source, &statements).await, [&flush(), "all", "u:1"]);
    assert_eq!(rules.statistics.tables_at_fault(9), [("app.users".to_owned(), 1, 0)]);
}

#[tokio::test]
async fn replaced_rules_apply_to_the_next_change() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    let first = keys_after(&mut client, &mut source, &["INSERT INTO app.users (id) VALUES (1)"]).await;
    assert_eq!(first, ["all", "u:1"]);
    client.run("CREATE TABLE app.posts (id INT)").await;
    rules.replace(Rules::parse("[[rule]]\ntable = 'app.posts'\nkeys = ['post:{id}']").expect("valid"));
    let statements = ["INSERT INTO app.users (id) VALUES (2)", "INSERT INTO app.posts VALUES (3)"];
    assert_eq!(keys_after(&mut client, &mut source, &statements).await, ["post:3"]);
}

#[tokio::test]
async fn rules_that_are_loaded_again_in_the_middle_of_a_statement_miss_none_of_its_rows() {
    const ROWS: usize = 20_000;
    // A statement has one map of its table, and here hundreds of events with rows.
    let (_server, mut client, rules, mut source) = users(&["--binlog-row-event-max-size=256"]).await;
    let values = (1..=ROWS).map(|id| format!("({id})")).collect::<Vec<_>>().join(",");
    let insert = format!("INSERT INTO app.users (id) VALUES {values}");
    let statements = [insert.as_str()];
    let reading = keys_after(&mut client, &mut source, &statements);
    let (keys, loads) = while_rules_are_loaded(&rules, reading).await;
    assert_eq!(keys.len(), ROWS + 1, "of each row, and of all");
    assert!(loads > 10, "{loads}: the statement is read in parts");
}

#[tokio::test]
async fn a_rule_that_does_not_fit_makes_changes_inexpressible() {
    let (_server, mut client, rules, mut source) = users(&[]).await;
    client.run("CREATE TABLE app.scores (id INT, score DOUBLE, gbk VARCHAR(10) CHARACTER SET gbk)").await;
    for key in ["s:{score}", "s:{gbk}", "s:{gone}"] {
        let text = format!("[[rule]]\ntable = 'app.scores'\nkeys = ['s:{{id}}', '{key}']\notherwise = 'flush-cluster'");
        rules.replace(Rules::parse(&text).expect("valid"));
        let keys = keys_after(&mut client, &mut source, &["INSERT INTO app.scores VALUES (1, 2.5, 'x')"]).await;
        assert_eq!(keys, [flush()], "{key}");
    }
    assert_eq!(rules.statistics.tables_at_fault(9), [("app.scores".to_owned(), 3, 3)]);
}
