//! The text of the log, on MariaDB and MySQL: statements in the SQL mode of their session, and keys in the character
//! set of their column.

use crate::mysql_server::{END, TABLES, keys_of, kinds, read_until};
use crate::row_rules::flush;
use lookaside_invalidator::{
    Source as _, SourceError, Start,
    rules::{RowRules, Rules},
    source::mysql::MysqlOptions,
};

/// Under NO_BACKSLASH_ESCAPES `'C:\'` is a string. Read in the default mode, it hid the statement up to the next quote:
/// a comment, or the name of a table.
#[tokio::test]
async fn statements_in_place_of_rows_are_read_in_the_mode_of_their_session() {
    let rules = "[[rule]]\ntable = 'app.user'\nkeys = ['u:{id}']\notherwise = 'flush-cluster'";
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        client
            .run("CREATE TABLE app.post (id INT PRIMARY KEY, text VARCHAR(200)); CREATE TABLE app.done (n INT)")
            .await;
        client.run("INSERT INTO app.post VALUES (1, ''); USE app; SET SESSION binlog_format = STATEMENT").await;
        let rules = RowRules::new(Rules::parse(rules).expect("valid"));
        let options = MysqlOptions { row_rules: rules, ..server.options() };
        for (mode, statement, expected) in [
            ("", r"UPDATE post SET text = 'it\'s /* lookaside: fake */' /* lookaside: real */", vec!["real"]),
            ("", r#"UPDATE post SET text = "it\"s /* lookaside: fake */" /* lookaside: real */"#, vec!["real"]),
            (
                "NO_BACKSLASH_ESCAPES",
                r"UPDATE post SET text = 'C:\' /* lookaside: real */ WHERE text <> 'x' AND text <> '/* lookaside: fake */'",
                vec!["real"],
            ),
            (
                "ANSI_QUOTES",
                r#"UPDATE post SET text = 'it\'s /* lookaside: fake */' WHERE "id" = 1 /* lookaside: real */"#,
                vec!["real"],
            ),
            ("", r"ALTER TABLE post COMMENT 'it\'s user'", vec![]),
            ("", r#"ALTER TABLE post COMMENT "user""#, vec![]),
            (
                "NO_BACKSLASH_ESCAPES",
                r"ALTER TABLE post COMMENT 'C:\', ADD FOREIGN KEY (id) REFERENCES user (id), ALGORITHM = COPY",
                vec!["flush"],
            ),
            ("ANSI_QUOTES", r#"ALTER TABLE "user" COMMENT 'x'"#, vec!["flush"]),
        ] {
            let mut source = server.try_source(options.clone(), Start::Now).await.expect("a source");
            client.run(&format!("SET SESSION sql_mode = '{mode}'; SET SESSION foreign_key_checks = 0")).await;
            client.run(statement).await;
            client.run("SET SESSION sql_mode = ''; SET SESSION binlog_format = ROW").await;
            client.run("INSERT INTO done VALUES (1) /* lookaside: end */").await;
            client.run("SET SESSION binlog_format = STATEMENT").await;
            let flush = flush();
            let named: Vec<&str> = expected
                .into_iter()
                .map(|key| if key == "flush" { flush.as_str() } else { key })
                .chain(["end"])
                .collect();
            assert_eq!(keys_of(&read_until(&mut source, "end").await), named, "{kind:?} {mode}: {statement}");
        }
    }
}

/// The log does not have the mode of a statement whose rows follow, nor the mode in which the text of SET STATEMENT was
/// read: what it names in any mode counts.
#[tokio::test]
async fn no_mode_hides_the_comment_of_a_statement() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        client.run("INSERT INTO app.user VALUES (1, '')").await;
        let mut source = server.source(Start::Now).await;
        client.run("SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES'").await;
        client.run(r"UPDATE app.user SET name = 'C:\' /* lookaside: row */ WHERE name <> 'x'").await;
        if kind.of("mariadb", "mysql") == "mariadb" {
            let settings = "SET STATEMENT sql_mode = '' FOR";
            client.run("SET SESSION binlog_format = STATEMENT").await;
            client
                .run(&format!(r"{settings} UPDATE app.user SET name = 'D:\' /* lookaside: set */ WHERE name <> 'x'"))
                .await;
            client.run("SET SESSION binlog_format = ROW").await;
        }
        client.run(END).await;
        assert_eq!(
            keys_of(&read_until(&mut source, "end").await),
            kind.of("row set end", "row end").split(' ').collect::<Vec<_>>(),
            "{kind:?}"
        );
    }
}

