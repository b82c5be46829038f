//! The journal table: creates it, and reads it from a position on.
//!
//! A position is the `seq` of the last row that was read. The journal reaches back to a position `p` if no row after
//! `p` has been removed. A gap in the numbers does not prove a removal: AUTOINCREMENT guarantees only that numbers grow
//! and are not reused (an insert that fails under `OR IGNORE` may use one up). So a trigger records the largest number
//! that was ever removed, by [`prune`](super::prune()) or by hand, in `lookaside_journal_removed`. It is installed when
//! the journal is first read. If that fails (a file that we may not write), every gap counts as a removal, so that no
//! loss goes unnoticed.

use super::super::{Commit, Commits, Position, SourceError, Start};
use crate::keys::push_valid_key;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, params, types::ValueRef};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The journal table. The time comes from `julianday`, as `unixepoch('subsec')` fails in releases before 3.42.
pub const JOURNAL_SQL: &str = "CREATE TABLE IF NOT EXISTS lookaside_journal (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  key BLOB NOT NULL,
  at_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER))
);";

/// The record of removed rows. Dropping the journal drops its trigger, so a journal without the trigger is new and the
/// record is of an older one: it is replaced. Removals before that are unknown: all rows below the oldest one count as
/// removed.
const REMOVED_SQL: &str = "
CREATE TABLE IF NOT EXISTS lookaside_journal_removed (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL);
INSERT OR REPLACE INTO lookaside_journal_removed VALUES (1, coalesce(
  (SELECT min(seq) - 1 FROM lookaside_journal),
  (SELECT max(seq) FROM sqlite_sequence WHERE name = 'lookaside_journal'), 0));
CREATE TRIGGER lookaside_journal_removed_row AFTER DELETE ON lookaside_journal BEGIN
  UPDATE lookaside_journal_removed SET seq = max(seq, OLD.seq);
END;";

/// If a writer holds the lock for longer than this, the source fails and is retried.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Creates the journal table if it does not exist. A transaction that changes rows then writes the keys that depend on
/// them: `INSERT INTO lookaside_journal(key) VALUES ('user:42')`, by hand or by [`triggers_sql`].
pub fn create_journal(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(JOURNAL_SQL)
}

/// The SQL of triggers that write the journal at every change of `table`. `key` is an SQL expression in which `{row}`
/// stands for the changed row; an update journals the keys of the old and of the new row.
///
/// Both are inserted unescaped: they come from the schema's author. `INSERT OR REPLACE` journals the row that it
/// writes, but the rows that it removes only under `PRAGMA recursive_triggers`.
///
/// ```
/// let sql = lookaside_invalidator::source::sqlite::triggers_sql("users", "'user:' || {row}.id");
/// assert!(sql.contains("AFTER UPDATE ON users"));
/// assert!(sql.contains("VALUES ('user:' || OLD.id)"));
/// ```
pub fn triggers_sql(table: &str, key: &str) -> String {
    let journal = |row: &str| format!("INSERT INTO lookaside_journal(key) VALUES ({});", key.replace("{row}", row));
    let (old, new) = (journal("OLD"), journal("NEW"));
    [("insert", new.clone()), ("update", format!("{old} {new}")), ("delete", old)]
        .map(|(verb, body)| {
            let upper = verb.to_uppercase();
            format!(
                "CREATE TRIGGER IF NOT EXISTS lookaside_{table}_{verb} AFTER {upper} ON {table} BEGIN {body} END;\n"
            )
        })
        .concat()
}

/// The journal, read up to some row.
pub(super) struct Journal {
    connection: Connection,
    path: PathBuf,
    /// Device and inode of the file that was opened.
    file: (u64, u64),
    seq: i64,
    /// The `PRAGMA data_version` at which all rows had been read; `None` if there may be more.
    drained_at: Option<i64>,
    rejected: u64,
}

pub(super) enum ReadResult {
    Nothing,
    Commits(Commits),
}

