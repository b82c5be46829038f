//! `lookaside invalidator try`: the keys that a statement or a changed row would delete.

use super::{
    affected_rows::AffectedRows,
    named_tables::{DatabaseFacts, NamedTable},
    rule_report::flushes_of,
};
use anyhow::{Context as _, Result, anyhow, bail};
use lookaside_invalidator::{
    keys::{SqlMode, extract_keys},
    rule_file::RuleFile,
    rules::{Inexpressible, Preview, Rule, Rules},
    source::SourceUrl,
};
use serde_json::{Map, Value, json};
use std::{collections::HashSet, io::Write as _, path::PathBuf, sync::Arc};

const EXAMPLES: &str = "Examples:
  lookaside invalidator try --sql \"UPDATE users SET name = 'Ada' /* lookaside: user:42 */ WHERE id = 42\"
  lookaside invalidator try --rules rules.toml --sql 'TRUNCATE app.users'
  lookaside invalidator try --rules rules.toml --database mariadb://lookaside:secret@db.example/app \\
      --sql 'DELETE FROM users WHERE id = 42'
  lookaside invalidator try --rules rules.toml --row app.users '{\"id\": 42, \"email\": \"ada@example.org\"}'
  lookaside invalidator try --rules rules.toml --row app.users '{\"id\": 42, \"email\": \"new@example.org\"}' \\
      --before '{\"id\": 42, \"email\": \"old@example.org\"}'
  lookaside invalidator try --rules rules.toml --database postgres://lookaside:secret@db.example/app \\
      --row app.offers '{\"price\": \"12.5\"}'

No statement is executed. Of statements, with semicolons between them, the keys in their comments are shown and, with
--rules, the tables with a rule that they change. With --database, the rows that a simple UPDATE or DELETE would change are
read by its condition in a read-only transaction, at most 100 of each, and their keys are shown, with new values as far as
these are literals; of an INSERT the keys of its literals. The account needs SELECT on the tables. Names without a schema
are those of the URL's database (PostgreSQL: of the account's schema), and problems of the rules with it are shown.
PostgreSQL's log has no text of statements: comments name no keys there. Rows name keys in all databases alike.
A row without --before was inserted or deleted. A column that is not named is not in the log. Text, decimals, dates and
times are strings; integers are numbers. With --database the values are read as the columns of the table are declared, and
one that its column cannot have is refused; without, they are to have the form in which keys have them (12.50 and not 12.5
of a DECIMAL(9, 2)).

Exit status: 0, also if there are no keys; 1 failure; 2 usage error.";

/// The options of `try`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct TryOptions {
    /// Statements: the keys in their comments are shown, and the tables with a rule that they change. They are not
    /// executed
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
    /// The database of the tables: mysql://, mariadb:// or postgres://. Rows that the statements would change are read,
    /// and how the columns of --row are declared
    #[arg(long, value_name = "URL", requires = "rules")]
    database: Option<SourceUrl>,
    /// PostgreSQL: the publication, as the invalidator's --publication
    #[arg(long, value_name = "NAME", default_value = "lookaside")]
    publication: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What is shown.
#[derive(Default)]
struct Shown {
    keys: Vec<String>,
    notes: Vec<String>,
    tables: Vec<Value>,
    is_flushed: bool,
    flushed_prefixes: Vec<String>,
}

/// Shows the keys.
pub fn run(options: &TryOptions) -> Result<()> {
    let rules = match &options.rules {
        Some(path) => RuleFile::read(path).map_err(|why| anyhow!(why))?.1,
        None => Rules::default(),
    };
    let mut shown = Shown::default();
    let database = options.database.as_ref();
    let database = database.map(|url| DatabaseFacts::read(url, &options.publication, &rules)).transpose()?;
    if let Some(sql) = &options.sql {
        shown.add_statement(sql, &rules, database.as_ref())?;
    }
    if let Some((preview, rule)) = preview_row(options, &rules, database.as_ref())? {
        shown.add_row(preview, &rule);
        let problems = database.iter().flat_map(|database| database.problems_of(&rule));
        shown.notes.extend(problems.map(ToString::to_string));
    }
    shown.remove_repeated_notes();
    shown.keys.sort();
    shown.keys.dedup();
    if shown.keys.is_empty() && shown.notes.is_empty() {
        shown.notes.push(why_no_key(options));
    }
    let Shown { keys, notes, tables, is_flushed, flushed_prefixes } = shown;
    let mut out = std::io::stdout().lock();
    if options.json {
        let shown = json!({
            "keys": keys, "tables": tables, "notes": notes, "flush": is_flushed, "flush_prefixes": flushed_prefixes,
        });
        return Ok(writeln!(out, "{shown}")?);
    }
    keys.iter().try_for_each(|key| writeln!(out, "{key}"))?;
    notes.iter().for_each(|note| eprintln!("lookaside: {note}"));
    Ok(())
}

