//! Whether a statement changes rows: such a one is in the log instead of its rows if the session's `binlog_format` is
//! STATEMENT or MIXED.
//!
//! Serves the delete path: what only rows name (an outbox) is missing then. A session may switch the format whenever it
//! wants, so the start-up check of the global value is not enough.

use super::statement_tokens::{Token, Tokens};
use crate::keys::SqlMode;

/// The first words of statements that change rows, or may (functions, procedures). Definitions of tables, for which
/// every format has statements, begin with others.
const FIRST_WORDS: [&[u8]; 10] =
    [b"INSERT", b"UPDATE", b"DELETE", b"REPLACE", b"LOAD", b"WITH", b"SELECT", b"CALL", b"DO", b"VALUES"];

/// Whether `sql` changes rows if it is read in any of `modes`.
pub fn changes_rows(sql: &[u8], modes: &[SqlMode]) -> bool {
    let first_word = |mode: &SqlMode| Tokens::of_statement(sql, *mode).find_map(Token::into_word);
    modes.iter().filter_map(first_word).any(begins_row_change)
}

/// Whether a statement that begins with `word` changes rows.
pub fn begins_row_change(word: &[u8]) -> bool {
    FIRST_WORDS.iter().any(|first| word.eq_ignore_ascii_case(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_change_rows_are_known() {
        for sql in [
            "INSERT INTO t VALUES (1)",
            "  /* lookaside: a */ update t set a = 1",
            "-- why\n# and\n(delete from t)",
            "SELECT `app`.`f`()",
            "SET STATEMENT max_statement_time = 1 FOR DELETE FROM t",
            "set /* a */ statement a=1 for insert into t values (1)",
            "/*!50000 UPDATE t SET a = 1 */",
            "ANALYZE FORMAT=JSON UPDATE t SET a = 1",
        ] {
            assert!(changes_rows(sql.as_bytes(), &SqlMode::ALL), "{sql}");
        }
        for sql in [
            "CREATE TABLE t (a INT)",
            "TRUNCATE TABLE t /* INSERT */",
            "ALTER TABLE t",
            "SAVEPOINT a",
            "DROP TABLE t",
            "CREATE TRIGGER t AFTER INSERT",
            "GRANT SELECT ON t TO u",
            "INSERTS",
            "SET PASSWORD FOR u = 'x'",
            "SET STATEMENT a = 1 FOR ALTER TABLE t",
            "/*!50000 ALTER TABLE t */",
            "ANALYZE TABLE t",
            "/* no end",
            "",
        ] {
            assert!(!changes_rows(sql.as_bytes(), &SqlMode::ALL), "{sql}");
        }
    }
}
