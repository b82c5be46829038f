//! `lookaside invalidator`: commands about the invalidator. `setup` prepares a database for it, `check-rules` and `try`
//! show what a rule file does, `replay` sends deletes again.

mod affected_rows;
mod changing_part;
mod check_rules;
mod named_tables;
mod preview;
mod replay;
mod row_statement;
mod rule_report;
mod setup;
mod sql_text;

use anyhow::Result;

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

#[cfg(test)]
mod tests {
    use super::Invalidator;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(subcommand)]
        command: Invalidator,
    }

    /// All options were shown as alternatives, and each alone was accepted.
    #[test]
    fn a_statement_or_a_row_is_what_try_needs() {
        let why = Arguments::try_parse_from(["lookaside", "try", "--json"]).expect_err("nothing to try").to_string();
        assert!(why.contains("<--sql <SQL>|--row <TABLE> <JSON>>"), "{why}");
        let both = ["--rules", "rules.toml", "--sql", "SELECT 1", "--row", "app.users", "{}"];
        Arguments::try_parse_from(["lookaside", "try"].iter().chain(&both)).expect("both are possible");
    }

    #[test]
    fn options_are_printed_without_the_password() {
        let replay = ["replay", "--since", "1m", "--cluster", "a=h:1"];
        let preview = ["try", "--sql", "SELECT 1", "--rules", "rules.toml"];
        for command in [&["setup"][..], &["check-rules", "--rules", "rules.toml"], &preview, &replay] {
            let database = ["--database", "mysql://reader:s3cret@db"];
            let arguments = ["lookaside"].iter().chain(command).chain(&database);
            let shown = format!("{:?}", Arguments::try_parse_from(arguments).expect("valid options"));
            assert!(shown.contains("mysql://hidden") && !shown.contains("s3cret"), "{shown}");
        }
    }
}