impl Shown {
    fn add_statement(&mut self, sql: &str, rules: &Rules, database: Option<&DatabaseFacts>) -> Result<()> {
        let (mut keys, mut rejected) = (Vec::new(), 0);
        extract_keys(sql.as_bytes(), &SqlMode::ALL, &mut keys, &mut rejected);
        if database.is_none_or(|database| database.has_comments) {
            self.keys.extend(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()));
            if rejected > 0 {
                self.notes.push(format!(
                    "{rejected} keys of comments are refused: over 250 bytes, or with control characters"
                ));
            }
        } else if !keys.is_empty() || rejected > 0 {
            self.notes.push("comments name no keys: PostgreSQL's log has no text of statements".into());
        }
        let mut tables = NamedTable::find(sql, rules, database);
        let affected = match database {
            Some(database) => database.read_rows(sql, rules, &mut tables)?,
            None => Vec::new(),
        };
        for table in tables {
            self.keys.extend(table.constant_keys());
            self.notes.extend(table.notes());
            if let Some((rule, why)) = table.inexpressible() {
                self.add_inexpressible(rule, why);
            }
            self.tables.push(table.to_json());
        }
        for AffectedRows { keys, notes, .. } in affected {
            self.keys.extend(keys);
            self.notes.extend(notes);
        }
        Ok(())
    }

    /// A problem of a rule is found for a statement and for a row.
    fn remove_repeated_notes(&mut self) {
        let mut known = HashSet::new();
        self.notes.retain(|note| known.insert(note.clone()));
    }

    fn add_row(&mut self, preview: Preview, rule: &Rule) {
        self.keys.extend(preview.keys);
        self.notes.extend(preview.refused.into_iter().map(|key| format!("refused as a key: {key}")));
        if let Some(why) = preview.inexpressible {
            self.add_inexpressible(rule, why);
        }
    }

    fn add_inexpressible(&mut self, rule: &Rule, why: Inexpressible) {
        let (is_flushed, flushed_prefixes) = flushes_of(rule);
        let action = match (is_flushed, flushed_prefixes.is_empty()) {
            (true, _) => "the cluster is flushed".to_owned(),
            (false, false) => {
                format!("the pools of keys that begin with {} are flushed", flushed_prefixes.join(", "))
            }
            (false, true) => "it is counted".to_owned(),
        };
        self.notes.push(format!("not all keys of {} can be written, as {why}: {action}", rule.table));
        self.is_flushed |= is_flushed;
        self.flushed_prefixes.extend(flushed_prefixes);
    }
}

/// A statement or a change that names no key, though nothing is wrong with it.
fn why_no_key(options: &TryOptions) -> String {
    match (&options.sql, &options.rules) {
        (Some(_), None) => "no key: the statement has no comment /* lookaside: KEY ... */".into(),
        (Some(_), Some(_)) => {
            "no key: the statement has no comment /* lookaside: KEY ... */, and changes no table with a rule".into()
        }
        (None, _) => {
            "no key: only columns of ignore_columns were changed, or nothing was, or columns of the keys are NULL"
                .into()
        }
    }
}

fn preview_row(
    options: &TryOptions,
    rules: &Rules,
    database: Option<&DatabaseFacts>,
) -> Result<Option<(Preview, Arc<Rule>)>> {
    let ([table, row], Some(path)) = (options.row.as_slice(), &options.rules) else { return Ok(None) };
    let rule = table.split_once('.').and_then(|(schema, name)| rules.rule(schema.as_bytes(), name.as_bytes()));
    let Some(rule) = rule else { bail!("{} has no rule for the table {table}", path.display()) };
    let parse = |text: &str| {
        serde_json::from_str::<Map<String, Value>>(text).with_context(|| format!("{text} is no JSON object"))
    };
    let before = options.before.as_deref().map(parse).transpose()?;
    let after = parse(row)?;
    let columns = database.map(|database| database.columns_of(rules, rule)).transpose()?;
    let preview = Preview::of_row(rule, columns.as_deref(), before.as_ref(), Some(&after));
    let preview = preview.map_err(|why| anyhow!("the row of {table}: {why}"))?;
    Ok(Some((preview, rule.clone())))
}
