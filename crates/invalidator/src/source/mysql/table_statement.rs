//! Statements in the log that change tables without their rows: DDL, TRUNCATE, and changes in the statement format.
//!
//! A statement is lexed, not parsed: every identifier in it that is a watched table's name counts. So an identifier
//! that is a column's name and a table's may count needlessly, and no table is missed, but for those that a statement
//! in the statement format changes through a view, a trigger or a routine.
//!
//! | statement | change |
//! |---|---|
//! | TRUNCATE | truncated |
//! | ALTER TABLE, DROP TABLE, RENAME TABLE, CREATE OR REPLACE TABLE | schema |
//! | DROP DATABASE, CREATE OR REPLACE DATABASE | schema, of all its tables |
//! | INSERT, UPDATE, DELETE, REPLACE, LOAD, WITH, CALL, SELECT, DO, VALUES | statement |
//! | others, and those of temporary tables | none |
//!
//! [`super::statement_tokens`] skips what may be in front of them.

use super::{
    statement::begins_row_change,
    statement_tokens::{Token, Tokens},
};
use crate::{
    keys::SqlMode,
    rules::{Rule, Rules, TableChange},
};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// What a statement does to the tables that it names.
#[derive(Clone, Debug)]
pub struct TableStatement<'a> {
    /// `None` if rows stay as they are: CREATE TABLE.
    pub change: Option<TableChange>,
    /// The schema of unqualified names.
    schema: &'a [u8],
    tokens: Tokens<'a>,
    /// Whether it drops a whole schema.
    drops_schema: bool,
}

/// A table's rule, and what a statement does to the table; `None` if rows stay as they are.
pub type ChangedTable<'r> = (&'r Arc<Rule>, Option<TableChange>);

/// What `sql` does to tables with a rule, by each reading of it in one of `modes`. It was executed in `schema`.
pub fn find_changed_tables<'r>(
    schema: &[u8],
    sql: &[u8],
    modes: &[SqlMode],
    rules: &'r Rules,
) -> Vec<ChangedTable<'r>> {
    let mut changed: Vec<ChangedTable<'r>> = Vec::new();
    for statement in modes.iter().filter_map(|mode| TableStatement::parse(schema, sql, *mode)) {
        for rule in statement.named_rules(rules) {
            if !changed.contains(&(rule, statement.change)) {
                changed.push((rule, statement.change));
            }
        }
    }
    changed
}