impl Journal {
    pub fn open(path: &Path, start: &Start) -> Result<Journal, SourceError> {
        let file = file_identity(path)?;
        let mut connection = connect(path)?;
        journal_bounds(&connection)?;
        if let Err(why) = install_removal_trigger(&mut connection) {
            tracing::warn!(
                path = %path.display(), %why,
                "cannot record removals from the journal; every gap in it will count as lost deletes"
            );
        }
        let JournalBounds { oldest, newest, .. } = journal_bounds(&connection)?;
        let seq = match start {
            Start::Now => newest,
            Start::Earliest => oldest.map_or(newest, |oldest| oldest - 1),
            Start::At(position) => seq_of(position)?,
        };
        let journal = Journal { connection, path: path.to_path_buf(), file, seq, drained_at: None, rejected: 0 };
        journal.check_position_available()?;
        Ok(journal)
    }

    pub fn position(&self) -> Position {
        Position(self.seq.to_string())
    }

    /// Fails if another file has replaced the one that is open: no process writes to the old one any more, so reading
    /// it would wait forever.
    pub fn check_file(&self) -> Result<(), SourceError> {
        if file_identity(&self.path)? == self.file {
            return Ok(());
        }
        Err(SourceError::Unreachable { why: format!("{}: the file has been replaced", self.path.display()) })
    }

    /// How many invalid keys were ignored.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Reads up to `rows_max` rows after the last one read.
    pub fn read(&mut self, rows_max: usize) -> Result<ReadResult, SourceError> {
        let version = self
            .connection
            .query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0))
            .map_err(|why| source_error(&why))?;
        if self.drained_at == Some(version) {
            return Ok(ReadResult::Nothing);
        }
        let commits = self.rows(rows_max).map_err(|why| source_error(&why))?;
        let first = commits.first().map(|commit| commit.position.0.as_str());
        if first != Some((self.seq + 1).to_string().as_str()) {
            self.check_position_available()?;
        }
        let Some(last) = commits.last() else {
            self.drained_at = Some(version);
            return Ok(ReadResult::Nothing);
        };
        self.seq = seq_of(&last.position)?;
        Ok(ReadResult::Commits(Commits { position: self.position(), commits }))
    }

    fn rows(&mut self, rows_max: usize) -> rusqlite::Result<Vec<Commit>> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT seq, key, at_ms FROM lookaside_journal WHERE seq > ?1 ORDER BY seq LIMIT ?2")?;
        let mut rows = statement.query(params![self.seq, rows_max.max(1) as i64])?;
        let mut commits = Vec::new();
        while let Some(row) = rows.next()? {
            let mut keys = Vec::new();
            match row.get_ref(1)? {
                ValueRef::Blob(key) | ValueRef::Text(key) => push_valid_key(key, &mut keys, &mut self.rejected),
                ValueRef::Integer(key) => push_valid_key(key.to_string().as_bytes(), &mut keys, &mut self.rejected),
                ValueRef::Real(_) | ValueRef::Null => push_valid_key(b"", &mut keys, &mut self.rejected),
            }
            let at_ms = match row.get_ref(2)? {
                ValueRef::Integer(at_ms) => at_ms.max(0) as u64,
                ValueRef::Real(at_ms) => at_ms as u64,
                _ => 0,
            };
            commits.push(Commit {
                position: Position(row.get::<_, i64>(0)?.to_string()),
                keys,
                committed_at: SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms),
            });
        }
        Ok(commits)
    }

    /// Fails if rows after the position were removed.
    fn check_position_available(&self) -> Result<(), SourceError> {
        let JournalBounds { oldest, newest, removed } = journal_bounds(&self.connection)?;
        let lost = |why| Err(SourceError::PositionLost { position: self.position(), why });
        if newest < self.seq {
            return lost(format!("the journal ends at {newest}: this is another database or an older copy of it"));
        }
        match (removed, oldest) {
            (Some(removed), _) if removed > self.seq => lost(format!("rows up to {removed} were removed")),
            (Some(_), _) => Ok(()),
            (None, Some(oldest)) if oldest > self.seq + 1 => lost(format!("the oldest row in the journal is {oldest}")),
            (None, None) if newest > self.seq => lost(format!("the journal is empty, but had rows up to {newest}")),
            _ => Ok(()),
        }
    }
}

