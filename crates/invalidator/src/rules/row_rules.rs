//! The rules in use, shared by the sources of all clusters. A reload replaces them.

use super::{
    file::{Rules, TableName},
    statistics::RuleStatistics,
};
use lookaside_sync::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// How often a table that cannot be seen is reported again.
const UNSEEN_REPORT_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The rules in use, and their counters.
#[derive(Debug, Default)]
pub struct RowRules {
    current: Mutex<Arc<Rules>>,
    version: AtomicU64,
    /// The tables that could not be seen when one was looked for last, and when that was reported.
    unseen: Mutex<BTreeMap<TableName, Instant>>,
    /// The counters.
    pub statistics: RuleStatistics,
}

impl RowRules {
    /// Uses `rules` until [`RowRules::replace`].
    pub fn new(rules: Rules) -> Arc<RowRules> {
        let row_rules = RowRules { current: Mutex::new(Arc::new(rules)), ..RowRules::default() };
        Arc::new(row_rules)
    }

    /// Uses `rules` from now on. Sources notice at the next change that they read.
    pub fn replace(&self, rules: Rules) {
        let is_ruled = |table: &TableName| rules.rule(table.schema.as_bytes(), table.name.as_bytes()).is_some();
        self.unseen.lock().retain(|table, _| is_ruled(table));
        *self.current.lock() = Arc::new(rules);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The rules in use.
    pub fn current(&self) -> Arc<Rules> {
        self.current.lock().clone()
    }

    /// Records whether a source can see a table with a rule, for which the source of each cluster looks every few
    /// seconds. True if that it cannot is to be reported: at first, and once an hour.
    pub(crate) fn record_seen(&self, table: &TableName, is_seen: bool) -> bool {
        let (now, mut unseen) = (Instant::now(), self.unseen.lock());
        if is_seen {
            unseen.remove(table);
            return false;
        }
        let is_due = unseen.get(table).is_none_or(|reported| now >= *reported + UNSEEN_REPORT_INTERVAL);
        if is_due {
            unseen.insert(table.clone(), now);
        }
        is_due
    }

    /// Grows with every replacement: reading it is cheaper than [`RowRules::current`].
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that does not exist was reported every 5 s by the source of each cluster, for ever.
    #[tokio::test(start_paused = true)]
    async fn a_table_that_cannot_be_seen_is_reported_once_an_hour_for_all_clusters() {
        let rules = Rules::parse("[[rule]]\ntable = 'app.users'\nkeys = ['a']").expect("valid");
        let table = TableName { schema: "app".into(), name: "users".into() };
        let other = TableName { schema: "app".into(), name: "posts".into() };
        let row_rules = RowRules::new(rules.clone());
        let mut reports = 0;
        for _ in 0..2 * 60 * 60 / 5 {
            for _cluster in 0..2 {
                reports += u32::from(row_rules.record_seen(&table, false));
            }
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        assert_eq!(reports, 2, "in two hours");
        assert!(row_rules.record_seen(&other, false), "another table");
        assert!(row_rules.record_seen(&table, false) && !row_rules.record_seen(&table, false));
        assert!(!row_rules.record_seen(&table, true));
        assert!(row_rules.record_seen(&table, false), "it was seen in between");
        row_rules.replace(Rules::default());
        row_rules.replace(rules);
        assert!(row_rules.record_seen(&table, false), "its rule is new");
    }
}
