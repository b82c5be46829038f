//! Reads rows of a table with a rule, for `lookaside invalidator try`: the rows that a statement would change.
//!
//! The condition comes from an operator. It is executed in a read-only transaction, with a limit of time and rows, and
//! as a prepared statement, which the server takes for one statement or not at all.

use super::{
    catalogue::{self, Declared},
    column_type::ColumnType,
    connection::{MysqlConnection, Row, text},
    options::MysqlOptions,
    rows::LogColumn,
};
use crate::{
    SourceError,
    rules::{ColumnForm, ReadRows, RowSelection, RowValue, Rule, Rules},
};
use lookaside_client::Network;

/// How long the server may look for the rows.
const READ_MAX_S: u32 = 5;

/// The columns of the table of `rule`, one of `rules`, that its keys have, and the rows of `selection`.
pub async fn read_rows(
    network: &dyn Network,
    options: &MysqlOptions,
    (rules, rule): (&Rules, &Rule),
    selection: Option<&RowSelection>,
) -> Result<ReadRows, SourceError> {
    let mut connection = MysqlConnection::open(network, options).await?;
    let mut catalogue = catalogue::load(&mut connection, rules).await?;
    let declared = catalogue.remove(&rule.table).unwrap_or_default();
    let types = declared.iter().map(|declared| {
        (declared.clone(), ColumnType::new(declared, LogColumn { kind: 0, metadata: [0, 0] }, None, None))
    });
    let used: Vec<(Declared, ColumnType)> = types.filter(|(declared, _)| rule.uses_column(&declared.name)).collect();
    let columns =
        used.iter().map(|(declared, column_type)| (column_type.column(&declared.name), form_of(declared, column_type)));
    let mut found = ReadRows { columns: columns.collect(), ..ReadRows::default() };
    let is_refused = used.iter().any(|(_, column_type)| matches!(column_type, ColumnType::Refused(_)));
    let Some(selection) = selection.filter(|_| !is_refused && !declared.is_empty()) else { return Ok(found) };
    let is_mariadb = connection.version.contains("MariaDB");
    let time_limit = match is_mariadb {
        true => format!("max_statement_time = {READ_MAX_S}"),
        false => format!("max_execution_time = {}", READ_MAX_S * 1_000),
    };
    if let Some(schema) = &options.schema {
        connection.query(&format!("USE {}", quote_name(schema))).await?;
    }
    connection
        .query(&format!(
            "SET NAMES utf8mb4; SET SESSION {time_limit}, time_zone = '+00:00'; START TRANSACTION READ ONLY"
        ))
        .await?;
    let select = select_sql(rule, &used, selection);
    let digits: String = select.bytes().map(|byte| format!("{byte:02x}")).collect();
    let execute = format!(
        "SET @lookaside_rows = _utf8mb4 X'{digits}'; PREPARE lookaside_rows FROM @lookaside_rows; EXECUTE lookaside_rows"
    );
    let rows = connection.query(&execute).await?;
    found.is_more = rows.len() > selection.rows_max;
    let value = |row: &Row, at: usize| match text(row, at) {
        None => RowValue::Null,
        Some(text) => RowValue::Text(as_in_keys(&used[at].1, text).into()),
    };
    let values = |row: &Row| (0..used.len()).map(|at| value(row, at)).collect();
    found.rows = rows.iter().take(selection.rows_max).map(values).collect();
    connection.query("ROLLBACK").await?;
    Ok(found)
}

