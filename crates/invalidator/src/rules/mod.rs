//! Row rules: which keys a changed row makes stale, by the names of its table and columns. Serves the delete path; an
//! application's SQL stays as it is.
//!
//! ```text
//! file.rs, template.rs          the rule file (TOML)
//! change.rs, value.rs           a change, as each source reads it from its log; how a value is written into a key
//! bound_rule.rs                 a rule and the columns of its table: a change goes in, keys come out
//! watched_table.rs              the same with counters and the log; what sources use
//! row_rules.rs, statistics.rs   the rules in use, which a reload replaces; counters
//! problem.rs, preview.rs        for operators: rules that the database does not fit; keys of a given row
//! column_form.rs                how a value of such a row is read
//! ```
//!
//! | change | keys |
//! |---|---|
//! | INSERT | of the new row |
//! | UPDATE | of the old row and of the new one |
//! | DELETE | of the old row |
//! | TRUNCATE, DDL, a row of which the log lacks a column | those of the templates that can still be written; the rest is *inexpressible* |
//!
//! What is inexpressible is counted by table, logged, and, if the rule says so, replaced by flushes: of the servers
//! that may hold keys of the rule, or of the cluster ([`Flush`](crate::keys::Flush)).
//!
//! Nothing here knows a database: the sources convert values to [`RowValue`], so that equal values give equal keys.
//! Sans-I/O.

mod bound_rule;
mod change;
mod column_form;
mod file;
mod preview;
mod problem;
mod row_rules;
mod statistics;
mod template;
mod value;
mod watched_table;

pub use bound_rule::{BoundRule, Refused, Written};
pub use change::{Column, Inexpressible, RowChange, TableChange};
pub use column_form::ColumnForm;
pub use file::{Otherwise, Rule, RuleFileError, Rules, TableName};
pub use preview::{Preview, ReadRows, RowSelection};
pub use problem::{ProblemKind, RuleProblem};
pub use row_rules::RowRules;
pub use statistics::{RuleStatistics, TableCounters};
pub use template::Template;
pub(crate) use value::read_hex;
pub use value::{Date, RowValue, TimeOfDay};
pub use watched_table::WatchedTable;
