//! Whether the log has all that is committed: a replica may apply without logging, and filters may leave schemas out.
//!
//! Serves the beginning of the delete path. What a log leaves out, no reader of it can delete; so it is found before
//! the first event. Absent: sessions with `sql_log_bin=0`, and filters of replication itself (what they keep out is
//! not committed here).

use super::connection::{Connection, Row, text};
use crate::SourceError;
use std::{collections::BTreeMap, time::Duration};

/// How long each of these questions may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// The first that the server understands tells whether it is a replica. One row for each of its sources.
const REPLICA_QUERIES: [&str; 3] = ["SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS"];

/// The first that the server understands tells its filters: file, position, schemas that are in, schemas that are out.
const FILTER_QUERIES: [&str; 2] = ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"];
const COLUMN_ONLY: usize = 2;
const COLUMN_IGNORED: usize = 3;

/// Fails with [`SourceError::Unusable`] when the log is a part of what is committed, and returns warnings where it
/// may be. `needs_texts` says that keys are looked for in statements.
pub async fn check(
    connection: &mut Connection,
    variables: &BTreeMap<String, String>,
    needs_texts: bool,
) -> Result<Vec<String>, SourceError> {
    let is_off = |name: &str| variables.get(name).is_some_and(|value| value == "OFF");
    let mut warnings = filters(connection).await?;
    let unlogged = is_off("log_slave_updates") || is_off("log_replica_updates");
    let textless = needs_texts && is_off("replicate_annotate_row_events");
    if !unlogged && !textless {
        return Ok(warnings);
    }
    match first_answer(connection, &REPLICA_QUERIES).await? {
        Some(sources) if sources.is_empty() => {}
        Some(_) if unlogged => {
            return Err(SourceError::Unusable {
                why: "the server is a replica and does not log what it applies, so nearly every commit would go \
                      unseen: set log_slave_updates=ON (MySQL: log_replica_updates=ON) or read the log of its source"
                    .into(),
            });
        }
        Some(_) => {
            return Err(SourceError::Unusable {
                why: "the server is a replica and drops the texts of the statements that it applies, so keys in \
                      comments would go unseen: set replicate_annotate_row_events=ON, or say that only the outbox table \
                      is used"
                    .into(),
            });
        }
        None => warnings.push(
            "log_slave_updates is off, and the server does not let us ask whether it is a replica; if it is one, what it \
             applies is not in its log: set log_slave_updates=ON, or GRANT SLAVE MONITOR (MySQL: REPLICATION CLIENT)"
                .into(),
        ),
    }
    Ok(warnings)
}

async fn filters(connection: &mut Connection) -> Result<Vec<String>, SourceError> {
    let Some(rows) = first_answer(connection, &FILTER_QUERIES).await? else {
        return Ok(vec![
            "the server does not let us ask for binlog filters: GRANT BINLOG MONITOR (MySQL: REPLICATION \
                        CLIENT); changes in schemas that binlog_do_db or binlog_ignore_db leave out delete nothing"
                .into(),
        ]);
    };
    let named = |at| rows.first().and_then(|row| text(row, at)).unwrap_or_default();
    let warning = |filter: &str, schemas: &str| {
        format!("{filter}={schemas}: changes in the schemas that this keeps out of the log delete nothing; remove it")
    };
    let (only, ignored) = (named(COLUMN_ONLY), named(COLUMN_IGNORED));
    let filters = [("binlog_do_db", only), ("binlog_ignore_db", ignored)];
    Ok(filters
        .iter()
        .filter(|(_, schemas)| !schemas.is_empty())
        .map(|(name, schemas)| warning(name, schemas))
        .collect())
}

/// The answer to the first of `queries` that the server understands and lets us ask.
async fn first_answer(connection: &mut Connection, queries: &[&str]) -> Result<Option<Vec<Row>>, SourceError> {
    for sql in queries {
        if let Ok(rows) = connection.try_query(sql, ANSWER_WAIT_MAX).await? {
            return Ok(Some(rows));
        }
    }
    Ok(None)
}
