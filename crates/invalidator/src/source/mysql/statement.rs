//! Whether a statement changes rows: such a one is in the log instead of its rows if the session's `binlog_format` is
//! STATEMENT or MIXED.
//!
//! Serves the delete path: what only rows name (an outbox) is missing then. A session may switch the format whenever it
//! wants, so the start-up check of the global value is not enough.

/// The first words of statements that change rows, or may (functions, procedures). Definitions of tables, for which
/// every format has statements, begin with others.
const FIRST_WORDS: [&[u8]; 10] =
    [b"INSERT", b"UPDATE", b"DELETE", b"REPLACE", b"LOAD", b"WITH", b"SELECT", b"CALL", b"DO", b"VALUES"];

/// MariaDB: settings for one statement, which follows them.
const WITH_SETTINGS: &[u8] = b"SET STATEMENT ";

/// Whether `sql` changes rows, by its first word.
pub fn changes_rows(sql: &[u8]) -> bool {
    let text = skip_comments(sql);
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(text.len());
    let has_settings = text.get(..WITH_SETTINGS.len()).is_some_and(|head| head.eq_ignore_ascii_case(WITH_SETTINGS));
    has_settings || FIRST_WORDS.iter().any(|word| text[..end].eq_ignore_ascii_case(word))
}

/// The rest of `text` after white space, parentheses and comments.
fn skip_comments(mut text: &[u8]) -> &[u8] {
    loop {
        let before = text.len();
        text = text.trim_ascii_start();
        text = text.strip_prefix(b"(").unwrap_or(text);
        if text.starts_with(b"/*") && !text.starts_with(b"/*!") && !text.starts_with(b"/*M!") {
            text = memchr::memmem::find(text, b"*/").map_or(&[], |end| &text[end + 2..]);
        } else if text.starts_with(b"#") || text.starts_with(b"--") {
            text = memchr::memchr(b'\n', text).map_or(&[], |end| &text[end..]);
        }
        if text.len() == before {
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::changes_rows;

    #[test]
    fn statements_that_change_rows_are_known() {
        for sql in [
            "INSERT INTO t VALUES (1)",
            "  /* lookaside: a */ update t set a = 1",
            "-- why\n# and\n(delete from t)",
            "SELECT `app`.`f`()",
            "SET STATEMENT max_statement_time = 1 FOR DELETE FROM t",
        ] {
            assert!(changes_rows(sql.as_bytes()), "{sql}");
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
            "/* no end",
            "",
        ] {
            assert!(!changes_rows(sql.as_bytes()), "{sql}");
        }
    }
}
