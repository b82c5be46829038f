//! What the catalogue shows of a table with a rule, and what may not be in the log if it showed something else before
//! ([`super::coverage`]).
//!
//! Sans-I/O.

use super::{
    catalogue::{Catalogue, DeclaredTable},
    rule_check::{check_coverage, publish_problem},
    seen_tables::{SeenTable, digest},
};
use crate::rules::{ProblemKind, Rule, TableChange};
use std::collections::BTreeSet;

/// What the catalogue shows of the table of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableCoverage {
    /// `None` if the table's changes are not in the log.
    pub logged: Option<LoggedTable>,
    pub partitions: BTreeSet<String>,
    /// The partitions with rows that may have been tables before.
    attached: BTreeSet<String>,
    /// Why the rule cannot name all keys; empty if it can.
    pub problems: Vec<String>,
}

/// A table whose changes are in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedTable {
    id: String,
    /// Digests of its columns, and of how it is in the publication.
    columns: String,
    membership: String,
}

/// What may not be in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unlogged {
    pub change: TableChange,
    /// Whether the table is in the publication only since then.
    pub is_added: bool,
}

impl LoggedTable {
    /// `None` if not all changes of `table` are in the log.
    pub fn of(table: Option<&DeclaredTable>) -> Option<LoggedTable> {
        let is_covered = |table: &&DeclaredTable| {
            table.is_published && table.has_all_changes && table.filter.is_none() && table.hidden_columns.is_none()
        };
        table.filter(is_covered).map(|table| LoggedTable {
            id: table.id.clone(),
            columns: table.columns_digest.clone(),
            membership: table.membership_digest.clone(),
        })
    }

    fn digest(&self) -> String {
        digest([self.id.as_str(), &self.columns, &self.membership])
    }
}

impl TableCoverage {
    /// What `catalogue` shows of the table of `rule`.
    pub fn of(rule: &Rule, catalogue: &Catalogue, publication: &str) -> TableCoverage {
        let table = catalogue.get(&rule.table);
        let mut problems = check_coverage(rule, table, publication);
        if table.is_some_and(|table| table.is_published && !table.has_all_changes) {
            problems.push((ProblemKind::LogLacks, publish_problem(publication)));
        }
        TableCoverage {
            logged: LoggedTable::of(table),
            partitions: table.map(|table| table.partitions.clone()).unwrap_or_default(),
            attached: table.map(|table| table.attached.clone()).unwrap_or_default(),
            problems: problems
                .into_iter()
                .filter(|(kind, _)| *kind != ProblemKind::Warning)
                .map(|(_, why)| why)
                .collect(),
        }
    }

    /// What is kept of it.
    pub fn digests(&self) -> SeenTable {
        SeenTable {
            schema: self.logged.as_ref().map(LoggedTable::digest),
            partitions: digest(self.partitions.iter().map(String::as_str)),
            is_pending: false,
        }
    }

    /// What may not be in the log if the catalogue showed this first and now `present`.
    pub fn unlogged_until(&self, present: &TableCoverage) -> Option<Unlogged> {
        let (before, now) = match (&self.logged, &present.logged) {
            (None, None) => return None,
            (Some(before), Some(now)) => (before, now),
            (_, now) => return Some(Unlogged { change: TableChange::Unpublished, is_added: now.is_some() }),
        };
        let has_attached = present.attached.difference(&self.partitions).next().is_some();
        if before != now || has_attached {
            let is_added = before.membership != now.membership;
            return Some(Unlogged { change: TableChange::SchemaChange, is_added });
        }
        let is_emptied = !self.partitions.is_subset(&present.partitions);
        is_emptied.then_some(Unlogged { change: TableChange::Truncate, is_added: false })
    }
}
