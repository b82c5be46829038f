//! The rules in use, shared by the sources of all clusters. A reload replaces them.

use super::{file::Rules, statistics::RuleStatistics};
use lookaside_sync::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The rules in use, and their counters.
#[derive(Debug, Default)]
pub struct RowRules {
    current: Mutex<Arc<Rules>>,
    version: AtomicU64,
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
        *self.current.lock() = Arc::new(rules);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The rules in use.
    pub fn current(&self) -> Arc<Rules> {
        self.current.lock().clone()
    }

    /// Grows with every replacement: reading it is cheaper than [`RowRules::current`].
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}