impl<'a> TableStatement<'a> {
    /// Parses a statement that was executed in `schema`, and is read in `mode`; `None` if it changes no table.
    pub fn parse(schema: &'a [u8], sql: &'a [u8], mode: SqlMode) -> Option<TableStatement<'a>> {
        let tokens = Tokens::of_statement(sql, mode);
        let words: Vec<Cow<'_, [u8]>> = tokens.clone().filter_map(Token::into_name).take(6).collect();
        let is = |at: usize, expected: &[&str]| {
            words.get(at).is_some_and(|word| expected.iter().any(|other| word.eq_ignore_ascii_case(other.as_bytes())))
        };
        let statement = |change| Some(TableStatement { change, schema, tokens: tokens.clone(), drops_schema: false });
        if is(0, &["truncate"]) {
            return statement(Some(TableChange::Truncate));
        }
        if words.first().is_some_and(|first| begins_row_change(first)) {
            return statement(Some(TableChange::Statement));
        }
        if is(0, &["alter", "drop", "rename"]) && (1..4).any(|at| is(at, &["table", "tables"])) {
            return statement(Some(TableChange::SchemaChange)).filter(|_| !is(1, &["temporary"]));
        }
        let replaces = is(0, &["create"]) && is(1, &["or"]);
        if is(if replaces { 3 } else { 1 }, &["database", "schema"]) && (replaces || is(0, &["drop"])) {
            let change = Some(TableChange::SchemaChange);
            return Some(TableStatement { change, schema, tokens, drops_schema: true });
        }
        if replaces && is(3, &["table"]) {
            return statement(Some(TableChange::SchemaChange));
        }
        if is(0, &["create"]) && is(1, &["table"]) {
            return statement(None);
        }
        None
    }

    /// The rules whose tables it names. Names are compared without regard to the case of ASCII letters, as some servers
    /// do. One pass over the statement, whatever the number of rules.
    pub fn named_rules<'r>(&self, rules: &'r Rules) -> Vec<&'r Arc<Rule>> {
        let mut by_name: BTreeMap<Vec<u8>, Vec<&Arc<Rule>>> = BTreeMap::new();
        for rule in rules.iter() {
            let name = if self.drops_schema { &rule.table.schema } else { &rule.table.name };
            by_name.entry(name.to_ascii_lowercase().into_bytes()).or_default().push(rule);
        }
        let mut named: Vec<&Arc<Rule>> = Vec::new();
        // The name before a dot, once the dot has been read.
        let (mut qualifier, mut last) = (None, None::<Cow<'_, [u8]>>);
        for token in self.tokens.clone() {
            if matches!(token, Token::Dot) {
                qualifier = last.take();
                continue;
            }
            let Some(name) = token.into_name() else {
                (qualifier, last) = (None, None);
                continue;
            };
            let schema = qualifier.take();
            let schema = schema.as_deref().unwrap_or(self.schema);
            for rule in by_name.get(&name.to_ascii_lowercase()).into_iter().flatten() {
                let is_of_schema = self.drops_schema || schema.eq_ignore_ascii_case(rule.table.schema.as_bytes());
                if is_of_schema && !named.contains(rule) {
                    named.push(rule);
                }
            }
            last = Some(name);
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The change of app.users by a statement in the schema `app`; `None` if it is not named or does not change.
    fn change_of(sql: &str) -> Option<TableChange> {
        change_in_mode(sql, SqlMode::DEFAULT)
    }

    fn change_in_mode(sql: &str, mode: SqlMode) -> Option<TableChange> {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['a']").expect("valid");
        TableStatement::parse(b"app", sql.as_bytes(), mode)
            .filter(|found| !found.named_rules(&rules).is_empty())?
            .change
    }

    #[test]
    fn statements_are_classified() {
        for (sql, expected) in [
            ("TRUNCATE TABLE users", Some(TableChange::Truncate)),
            ("truncate `app`.`users` /* why */", Some(TableChange::Truncate)),
            ("TRUNCATE other.users", None),
            ("TRUNCATE users_old", None),
            ("DROP TABLE IF EXISTS `a`, `users` /* generated by server */", Some(TableChange::SchemaChange)),
            ("DROP TEMPORARY TABLE IF EXISTS users", None),
            ("DROP /*!40005 TEMPORARY */ TABLE users", None),
            ("DROP DATABASE IF EXISTS app", Some(TableChange::SchemaChange)),
            ("DROP DATABASE other", None),
            ("DROP INDEX name ON users", None),
            ("ALTER TABLE users ADD COLUMN a INT", Some(TableChange::SchemaChange)),
            ("ALTER ONLINE IGNORE TABLE app . users TRUNCATE PARTITION p0", Some(TableChange::SchemaChange)),
            ("RENAME TABLE users TO users_old, users_new TO users", Some(TableChange::SchemaChange)),
            ("CREATE OR REPLACE TABLE users (id INT)", Some(TableChange::SchemaChange)),
            ("CREATE OR REPLACE DATABASE app", Some(TableChange::SchemaChange)),
            ("CREATE OR REPLACE DATABASE other", None),
            ("CREATE OR REPLACE TEMPORARY TABLE users (id INT)", None),
            ("CREATE DATABASE app", None),
            (
                "SET STATEMENT max_statement_time=0 FOR ALTER TABLE users ADD COLUMN a INT",
                Some(TableChange::SchemaChange),
            ),
            ("SET STATEMENT lock_wait_timeout=1, sql_mode='' FOR TRUNCATE TABLE users", Some(TableChange::Truncate)),
            ("set\tstatement/* a */max_statement_time=0 for\n-- b\ndrop table users", Some(TableChange::SchemaChange)),
            ("SET STATEMENT users=0 FOR TRUNCATE TABLE posts", None),
            ("SET STATEMENT max_statement_time=0 FOR UPDATE users SET a = 1", Some(TableChange::Statement)),
            ("/*!50000 ALTER TABLE users ADD COLUMN a INT */", Some(TableChange::SchemaChange)),
            ("/*M!100100 TRUNCATE*/ users", Some(TableChange::Truncate)),
            ("--\tx\nTRUNCATE users", Some(TableChange::Truncate)),
            ("ANALYZE FORMAT=JSON DELETE FROM users", Some(TableChange::Statement)),
            ("ANALYZE TABLE users", None),
            ("WITH a AS (SELECT 1) DELETE FROM users", Some(TableChange::Statement)),
            ("CREATE TABLE users (id INT)", None),
            ("CREATE TEMPORARY TABLE users (id INT)", None),
            ("UPDATE users SET name = 'x'", Some(TableChange::Statement)),
            ("UPDATE posts SET text = 'it\\'s users'", None),
            ("UPDATE posts SET text = 1 # users", None),
            ("GRANT SELECT ON users TO reader", None),
            ("", None),
        ] {
            assert_eq!(change_of(sql), expected, "{sql}");
        }
    }

    /// Under NO_BACKSLASH_ESCAPES 'C:\' is a string. It hid the names behind it, or showed what strings hold.
    #[test]
    fn names_are_found_in_the_mode_of_the_session() {
        let [default, ansi, plain, ansi_plain] = SqlMode::ALL;
        let altered = Some(TableChange::SchemaChange);
        for (sql, mode, expected) in [
            (r"ALTER TABLE posts COMMENT 'C:\', RENAME TO users", plain, altered),
            (r"ALTER TABLE posts COMMENT 'C:\', RENAME TO users", default, None),
            (r"ALTER TABLE posts COMMENT 'it\'s users'", default, None),
            (r#"ALTER TABLE posts COMMENT "it\"s users""#, default, None),
            (r#"ALTER TABLE posts COMMENT "users""#, default, None),
            (r#"ALTER TABLE posts COMMENT "C:\", RENAME TO users"#, plain, altered),
            (r#"ALTER TABLE "users" COMMENT 'x'"#, ansi, altered),
            (r#"ALTER TABLE "posts\" RENAME TO users"#, ansi, altered),
            (r#"ALTER TABLE "posts" COMMENT 'C:\', RENAME TO users"#, ansi_plain, altered),
        ] {
            assert_eq!(change_in_mode(sql, mode), expected, "{sql} in {mode:?}");
        }
    }

    #[test]
    fn the_creation_of_a_table_is_reported_without_a_change() {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['a']").expect("valid");
        let statement = TableStatement::parse(b"", b"CREATE TABLE IF NOT EXISTS App.Users (id INT)", SqlMode::DEFAULT)
            .expect("it names one");
        assert_eq!((statement.change, statement.named_rules(&rules).len()), (None, 1));
    }

    #[test]
    fn unterminated_quotes_end_with_the_statement() {
        for sql in
            ["TRUNCATE `users", "TRUNCATE users /*", "UPDATE users SET a = '\\", "TRUNCATE users --", "/*!", "\""]
        {
            let _ = change_of(sql);
        }
        assert_eq!(change_of("TRUNCATE `users"), Some(TableChange::Truncate));
    }
}
