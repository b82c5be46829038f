//! Compares rules with a database: its tables, and what its log will have of them.
//!
//! An UPDATE or DELETE of a table that is published and has no replica identity fails: that is the application's error
//! then, so such a table is refused before it is published.

use super::{
    catalogue::{self, DeclaredColumn, DeclaredTable},
    column_type::{ColumnType, DeclaredTypes},
    connection::{PostgresConnection, Purpose},
    options::PostgresOptions,
    setup::{quote_literal, quote_name},
};
use crate::{
    SourceError,
    rules::{BoundRule, Column, ProblemKind, Refused, Rule, RuleProblem, Rules},
};
use lookaside_client::Network;
use std::collections::BTreeSet;

/// The most statements of one message.
const STATEMENTS_SHOWN_MAX: usize = 5;

/// The problems of `rules` with the database that `options` name.
pub async fn check_rules(
    network: &dyn Network,
    options: &PostgresOptions,
    rules: &Rules,
) -> Result<Vec<RuleProblem>, SourceError> {
    let mut connection = PostgresConnection::open(network, options, Purpose::Queries).await?;
    let mut problems = check_log(&mut connection, &options.publication).await?;
    let mut catalogue = catalogue::load(&mut connection, &options.publication, rules).await?;
    catalogue::load_columns(&mut connection, &mut catalogue).await?;
    let columns = || catalogue.values().flat_map(|table| &table.columns);
    let no_types = DeclaredTypes::new();
    let is_unknown = |column: &&DeclaredColumn| ColumnType::new(column.type_id, column.modifier, &no_types).is_none();
    let unknown: BTreeSet<u32> = columns().filter(is_unknown).map(|column| column.type_id).collect();
    let types = catalogue::load_types(&mut connection, &unknown).await?;
    for rule in rules.iter() {
        let table = catalogue.get(&rule.table);
        let mut add = |kind, why| problems.push(RuleProblem { table: Some(rule.table.clone()), kind, why });
        if let Some(table) = table
            && let Err(Refused(reasons)) = BoundRule::bind(rule, &columns_of(table, &types))
        {
            reasons.into_iter().for_each(|why| add(ProblemKind::RuleRefused, why));
        }
        check_coverage(rule, table, &options.publication).into_iter().for_each(|(kind, why)| add(kind, why));
    }
    Ok(problems)
}

/// Settings of the server and of the publication that concern all rules.
async fn check_log(connection: &mut PostgresConnection, publication: &str) -> Result<Vec<RuleProblem>, SourceError> {
    let mut problems = Vec::new();
    let mut add = |kind, why: String| problems.push(RuleProblem { table: None, kind, why });
    let name = quote_name(publication);
    let sql = format!(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = {}",
        quote_literal(publication)
    );
    match connection.query_one(&sql).await?.as_deref() {
        Some("t") => {}
        Some(_) => add(ProblemKind::LogLacks, publish_problem(publication)),
        None => add(
            ProblemKind::LogLacks,
            format!("the publication {name} does not exist; `lookaside invalidator setup --rules FILE` creates it"),
        ),
    }
    if connection.query_one("SHOW server_encoding").await?.as_deref() == Some("SQL_ASCII") {
        let why = "the database has the encoding SQL_ASCII: text that is not UTF-8 cannot be written into keys";
        add(ProblemKind::Warning, why.into());
    }
    Ok(problems)
}

/// What mends a publication without all kinds of changes.
pub(super) fn publish_problem(publication: &str) -> String {
    let name = quote_name(publication);
    format!(
        "the publication {name} leaves out changes; ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, \
         truncate'), after each of its tables has a replica identity, or UPDATE and DELETE of it fail: `lookaside \
         invalidator setup --rules FILE` does both"
    )
}

