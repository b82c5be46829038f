//! `lookaside invalidator check-rules`: compares a rule file with the live schema.

use super::rule_report::{count_rules, describe_problem, flushes_of};
use anyhow::{Result, anyhow, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    key_options::RowDatabase,
    rule_file::RuleFile,
    rules::{Otherwise, ProblemKind, Rule, RuleProblem, Rules},
    source::{SourceUrl, postgres::PostgresOptions},
};
use serde_json::{Map, json};
use std::{io::Write as _, path::PathBuf, sync::Arc};

const EXAMPLES: &str = "Examples:
  lookaside invalidator check-rules --rules rules.toml --database mariadb://lookaside:secret@db.example
  lookaside invalidator check-rules --rules rules.toml --database postgres://... --json | jq .problems

Exit status: 0 the rules fit, perhaps with warnings; 1 they do not, or the database cannot be reached; 2 usage error.";

/// The options of `check-rules`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckRulesOptions {
    /// The rule file
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// The database: mysql://, mariadb:// or postgres://. In MariaDB and MySQL the account sees the tables on which it
    /// has a privilege
    #[arg(long, value_name = "URL", env = "LOOKASIDE_DATABASE", hide_env_values = true)]
    database: SourceUrl,
    /// PostgreSQL: the publication, as the invalidator's --publication
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    publication: String,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Checks the rules. Fails if one does not fit.
pub fn run(options: &CheckRulesOptions) -> Result<()> {
    let (_, rules) = RuleFile::read(&options.rules).map_err(|why| anyhow!(why))?;
    let mut problems = find_problems(options, &rules)?;
    problems.extend(rules.iter().filter_map(|rule| wide_flush(rule)));
    let file = options.rules.display();
    let mut out = std::io::stdout().lock();
    let faults = problems.iter().filter(|problem| problem.kind != ProblemKind::Warning).count();
    if options.json {
        let problem = |problem: &RuleProblem| {
            let table = problem.table.as_ref().map(ToString::to_string);
            let line = problem.table.as_ref().and_then(|table| rules.line(table));
            json!({ "table": table, "line": line, "kind": problem.kind.as_str(), "why": problem.why })
        };
        let problems: Vec<_> = problems.iter().map(problem).collect();
        let flush = |rule: &Arc<Rule>| {
            let (cluster, prefixes) = flushes_of(rule);
            (rule.table.to_string(), json!({ "cluster": cluster, "prefixes": prefixes }))
        };
        let flushes: Map<_, _> = rules.iter().filter(|rule| !rule.flushes().is_empty()).map(flush).collect();
        let count = rules.iter().count();
        let report = json!({ "good": faults == 0, "rules": count, "flushes": flushes, "problems": problems });
        writeln!(out, "{report}")?;
    } else {
        for problem in &problems {
            writeln!(out, "{}", describe_problem(&options.rules, &rules, problem))?;
        }
        for (rule, (_, prefixes)) in rules.iter().map(|rule| (rule, flushes_of(rule))) {
            if !prefixes.is_empty() {
                let (table, prefixes) = (&rule.table, prefixes.join(", "));
                writeln!(
                    out,
                    "{file}: table {table} flushes the pools of keys that begin with {prefixes}, for what it cannot express"
                )?;
            }
        }
    }
    match faults {
        0 if options.json => Ok(()),
        0 => Ok(writeln!(out, "{file}: {} fit the database", count_rules(&rules))?),
        1 => bail!("{file}: 1 problem of the rules with the database"),
        _ => bail!("{file}: {faults} problems of the rules with the database"),
    }
}

/// The warning of a rule that flushes more than its author expects.
fn wide_flush(rule: &Rule) -> Option<RuleProblem> {
    let is_wide = rule.otherwise == Otherwise::FlushPools && flushes_of(rule).0;
    is_wide.then(|| RuleProblem {
        table: Some(rule.table.clone()),
        kind: ProblemKind::Warning,
        why: "has a key that begins with a column, so flush-pools flushes the whole cluster".into(),
    })
}

/// The database with rows at `url`, which --database has, and its publication if it is PostgreSQL.
pub(super) fn row_database(url: &str, publication: &str) -> Result<RowDatabase> {
    match RowDatabase::from_url(url).map_err(|error| anyhow!("--database: {error}"))? {
        Some(RowDatabase::Postgres(server)) => {
            Ok(RowDatabase::Postgres(PostgresOptions { publication: publication.to_owned(), ..server }))
        }
        Some(database) => Ok(database),
        None => bail!("--database must be mysql://, mariadb:// or postgres://: rules are for their rows"),
    }
}

fn find_problems(options: &CheckRulesOptions, rules: &Rules) -> Result<Vec<RuleProblem>> {
    let database = row_database(&options.database, &options.publication)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let mut problems = database.check_rules(&TcpNetwork, rules).await?;
        problems.extend(database.check_settings(&TcpNetwork).await?);
        Ok::<_, SourceError>(problems)
    })?)
}