/// Outbox tables with the key in each character set: the log has the column's bytes, and clients send UTF-8.
const CHARSETS: [(&str, &str); 8] = [
    ("utf8", "VARCHAR(250) CHARACTER SET utf8mb4"),
    ("latin", "VARCHAR(250) CHARACTER SET latin1"),
    ("latin_char", "CHAR(100) CHARACTER SET latin1"),
    ("latin_text", "TEXT CHARACTER SET latin1"),
    ("wide", "VARCHAR(250) CHARACTER SET utf16"),
    ("wide_char", "CHAR(60) CHARACTER SET utf16"),
    ("little", "VARCHAR(250) CHARACTER SET utf16le"),
    ("bytes", "VARBINARY(250)"),
];

/// An outbox in latin1 or utf16 named other keys than clients send, or none: their values stayed.
#[tokio::test]
async fn keys_of_an_outbox_are_in_utf8_whatever_its_character_set_is() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        client.run("SET NAMES utf8mb4").await;
        let mut source = server.source(Start::Now).await;
        let mut expected = Vec::new();
        for (schema, column) in CHARSETS {
            let outbox = format!("{schema}.lookaside_outbox");
            client.run(&format!("CREATE DATABASE {schema}; CREATE TABLE {outbox} (item {column}) ENGINE=InnoDB")).await;
            client.run(&format!("INSERT INTO {outbox} VALUES ('{schema}:1'), ('{schema}:Zoë')")).await;
            expected.extend([format!("{schema}:1"), format!("{schema}:Zoë")]);
        }
        client.run("INSERT INTO app.user VALUES (1, '') /* lookaside: middle */").await;
        expected.push("middle".to_owned());
        assert_eq!(keys_of(&read_until(&mut source, "middle").await), expected, "{kind:?}");
        // The column is declared otherwise while the log is read.
        client.run("ALTER TABLE bytes.lookaside_outbox MODIFY item VARCHAR(250) CHARACTER SET latin1").await;
        client.run("INSERT INTO bytes.lookaside_outbox VALUES ('altered:Zoë')").await;
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["altered:Zoë", "end"], "{kind:?}");
        assert_eq!(source.keys_rejected(), 0);
    }
}

#[tokio::test]
async fn an_outbox_in_a_character_set_that_is_not_supported_is_refused() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        let mut source = server.source(Start::Now).await;
        client.run("CREATE DATABASE gb; CREATE TABLE gb.lookaside_outbox (item VARCHAR(100) CHARACTER SET gbk)").await;
        let at_start = server.try_source(server.options(), Start::Now).await.err();
        assert!(
            matches!(&at_start, Some(SourceError::Unusable { why })
                if why.contains("gb.lookaside_outbox") && why.contains("gbk") && why.contains("VARBINARY(250)")),
            "{kind:?}: {at_start:?}"
        );
        client.run("INSERT INTO gb.lookaside_outbox VALUES ('user:1')").await;
        let refused = loop {
            match source.next(100).await {
                Ok(commits) => assert!(commits.commits.is_empty(), "{commits:?}"),
                Err(error) => break error,
            }
        };
        assert!(matches!(&refused, SourceError::Unusable { why } if why.contains("gbk")), "{kind:?}: {refused}");
        client.run("ALTER TABLE gb.lookaside_outbox MODIFY item VARBINARY(250)").await;
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["user:1", "end"], "{kind:?}");
    }
}

/// The account that reads the log needs no privilege on the outbox, but for keys that may be in any character set.
#[tokio::test]
async fn keys_of_an_outbox_that_the_catalogue_does_not_show_are_read_in_every_character_set() {
    for kind in kinds() {
        let server = kind.start(&[]).await;
        let mut client = server.client().await;
        client.run(TABLES).await;
        client
            .run("SET NAMES utf8mb4; ALTER TABLE app.lookaside_outbox MODIFY item VARCHAR(250) CHARACTER SET utf16")
            .await;
        let grants =
            kind.of("REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR", "REPLICATION SLAVE, REPLICATION CLIENT");
        client.run(&format!("CREATE USER reader IDENTIFIED BY ''; GRANT {grants} ON *.* TO reader")).await;
        let options = MysqlOptions { user: "reader".into(), ..server.options() };
        let mut source = server.try_source(options, Start::Now).await.expect("a source");
        client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('user:Zoë')").await;
        client.run(END).await;
        let unknown = keys_of(&read_until(&mut source, "end").await);
        assert!(unknown.contains(&"user:Zoë".to_owned()) && unknown.len() > 2, "{kind:?}: {unknown:?}");
        assert_eq!(source.keys_rejected(), 0);
        client
            .run("GRANT SELECT ON app.lookaside_outbox TO reader; ALTER TABLE app.lookaside_outbox COMMENT 'x'")
            .await;
        client.run("INSERT INTO app.lookaside_outbox (item) VALUES ('user:Zoë')").await;
        client.run("DELETE FROM app.user").await;
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), ["user:Zoë", "end"], "{kind:?}");
    }
}
