//! A table with a rule, as a source reads its changes: keys with counters, log lines and the wider action.
//!
//! A source makes one when its log describes a table, and again when the description or the rules have changed.

use super::{
    bound_rule::{BoundRule, Refused, Written, write_constant_keys},
    change::{Column, Inexpressible, RowChange, TableChange},
    file::Rule,
    row_rules::RowRules,
    statistics::TableCounters,
};
use crate::keys::Flush;
use lookaside_protocol::{KeyError, check_key};
use lookaside_telemetry::LogThrottle;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The least time between two log messages about one table.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// A table with a rule.
pub struct WatchedTable {
    rule: Arc<Rule>,
    /// `None` if the rule does not fit the table, or its columns are not known.
    bound: Option<BoundRule>,
    shared: Arc<RowRules>,
    counters: Arc<TableCounters>,
    scratch: Vec<u8>,
    log: LogThrottle<Instant>,
    refused_log: LogThrottle<Instant>,
}

/// Keys that no server accepts.
#[derive(Default)]
struct RefusedKeys {
    count: u64,
    /// The first one, and the reason.
    first: Option<(String, KeyError)>,
}

impl RefusedKeys {
    /// Appends a key to `keys`, or counts it here.
    fn push_valid(&mut self, key: &[u8], keys: &mut Vec<Vec<u8>>) {
        match check_key(key) {
            Ok(()) => keys.push(key.to_vec()),
            Err(why) => {
                self.count += 1;
                self.first.get_or_insert_with(|| (String::from_utf8_lossy(key).into_owned(), why));
            }
        }
    }
}

impl WatchedTable {
    /// The table of `rule`, with these columns; `None` if the source does not know them. A rule that does not fit is
    /// logged; each change is then inexpressible.
    pub fn new(shared: Arc<RowRules>, rule: Arc<Rule>, columns: Option<&[Column]>) -> WatchedTable {
        let bound = columns.and_then(|columns| match BoundRule::bind(&rule, columns) {
            Ok(bound) => Some(bound),
            Err(Refused(reasons)) => {
                tracing::error!(
                    table = %rule.table,
                    why = reasons.join("; "),
                    "the rule does not fit the table, so its changes name no keys; correct the rule file"
                );
                None
            }
        });
        let counters = shared.statistics.table(rule.table.to_string());
        let (log, refused_log) = (LogThrottle::new(1, LOG_INTERVAL_MIN), LogThrottle::new(1, LOG_INTERVAL_MIN));
        WatchedTable { rule, bound, shared, counters, scratch: Vec::new(), log, refused_log }
    }

    /// Whether [`WatchedTable::add_row`] needs the value of column `at`; the others may be
    /// [`NotInLog`](super::RowValue::NotInLog).
    pub fn needs_column(&self, at: usize) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.needs_column(at))
    }

    /// Whether any column is needed: if not, [`WatchedTable::add_row`] can be called with empty images.
    pub fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Appends the keys of a change of a row to `keys`, and the [`Flush`]es that the rule demands.
    pub fn add_row(&mut self, change: RowChange<'_>, keys: &mut Vec<Vec<u8>>) {
        let Some(bound) = &self.bound else { return self.add_constant_keys(Inexpressible::RuleRefused, keys) };
        let before = keys.len();
        let mut refused = RefusedKeys::default();
        let written = bound.write_row_keys(change, &mut self.scratch, &mut |key| {
            if keys[before..].iter().all(|known| known != key) {
                refused.push_valid(key, keys);
            }
        });
        let added = (keys.len() - before) as u64;
        self.record(Written { keys: added, ..written }, &refused, keys);
    }

    /// As [`WatchedTable::add_row`] for a change of the whole table.
    pub fn add_table_change(&mut self, change: TableChange, keys: &mut Vec<Vec<u8>>) {
        self.add_constant_keys(Inexpressible::Table(change), keys);
    }

    fn add_constant_keys(&mut self, why: Inexpressible, keys: &mut Vec<Vec<u8>>) {
        // The rule file has no invalid ones.
        let written = write_constant_keys(&self.rule, why, &mut |key| keys.push(key.to_vec()));
        self.record(written, &RefusedKeys::default(), keys);
    }

    fn record(&mut self, written: Written, refused: &RefusedKeys, keys: &mut Vec<Vec<u8>>) {
        let statistics = &self.shared.statistics;
        statistics.changes.add(1);
        statistics.keys.add(written.keys);
        statistics.keys_refused.add(refused.count);
        if let Some((key, why)) = &refused.first
            && let Some(suppressed) = self.refused_log.allow(Instant::now())
        {
            tracing::warn!(table = %self.rule.table, key, %why, suppressed, "no server accepts a key of a rule; ignoring it");
        }
        if written.is_ignored {
            return;
        }
        if written.keys == 0 {
            statistics.without_key.add(1);
            self.counters.without_key.add(1);
        }
        let Some(why) = written.inexpressible else { return };
        statistics.inexpressible.add(1);
        self.counters.inexpressible.add(1);
        let flushes = self.rule.flushes();
        statistics.flushes.add(u64::from(!flushes.is_empty()));
        keys.extend(flushes.iter().map(|flush| flush.to_key()));
        if let Some(suppressed) = self.log.allow(Instant::now()) {
            let action = match flushes.first() {
                None => "cached values may be stale",
                Some(Flush::Cluster) => "flushing the cluster",
                Some(Flush::Prefix(_)) => "flushing the pools of its keys",
            };
            let table = &self.rule.table;
            tracing::warn!(%table, %why, suppressed, "a change cannot be expressed as keys; {action}");
        }
    }
}
