//! The record in a table of MariaDB or MySQL. The table is in the binlog, so a promoted replica has it.

use super::{
    kept_connection::{ADVICE_READ_ONLY, KeptConnection, advise_setup, malformed, reason},
    record::{ACCESS_WAIT_MAX, ElectionRecord, RecordError, RecordStore, RecordVersion, SharedState, TABLE},
};
use crate::source::mysql::{MysqlConnection, MysqlOptions, Row, ServerError};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::sync::Arc;

/// The session must commit each statement, and not wait long for a lock that another session holds on the row.
const SESSION: &str = "SET autocommit = 1, innodb_lock_wait_timeout = 1";

/// The SQL that creates the table in `schema`, and that gives `account` the rights on it.
pub fn table_sql(schema: &str, account: &str) -> String {
    let table = table_name(schema);
    let account = account.replace('\'', "''");
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
  name VARCHAR(64) NOT NULL PRIMARY KEY,
  holder VARCHAR(255) NOT NULL,
  counter BIGINT UNSIGNED NOT NULL,
  state MEDIUMTEXT NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
GRANT SELECT, INSERT, UPDATE ON {table} TO '{account}'@'%';
"
    )
}

/// A row of the table, over a connection of its own.
pub struct MysqlRecord {
    network: Arc<dyn Network>,
    server: MysqlOptions,
    schema: String,
    /// The row's name.
    name: String,
    connection: KeptConnection<MysqlConnection>,
}

impl MysqlRecord {
    /// The row `name` in `schema` of `server`.
    pub fn new(network: Arc<dyn Network>, server: MysqlOptions, schema: String, name: String) -> MysqlRecord {
        MysqlRecord { network, server, schema, name, connection: KeptConnection::default() }
    }

    /// Runs `sql`, which may be several statements, and returns the rows of the last one.
    async fn query(&self, sql: &str) -> Result<Vec<Row>, RecordError> {
        let open = async {
            let mut connection = MysqlConnection::open(&*self.network, &self.server).await.map_err(reason)?;
            connection.query(SESSION).await.map_err(reason)?;
            Ok(connection)
        };
        let query = async |mut connection: MysqlConnection| {
            let rows = connection.try_query(sql, ACCESS_WAIT_MAX).await.map_err(reason)?;
            Ok((connection, rows.map_err(|error| self.advise(error))?))
        };
        self.connection.access(open, query).await
    }

    /// The error for operators, with what mends it.
    fn advise(&self, ServerError { code, message }: ServerError) -> RecordError {
        let (schema, user) = (&self.schema, &self.server.user);
        let advice = match code {
            // No such table, no privilege on the table, none in the schema, no such schema.
            1146 | 1142 | 1143 | 1044 | 1049 => advise_setup(&table_sql(schema, user)),
            // Read-only, a transaction that must not write, and MariaDB's for a replica.
            1290 | 1792 | 1836 => ADVICE_READ_ONLY.into(),
            _ => String::new(),
        };
        RecordError(format!("{schema}.{TABLE}: {message} (error {code}){advice}"))
    }
}

impl RecordStore for MysqlRecord {
    fn read(&self) -> BoxFuture<'_, Result<Option<ElectionRecord>, RecordError>> {
        Box::pin(async {
            let (table, name) = (table_name(&self.schema), literal(&self.name));
            let sql = format!("SELECT holder, counter, state FROM {table} WHERE name = {name}");
            let Some(row) = self.query(&sql).await?.into_iter().next() else { return Ok(None) };
            let state = SharedState::parse(&column(&row, 2)?)?;
            Ok(Some(ElectionRecord { version: version_of(&row)?, state }))
        })
    }

    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>> {
        Box::pin(async move {
            let (table, name) = (table_name(&self.schema), literal(&self.name));
            let ElectionRecord { version: RecordVersion { holder, counter }, state } = record;
            let (holder, state) = (literal(holder), literal(&state.to_text()));
            let write = match expected {
                None => format!("INSERT IGNORE INTO {table} VALUES ({name}, {holder}, {counter}, {state})"),
                Some(expected) => format!(
                    "UPDATE {table} SET holder = {holder}, counter = {counter}, state = {state} \
                     WHERE name = {name} AND holder = {} AND counter = {}",
                    literal(&expected.holder),
                    expected.counter
                ),
            };
            // The version that the row has now would not do: an earlier attempt, whose result is unknown, may have
            // stored this version with an older state.
            let rows = self.query(&format!("{write}; SELECT ROW_COUNT()")).await?;
            Ok(column(rows.first().ok_or_else(malformed)?, 0)? == "1")
        })
    }
}

fn table_name(schema: &str) -> String {
    format!("`{}`.`{TABLE}`", schema.replace('`', "``"))
}

/// `text` as a literal, whatever the session's `sql_mode` is.
fn literal(text: &str) -> String {
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("_utf8mb4 X'{digits}'")
}

fn version_of(row: &Row) -> Result<RecordVersion, RecordError> {
    let counter = column(row, 1)?.parse().map_err(|_| malformed())?;
    Ok(RecordVersion { holder: column(row, 0)?, counter })
}

fn column(row: &Row, index: usize) -> Result<String, RecordError> {
    let bytes = row.get(index).and_then(Option::as_ref).ok_or_else(malformed)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
