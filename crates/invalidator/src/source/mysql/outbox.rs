//! Outbox tables: the first column of each row inserted into a table of one name, in any schema, is a key. Part of the
//! [`assembler`](super::assembler).
//!
//! Clients send keys in UTF-8. The log has the bytes of the column's character set, and MariaDB's does not say which
//! that is. The catalogue does, if the account has a privilege on the table:
//!
//! | the column is | the key is |
//! |---|---|
//! | BINARY, VARBINARY, a BLOB, or text in utf8mb4, utf8mb3 or ascii | the bytes |
//! | text in latin1, ucs2, utf16, utf16le or utf32 | the text in UTF-8 |
//! | text in another character set | none: the table is refused |
//! | not in the catalogue as the log has it | the bytes, if they are UTF-8 without zeros; else they are read in every supported character set, and all keys count |
//!
//! A superfluous delete is harmless, a missing one is not, and a row that anyone may insert must not stop reading.
//!
//! The catalogue shows the present, and the log the past: rows from before an ALTER TABLE of the character set alone
//! are read as if they came after it.

use super::{
    catalogue::Declared,
    charset::Charset,
    rows::{Columns, TableMap},
    statement_tokens::{Token, Tokens},
};
use crate::{
    SourceError,
    keys::{SqlMode, push_valid_key},
    rules::TableName,
};
use lookaside_protocol::check_key;
use lookaside_telemetry::LogThrottle;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// The catalogue is read again after this time for a table that it does not show: a GRANT is no DDL.
const CATALOGUE_RETRY: Duration = Duration::from_secs(5);

/// The least time between two log messages of keys in an unknown character set.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(60 * 60);

/// The character sets in which text has the bytes of UTF-8, or is converted to it.
const SUPPORTED: &str = "utf8mb4, utf8mb3, ascii, latin1, ucs2, utf16, utf16le and utf32";

/// The first words of statements after which a column may be declared otherwise.
const DEFINITIONS: [&[u8]; 4] = [b"ALTER", b"CREATE", b"DROP", b"RENAME"];

/// The outbox tables, as the catalogue has declared them.
pub struct OutboxTables {
    /// The name, as the option has it.
    name: String,
    /// The first columns, by schema and name in lower case.
    declared: BTreeMap<TableName, Declared>,
    /// The names of the tables, as the option and the log have them.
    names: BTreeSet<String>,
    /// Whether the catalogue must be read before the next event.
    needs_catalogue: bool,
    /// When a table last did not fit the catalogue; `None` before the first.
    misfit_at: Option<SystemTime>,
    unknown_log: LogThrottle<Instant>,
}

/// An outbox table as the log describes it.
#[derive(Clone, Debug)]
pub struct OutboxTable {
    pub columns: Columns,
    table: TableName,
}

impl OutboxTables {
    /// The tables called `name`, in lower or upper case. The catalogue is read before the first event.
    pub fn new(name: &str) -> OutboxTables {
        OutboxTables {
            name: name.to_owned(),
            declared: BTreeMap::new(),
            names: BTreeSet::from([name.to_owned()]),
            needs_catalogue: true,
            misfit_at: None,
            unknown_log: LogThrottle::new(1, LOG_INTERVAL_MIN),
        }
    }

