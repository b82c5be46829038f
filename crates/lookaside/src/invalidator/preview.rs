//! `lookaside invalidator try`: the keys that a statement or a changed row would delete.

use anyhow::{Context as _, Result, anyhow, bail};
use lookaside_invalidator::{
    keys::{Flush, SqlMode, extract_keys, sort_and_dedup},
    rule_file::RuleFile,
    rules::{Preview, Rule},
};
use serde_json::{Map, Value, json};
use std::{io::Write as _, path::PathBuf, sync::Arc};

const EXAMPLES: &str = "Examples:
  lookaside invalidator try --sql \"UPDATE users SET name = 'Ada' /* lookaside: user:42 */ WHERE id = 42\"
  lookaside invalidator try --rules rules.toml --row app.users '{\"id\": 42, \"email\": \"ada@example.org\"}'
  lookaside invalidator try --rules rules.toml --row app.users '{\"id\": 42, \"email\": \"new@example.org\"}' \\
      --before '{\"id\": 42, \"email\": \"old@example.org\"}'

PostgreSQL's log has no text of statements: comments name no keys there. Rows name keys in all databases alike.
A row without --before was inserted or deleted. A column that is not named is not in the log. Text, decimals, dates and
times are strings, in the form in which keys have them; integers are numbers.

Exit status: 0, also if there are no keys; 1 failure; 2 usage error.";

/// The options of `try`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[group(required = true, multiple = true, id = "change")]
pub struct TryOptions {
    /// A statement: the keys in its comments are shown, and none of the rows that it would change
    #[arg(long, value_name = "SQL", group = "change")]
    sql: Option<String>,
    /// A row of a table with a rule, as a JSON object
    #[arg(long, num_args = 2, value_names = ["TABLE", "JSON"], requires = "rules", group = "change")]
    row: Vec<String>,
    /// The row as it was before it was changed
    #[arg(long, value_name = "JSON", requires = "row")]
    before: Option<String>,
    /// The rule file
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the keys.
pub fn run(options: &TryOptions) -> Result<()> {
    let (mut keys, mut rejected) = (Vec::new(), 0);
    if let Some(sql) = &options.sql {
        extract_keys(sql.as_bytes(), &SqlMode::ALL, &mut keys, &mut rejected);
        sort_and_dedup(&mut keys);
    }
    let mut keys: Vec<String> = keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    let mut notes = Vec::new();
    if rejected > 0 {
        notes.push(format!("{rejected} keys of comments are refused: over 250 bytes, or with control characters"));
    }
    let (mut is_flushed, mut flushed_prefixes) = (false, Vec::new());
    if let Some((preview, rule)) = preview_row(options)? {
        keys.extend(preview.keys);
        notes.extend(preview.refused.into_iter().map(|key| format!("refused as a key: {key}")));
        if let Some(why) = preview.inexpressible {
            (is_flushed, flushed_prefixes) = flushes_of(&rule);
            let action = match (is_flushed, flushed_prefixes.is_empty()) {
                (true, _) => "the cluster is flushed".to_owned(),
                (false, false) => {
                    format!("the pools of keys that begin with {} are flushed", flushed_prefixes.join(", "))
                }
                (false, true) => "it is counted".to_owned(),
            };
            notes.push(format!("not all keys can be written, as {why}: {action}"));
        }
    }
    keys.sort();
    keys.dedup();
    if keys.is_empty() && notes.is_empty() {
        notes.push(why_no_key(options));
    }
    let mut out = std::io::stdout().lock();
    if options.json {
        let shown = json!({ "keys": keys, "notes": notes, "flush": is_flushed, "flush_prefixes": flushed_prefixes });
        return Ok(writeln!(out, "{shown}")?);
    }
    keys.iter().try_for_each(|key| writeln!(out, "{key}"))?;
    notes.iter().for_each(|note| eprintln!("lookaside: {note}"));
    Ok(())
}

/// A statement or a change that names no key, though nothing is wrong with it.
fn why_no_key(options: &TryOptions) -> String {
    match &options.sql {
        Some(_) => "no key: the statement has no comment /* lookaside: KEY ... */".into(),
        None => "no key: only columns of ignore_columns were changed, or nothing was, or columns of the keys are NULL"
            .into(),
    }
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

fn preview_row(options: &TryOptions) -> Result<Option<(Preview, Arc<Rule>)>> {
    let ([table, row], Some(path)) = (options.row.as_slice(), &options.rules) else { return Ok(None) };
    let (_, rules) = RuleFile::read(path).map_err(|why| anyhow!(why))?;
    let rule = table.split_once('.').and_then(|(schema, name)| rules.rule(schema.as_bytes(), name.as_bytes()));
    let Some(rule) = rule else { bail!("{} has no rule for the table {table}", path.display()) };
    let parse = |text: &str| {
        serde_json::from_str::<Map<String, Value>>(text).with_context(|| format!("{text} is no JSON object"))
    };
    let before = options.before.as_deref().map(parse).transpose()?;
    let preview = Preview::of_row(rule, before.as_ref(), Some(&parse(row)?)).map_err(|why| anyhow!(why))?;
    Ok(Some((preview, rule.clone())))
}
