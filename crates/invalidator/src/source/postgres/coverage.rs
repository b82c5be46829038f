//! Tables whose changes are not in the log: what the catalogue shows of them is compared with what it showed before.
//!
//! DDL is not in this log. A table that is dropped and created again is not in the publication any more, and an ALTER TABLE
//! may rewrite all rows: nothing in the log tells. So the catalogue is read at intervals, and what a change of it may have
//! hidden is inexpressible:
//!
//! | the catalogue | change |
//! |---|---|
//! | the table is not published any more, or only in part | unpublished, once |
//! | it is published again | unpublished, once more: what was committed in between is not in the log |
//! | another table has its name, or it has other columns | the schema was changed |
//! | a partition is gone, or has another file | truncated |
//!
//! The state outlives sources, so a change while the database could not be read is found, too; a restart of the daemon
//! begins with what it finds. A change that was found is not in the log, so it is repeated by the next source until a
//! later position is safe on disk. Sans-I/O.

use super::{
    catalogue::Catalogue,
    lsn::Lsn,
    rule_check::{check_coverage, publish_problem},
};
use crate::rules::{ProblemKind, Rule, Rules, TableChange, TableName};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What the catalogue showed of tables with a rule.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    seen: BTreeMap<TableName, TableCoverage>,
    /// Changes that may not be safe on disk yet, and the position at which they were found.
    unsaved: Vec<(Arc<Rule>, TableChange, Lsn)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TableCoverage {
    /// The id of the table and a digest of its columns, if its changes are in the log; `None` if they are not.
    schema: Option<(String, String)>,
    partitions: BTreeSet<String>,
    /// Why the rule cannot name all keys; empty if it can.
    problems: Vec<String>,
}

impl Coverage {
    /// The changes that an earlier source found and that may be lost, as everything before `saved` is safe on disk.
    pub fn unsaved(&mut self, saved: Lsn) -> Vec<(Arc<Rule>, TableChange)> {
        self.unsaved.retain(|(_, _, found_at)| *found_at >= saved);
        self.unsaved.iter().map(|(rule, change, _)| (rule.clone(), *change)).collect()
    }

    /// How many rules have a table that is missing, or not all of whose changes the log has.
    pub fn uncovered(&self) -> usize {
        self.seen.values().filter(|table| !table.problems.is_empty()).count()
    }

    /// Compares `catalogue` with what was seen before, and logs problems that are new. Returns the changes that may not
    /// be in the log, which has been read up to `read`.
    pub fn observe(
        &mut self,
        rules: &Rules,
        catalogue: &Catalogue,
        publication: &str,
        read: Lsn,
    ) -> Vec<(Arc<Rule>, TableChange)> {
        let mut changes = Vec::new();
        let former = std::mem::take(&mut self.seen);
        for rule in rules.iter() {
            let table = catalogue.get(&rule.table);
            let mut problems = check_coverage(rule, table, publication);
            if table.is_some_and(|table| table.is_published && !table.has_all_changes) {
                problems.push((ProblemKind::LogLacks, publish_problem(publication)));
            }
            let is_covered = table.is_some_and(|table| {
                table.is_published && table.has_all_changes && table.filter.is_none() && table.hidden_columns.is_none()
            });
            let present = TableCoverage {
                schema: table.filter(|_| is_covered).map(|table| (table.id.clone(), table.columns_digest.clone())),
                partitions: table.map(|table| table.partitions.clone()).unwrap_or_default(),
                problems: problems
                    .into_iter()
                    .filter(|(kind, _)| *kind != ProblemKind::Warning)
                    .map(|(_, why)| why)
                    .collect(),
            };
            let before = former.get(&rule.table);
            if before.is_none_or(|before| before.problems != present.problems) {
                log_problems(rule, &present.problems, before.is_some());
            }
            if let Some(change) = before.and_then(|before| before.change_to(&present)) {
                changes.push((rule.clone(), change));
            }
            self.seen.insert(rule.table.clone(), present);
        }
        for (rule, change) in &changes {
            self.unsaved.retain(|(known, other, _)| (&known.table, other) != (&rule.table, change));
            self.unsaved.push((rule.clone(), *change, read));
        }
        changes
    }
}

impl TableCoverage {
    /// What may not be in the log if the catalogue showed this first and now `present`.
    fn change_to(&self, present: &TableCoverage) -> Option<TableChange> {
        match (&self.schema, &present.schema) {
            (None, None) => None,
            (Some(before), Some(now)) if before != now => Some(TableChange::SchemaChange),
            (Some(_), Some(_)) => (!self.partitions.is_subset(&present.partitions)).then_some(TableChange::Truncate),
            _ => Some(TableChange::Unpublished),
        }
    }
}

fn log_problems(rule: &Rule, problems: &[String], is_known: bool) {
    let table = &rule.table;
    match problems {
        [] if is_known => tracing::info!(%table, "the log has all that the rule needs"),
        [] => {}
        _ => tracing::error!(
            %table,
            why = %problems.join("; "),
            "the table of a rule: changes may be missing, and cached values stale; correct it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::catalogue::DeclaredTable, *};

    fn table(id: &str, is_published: bool, partitions: &[&str]) -> DeclaredTable {
        DeclaredTable {
            id: id.into(),
            kind: "r".into(),
            persistence: "p".into(),
            is_published,
            has_all_changes: true,
            partitions: partitions.iter().map(|partition| (*partition).into()).collect(),
            ..DeclaredTable::default()
        }
    }

    #[test]
    fn what_the_log_cannot_show_is_a_change() {
        use TableChange::{SchemaChange, Truncate, Unpublished};
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}']").expect("valid");
        let name = TableName { schema: "app".into(), name: "users".into() };
        let mut coverage = Coverage::default();
        let filtered = DeclaredTable { filter: Some("id > 3".into()), ..table("1", true, &[]) };
        for (step, (found, expected)) in [
            (None, None),
            (Some(table("1", false, &[])), None),
            (Some(table("1", true, &[])), Some(Unpublished)),
            (Some(table("1", true, &[])), None),
            (Some(filtered), Some(Unpublished)),
            (None, None),
            (Some(table("2", true, &[])), Some(Unpublished)),
            (Some(table("3", true, &["4:4"])), Some(SchemaChange)),
            (Some(table("3", true, &["4:4", "5:5"])), None),
            (Some(table("3", true, &["4:4", "5:6"])), Some(Truncate)),
            (Some(table("3", true, &["4:4"])), Some(Truncate)),
            (None, Some(Unpublished)),
        ]
        .into_iter()
        .enumerate()
        {
            let catalogue = found.map(|found| (name.clone(), found)).into_iter().collect();
            let changes = coverage.observe(&rules, &catalogue, "lookaside", Lsn(step as u64));
            assert_eq!(changes.first().map(|(_, change)| *change), expected, "step {step}");
        }
        let unsaved = |saved| coverage.unsaved(Lsn(saved)).into_iter().map(|(_, change)| change).collect::<Vec<_>>();
        let mut unsaved = unsaved;
        assert_eq!(unsaved(0), [SchemaChange, Truncate, Unpublished], "each once");
        assert_eq!(unsaved(11), [Unpublished]);
        assert_eq!(unsaved(12), []);
    }
}
