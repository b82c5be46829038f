//! Tables whose changes are not in the log: what the catalogue shows of them is compared with what it showed before.
//!
//! DDL is not in this log. A table that is dropped and created again is not in the publication any more, and an ALTER
//! TABLE may rewrite all rows: nothing in the log tells. So the catalogue is read at intervals, and what a change of it
//! may have hidden is inexpressible:
//!
//! | the catalogue | change |
//! |---|---|
//! | the table is not published any more, or only in part | unpublished, once |
//! | it is published again | unpublished, once more: what was committed in between is not in the log |
//! | another table has its name, or it has other columns | the schema was changed |
//! | the table left the publication and is back, or the publication has other options | the same |
//! | a partition with rows is new, which may have been a table of its own | the same |
//! | a partition is gone, was detached for a moment, or has another file | truncated |
//!
//! **Transactions that are open while a table is added to the publication** have changed rows of it before, which are not
//! in the log either. So such a change is found once more when the transactions have ended that had the table locked when
//! it was found, and is not acknowledged before.
//!
//! The catalogue is compared with what an earlier source saw; if there was none in this process, with digests of what
//! an earlier process saw, or another invalidator. These are kept where positions are ([`SeenTables`]), so DDL while no
//! invalidator looks is found by the next one. A table without a digest begins with what is found, and the log says so.
//!
//! A change that was found is not in the log. So
//!
//! * it is emitted at a position that no cluster has saved before, since clusters skip what comes before theirs: looks
//!   begin when the log has been read up to what was delivered;
//! * the next source repeats it, unless it is safe on disk;
//! * until every cluster has saved a later position, the kept digest is the one from before the change, and marked as
//!   pending: the next process, or another invalidator, finds the change again, for all clusters. On a database without
//!   commits the position does not move, so a restart may repeat it although all have acknowledged it.
//!
//! An outbox table is looked at, too: if the publication does not have its rows, the log says so, and what to do.
//!
//! Sans-I/O.

use super::{
    catalogue::{Catalogue, DeclaredTable},
    found_change::FoundChange,
    lsn::Lsn,
    open_writers::OpenWriters,
    seen_tables::{SeenTable, SeenTables},
    setup::quote_name,
    table_coverage::{LoggedTable, TableCoverage, Unlogged},
};
use crate::rules::{Rule, Rules, TableChange, TableName};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::sync::watch;

/// What the catalogue showed of tables with a rule.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    seen: BTreeMap<TableName, TableCoverage>,
    unacknowledged: Vec<FoundChange>,
    /// The outbox tables whose keys are not in the log.
    unpublished_outboxes: BTreeSet<String>,
    /// What is to be kept beyond the end of the process; at first, what an earlier one has left.
    kept: watch::Sender<SeenTables>,
}

impl Coverage {
    /// Nothing was seen in this process, and `kept` by an earlier one.
    pub fn new(kept: watch::Sender<SeenTables>) -> Coverage {
        Coverage { kept, ..Coverage::default() }
    }

    /// A source reads from `from` on. What was emitted at `from` or later may be lost, and what a source that does not
    /// resume begins with is another part of the log, or another log.
    pub fn begin_source(&mut self, from: Lsn, is_resumed: bool) {
        for found in &mut self.unacknowledged {
            if !is_resumed || found.emitted_at.is_some_and(|emitted_at| emitted_at >= from) {
                found.emitted_at = None;
            }
        }
    }

    /// Every cluster has saved `position`.
    pub fn acknowledge(&mut self, position: Lsn) {
        let before = self.unacknowledged.len();
        self.unacknowledged.retain(|found| !found.is_acknowledged(position));
        if self.unacknowledged.len() != before {
            self.keep();
        }
    }

    /// How many rules have a table that is missing, or not all of whose changes the log has.
    pub fn uncovered(&self) -> usize {
        self.seen.values().filter(|table| !table.problems.is_empty()).count()
    }

