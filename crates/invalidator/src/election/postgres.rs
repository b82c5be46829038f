//! The record in a table of PostgreSQL.

use super::{
    kept_connection::{ADVICE_READ_ONLY, KeptConnection, advise_setup, malformed, reason},
    record::{ElectionRecord, RecordError, RecordStore, RecordVersion, SharedState, TABLE},
};
use crate::source::postgres::{
    PostgresConnection, PostgresOptions, Purpose, QueryError, Row, ServerError, quote_literal, quote_name,
};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::sync::Arc;

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
    connection: KeptConnection<PostgresConnection>,
}

impl PostgresRecord {
    /// The row `name` in the database of `server`.
    pub fn new(network: Arc<dyn Network>, server: PostgresOptions, name: String) -> PostgresRecord {
        PostgresRecord { network, server, name, connection: KeptConnection::default() }
    }

    async fn query(&self, sql: &str) -> Result<Vec<Row>, RecordError> {
        let open = async {
            let opened = PostgresConnection::open(&*self.network, &self.server, Purpose::Queries).await;
            let mut connection = opened.map_err(reason)?;
            connection.query(SESSION).await.map_err(|error| self.advise(error))?;
            Ok(connection)
        };
        let query = async |mut connection: PostgresConnection| {
            let rows = connection.query(sql).await.map_err(|error| self.advise(error))?;
            Ok((connection, rows))
        };
        self.connection.access(open, query).await
    }

    /// The error for operators, with what mends it.
    fn advise(&self, error: QueryError) -> RecordError {
        let ServerError { code, message } = match error {
            QueryError::Server(error) => error,
            QueryError::Source(error) => return reason(error),
        };
        let advice = match code.as_str() {
            // No such table, no privilege.
            "42P01" | "42501" => advise_setup(&table_sql(&self.server.user)),
            // Read-only.
            "25006" => ADVICE_READ_ONLY.into(),
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