    /// Whether a table of this name is one.
    pub fn has_name(&self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.name.as_bytes())
    }

    /// The log describes one at `now`. Fails if its first column holds neither text nor bytes.
    pub fn describe(&mut self, map: TableMap<'_>, now: SystemTime) -> Result<OutboxTable, SourceError> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let table = TableName { schema: text(map.schema), name: text(map.name) };
        let columns = map.into_columns()?;
        if !columns.is_first_bytes() {
            return Err(SourceError::Unusable {
                why: format!(
                    "the first column of table {table} holds the key and must be VARBINARY, VARCHAR, CHAR, BINARY, TEXT \
                     or BLOB, not compressed"
                ),
            });
        }
        let outbox = OutboxTable { columns, table };
        let since = self.misfit_at.and_then(|at| now.duration_since(at).ok());
        // A clock that was set back counts as late.
        if self.declaration(&outbox).is_none() && since.is_none_or(|since| since >= CATALOGUE_RETRY) {
            self.names.insert(outbox.table.name.clone());
            (self.needs_catalogue, self.misfit_at) = (true, Some(now));
        }
        Ok(outbox)
    }

    /// A statement without rows is in the log: it may declare a column otherwise.
    pub fn note_statement(&mut self, sql: &[u8]) {
        let first = Tokens::of_statement(sql, SqlMode::DEFAULT).find_map(Token::into_word).unwrap_or_default();
        let name = self.name.as_bytes();
        let is_definition = DEFINITIONS.iter().any(|word| first.eq_ignore_ascii_case(word));
        self.needs_catalogue |= is_definition && sql.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
    }

    /// The names of the tables whose first columns must be read from the catalogue before the next event; `None` if
    /// what is known will do.
    pub fn needed_names(&self) -> Option<&BTreeSet<String>> {
        self.needs_catalogue.then_some(&self.names)
    }

    /// Uses these first columns from now on. Fails if one has a character set that is not supported.
    pub fn set_declared(&mut self, declared: Vec<(TableName, Declared)>) -> Result<(), SourceError> {
        for (table, column) in &declared {
            if column.charset.is_some() && column.charset().is_none() {
                return Err(SourceError::Unusable {
                    why: format!(
                        "the column {column} of {table} holds keys in the character set {charset}, and clients send keys in \
                         UTF-8; supported are {SUPPORTED}: ALTER TABLE {table} MODIFY {column} VARBINARY(250) NOT NULL, \
                         and store keys as clients send them",
                        column = column.name,
                        charset = column.charset.as_deref().unwrap_or_default(),
                    ),
                });
            }
        }
        self.declared = declared.into_iter().map(|(table, column)| (lower_case(&table), column)).collect();
        self.needs_catalogue = false;
        Ok(())
    }

    /// The declaration of the first column; `None` if it is not known, or unlike the log's.
    fn declaration(&self, outbox: &OutboxTable) -> Option<&Declared> {
        let column = outbox.columns.0.first()?;
        self.declared.get(&lower_case(&outbox.table)).filter(|declared| declared.fits(column.kind, column.metadata))
    }

    /// Appends the key that the first column of a row holds, as clients send it, to `out`. What is no valid key is
    /// counted in `rejected` and logged.
    pub fn push_keys(&mut self, outbox: &OutboxTable, bytes: &[u8], out: &mut Vec<Vec<u8>>, rejected: &mut u64) {
        if let Some(declared) = self.declaration(outbox) {
            // What is no text in its character set, as a half of a surrogate pair in ucs2, no client sends.
            let text = declared.charset().and_then(|charset| charset.decode(bytes));
            return push_valid_key(text.as_deref().map_or(bytes, str::as_bytes), out, rejected);
        }
        if std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0) {
            return push_valid_key(bytes, out, rejected);
        }
        if let Some(suppressed) = self.unknown_log.allow(Instant::now()) {
            tracing::warn!(
                table = %outbox.table,
                suppressed,
                "a key in an outbox is not in UTF-8, and the catalogue does not show the character set of its column: reading \
                 it in each that is supported. GRANT SELECT on the table to the invalidator's account, or make its first \
                 column VARBINARY"
            );
        }
        let texts = Charset::ALL.iter().filter_map(|charset| charset.decode(bytes));
        let texts: Vec<Cow<'_, [u8]>> = texts.map(|text| text.into_owned().into_bytes().into()).collect();
        let before = out.len();
        for key in [Cow::from(bytes)].into_iter().chain(texts).filter(|key| check_key(key).is_ok()) {
            if !out[before..].iter().any(|known| **known == *key) {
                out.push(key.into_owned());
            }
        }
        if out.len() == before {
            push_valid_key(bytes, out, rejected);
        }
    }
}

