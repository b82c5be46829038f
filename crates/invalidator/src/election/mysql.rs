//! The record in a table of MariaDB or MySQL. The table is in the binlog, so a promoted replica has it.

use super::{
    kept_connection::{ADVICE_READ_ONLY, KeptConnection, KeptSession, advise_setup, malformed, reason},
    record::{ACCESS_WAIT_MAX, ElectionRecord, RecordError, RecordStore, RecordVersion, TABLE},
    session_lock::{LockAttempt, LockSighting, Looked, SessionLock, bits},
};
use crate::source::mysql::{MysqlConnection, MysqlOptions, Row, ServerError, text};
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
        let query = async |mut session: KeptSession<MysqlConnection>| {
            let rows = session.connection.try_query(sql, ACCESS_WAIT_MAX).await.map_err(reason)?;
            Ok((session, rows.map_err(|error| self.advise(error))?))
        };
        self.connection.access(self.open(), query).await
    }

    async fn open(&self) -> Result<MysqlConnection, RecordError> {
        let mut connection = MysqlConnection::open(&*self.network, &self.server).await.map_err(reason)?;
        connection.query(SESSION).await.map_err(reason)?;
        Ok(connection)
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
            Ok(Some(ElectionRecord::parse(version_of(&row)?, &column(&row, 2)?)?))
        })
    }

    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>> {
        Box::pin(async move {
            let (table, name) = (table_name(&self.schema), literal(&self.name));
            let RecordVersion { holder, counter } = &record.version;
            let (holder, state) = (literal(holder), literal(&record.to_text()));
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

    fn hold_lock(&self, number: u64) -> BoxFuture<'_, Result<LockAttempt, RecordError>> {
        Box::pin(async move {
            let hold = async |mut session: KeptSession<MysqlConnection>| {
                let is_new = session.lock.is_none();
                let lock = *session.lock.get_or_insert(SessionLock(number));
                let name = lock_name(lock);
                let is_held = match is_new {
                    true => format!("GET_LOCK({name}, 0)"),
                    // Not taken again: it was free for a moment.
                    false => format!("IS_USED_LOCK({name}) <=> CONNECTION_ID()"),
                };
                let attempt = match look(&mut session.connection, &is_held, &[]).await? {
                    Ok(looked) => LockAttempt::new(lock, looked),
                    Err(ServerError { code, message }) => LockAttempt::Refused(format!("{message} (error {code})")),
                };
                Ok((session, attempt))
            };
            self.connection.access(self.open(), hold).await
        })
    }

    fn look_up_lock(&self, lock: SessionLock) -> BoxFuture<'_, Result<Option<LockSighting>, RecordError>> {
        Box::pin(async move {
            let look_up = async |mut session: KeptSession<MysqlConnection>| {
                let is_used = |lock| format!("IS_USED_LOCK({}) IS NOT NULL", lock_name(lock));
                let beats: Vec<String> = lock.of_beats().map(is_used).collect();
                let looked = look(&mut session.connection, &is_used(lock), &beats).await?.ok();
                let sighting = looked.and_then(|looked| looked.sighting(session.number));
                Ok((session, sighting))
            };
            self.connection.access(self.open(), look_up).await
        })
    }

    fn beat(&self) -> BoxFuture<'_, Result<bool, RecordError>> {
        Box::pin(async {
            let beat = async |mut session: KeptSession<MysqlConnection>| {
                let Some((last, next)) = session.next_beat() else { return Ok((session, false)) };
                let sql = format!("SELECT GET_LOCK({}, 0), RELEASE_LOCK({})", lock_name(next), lock_name(last));
                let rows = session.connection.try_query(&sql, ACCESS_WAIT_MAX).await.map_err(reason)?;
                let rows = rows.map_err(|error| self.advise(error))?;
                let is_taken = column(rows.first().ok_or_else(malformed)?, 0)? == "1";
                Ok((session, is_taken))
            };
            self.connection.access(self.open(), beat).await
        })
    }
}

/// Looks whether `condition` is true, and which of `beats` are.
async fn look(
    connection: &mut MysqlConnection,
    condition: &str,
    beats: &[String],
) -> Result<Result<Looked, ServerError>, RecordError> {
    let columns: String = beats.iter().map(|beat| format!(", {beat}")).collect();
    let sql = format!("SELECT {condition}, CONNECTION_ID(){columns}");
    let rows = match connection.try_query(&sql, ACCESS_WAIT_MAX).await.map_err(reason)? {
        Ok(rows) => rows,
        Err(error) => return Ok(Err(error)),
    };
    let number = |index| text(rows.first()?, index)?.parse::<u64>().ok();
    // A handshake has the lower 32 bits.
    let is_own_session = number(1).is_some_and(|id| id as u32 == connection.id);
    let beat = bits((0..beats.len()).map(|index| number(2 + index) == Some(1)));
    Ok(Ok(Looked { is_true: number(0) == Some(1), beat, is_own_session }))
}

/// The name of a lock as a literal. At most 64 characters.
fn lock_name(lock: SessionLock) -> String {
    format!("'{TABLE}.{}'", lock.text())
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