    /// Takes note of the outbox tables of which the publication does not have all inserted rows, and logs what has
    /// changed.
    pub fn observe_outboxes(&mut self, unpublished: BTreeSet<String>, publication: &str) {
        for table in unpublished.difference(&self.unpublished_outboxes) {
            tracing::error!(
                %table,
                "not all rows of the outbox are in the publication {publication}: keys are LOST, and cached values stale; \
                 run `lookaside invalidator setup`, after ALTER PUBLICATION {publication} DROP TABLE {table} if it has a \
                 row filter there, and then empty the clusters",
                publication = quote_name(publication)
            );
        }
        for table in self.unpublished_outboxes.difference(&unpublished) {
            tracing::info!(%table, "all rows of the outbox are in the publication again, or the table is gone");
        }
        self.unpublished_outboxes = unpublished;
    }

    /// How many outbox tables there are whose keys are not in the log.
    pub fn unpublished_outboxes(&self) -> usize {
        self.unpublished_outboxes.len()
    }

    /// The partitions of `catalogue` that are new and may have been tables before: it matters whether they have rows.
    pub fn newly_attached(&self, catalogue: &Catalogue) -> BTreeSet<String> {
        let of_table = |(name, table): (&TableName, &DeclaredTable)| {
            let known = self.seen.get(name)?;
            Some(table.attached.difference(&known.partitions).cloned().collect::<Vec<_>>())
        };
        catalogue.iter().filter_map(of_table).flatten().collect()
    }

    /// Whether it matters which transactions have changed tables of `catalogue`.
    pub fn needs_writers(&self, catalogue: &Catalogue) -> bool {
        let is_known = |(name, table): (&TableName, &DeclaredTable)| {
            let logged = self.seen.get(name).map(|seen| &seen.logged);
            logged.is_some_and(|logged| *logged == LoggedTable::of(Some(table)))
        };
        !self.unacknowledged.iter().all(|found| found.writers.is_empty()) || !catalogue.iter().all(is_known)
    }

    /// Compares `catalogue` with what was seen before, and logs problems that are new. `writers` are open transactions that
    /// have changed its tables, after it had been read. The log has been read up to `read`. Returns the changes to be
    /// emitted now, as they may not be in the log.
    pub fn observe(
        &mut self,
        rules: &Rules,
        (catalogue, writers): (&Catalogue, &OpenWriters),
        publication: &str,
        read: Lsn,
    ) -> Vec<(Arc<Rule>, TableChange)> {
        for found in self.unacknowledged.iter_mut().filter(|found| !found.writers.is_empty()) {
            found.await_writers(writers.get(&found.table));
        }
        let former = std::mem::take(&mut self.seen);
        for rule in rules.iter() {
            let present = TableCoverage::of(rule, catalogue, publication);
            let before = former.get(&rule.table);
            if before.is_none_or(|before| before.problems != present.problems) {
                log_problems(rule, &present.problems, before.is_some());
            }
            let unlogged = match before {
                Some(before) => before.unlogged_until(&present),
                None => self.unlogged_since_kept(rule, &present),
            };
            if let Some(Unlogged { change, is_added }) = unlogged {
                let is_same = |known: &mut FoundChange| (&known.table, known.change) == (&rule.table, change);
                let known = self.unacknowledged.extract_if(.., is_same).flat_map(|known| known.writers);
                let added = writers.get(&rule.table).filter(|_| is_added).into_iter().flatten().cloned();
                let waits_for: BTreeSet<String> = known.chain(added).collect();
                log_open_writers(rule, &waits_for);
                self.unacknowledged.push(FoundChange::new(rule.table.clone(), change, waits_for));
            }
            self.seen.insert(rule.table.clone(), present);
        }
        // Without a rule there is nothing to delete.
        self.unacknowledged.retain(|found| rule_of(rules, &found.table).is_some());
        self.keep();
        let emitted = self.unacknowledged.iter_mut().filter(|found| found.emitted_at.is_none());
        emitted
            .filter_map(|found| {
                found.emitted_at = Some(read);
                Some((rule_of(rules, &found.table)?.clone(), found.change))
            })
            .collect()
    }

