//! The record in a table of PostgreSQL.

use super::record::{ACCESS_WAIT_MAX, ElectionRecord, RecordError, RecordStore, RecordVersion, SharedState, TABLE};
use crate::{
    SourceError,
    source::postgres::{
        PostgresConnection, PostgresOptions, Purpose, QueryError, Row, ServerError, quote_literal, quote_name,
    },
};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::sync::Arc;
use tokio::{sync::Mutex, time::timeout};

/// A commit must survive a crash of the server, which keeps no log before the saved positions; a standby server need not
/// have it. And the session must not wait long for a lock that another one holds on the row.
const SESSION: &str = "SET synchronous_commit = local; SET lock_timeout = '1s'";

/// The SQL that creates the table, and that gives `account` the rights on it.
pub fn table_sql(account: &str) -> String {
    let account = quote_name(account);
    format!(
        "CREATE TABLE IF NOT EXISTS {TABLE} (
  name text PRIMARY KEY,
  holder text NOT NULL,
  counter bigint NOT NULL,
  state text NOT NULL
);
GRANT SELECT, INSERT, UPDATE ON {TABLE} TO {account};
"
    )
}

/// A row of the table, over a connection of its own.
pub struct PostgresRecord {
    network: Arc<dyn Network>,
    server: PostgresOptions,
    /// The row's name.
    name: String,
    /// `None` until it is needed, and after a failure.
    connection: Mutex<Option<PostgresConnection>>,
}

impl PostgresRecord {
    /// The row `name` in the database of `server`.
    pub fn new(network: Arc<dyn Network>, server: PostgresOptions, name: String) -> PostgresRecord {
        PostgresRecord { network, server, name, connection: Mutex::default() }
    }

    async fn query(&self, sql: &str) -> Result<Vec<Row>, RecordError> {
        let mut kept = self.connection.lock().await;
        let access = async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => {
                    let opened = PostgresConnection::open(&*self.network, &self.server, Purpose::Queries).await;
                    let mut connection = opened.map_err(reason)?;
                    connection.query(SESSION).await.map_err(|error| self.advise(error))?;
                    connection
                }
            };
            let rows = connection.query(sql).await.map_err(|error| self.advise(error))?;
            // After an error it is dropped, as it may hold unread replies.
            *kept = Some(connection);
            Ok(rows)
        };
        timeout(ACCESS_WAIT_MAX, access)
            .await
            .unwrap_or_else(|_| Err(RecordError(format!("the database has not answered within {ACCESS_WAIT_MAX:?}"))))
    }

    /// The error for operators, with what mends it.
    fn advise(&self, error: QueryError) -> RecordError {
        let ServerError { code, message } = match error {
            QueryError::Server(error) => error,
            QueryError::Source(error) => return reason(error),
        };
        let advice = match code.as_str() {
            // No such table, no privilege.
            "42P01" | "42501" => format!(
                "; run `lookaside invalidator setup --shared-state`, or\n{}",
                table_sql(&self.server.user).trim_end()
            ),
            // Read-only.
            "25006" => {
                "; it is read-only: --shared-state must be a database that can be written, such as the primary".into()
            }
            _ => String::new(),
        };
        RecordError(format!("{TABLE}: {message} ({code}){advice}"))
    }
}

impl RecordStore for PostgresRecord {
    fn read(&self) -> BoxFuture<'_, Result<Option<ElectionRecord>, RecordError>> {
        Box::pin(async {
            let name = quote_literal(&self.name);
            let sql = format!("SELECT holder, counter, state FROM {TABLE} WHERE name = {name}");
            let Some(row) = self.query(&sql).await?.into_iter().next() else { return Ok(None) };
            let column = |index: usize| row.get(index).and_then(Option::as_deref).ok_or_else(malformed);
            let counter = column(1)?.parse().map_err(|_| malformed())?;
            let version = RecordVersion { holder: column(0)?.to_owned(), counter };
            Ok(Some(ElectionRecord { version, state: SharedState::parse(column(2)?)? }))
        })
    }

    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>> {
        Box::pin(async move {
            let ElectionRecord { version: RecordVersion { holder, counter }, state } = record;
            let name = quote_literal(&self.name);
            let (holder, state) = (quote_literal(holder), quote_literal(&state.to_text()));
            let sql = match expected {
                None => format!(
                    "INSERT INTO {TABLE} VALUES ({name}, {holder}, {counter}, {state}) ON CONFLICT DO NOTHING \
                     RETURNING 1"
                ),
                Some(expected) => format!(
                    "UPDATE {TABLE} SET holder = {holder}, counter = {counter}, state = {state} \
                     WHERE name = {name} AND holder = {} AND counter = {} RETURNING 1",
                    quote_literal(&expected.holder),
                    expected.counter
                ),
            };
            Ok(!self.query(&sql).await?.is_empty())
        })
    }
}

fn malformed() -> RecordError {
    RecordError(format!("the table {TABLE} has another form; drop it and run `lookaside invalidator setup` again"))
}

fn reason(error: SourceError) -> RecordError {
    RecordError(error.reason().to_owned())
}