/// What of a rule's table the log will lack.
pub(super) fn check_coverage(
    rule: &Rule,
    table: Option<&DeclaredTable>,
    publication: &str,
) -> Vec<(ProblemKind, String)> {
    let mut problems = Vec::new();
    let mut add = |kind, why: String| problems.push((kind, why));
    let Some(table) = table else {
        add(ProblemKind::TableMissing, "does not exist in this database".into());
        return problems;
    };
    let (publication, name) = (quote_name(publication), qualified(rule));
    if !matches!((table.kind.as_str(), table.persistence.as_str()), ("r" | "p", "p")) {
        add(ProblemKind::RuleRefused, "is not a permanent table, so its changes are not in the log".into());
        return problems;
    }
    if !table.is_published {
        let why = format!(
            "is not in the publication {publication}, so its changes are not in the log; ALTER PUBLICATION {publication} \
             ADD TABLE {name} (for a partitioned table also SET (publish_via_partition_root = true); a rule for a \
             partition does not fit if the whole table is published), or `lookaside invalidator setup --rules FILE`"
        );
        add(ProblemKind::LogLacks, why);
    }
    if let Some(filter) = &table.filter {
        let why = format!(
            "has the row filter {filter} in the publication {publication}, which hides rows; ALTER PUBLICATION \
             {publication} DROP TABLE {name}; ALTER PUBLICATION {publication} ADD TABLE {name}"
        );
        add(ProblemKind::LogLacks, why);
    }
    if let Some(hidden) = &table.hidden_columns {
        let why = format!(
            "has a column list in the publication {publication}, which hides {hidden}; ALTER PUBLICATION {publication} \
             DROP TABLE {name}; ALTER PUBLICATION {publication} ADD TABLE {name}"
        );
        add(ProblemKind::LogLacks, why);
    }
    if !table.without_identity.is_empty() {
        add(ProblemKind::LogLacks, identity_problem(rule, &table.without_identity));
    }
    if !rule.ignore_columns.is_empty() && !table.has_old_rows {
        let why = format!(
            "has ignore_columns without an effect, as the log lacks old values; ALTER TABLE {name} REPLICA IDENTITY FULL"
        );
        add(ProblemKind::Warning, why);
    }
    if !table.unlogged.is_empty() {
        let why = format!(
            "has partitions whose rows are in no log, as they are UNLOGGED or foreign tables: {}",
            table.unlogged.join(", ")
        );
        add(ProblemKind::Warning, why);
    }
    if table.is_inherited {
        let why = "has tables that inherit from it: their rows need rules of their own";
        add(ProblemKind::Warning, why.into());
    }
    problems
}

fn identity_problem(rule: &Rule, without_identity: &[String]) -> String {
    let columns = catalogue::columns_of_keys(rule).into_iter().collect::<Vec<_>>().join(", ");
    let shown = without_identity.iter().take(STATEMENTS_SHOWN_MAX);
    let mut statements: Vec<String> = shown.map(|table| format!("ALTER TABLE {table} REPLICA IDENTITY FULL")).collect();
    if let Some(more) = without_identity.len().checked_sub(STATEMENTS_SHOWN_MAX).filter(|more| *more > 0) {
        statements.push(format!("and the same for {more} more partitions"));
    }
    let what = if columns.is_empty() { "any column".to_owned() } else { columns };
    format!(
        "has no replica identity with {what}, so the log lacks old values, and UPDATE and DELETE may fail; {}",
        statements.join("; ")
    )
}

fn qualified(rule: &Rule) -> String {
    format!("{}.{}", quote_name(&rule.table.schema), quote_name(&rule.table.name))
}

fn columns_of(table: &DeclaredTable, types: &DeclaredTypes) -> Vec<Column> {
    let column = |declared: &DeclaredColumn| {
        if declared.is_generated {
            let refusal = Some("a generated column, which is not in the log".into());
            return Column { name: declared.name.clone(), refusal };
        }
        match ColumnType::new(declared.type_id, declared.modifier, types) {
            Some(known) => known.column(&declared.name),
            None => Column { name: declared.name.clone(), refusal: Some("of an unknown type".into()) },
        }
    };
    table.columns.iter().map(column).collect()
}
