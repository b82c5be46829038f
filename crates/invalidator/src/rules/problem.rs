//! What `lookaside invalidator check-rules` finds, and the daemon when it loads rules: rules that the database does not
//! fit.

use super::file::TableName;
use std::fmt;

/// A problem of a rule, or of the log for all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// The table; `None` if it is about all.
    pub table: Option<TableName>,
    /// Its consequence.
    pub kind: ProblemKind,
    /// The cause, and what mends it.
    pub why: String,
}

/// The consequence of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The table does not exist, or is not visible. It may be created later.
    TableMissing,
    /// The rule does not fit the table: no change of it has keys. Such rules are not loaded.
    RuleRefused,
    /// Changes will be inexpressible, as the log does not have what the rule needs.
    LogLacks,
    /// Some changes may be missed, or misread after an ALTER TABLE.
    Warning,
}

impl ProblemKind {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ProblemKind::TableMissing => "table_missing",
            ProblemKind::RuleRefused => "rule_refused",
            ProblemKind::LogLacks => "log_lacks",
            ProblemKind::Warning => "warning",
        }
    }
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.table {
            Some(table) => write!(f, "table {table} {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}
