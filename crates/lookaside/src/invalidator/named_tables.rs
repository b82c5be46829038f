//! The tables with a rule that a statement changes, for `lookaside invalidator try --sql`.
//!
//! A statement shows which tables it changes, and not which rows: the keys of a rule depend on their values. Nothing is
//! executed. A view, a trigger, a routine or a foreign key may change further tables.

use super::{check_rules::row_database, rule_report::flushes_of};
use anyhow::Result;
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    key_options::RowDatabase,
    keys::SqlMode,
    rules::{Inexpressible, Rule, RuleProblem, Rules, TableChange, Template},
    source::{
        mysql::find_changed_tables,
        postgres::{PostgresConnection, Purpose},
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// What is read of a database.
pub struct DatabaseFacts {
    /// The schema of unqualified names.
    default_schema: String,
    /// Whether its log has the text of statements.
    pub has_comments: bool,
    /// The problems of all rules with it.
    problems: Vec<RuleProblem>,
}

impl DatabaseFacts {
    /// Looks at the tables and settings of the database at `url`.
    pub fn read(url: &str, publication: &str, rules: &Rules) -> Result<DatabaseFacts> {
        let database = row_database(url, publication)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let problems = database.check_rules(&TcpNetwork, rules).await?;
            let (default_schema, has_comments) = match &database {
                RowDatabase::Mysql(server) => (server.schema.clone(), true),
                RowDatabase::Postgres(server) => {
                    let mut connection = PostgresConnection::open(&TcpNetwork, server, Purpose::Queries).await?;
                    let schema = connection.query_one("SELECT current_schema()").await.map_err(SourceError::from)?;
                    (schema, false)
                }
            };
            Ok(DatabaseFacts { default_schema: default_schema.unwrap_or_default(), has_comments, problems })
        })
    }
}

/// A table with a rule that a statement changes.
pub struct NamedTable {
    rule: Arc<Rule>,
    /// Of the rule, in its file.
    line: Option<usize>,
    change: TableChange,
    /// Those of the rule with the database.
    problems: Vec<String>,
}

impl NamedTable {
    /// The tables of `rules` that `sql` changes. Without a database an unqualified name may be of any schema.
    pub fn find(sql: &str, rules: &Rules, database: Option<&DatabaseFacts>) -> Vec<NamedTable> {
        let schemas: BTreeSet<&str> = match database {
            Some(database) => [database.default_schema.as_str()].into(),
            None => rules.iter().map(|rule| rule.table.schema.as_str()).collect(),
        };
        let mut found: Vec<NamedTable> = Vec::new();
        for schema in schemas {
            for (rule, change) in find_changed_tables(schema.as_bytes(), sql.as_bytes(), &SqlMode::ALL, rules) {
                let Some(change) = change else { continue };
                if found.iter().any(|table| table.rule == *rule && table.change == change) {
                    continue;
                }
                let problems = database.into_iter().flat_map(|database| &database.problems);
                let problems =
                    problems.filter(|problem| problem.table.as_ref().is_none_or(|table| *table == rule.table));
                found.push(NamedTable {
                    rule: rule.clone(),
                    line: rules.line(&rule.table),
                    change,
                    problems: problems.map(ToString::to_string).collect(),
                });
            }
        }
        found
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
        if self.change == TableChange::Statement {
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
            "otherwise": { "flush": is_flushed, "flush_prefixes": flushed_prefixes }, "problems": self.problems,
        })
    }
}