    /// What may not be in the log, if this process has not seen the table before.
    fn unlogged_since_kept(&self, rule: &Rule, present: &TableCoverage) -> Option<Unlogged> {
        let kept = self.kept.borrow();
        let Some(kept) = kept.get(&rule.table) else {
            tracing::info!(
                table = %rule.table,
                "first look at the table of a rule: what DDL did before is unknown; empty the clusters if it was changed"
            );
            return None;
        };
        let change = kept.change_to(&present.digests())?;
        Some(Unlogged { change, is_added: present.logged.is_some() && change != TableChange::Truncate })
    }

    /// Brings what is kept up to date.
    fn keep(&self) {
        let kept = |table: &TableName, seen: &TableCoverage| {
            let is_pending = self.unacknowledged.iter().any(|found| found.table == *table);
            let before = self.kept.borrow().get(table).filter(|_| is_pending).cloned();
            SeenTable { is_pending, ..before.unwrap_or_else(|| seen.digests()) }
        };
        let tables: SeenTables = self.seen.iter().map(|(table, seen)| (table.clone(), kept(table, seen))).collect();
        self.kept.send_if_modified(|kept| {
            let is_new = *kept != tables;
            *kept = tables;
            is_new
        });
    }
}

fn rule_of<'r>(rules: &'r Rules, table: &TableName) -> Option<&'r Arc<Rule>> {
    rules.rule(table.schema.as_bytes(), table.name.as_bytes())
}

