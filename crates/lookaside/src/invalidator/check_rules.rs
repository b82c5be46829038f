//! `lookaside invalidator check-rules`: compares a rule file with the live schema.

use anyhow::{Result, anyhow, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    rule_file::RuleFile,
    rules::{ProblemKind, RuleProblem, Rules},
    source::{
        SourceUrl,
        mysql::{MysqlOptions, check_rules},
    },
};
use serde_json::json;
use std::{io::Write as _, path::PathBuf};

const EXAMPLES: &str = "Examples:
  lookaside invalidator check-rules --rules rules.toml --database mariadb://lookaside:secret@db.example
  lookaside invalidator check-rules --rules rules.toml --database mysql://... --json | jq .problems

Exit status: 0 the rules fit, perhaps with warnings; 1 they do not, or the database cannot be reached; 2 usage error.";

/// The options of `check-rules`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckRulesOptions {
    /// The rule file
    #[arg(long, value_name = "FILE")]
    rules: PathBuf,
    /// The database, MariaDB or MySQL. The account sees the tables on which it has a privilege
    #[arg(long, value_name = "URL", env = "LOOKASIDE_DATABASE", hide_env_values = true)]
    database: SourceUrl,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Checks the rules. Fails if one does not fit.
pub fn run(options: &CheckRulesOptions) -> Result<()> {
    let (_, rules) = RuleFile::read(&options.rules).map_err(|why| anyhow!(why))?;
    let problems = find_problems(&options.database, &rules)?;
    let file = options.rules.display();
    let mut out = std::io::stdout().lock();
    let faults = problems.iter().filter(|problem| problem.kind != ProblemKind::Warning).count();
    if options.json {
        let problem = |problem: &RuleProblem| {
            let table = problem.table.as_ref().map(ToString::to_string);
            json!({ "table": table, "kind": problem.kind.as_str(), "why": problem.why })
        };
        let problems: Vec<_> = problems.iter().map(problem).collect();
        let report = json!({ "good": faults == 0, "rules": rules.iter().count(), "problems": problems });
        writeln!(out, "{report}")?;
    } else {
        for problem in &problems {
            let word = if problem.kind == ProblemKind::Warning { "warning: " } else { "" };
            writeln!(out, "{file}: {word}{problem}")?;
        }
    }
    match faults {
        0 if options.json => Ok(()),
        0 => Ok(writeln!(out, "{file}: {} rules fit the database", rules.iter().count())?),
        _ => bail!("{file}: {faults} problems of the rules with the database"),
    }
}

fn find_problems(url: &str, rules: &Rules) -> Result<Vec<RuleProblem>> {
    if !url.starts_with("mysql://") && !url.starts_with("mariadb://") {
        bail!("--database must be mysql:// or mariadb://: rules are for their rows");
    }
    let server = MysqlOptions::from_url(url).map_err(|error| anyhow!("--database: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(check_rules(&TcpNetwork, &server, rules))?)
}
