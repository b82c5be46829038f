//! A change of a table, as each source reads it from its log.

use super::value::RowValue;
use std::fmt;

/// A column of a table, as the log or the catalogue names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Why its values cannot be written into keys, such as "of type double"; `None` if they can.
    pub refusal: Option<String>,
}

impl Column {
    /// A column whose values can be written into keys.
    pub fn writable(name: impl Into<String>) -> Column {
        Column { name: name.into(), refusal: None }
    }
}

/// A change of one row. An image has a value for each column of the table, in order; [`RowValue::NotInLog`] for those
/// that the log lacks.
#[derive(Clone, Copy, Debug)]
pub enum RowChange<'a> {
    /// A row was inserted.
    Insert {
        /// The new row.
        after: &'a [RowValue<'a>],
    },
    /// A row was changed.
    Update {
        /// The row as it was. If the log has no such image since its key did not change (PostgreSQL's default
        /// identity), the source gives it the key of `after`.
        before: &'a [RowValue<'a>],
        /// The row as it is. A column that is not in the log has not changed.
        after: &'a [RowValue<'a>],
    },
    /// A row was deleted.
    Delete {
        /// The row as it was.
        before: &'a [RowValue<'a>],
    },
}

/// A change of a table whose rows are not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// TRUNCATE, or a partition of the table was emptied.
    Truncate,
    /// DDL: the table was dropped, renamed, altered or replaced.
    SchemaChange,
    /// The log has a statement that may have changed rows, and not the rows (statement format).
    Statement,
    /// The log has rows, and it is not known which columns they have: they were written before an ALTER TABLE that the
    /// catalogue shows already.
    UnknownColumns,
    /// The log has rows without the names of their columns, which may have been exchanged since.
    UnnamedColumns,
    /// The log does not have the table's changes: it was not published (PostgreSQL).
    Unpublished,
    /// A row is in the log that is too long to be read.
    Oversized,
}

/// Why the keys of a change could not all be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inexpressible {
    /// See [`TableChange`].
    Table(TableChange),
    /// The row's image lacks a column that a template names.
    NotInLog,
    /// A value that cannot be written into a key.
    Unwritable,
    /// The rule does not fit the table: a column is missing or of a type that rules refuse.
    RuleRefused,
}

impl fmt::Display for Inexpressible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Inexpressible::Table(TableChange::Truncate) => "the table or a partition was truncated",
            Inexpressible::Table(TableChange::SchemaChange) => "the table was altered, renamed or dropped",
            Inexpressible::Table(TableChange::Statement) => "the log has a statement, and not the rows that it changed",
            Inexpressible::Table(TableChange::UnknownColumns) => {
                "the log's rows do not have the columns that the table has now"
            }
            Inexpressible::Table(TableChange::UnnamedColumns) => {
                "the log has no names of the columns of its rows (binlog_row_metadata)"
            }
            Inexpressible::Table(TableChange::Unpublished) => "the log does not have all changes of the table",
            Inexpressible::Table(TableChange::Oversized) => "a row is too long to be read from the log",
            Inexpressible::NotInLog => "the log lacks a column of the row",
            Inexpressible::Unwritable => "a value cannot be written into a key",
            Inexpressible::RuleRefused => "the rule does not fit the table",
        })
    }
}
