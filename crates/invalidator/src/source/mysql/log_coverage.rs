//! Checks whether the log has all commits: a replica may apply changes without logging them, and filters may exclude
//! schemas.
//!
//! Serves the start of the delete path. Keys of commits that are missing in the log are not deleted, so this is checked
//! before the first event. Not detected: sessions with `sql_log_bin=0`. Filters of replication itself need no check, as
//! changes that they exclude are not committed here.

use super::connection::{MysqlConnection, Row, text};
use crate::SourceError;
use std::{collections::BTreeMap, time::Duration};

/// How long each of these queries may take.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(10);

/// The first query that the server supports shows whether it is a replica, with a row for each of its sources.
const REPLICA_QUERIES: [&str; 3] = ["SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS"];

/// The first query that the server supports shows its filters: file, position, included schemas, excluded schemas.
const FILTER_QUERIES: [&str; 2] = ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"];
const COLUMN_ONLY: usize = 2;
const COLUMN_IGNORED: usize = 3;

/// The schemas that filters keep out of the log, as the server shows them; empty if there is no such filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilters {
    /// The only schemas that are in the log (`binlog_do_db`).
    pub included_schemas: String,
    /// The schemas that are not in the log (`binlog_ignore_db`).
    pub excluded_schemas: String,
}

/// The filters of the log; `None` if the account may not query them.
pub async fn read_filters(connection: &mut MysqlConnection) -> Result<Option<LogFilters>, SourceError> {
    let rows = first_supported(connection, &FILTER_QUERIES).await?;
    Ok(rows.map(|rows| {
        let value = |at| rows.first().and_then(|row| text(row, at)).unwrap_or_default();
        LogFilters { included_schemas: value(COLUMN_ONLY), excluded_schemas: value(COLUMN_IGNORED) }
    }))
}

/// Fails with [`SourceError::UnsafeSettings`] if the server is a replica and its log lacks what it applies; returns a
/// warning if the account may not query whether it is one. `needs_statements` means that keys are read from the text of
/// statements.
pub async fn check_replica(
    connection: &mut MysqlConnection,
    variables: &BTreeMap<String, String>,
    needs_statements: bool,
) -> Result<Option<String>, SourceError> {
    let is_off = |name: &str| variables.get(name).is_some_and(|value| value == "OFF");
    let is_unlogged = is_off("log_slave_updates") || is_off("log_replica_updates");
    let lacks_statements = needs_statements && is_off("replicate_annotate_row_events");
    if !is_unlogged && !lacks_statements {
        return Ok(None);
    }
    match first_supported(connection, &REPLICA_QUERIES).await? {
        Some(sources) if sources.is_empty() => Ok(None),
        Some(_) if is_unlogged => Err(SourceError::UnsafeSettings {
            why: "the server is a replica and does not log the changes that it applies, so nearly every commit would be \
                  missed: set log_slave_updates=ON (MySQL: log_replica_updates=ON) or read the log of its source"
                .into(),
        }),
        Some(_) => Err(SourceError::UnsafeSettings {
            why: "the server is a replica and drops the text of the statements that it applies, so keys in comments would \
                  be missed: set replicate_annotate_row_events=ON, or use --outbox-only"
                .into(),
        }),
        None => Ok(Some(
            "log_slave_updates is off, and there is no privilege to query whether the server is a replica; if it is one, \
             the changes that it applies are not in its log: set log_slave_updates=ON, or GRANT SLAVE MONITOR (MySQL: \
             REPLICATION CLIENT)"
                .into(),
        )),
    }
}

/// The result of the first of `queries` that the server supports and we have the privilege for; `None` if there is
/// none.
async fn first_supported(connection: &mut MysqlConnection, queries: &[&str]) -> Result<Option<Vec<Row>>, SourceError> {
    for sql in queries {
        if let Ok(rows) = connection.try_query(sql, QUERY_WAIT_MAX).await? {
            return Ok(Some(rows));
        }
    }
    Ok(None)
}