fn lower_case(table: &TableName) -> TableName {
    TableName { schema: table.schema.to_ascii_lowercase(), name: table.name.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::{super::catalogue::tests::declared, *};
    use std::time::UNIX_EPOCH;

    const NAME: &str = "lookaside_outbox";

    /// A table map of app.lookaside_outbox, whose only column is VARCHAR or VARBINARY with these many bytes.
    fn describe(tables: &mut OutboxTables, octets: u16, at: SystemTime) -> OutboxTable {
        let mut body = b"\x07\0\0\0\0\0\0\0\x03app\0\x10lookaside_outbox\0\x01\x0f\x02".to_vec();
        body.extend_from_slice(&octets.to_le_bytes());
        body.push(0);
        tables.describe(TableMap::read(&body).expect("valid"), at).expect("it holds text")
    }

    fn declare(tables: &mut OutboxTables, charset: Option<&str>, octets: u64) -> Result<(), SourceError> {
        let table = TableName { schema: "app".into(), name: NAME.into() };
        let column = Declared {
            charset: charset.map(str::to_owned),
            octets,
            ..declared("key", if charset.is_some() { "varchar" } else { "varbinary" }, "")
        };
        tables.set_declared(vec![(table, column)])
    }

    /// The keys of a row, and how many were rejected.
    fn keys(tables: &mut OutboxTables, bytes: &[u8]) -> (Vec<Vec<u8>>, u64) {
        let outbox = describe(tables, 250, UNIX_EPOCH);
        let (mut keys, mut rejected) = (Vec::new(), 0);
        tables.push_keys(&outbox, bytes, &mut keys, &mut rejected);
        (keys, rejected)
    }

    #[test]
    fn keys_are_in_utf8_whatever_the_column_is_in() {
        let mut tables = OutboxTables::new(NAME);
        for (charset, bytes, expected) in [
            (None, &b"user:\xff"[..], &b"user:\xff"[..]),
            (Some("utf8mb4"), "user:Zoë".as_bytes(), "user:Zoë".as_bytes()),
            (Some("latin1"), b"user:Zo\xeb", "user:Zoë".as_bytes()),
            (Some("latin1"), b"user:1", b"user:1"),
            (Some("utf16"), b"\0u\0:\x001", b"u:1"),
        ] {
            declare(&mut tables, charset, 250).expect("supported");
            assert_eq!(keys(&mut tables, bytes), (vec![expected.to_vec()], 0), "{charset:?}");
        }
        declare(&mut tables, Some("ucs2"), 250).expect("supported");
        assert_eq!(keys(&mut tables, b"\xd8\x3e\0\0"), (vec![], 1), "no text, and no key");
        let error = declare(&mut tables, Some("gbk"), 250).expect_err("not supported").to_string();
        assert!(error.contains("app.lookaside_outbox") && error.contains("gbk"), "{error}");
    }

    /// ASCII letters in utf16 were taken for keys with zeros, which are invalid, and ignored.
    #[test]
    fn what_may_be_in_any_character_set_is_read_in_each() {
        let mut tables = OutboxTables::new(NAME);
        for is_misfit in [false, true] {
            if is_misfit {
                declare(&mut tables, Some("latin1"), 100).expect("supported");
            }
            assert_eq!(keys(&mut tables, "user:Zoë".as_bytes()), (vec!["user:Zoë".into()], 0));
            for (bytes, expected) in [
                (&b"\0u\0:\x001"[..], "u:1"),
                (b"u\0:\x001\0", "u:1"),
                (b"\0\0\0u\0\0\0:\0\0\x001", "u:1"),
                (b"user:Zo\xeb", "user:Zoë"),
            ] {
                let (keys, rejected) = keys(&mut tables, bytes);
                assert!(keys.contains(&expected.into()) && rejected == 0, "{keys:?}");
            }
            let (raw, _) = keys(&mut tables, b"user:Zo\xeb");
            assert!(raw.contains(&b"user:Zo\xeb".to_vec()), "the column may hold bytes: {raw:?}");
            assert_eq!(keys(&mut tables, b"\0\0\0"), (vec![], 1));
        }
    }

    #[test]
    fn the_catalogue_is_read_for_tables_that_it_did_not_show_and_after_their_definition() {
        let mut tables = OutboxTables::new(NAME);
        let needs = |tables: &OutboxTables| tables.needed_names().is_some();
        assert!(needs(&tables), "at the start");
        tables.set_declared(Vec::new()).expect("none");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, expected) in [(100, true), (101, false), (104, false), (105, true), (90, true)] {
            describe(&mut tables, 250, at(seconds));
            assert_eq!(needs(&tables), expected, "after {seconds} s");
            tables.set_declared(Vec::new()).expect("none");
        }
        declare(&mut tables, Some("latin1"), 250).expect("supported");
        describe(&mut tables, 250, at(200));
        assert!(!needs(&tables));
        for (sql, expected) in [
            ("ALTER TABLE app.Lookaside_Outbox MODIFY `key` VARCHAR(250) CHARACTER SET utf16", true),
            ("RENAME TABLE a TO `lookaside_outbox`", true),
            ("ALTER TABLE app.user ADD a INT", false),
            ("UPDATE app.user SET name = 'lookaside_outbox'", false),
        ] {
            tables.note_statement(sql.as_bytes());
            assert_eq!(needs(&tables), expected, "{sql}");
            declare(&mut tables, Some("latin1"), 250).expect("supported");
        }
    }
}
