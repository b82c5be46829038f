//! Statements in the log that change tables without their rows: DDL, TRUNCATE, and changes in the statement format.
//!
//! A statement is lexed, not parsed: every identifier in it that is a watched table's name counts. So an identifier that
//! is a column's name and a table's may count needlessly, and no table is missed, but for those that a statement in the
//! statement format changes through a view, a trigger or a routine.
//!
//! | statement | change |
//! |---|---|
//! | TRUNCATE | truncated |
//! | ALTER TABLE, DROP TABLE, RENAME TABLE, CREATE OR REPLACE TABLE; DROP DATABASE for all of its tables | schema |
//! | INSERT, UPDATE, DELETE, REPLACE, LOAD, WITH, CALL, SELECT, DO | statement |
//! | others, and those of temporary tables | none |

use crate::rules::{TableChange, TableName};
use memchr::{memchr, memmem};

/// What a statement does to the tables that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStatement {
    /// `None` if rows stay as they are: CREATE TABLE.
    pub change: Option<TableChange>,
    /// The schema of unqualified names.
    schema: String,
    tokens: Vec<Token>,
    /// Whether it drops a whole schema.
    drops_schema: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Dot,
    Other,
}

impl TableStatement {
    /// Parses a statement that was executed in `schema`; `None` if it changes no table.
    pub fn parse(schema: &[u8], sql: &[u8]) -> Option<TableStatement> {
        let tokens = tokens(sql);
        let words: Vec<&str> = tokens
            .iter()
            .filter_map(|token| match token {
                Token::Name(name) => Some(name.as_str()),
                _ => None,
            })
            .take(6)
            .collect();
        let is = |at: usize, expected: &[&str]| {
            words.get(at).is_some_and(|word| expected.iter().any(|other| word.eq_ignore_ascii_case(other)))
        };
        let mut drops_schema = false;
        let change = if is(0, &["truncate"]) {
            Some(TableChange::Truncate)
        } else if is(0, &["insert", "update", "delete", "replace", "load", "with", "call", "select", "do"]) {
            Some(TableChange::Statement)
        } else if is(0, &["alter", "drop", "rename"]) && (1..4).any(|at| is(at, &["table", "tables"])) {
            if is(1, &["temporary"]) {
                return None;
            }
            Some(TableChange::SchemaChange)
        } else if is(0, &["drop"]) && is(1, &["database", "schema"]) {
            drops_schema = true;
            Some(TableChange::SchemaChange)
        } else if is(0, &["create"]) && is(1, &["or"]) && is(3, &["table"]) {
            Some(TableChange::SchemaChange)
        } else if is(0, &["create"]) && is(1, &["table"]) {
            None
        } else {
            return None;
        };
        Some(TableStatement { change, schema: String::from_utf8_lossy(schema).into_owned(), tokens, drops_schema })
    }

    /// Whether it names `table`. Names are compared without regard to the case of ASCII letters, as some servers do.
    pub fn names(&self, table: &TableName) -> bool {
        let is_at = |at: usize, expected: &str| match self.tokens.get(at) {
            Some(Token::Name(name)) => name.eq_ignore_ascii_case(expected),
            _ => false,
        };
        if self.drops_schema {
            return (2..self.tokens.len()).any(|at| is_at(at, &table.schema));
        }
        (0..self.tokens.len()).filter(|&at| is_at(at, &table.name)).any(|at| match at.checked_sub(1) {
            Some(dot) if self.tokens[dot] == Token::Dot => {
                dot.checked_sub(1).is_some_and(|at| is_at(at, &table.schema))
            }
            _ => self.schema.eq_ignore_ascii_case(&table.schema),
        })
    }
}

fn tokens(sql: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = sql.get(at) {
        let rest = &sql[at..];
        at += match byte {
            b'`' | b'"' => {
                let (name, length) = quoted(rest);
                tokens.push(Token::Name(name));
                length
            }
            b'\'' => {
                tokens.push(Token::Other);
                string_bytes(rest)
            }
            b'#' => memchr(b'\n', rest).map_or(rest.len(), |end| end + 1),
            b'-' if rest.starts_with(b"-- ") => memchr(b'\n', rest).map_or(rest.len(), |end| end + 1),
            // Executable comments hold code.
            b'/' if rest.starts_with(b"/*!") || rest.starts_with(b"/*M!") => {
                let head = if rest[2] == b'!' { 3 } else { 4 };
                head + rest[head..].iter().take_while(|byte| byte.is_ascii_digit()).count()
            }
            b'/' if rest.starts_with(b"/*") => memmem::find(&rest[2..], b"*/").map_or(rest.len(), |end| end + 4),
            b'.' => {
                tokens.push(Token::Dot);
                1
            }
            _ if is_word(byte) => {
                let length = rest.iter().take_while(|byte| is_word(**byte)).count();
                tokens.push(Token::Name(String::from_utf8_lossy(&rest[..length]).into_owned()));
                length
            }
            _ if byte.is_ascii_whitespace() => 1,
            _ => {
                if tokens.last() != Some(&Token::Other) {
                    tokens.push(Token::Other);
                }
                1
            }
        };
    }
    tokens
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
}

/// The identifier at the start of `text`, and its length with the quotes.
fn quoted(text: &[u8]) -> (String, usize) {
    let quote = text[0];
    let (mut name, mut at) = (Vec::new(), 1);
    while let Some(&byte) = text.get(at) {
        at += 1;
        if byte == quote {
            if text.get(at) != Some(&quote) {
                break;
            }
            at += 1;
        }
        name.push(byte);
    }
    (String::from_utf8_lossy(&name).into_owned(), at)
}

/// The length of the string at the start of `text`. A backslash is taken for an escape, as in the default SQL mode.
fn string_bytes(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = text.get(at) {
        at += if byte == b'\\' { 2 } else { 1 };
        if byte == b'\'' {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The change of app.users by a statement in the schema `app`; `None` if it is not named or does not change.
    fn change_of(sql: &str) -> Option<TableChange> {
        let users = TableName { schema: "app".into(), name: "users".into() };
        TableStatement::parse(b"app", sql.as_bytes()).filter(|statement| statement.names(&users))?.change
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
            ("CREATE TABLE users (id INT)", None),
            ("CREATE TEMPORARY TABLE users (id INT)", None),
            ("UPDATE users SET name = 'x'", Some(TableChange::Statement)),
            ("UPDATE posts SET text = 'it\\'s users'", None),
            ("UPDATE posts SET text = 1 # users", None),
            ("INSERT INTO \"users\" VALUES (1)", Some(TableChange::Statement)),
            ("GRANT SELECT ON users TO reader", None),
            ("", None),
        ] {
            assert_eq!(change_of(sql), expected, "{sql}");
        }
    }

    #[test]
    fn the_creation_of_a_table_is_reported_without_a_change() {
        let statement =
            TableStatement::parse(b"", b"CREATE TABLE IF NOT EXISTS app.users (id INT)").expect("it names one");
        assert!(
            statement.change.is_none() && statement.names(&TableName { schema: "app".into(), name: "users".into() })
        );
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
