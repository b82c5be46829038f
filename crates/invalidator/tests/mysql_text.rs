//! What a session's SQL mode does to the text of statements in the log, on MariaDB and MySQL.

use crate::mysql_server::{END, kinds, keys_of, read_until, TABLES};
use crate::row_rules::flush;
use lookaside_invalidator::{
    Start,
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
        client.run("CREATE TABLE app.post (id INT PRIMARY KEY, text VARCHAR(200)) ENGINE=InnoDB").await;
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
            client.run("REPLACE INTO post VALUES (2, '') /* lookaside: end */").await;
            client.run("SET SESSION binlog_format = STATEMENT").await;
            let flush = flush();
            let named: Vec<&str> =
                expected.into_iter().map(|key| if key == "flush" { flush.as_str() } else { key }).chain(["end"]).collect();
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
            client.run(&format!(r"{settings} UPDATE app.user SET name = 'D:\' /* lookaside: set */ WHERE name <> 'x'")).await;
            client.run("SET SESSION binlog_format = ROW").await;
        }
        client.run(END).await;
        assert_eq!(keys_of(&read_until(&mut source, "end").await), kind.of("row set end", "row end").split(' ').collect::<Vec<_>>(), "{kind:?}");
    }
}
