//! Reads rows of a table with a rule, for `lookaside invalidator try`: the rows that a statement would change.
//!
//! The condition comes from an operator, and has been composed so that it is a part of one statement. It is executed in
//! a read-only transaction, with a limit of time and rows.

use super::{
    catalogue::{self, DeclaredColumn},
    column_type::{ColumnType, DeclaredTypes, modifier_of, scale_of},
    connection::{INSUFFICIENT_PRIVILEGE, PostgresConnection, Purpose, QueryError, Row},
    options::PostgresOptions,
    setup::quote_name,
};
use crate::{
    SourceError,
    rules::{ColumnForm, ReadRows, RowSelection, RowValue, Rule, Rules},
};
use lookaside_client::Network;
use std::collections::BTreeSet;

/// Values have one text each, as in the session of the log.
const SESSION: &str = "SET DateStyle = 'ISO'; SET TimeZone = 'UTC'; SET bytea_output = 'hex'; SET statement_timeout = '5s'; \
     SET default_transaction_read_only = on; BEGIN READ ONLY";

/// The digits of a fraction of a second of a type without a modifier.
const FRACTION_DIGITS_MAX: usize = 6;

/// The columns of the table of `rule`, one of `rules`, that its keys have, and the rows of `selection`.
pub async fn read_rows(
    network: &dyn Network,
    options: &PostgresOptions,
    (rules, rule): (&Rules, &Rule),
    selection: Option<&RowSelection>,
) -> Result<ReadRows, SourceError> {
    let mut connection = PostgresConnection::open(network, options, Purpose::Queries).await?;
    let mut catalogue = catalogue::load(&mut connection, &options.publication, rules).await?;
    catalogue::load_columns(&mut connection, &mut catalogue).await?;
    let declared = catalogue.remove(&rule.table).map(|table| table.columns).unwrap_or_default();
    let used: Vec<DeclaredColumn> =
        declared.iter().filter(|declared| rule.uses_column(&declared.name)).cloned().collect();
    let unknown: BTreeSet<u32> = used
        .iter()
        .filter(|column| ColumnType::new(column.type_id, column.modifier, &DeclaredTypes::new()).is_none())
        .map(|column| column.type_id)
        .collect();
    let known = catalogue::load_types(&mut connection, &unknown).await?;
    let refused = || ColumnType::Refused("of an unknown type".into());
    let types: Vec<ColumnType> = used
        .iter()
        .map(|column| ColumnType::new(column.type_id, column.modifier, &known).unwrap_or_else(refused))
        .collect();
    let columns = used.iter().zip(&types).map(|(column, column_type)| {
        let modifier = modifier_of(column.type_id, column.modifier, &known);
        // A generated column is not in the log.
        let form = if column.is_generated { ColumnForm::Other } else { form_of(column_type, modifier) };
        (column_type.column(&column.name), form)
    });
    let mut found = ReadRows { columns: columns.collect(), ..ReadRows::default() };
    let is_refused = types.iter().any(|known| matches!(known, ColumnType::Refused(_)));
    let Some(selection) = selection.filter(|_| !is_refused && !declared.is_empty()) else { return Ok(found) };
    connection.query(SESSION).await?;
    let rows = connection.query(&select_sql(rule, &used, selection)).await;
    let rows = rows.map_err(|error| explain_privileges(error, rule, &options.user))?;
    found.is_more = rows.len() > selection.rows_max;
    let value = |row: &Row, at: usize| match row.get(at).and_then(Option::as_deref) {
        None => RowValue::Null,
        Some(text) => types[at].decode(text.as_bytes()).into_owned(),
    };
    let values = |row: &Row| (0..used.len()).map(|at| value(row, at)).collect();
    found.rows = rows.iter().take(selection.rows_max).map(values).collect();
    connection.query("ROLLBACK").await?;
    Ok(found)
}

/// An error with the statements that give an account a missing privilege. The one on the schema is tested first, so the
/// other one may be missing too.
fn explain_privileges(error: QueryError, rule: &Rule, user: &str) -> SourceError {
    let QueryError::Server(error) = error else { return error.into() };
    if error.code != INSUFFICIENT_PRIVILEGE {
        return error.into();
    }
    let (schema, name, user) = (quote_name(&rule.table.schema), quote_name(&rule.table.name), quote_name(user));
    SourceError::Unusable {
        why: format!("{error}; GRANT USAGE ON SCHEMA {schema} TO {user}; GRANT SELECT ON {schema}.{name} TO {user}"),
    }
}

fn select_sql(rule: &Rule, used: &[DeclaredColumn], selection: &RowSelection) -> String {
    let table = format!("{}.{}", quote_name(&rule.table.schema), quote_name(&rule.table.name));
    let qualifier = selection.alias.clone().unwrap_or_else(|| table.clone());
    let alias = selection.alias.as_ref().map(|alias| format!(" AS {alias}")).unwrap_or_default();
    let column = |(at, column): (usize, &DeclaredColumn)| format!("{qualifier}.{} AS c{at}", quote_name(&column.name));
    let columns: Vec<String> = used.iter().enumerate().map(column).collect();
    // Inside of another one, as in MariaDB and MySQL.
    format!(
        "SELECT * FROM (SELECT {} FROM {table}{alias} {}) AS lookaside_rows LIMIT {}",
        // A key may have no column.
        if columns.is_empty() { "1".into() } else { columns.join(", ") },
        selection.condition,
        selection.rows_max + 1
    )
}

/// How a value that a person writes is read.
fn form_of(column_type: &ColumnType, modifier: i32) -> ColumnForm {
    let fraction_digits = usize::try_from(modifier).unwrap_or(FRACTION_DIGITS_MAX);
    match column_type {
        ColumnType::Boolean => ColumnForm::Boolean,
        ColumnType::Integer => ColumnForm::Integer,
        ColumnType::Bits => ColumnForm::Bits,
        // A negative scale rounds to tens.
        ColumnType::Decimal => match usize::try_from(scale_of(modifier)) {
            Ok(scale) => ColumnForm::Decimal { scale },
            Err(_) => ColumnForm::Other,
        },
        ColumnType::Text { is_padded } => ColumnForm::Text { is_padded: *is_padded },
        ColumnType::Bytes => ColumnForm::Bytes { width: 0 },
        ColumnType::Date => ColumnForm::Date,
        ColumnType::Time => ColumnForm::Time { fraction_digits },
        ColumnType::DateTime => ColumnForm::DateTime { fraction_digits },
        ColumnType::Instant => ColumnForm::Instant { fraction_digits },
        ColumnType::Uuid => ColumnForm::Uuid,
        ColumnType::Refused(_) => ColumnForm::Other,
    }
}
