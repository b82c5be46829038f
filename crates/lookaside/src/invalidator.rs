//! `lookaside invalidator`: commands about the invalidator. `setup` prepares a database for it, `check-rules` and `try`
//! show what a rule file does, `replay` sends deletes again.

mod check_rules;
mod preview;
mod replay;
mod setup;
mod time;

use anyhow::Result;
use lookaside_invalidator::rules::{ProblemKind, RuleProblem, Rules};
use std::path::Path;

/// Commands about the invalidator.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Invalidator {
    /// Create what the invalidator needs in a database. PostgreSQL: outbox table, function, publication. With
    /// --shared-state: the table that an active and a standby invalidator share
    Setup(setup::SetupOptions),
    /// Check a rule file against the tables and the log of a database
    CheckRules(check_rules::CheckRulesOptions),
    /// Show which keys a statement or a changed row would delete
    Try(preview::TryOptions),
    /// Read a part of a database's log again, and send its deletes to a cluster beside the running invalidator
    Replay(replay::ReplayOptions),
}

/// Runs the command.
pub fn run(command: &Invalidator) -> Result<()> {
    match command {
        Invalidator::Setup(options) => setup::run(options),
        Invalidator::CheckRules(options) => check_rules::run(options),
        Invalidator::Try(options) => preview::run(options),
        Invalidator::Replay(options) => replay::run(options),
    }
}

/// A problem of `rules` with a database, after the place in their file.
fn describe_problem(file: &Path, rules: &Rules, problem: &RuleProblem) -> String {
    let line = problem.table.as_ref().and_then(|table| rules.line(table));
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    let word = if problem.kind == ProblemKind::Warning { "warning: " } else { "" };
    format!("{}{line}: {word}{problem}", file.display())
}

/// `1 rule`, `2 rules`.
fn count_rules(rules: &Rules) -> String {
    match rules.iter().count() {
        1 => "1 rule".into(),
        count => format!("{count} rules"),
    }
}

#[cfg(test)]
mod tests {
    use super::Invalidator;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(subcommand)]
        command: Invalidator,
    }

    #[test]
    fn options_are_printed_without_the_password() {
        let replay = ["replay", "--since", "1m", "--cluster", "a=h:1"];
        for command in [&["setup"][..], &["check-rules", "--rules", "rules.toml"], &replay] {
            let database = ["--database", "mysql://reader:s3cret@db"];
            let arguments = ["lookaside"].iter().chain(command).chain(&database);
            let shown = format!("{:?}", Arguments::try_parse_from(arguments).expect("valid options"));
            assert!(shown.contains("mysql://hidden") && !shown.contains("s3cret"), "{shown}");
        }
    }
}
