//! How rules and their problems are shown.

use lookaside_invalidator::{
    keys::Flush,
    rules::{ProblemKind, Rule, RuleProblem, Rules},
};
use std::path::Path;

/// A problem of `rules` with a database, after the place in their file.
pub(super) fn describe_problem(file: &Path, rules: &Rules, problem: &RuleProblem) -> String {
    let line = problem.table.as_ref().and_then(|table| rules.line(table));
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    let word = if problem.kind == ProblemKind::Warning { "warning: " } else { "" };
    format!("{}{line}: {word}{problem}", file.display())
}

/// Whether `rule` flushes the cluster, and the prefixes of the keys whose pools it flushes.
pub(super) fn flushes_of(rule: &Rule) -> (bool, Vec<String>) {
    let flushes = rule.flushes();
    let prefixes = flushes.iter().filter_map(|flush| match flush {
        Flush::Cluster => None,
        Flush::Prefix(prefix) => Some(String::from_utf8_lossy(prefix).into_owned()),
    });
    (flushes.contains(&Flush::Cluster), prefixes.collect())
}

/// `1 rule`, `2 rules`.
pub(super) fn count_rules(rules: &Rules) -> String {
    match rules.iter().count() {
        1 => "1 rule".into(),
        count => format!("{count} rules"),
    }
}