fn file_identity(path: &Path) -> Result<(u64, u64), SourceError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(why) => Err(SourceError::NotConnected { why: format!("{}: {why}", path.display()) }),
    }
}

/// Opens the file, which must exist.
pub(super) fn connect(path: &Path) -> Result<Connection, SourceError> {
    // Not read-only: a reader of a WAL database writes to shared memory.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|why| SourceError::NotConnected { why: format!("{}: {why}", path.display()) })?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(|why| source_error(&why))?;
    Ok(connection)
}

/// The position of the newest row that the journal holds. Not of the newest number, which may belong to no row.
pub(super) fn newest_row(path: &Path) -> Result<Position, SourceError> {
    let newest = connect(path)?
        .query_row("SELECT max(seq) FROM lookaside_journal", [], |row| row.get::<_, Option<i64>>(0))
        .map_err(|why| source_error(&why))?;
    Ok(Position(newest.unwrap_or(0).to_string()))
}

/// The numbers of the rows in the journal.
struct JournalBounds {
    /// The oldest row; `None` if the journal is empty.
    oldest: Option<i64>,
    /// The newest row that ever existed, or 0.
    newest: i64,
    /// The newest row that was removed, or 0; `None` if removals are not recorded.
    removed: Option<i64>,
}

fn journal_bounds(connection: &Connection) -> Result<JournalBounds, SourceError> {
    if !schema_has(connection, "table", "lookaside_journal").map_err(|why| source_error(&why))? {
        return Err(SourceError::Unusable {
            why: format!("the journal table is missing; create it with\n{JOURNAL_SQL}"),
        });
    }
    query_bounds(connection).map_err(|why| source_error(&why))
}

fn query_bounds(connection: &Connection) -> rusqlite::Result<JournalBounds> {
    let removed = match schema_has(connection, "trigger", "lookaside_journal_removed_row")? {
        true => connection.query_row("SELECT max(seq) FROM lookaside_journal_removed", [], |row| row.get(0))?,
        false => None,
    };
    connection.query_row(
        "SELECT (SELECT min(seq) FROM lookaside_journal),
                (SELECT max(seq) FROM sqlite_sequence WHERE name = 'lookaside_journal')",
        [],
        |row| {
            let newest = row.get::<_, Option<i64>>(1)?.unwrap_or(0);
            Ok(JournalBounds { oldest: row.get(0)?, newest, removed })
        },
    )
}

/// Installs the trigger that records removals, unless it exists.
fn install_removal_trigger(connection: &mut Connection) -> rusqlite::Result<()> {
    if schema_has(connection, "trigger", "lookaside_journal_removed_row")? {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another pipeline may have installed it meanwhile.
    if !schema_has(&transaction, "trigger", "lookaside_journal_removed_row")? {
        transaction.execute_batch(REMOVED_SQL)?;
    }
    transaction.commit()
}

fn schema_has(connection: &Connection, kind: &str, name: &str) -> rusqlite::Result<bool> {
    connection.query_row("SELECT count(*) FROM sqlite_schema WHERE type = ?1 AND name = ?2", [kind, name], |row| {
        Ok(row.get::<_, i64>(0)? > 0)
    })
}

pub(super) fn seq_of(position: &Position) -> Result<i64, SourceError> {
    position.0.parse().ok().filter(|seq| *seq >= 0).ok_or_else(|| SourceError::Unusable {
        why: format!("a position in a SQLite journal must be a number, not {:?}", position.0),
    })
}

pub(super) fn source_error(why: &rusqlite::Error) -> SourceError {
    match why.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) | None => {
            SourceError::Unusable { why: why.to_string() }
        }
        Some(_) => SourceError::Unreachable { why: why.to_string() },
    }
}