fn select_sql(rule: &Rule, used: &[(Declared, ColumnType)], selection: &RowSelection) -> String {
    let table = format!("{}.{}", quote_name(&rule.table.schema), quote_name(&rule.table.name));
    let qualifier = selection.alias.clone().unwrap_or_else(|| table.clone());
    let alias = selection.alias.as_ref().map(|alias| format!(" AS {alias}")).unwrap_or_default();
    let column = |(at, (declared, column_type)): (usize, &(Declared, ColumnType))| {
        let name = format!("{qualifier}.{}", quote_name(&declared.name));
        let value = match column_type {
            // Without the zeros of ZEROFILL.
            ColumnType::Integer { .. } | ColumnType::Year | ColumnType::Bits | ColumnType::Decimal { .. } => {
                format!("{name} + 0")
            }
            ColumnType::Text(_) | ColumnType::Enum(_) | ColumnType::Set(_) => format!("CONVERT({name} USING utf8mb4)"),
            ColumnType::Bytes { .. } => format!("LOWER(HEX({name}))"),
            ColumnType::Uuid => format!("LOWER(CAST({name} AS CHAR))"),
            _ => format!("CAST({name} AS CHAR)"),
        };
        format!("{value} AS c{at}")
    };
    let columns: Vec<String> = used.iter().enumerate().map(column).collect();
    // A key may have no column.
    let columns = if columns.is_empty() { "1".into() } else { columns.join(", ") };
    // Inside of another one, as the condition may have a LIMIT of its own; and INTO is an error there.
    format!(
        "SELECT * FROM (SELECT {columns} FROM {table}{alias} {}) AS lookaside_rows LIMIT {}",
        selection.condition,
        selection.rows_max + 1
    )
}

/// The text that the server has for a value as keys have it.
fn as_in_keys(column_type: &ColumnType, text: String) -> String {
    let with_fraction = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match column_type {
        ColumnType::Time { .. } => with_fraction(&text),
        ColumnType::DateTime { .. } => with_fraction(&text.replace(' ', "T")),
        ColumnType::Timestamp { .. } => with_fraction(&text.replace(' ', "T")) + "Z",
        _ => text,
    }
}

/// How a value that a person writes is read.
fn form_of(declared: &Declared, column_type: &ColumnType) -> ColumnForm {
    // The precision of a time, and of no other column for which it is asked.
    let in_parentheses = declared.column_type.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    let fraction_digits = in_parentheses.and_then(|(digits, _)| digits.parse().ok()).unwrap_or(0);
    match column_type {
        ColumnType::Integer { .. } => ColumnForm::Integer,
        ColumnType::Year => ColumnForm::Year,
        ColumnType::Bits => ColumnForm::Bits,
        ColumnType::Decimal { .. } => ColumnForm::Decimal { scale: declared.scale as usize },
        ColumnType::Text(_) => ColumnForm::Text { is_padded: declared.data_type == "char" },
        ColumnType::Bytes { width } => ColumnForm::Bytes { width: *width },
        ColumnType::Enum(labels) => ColumnForm::Label(labels.clone()),
        ColumnType::Set(labels) => ColumnForm::Labels(labels.clone()),
        ColumnType::Date => ColumnForm::Date,
        ColumnType::Time { .. } => ColumnForm::Time { fraction_digits },
        ColumnType::DateTime { .. } => ColumnForm::DateTime { fraction_digits },
        ColumnType::Timestamp { .. } => ColumnForm::Instant { fraction_digits },
        ColumnType::Uuid => ColumnForm::Uuid,
        ColumnType::Refused(_) => ColumnForm::Other,
    }
}

fn quote_name(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_keys() {
        for (column_type, text, expected) in [
            (ColumnType::Time { kind: 0 }, "-838:59:59.250000", "-838:59:59.25"),
            (ColumnType::Time { kind: 0 }, "09:05:00", "09:05:00"),
            (ColumnType::DateTime { kind: 0 }, "2026-11-22 09:05:00.000000", "2026-11-22T09:05:00"),
            (ColumnType::Timestamp { kind: 0 }, "2026-11-22 09:05:10", "2026-11-22T09:05:10Z"),
            (ColumnType::Date, "2026-11-20", "2026-11-20"),
            (ColumnType::Decimal { precision: 9, scale: 2 }, "12.50", "12.50"),
        ] {
            assert_eq!(as_in_keys(&column_type, text.into()), expected);
        }
    }
}