fn log_open_writers(rule: &Rule, writers: &BTreeSet<String>) {
    if writers.is_empty() {
        return;
    }
    let (table, transactions) = (&rule.table, writers.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
    tracing::info!(
        %table, transactions,
        "transactions are open that may have changed rows before the table was in the publication; it counts as changed \
         once more when they have ended (pg_locks.virtualtransaction)"
    );
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
    use super::*;

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
        let with_attached = |partition: &str| DeclaredTable {
            attached: [partition.to_owned()].into(),
            ..table("3", true, &["4:4", partition])
        };
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
            (Some(with_attached("6:6")), Some(SchemaChange)),
            (Some(with_attached("6:6")), None),
            (
                Some(DeclaredTable { membership_digest: "of options".into(), ..with_attached("6:6") }),
                Some(SchemaChange),
            ),
            (None, Some(Unpublished)),
        ]
        .into_iter()
        .enumerate()
        {
            let catalogue = found.map(|found| (name.clone(), found)).into_iter().collect();
            let changes = coverage.observe(&rules, (&catalogue, &OpenWriters::new()), "lookaside", Lsn(step as u64));
            assert_eq!(changes.first().map(|(_, change)| *change), expected, "step {step}");
        }
        let mut left = |acknowledged| {
            coverage.acknowledge(Lsn(acknowledged));
            coverage.unacknowledged.iter().map(|found| found.change).collect::<Vec<_>>()
        };
        assert_eq!(left(0), [Truncate, SchemaChange, Unpublished], "each once");
        assert_eq!(left(14), [Unpublished]);
        assert_eq!(left(15), []);
    }

    /// What `coverage` finds when the table is `found` and the log was read up to `read`.
    fn changes(coverage: &mut Coverage, found: &DeclaredTable, read: u64) -> Vec<TableChange> {
        changes_beside(&[], coverage, found, read)
    }

    /// The same while these transactions have changed it.
    fn changes_beside(writers: &[&str], coverage: &mut Coverage, found: &DeclaredTable, read: u64) -> Vec<TableChange> {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['u:{id}']").expect("valid");
        let name = TableName { schema: "app".into(), name: "users".into() };
        let catalogue = [(name.clone(), found.clone())].into();
        let writers: OpenWriters = match coverage.needs_writers(&catalogue) {
            true => [(name, writers.iter().map(|writer| (*writer).into()).collect())].into(),
            false => OpenWriters::new(),
        };
        let changes = coverage.observe(&rules, (&catalogue, &writers), "lookaside", Lsn(read));
        changes.into_iter().map(|(_, change)| change).collect()
    }

    /// The next process, which has what this one wanted to be kept.
    fn restarted(coverage: &Coverage) -> Coverage {
        Coverage::new(watch::Sender::new(coverage.kept.borrow().clone()))
    }

    #[test]
    fn a_change_is_found_again_by_the_next_process_until_all_have_acknowledged_it() {
        use TableChange::{SchemaChange, Truncate, Unpublished};
        let mut coverage = Coverage::default();
        let (before, after) = (table("1", true, &["2:2"]), table("1", true, &["2:3"]));
        assert_eq!(changes(&mut coverage, &before, 5), []);
        assert_eq!(changes(&mut restarted(&coverage), &before, 5), [], "nothing has changed");
        assert_eq!(changes(&mut restarted(&coverage), &after, 5), [Truncate], "it came before the crash or after it");
        assert_eq!(changes(&mut coverage, &after, 6), [Truncate]);
        assert_eq!(changes(&mut restarted(&coverage), &after, 6), [Truncate]);
        assert_eq!(changes(&mut restarted(&restarted(&coverage)), &after, 6), [Truncate]);
        coverage.acknowledge(Lsn(6));
        assert_eq!(changes(&mut restarted(&coverage), &after, 6), [Truncate], "it may come after the position");
        coverage.acknowledge(Lsn(7));
        assert_eq!(changes(&mut restarted(&coverage), &after, 6), []);
        // It becomes what it was before.
        assert_eq!(changes(&mut coverage, &table("1", false, &["2:3"]), 8), [Unpublished]);
        assert_eq!(changes(&mut coverage, &after, 9), [Unpublished]);
        assert_eq!(changes(&mut restarted(&coverage), &after, 9), [SchemaChange]);
        coverage.acknowledge(Lsn(9));
        assert_eq!(changes(&mut restarted(&coverage), &after, 9), [SchemaChange]);
        coverage.acknowledge(Lsn(10));
        assert_eq!(changes(&mut restarted(&coverage), &after, 10), []);
    }

    #[test]
    fn a_change_is_repeated_by_the_next_source_unless_it_is_on_disk() {
        use TableChange::SchemaChange;
        let mut coverage = Coverage::default();
        let (before, after) = (table("1", true, &[]), table("2", true, &[]));
        assert_eq!(changes(&mut coverage, &before, 5), []);
        assert_eq!(changes(&mut coverage, &after, 6), [SchemaChange]);
        assert_eq!(changes(&mut coverage, &after, 6), [], "once");
        coverage.begin_source(Lsn(7), true);
        assert_eq!(changes(&mut coverage, &after, 7), []);
        coverage.begin_source(Lsn(6), true);
        // Before this one has looked it fails.
        coverage.begin_source(Lsn(7), true);
        coverage.acknowledge(Lsn(9));
        assert_eq!(changes(&mut coverage, &after, 9), [SchemaChange]);
        coverage.begin_source(Lsn(20), false);
        assert_eq!(changes(&mut coverage, &after, 20), [SchemaChange], "the log is another one");
    }

    /// They have changed rows that the log does not have, and may commit at any time.
    #[test]
    fn a_table_that_was_added_is_found_again_when_the_transactions_of_that_moment_have_ended() {
        use TableChange::{SchemaChange, Unpublished};
        let mut coverage = Coverage::default();
        let (absent, added) = (table("1", false, &[]), table("1", true, &[]));
        assert_eq!(changes(&mut coverage, &added, 1), []);
        assert_eq!(changes_beside(&["3/1"], &mut coverage, &absent, 2), [Unpublished]);
        assert_eq!(changes(&mut coverage, &absent, 3), [], "it is not added");
        assert_eq!(changes_beside(&["3/2", "-1/7"], &mut coverage, &added, 4), [Unpublished]);
        for writers in [&["3/2", "-1/7"][..], &["-1/7", "4/1"]] {
            assert_eq!(changes_beside(writers, &mut coverage, &added, 5), [], "one of them is open");
            coverage.acknowledge(Lsn(9));
        }
        assert_eq!(changes(&mut restarted(&coverage), &added, 6), [SchemaChange], "the next process finds it, too");
        assert_eq!(changes_beside(&["4/1"], &mut coverage, &added, 10), [Unpublished], "they have ended");
        assert_eq!(changes(&mut coverage, &added, 11), [], "once");
        coverage.acknowledge(Lsn(11));
        assert_eq!(changes(&mut restarted(&coverage), &added, 11), []);
        // One is prepared, and has another id after a restart of the server.
        assert_eq!(changes(&mut coverage, &absent, 11), [Unpublished]);
        assert_eq!(changes_beside(&["3/9"], &mut coverage, &added, 11), [Unpublished]);
        for repeated in [&[Unpublished][..], &[]] {
            assert_eq!(changes_beside(&["-1/8", "4/9"], &mut coverage, &added, 11), repeated);
        }
        coverage.acknowledge(Lsn(12));
        assert_eq!(changes_beside(&["-1/9"], &mut coverage, &added, 12), [Unpublished], "it has ended");
        assert_eq!(changes_beside(&["-1/9"], &mut coverage, &added, 12), [], "it is not one of them");
        coverage.acknowledge(Lsn(13));
        assert_eq!(changes(&mut restarted(&coverage), &added, 13), []);
        // It left the publication and is back, between two looks.
        let again = DeclaredTable { membership_digest: "of another row".into(), ..added };
        assert_eq!(changes_beside(&["5/1"], &mut coverage, &again, 12), [SchemaChange]);
        assert_eq!(changes_beside(&["5/2"], &mut coverage, &again, 13), [SchemaChange]);
        // An ALTER TABLE waits for all transactions that use the table.
        let altered = DeclaredTable { columns_digest: "of others".into(), ..again };
        assert_eq!(changes_beside(&["5/3"], &mut coverage, &altered, 14), [SchemaChange]);
        assert_eq!(changes(&mut coverage, &altered, 15), []);
    }

    /// The rule that is in force is what says which keys to delete.
    #[test]
    fn a_change_that_is_repeated_follows_the_rules_of_its_time() {
        let mut coverage = Coverage::default();
        let name = TableName { schema: "app".into(), name: "users".into() };
        let writers: OpenWriters = [(name.clone(), ["3/1".to_owned()].into())].into();
        let mut keys_found = |rules: &Rules, found: DeclaredTable, writers: &OpenWriters| {
            let catalogue = [(name.clone(), found)].into();
            let changes = coverage.observe(rules, (&catalogue, writers), "lookaside", Lsn(1));
            changes.iter().map(|(rule, _)| rule.templates[0].to_string()).collect::<Vec<_>>()
        };
        let rules = |key| Rules::parse(&format!("[[rule]]\ntable = 'app.users'\nkeys = ['{key}']")).expect("valid");
        let (before, after, none) = (&rules("u:{id}"), &rules("v"), &Rules::default());
        assert!(keys_found(before, table("1", false, &[]), &writers).is_empty());
        assert_eq!(keys_found(before, table("1", true, &[]), &writers), ["u:{id}"]);
        assert_eq!(keys_found(after, table("1", true, &[]), &OpenWriters::new()), ["v"]);
        assert_eq!(keys_found(before, table("1", false, &[]), &writers), ["u:{id}"]);
        assert_eq!(keys_found(before, table("1", true, &[]), &writers), ["u:{id}"]);
        assert!(keys_found(none, table("1", true, &[]), &OpenWriters::new()).is_empty(), "there is no rule any more");
        assert!(coverage.unacknowledged.is_empty());
    }
}
