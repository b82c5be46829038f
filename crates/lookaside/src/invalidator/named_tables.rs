//! The tables with a rule that statements change, for `lookaside invalidator try --sql`.
//!
//! A statement shows which tables it changes, and not which rows: the keys of a rule depend on their values. With a
//! database the rows are read ([`super::affected_rows`]). Nothing is executed. A view, a trigger, a routine or a
//! foreign key may change further tables.

use super::{
    affected_rows::AffectedRows,
    changing_part::{changing_parts, target},
    check_rules::row_database,
    row_statement::RowStatement,
    rule_report::flushes_of,
    sql_text::{Statement, Syntax, statements},
};
use anyhow::{Result, anyhow};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    key_options::RowDatabase,
    keys::SqlMode,
    rules::{Column, ColumnForm, Inexpressible, Rule, RuleProblem, Rules, TableChange, Template},
    source::{
        mysql::{MysqlConnection, find_changed_tables},
        postgres::{PostgresConnection, Purpose},
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// The most statements whose rows are read. Each is a connection.
const STATEMENTS_READ_MAX: usize = 20;

/// What is read of a database.
pub struct DatabaseFacts {
    database: RowDatabase,
    /// The schema of unqualified names.
    default_schema: String,
    /// How it may read a statement; first, how a session of the URL does.
    syntaxes: Vec<Syntax>,
    /// Whether its log has the text of statements.
    pub has_comments: bool,
    /// The problems of all rules with it.
    problems: Vec<RuleProblem>,
}

impl DatabaseFacts {
    /// Looks at the tables and settings of the database at `url`.
    pub fn read(url: &str, publication: &str, rules: &Rules) -> Result<DatabaseFacts> {
        let database = row_database(url, publication)?;
        runtime()?.block_on(async {
            let problems = database.check_rules(&TcpNetwork, rules).await?;
            let (default_schema, syntaxes, has_comments) = match &database {
                RowDatabase::Mysql(server) => {
                    let mut connection = MysqlConnection::open(&TcpNetwork, server).await?;
                    let mode = connection.query_one("SELECT @@SESSION.sql_mode").await?.unwrap_or_default();
                    let has = |name: &str| mode.split(',').any(|other| other == name);
                    let mode = SqlMode {
                        has_ansi_quotes: has("ANSI_QUOTES"),
                        has_backslash_escapes: !has("NO_BACKSLASH_ESCAPES"),
                    };
                    // The application's sessions may have another mode.
                    let others = SqlMode::ALL.into_iter().filter(|other| *other != mode);
                    (server.schema.clone(), [mode].into_iter().chain(others).map(Syntax::Mysql).collect(), true)
                }
                RowDatabase::Postgres(server) => {
                    let mut connection = PostgresConnection::open(&TcpNetwork, server, Purpose::Queries).await?;
                    let schema = connection.query_one("SELECT current_schema()").await.map_err(SourceError::from)?;
                    (schema, vec![Syntax::Postgres], false)
                }
            };
            let default_schema = default_schema.unwrap_or_default();
            Ok(DatabaseFacts { database, default_schema, syntaxes, has_comments, problems })
        })
    }

    /// The keys of the rows that the statements of `sql` change in tables with a rule, by statement. Adds to `tables`
    /// how many rows there are.
    pub fn read_rows(&self, sql: &str, rules: &Rules, tables: &mut [NamedTable]) -> Result<Vec<AffectedRows>> {
        let (runtime, syntax) = (runtime()?, self.syntaxes[0]);
        let mut found = Vec::new();
        for statement in statements(sql, syntax) {
            let mut changed = changed_tables(&statement, syntax, &[&self.default_schema], rules);
            changed.retain(|(_, change)| *change == TableChange::Statement);
            for (rule, _) in &changed {
                let affected = match self.parse_rows(&statement, rule, changed.len()) {
                    _ if found.len() == STATEMENTS_READ_MAX => {
                        AffectedRows::unread(rule, "there are too many statements")
                    }
                    Err(why) => AffectedRows::unread(rule, why),
                    Ok(parsed) => {
                        let ignores = !self.problems_of(rule).any(|problem| problem.why.contains("ignore_columns"));
                        runtime.block_on(AffectedRows::read(&self.database, (rules, rule), &parsed, ignores))
                    }
                };
                for table in tables.iter_mut().filter(|table| table.is_of_rows(rule)) {
                    table.rows = match (table.rows, affected.rows) {
                        (None, rows) | (rows, None) => rows,
                        (Some(before), Some(rows)) => Some(before + rows),
                    };
                    table.looked_at += 1;
                    table.ignored += usize::from(affected.is_ignored);
                }
                found.push(affected);
            }
        }
        Ok(found)
    }

    /// The columns of the table of `rule`, one of `rules`, that its keys have, and how values of them are read.
    pub fn columns_of(&self, rules: &Rules, rule: &Rule) -> Result<Vec<(Column, ColumnForm)>> {
        let read = runtime()?.block_on(self.database.read_rows(&TcpNetwork, (rules, rule), None));
        // Not as a source: this command reads no log.
        Ok(read.map_err(|why| anyhow!("{}", why.reason()))?.columns)
    }

    fn parse_rows(&self, statement: &Statement, rule: &Rule, tables: usize) -> Result<RowStatement, &'static str> {
        let name = statement[target(statement)].last().and_then(|placed| placed.token.name());
        if tables > 1 || !name.is_some_and(|name| name.eq_ignore_ascii_case(&rule.table.name)) {
            return Err("the statement changes several tables, or names this one elsewhere");
        }
        RowStatement::parse(statement, self.syntaxes[0])
    }

    /// What does not fit of a rule.
    pub fn problems_of<'a>(&'a self, rule: &'a Rule) -> impl Iterator<Item = &'a RuleProblem> {
        self.problems.iter().filter(|problem| problem.table.as_ref().is_none_or(|table| *table == rule.table))
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// The tables with a rule that `statement` changes. A name without a schema is of one of `schemas`.
fn changed_tables<'r>(
    statement: &Statement,
    syntax: Syntax,
    schemas: &[&str],
    rules: &'r Rules,
) -> Vec<(&'r Arc<Rule>, TableChange)> {
    let mut changed = Vec::new();
    for part in changing_parts(statement, syntax) {
        for schema in schemas {
            let found = find_changed_tables(schema.as_bytes(), part.as_bytes(), &[SqlMode::DEFAULT], rules);
            for found in found.into_iter().filter_map(|(rule, change)| Some((rule, change?))) {
                if !changed.contains(&found) {
                    changed.push(found);
                }
            }
        }
    }
    changed
}

/// A table with a rule that a statement changes.
pub struct NamedTable {
    rule: Arc<Rule>,
    /// Of the rule, in its file.
    line: Option<usize>,
    change: TableChange,
    /// How many rows were looked at; `None` if they are not known.
    rows: Option<usize>,
    /// Of how many statements the rows were looked at, and how many of these set ignored columns alone.
    looked_at: usize,
    ignored: usize,
    /// Those of the rule with the database.
    problems: Vec<String>,
}

impl NamedTable {
    /// The tables of `rules` that the statements of `sql` change. Without a database an unqualified name may be of any
    /// schema.
    pub fn find(sql: &str, rules: &Rules, database: Option<&DatabaseFacts>) -> Vec<NamedTable> {
        let schemas: BTreeSet<&str> = match database {
            Some(database) => [database.default_schema.as_str()].into(),
            None => rules.iter().map(|rule| rule.table.schema.as_str()).collect(),
        };
        let schemas: Vec<&str> = schemas.into_iter().collect();
        let syntaxes = database.map_or_else(Syntax::all, |database| database.syntaxes.clone());
        let mut found: Vec<NamedTable> = Vec::new();
        for syntax in syntaxes {
            for statement in statements(sql, syntax) {
                for (rule, change) in changed_tables(&statement, syntax, &schemas, rules) {
                    if found.iter().any(|table| table.rule == *rule && table.change == change) {
                        continue;
                    }
                    let problems = database.into_iter().flat_map(|database| database.problems_of(rule));
                    found.push(NamedTable {
                        rule: rule.clone(),
                        line: rules.line(&rule.table),
                        change,
                        rows: None,
                        looked_at: 0,
                        ignored: 0,
                        problems: problems.map(ToString::to_string).collect(),
                    });
                }
            }
        }
        found
    }

    fn is_of_rows(&self, rule: &Rule) -> bool {
        self.change == TableChange::Statement && *self.rule == *rule
    }

    /// The keys that the statement deletes whatever rows it changes.
    pub fn constant_keys(&self) -> Vec<String> {
        match self.change {
            // It may change no row.
            TableChange::Statement => Vec::new(),
            _ => self.rule.templates.iter().filter_map(Template::constant_key).collect(),
        }
    }

    /// The rule whose keys cannot all be written, and why; `None` if rows name them.
    pub fn inexpressible(&self) -> Option<(&Rule, Inexpressible)> {
        (self.change != TableChange::Statement).then(|| (&*self.rule, Inexpressible::Table(self.change)))
    }

    /// What the statement deletes, and what is wrong with the rule.
    pub fn notes(&self) -> Vec<String> {
        let table = &self.rule.table;
        let mut notes = Vec::new();
        let is_ignored = self.looked_at > 0 && self.ignored == self.looked_at;
        if self.change == TableChange::Statement && !is_ignored {
            notes.push(format!(
                "each row of {table} that it changes deletes {}, with the old and the new values (--row shows the keys of \
                 one)",
                self.templates().join(" ")
            ));
        }
        notes.extend(self.problems.iter().cloned());
        notes
    }

    fn templates(&self) -> Vec<String> {
        self.rule.templates.iter().map(ToString::to_string).collect()
    }

    /// The same for scripts.
    pub fn to_json(&self) -> Value {
        let change = match self.change {
            TableChange::Statement => "rows",
            TableChange::Truncate => "truncate",
            _ => "schema",
        };
        let (is_flushed, flushed_prefixes) = flushes_of(&self.rule);
        json!({
            "table": self.rule.table.to_string(), "line": self.line, "change": change, "keys": self.templates(),
            "rows": self.rows,
            "otherwise": { "flush": is_flushed, "flush_prefixes": flushed_prefixes }, "problems": self.problems,
        })
    }
}
