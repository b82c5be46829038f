//! Counters of the row rules. Each cluster's pipeline reads the log, so a change counts once for each cluster.

use lookaside_sync::{Mutex, SharedCounter};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The most tables with counters of their own. Reloads may name others; these share one more, named `other`.
const TABLES_MAX: usize = 1_000;
const OTHER_TABLES: &str = "other";

/// The counters of all rules.
#[derive(Debug, Default)]
pub struct RuleStatistics {
    /// Changes of rows and of tables with a rule.
    pub changes: SharedCounter,
    /// Keys that they named.
    pub keys: SharedCounter,
    /// Keys that no server accepts (over 250 bytes, spaces, control characters).
    pub keys_refused: SharedCounter,
    /// Changes that cannot be expressed as keys.
    pub inexpressible: SharedCounter,
    /// Changes that named no key, for whatever reason, though not those of ignored columns.
    pub without_key: SharedCounter,
    /// Changes for which rules demanded a flush.
    pub flushes: SharedCounter,
    /// How often the file was loaded, the start included.
    pub loads: SharedCounter,
    /// How often a changed file was refused.
    pub load_failures: SharedCounter,
    uncovered: AtomicU64,
    unpublished_outboxes: AtomicU64,
    tables: Mutex<BTreeMap<String, Arc<TableCounters>>>,
}

/// The counters of one table.
#[derive(Debug, Default)]
pub struct TableCounters {
    /// As [`RuleStatistics::inexpressible`].
    pub inexpressible: SharedCounter,
    /// As [`RuleStatistics::without_key`].
    pub without_key: SharedCounter,
}

impl RuleStatistics {
    /// PostgreSQL: how many rules have a table that is missing, or not all of whose changes the log has.
    pub fn uncovered(&self) -> u64 {
        self.uncovered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_uncovered(&self, rules: usize) {
        self.uncovered.store(rules as u64, Ordering::Relaxed);
    }

    /// PostgreSQL: how many outbox tables there are of which the publication does not have all inserted rows.
    pub fn unpublished_outboxes(&self) -> u64 {
        self.unpublished_outboxes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_unpublished_outboxes(&self, tables: usize) {
        self.unpublished_outboxes.store(tables as u64, Ordering::Relaxed);
    }

    /// The counters of a table.
    pub(super) fn table(&self, name: String) -> Arc<TableCounters> {
        let mut tables = self.tables.lock();
        let name = if tables.len() < TABLES_MAX || tables.contains_key(&name) { name } else { OTHER_TABLES.into() };
        tables.entry(name).or_default().clone()
    }

    /// The first `tables_max` tables, by name, of whose changes some could not be expressed or named no key, with both
    /// numbers.
    pub fn tables_at_fault(&self, tables_max: usize) -> Vec<(String, u64, u64)> {
        let tables = self.tables.lock();
        let numbers = tables
            .iter()
            .map(|(name, counters)| (name.clone(), counters.inexpressible.value(), counters.without_key.value()));
        numbers.filter(|(_, inexpressible, without_key)| inexpressible + without_key > 0).take(tables_max).collect()
    }
}
