//! The record in a table of PostgreSQL.

use super::{
    kept_connection::{ADVICE_READ_ONLY, KeptConnection, KeptSession, advise_setup, malformed, reason},
    record::{ElectionRecord, RecordError, RecordStore, RecordVersion, TABLE},
    session_lock::{LockAttempt, LockSighting, Looked, SessionLock, bits},
};
use crate::source::postgres::{
    PostgresConnection, PostgresOptions, Purpose, QueryError, Row, ServerError, quote_literal, quote_name,
};
use lookaside_client::Network;
use lookaside_routing::BoxFuture;
use std::sync::Arc;

/// A commit must survive a crash of the server, which keeps no log before the saved positions; a standby server need
/// not have it. And the session must not wait long for a lock that another one holds on the row.
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
        let query = async |mut session: KeptSession<PostgresConnection>| {
            let rows = session.connection.query(sql).await.map_err(|error| self.advise(error))?;
            Ok((session, rows))
        };
        self.connection.access(self.open(), query).await
    }

    async fn open(&self) -> Result<PostgresConnection, RecordError> {
        let opened = PostgresConnection::open(&*self.network, &self.server, Purpose::Queries).await;
        let mut connection = opened.map_err(reason)?;
        connection.query(SESSION).await.map_err(|error| self.advise(error))?;
        Ok(connection)
    }

    /// The error for operators, with what mends it.
    fn advise(&self, error: QueryError) -> RecordError {
        let ServerError { code, message, .. } = match error {
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
            Ok(Some(ElectionRecord::parse(version, column(2)?)?))
        })
    }

    fn replace<'a>(
        &'a self,
        expected: Option<&'a RecordVersion>,
        record: &'a ElectionRecord,
    ) -> BoxFuture<'a, Result<bool, RecordError>> {
        Box::pin(async move {
            let RecordVersion { holder, counter } = &record.version;
            let name = quote_literal(&self.name);
            let (holder, state) = (quote_literal(holder), quote_literal(&record.to_text()));
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

    fn hold_lock(&self, number: u64) -> BoxFuture<'_, Result<LockAttempt, RecordError>> {
        Box::pin(async move {
            let hold = async |mut session: KeptSession<PostgresConnection>| {
                let is_new = session.lock.is_none();
                let lock = *session.lock.get_or_insert(SessionLock(number));
                let is_held = match is_new {
                    true => format!("pg_try_advisory_lock({})", key(lock)),
                    // Not taken again: it was free for a moment.
                    false => format!(
                        "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted \
                         AND objsubid = 1 AND classid = '{}'::oid AND objid = '{}'::oid)",
                        lock.0 >> 32,
                        lock.0 & 0xffff_ffff
                    ),
                };
                let attempt = match look(&mut session.connection, &is_held, &[]).await? {
                    Ok(looked) => LockAttempt::new(lock, looked),
                    Err(error) => LockAttempt::Refused(error.to_string()),
                };
                Ok((session, attempt))
            };
            self.connection.access(self.open(), hold).await
        })
    }

    fn look_up_lock(&self, lock: SessionLock) -> BoxFuture<'_, Result<Option<LockSighting>, RecordError>> {
        Box::pin(async move {
            let look_up = async |mut session: KeptSession<PostgresConnection>| {
                // Freed at the end of the statement. Several standbys may have it at once. A look at pg_locks would
                // hold up all locks of the server for a moment.
                let is_held = |lock| format!("NOT pg_try_advisory_xact_lock_shared({})", key(lock));
                let beats: Vec<String> = lock.of_beats().map(is_held).collect();
                let looked = look(&mut session.connection, &is_held(lock), &beats).await?.ok();
                let sighting = looked.and_then(|looked| looked.sighting(session.number));
                Ok((session, sighting))
            };
            self.connection.access(self.open(), look_up).await
        })
    }

    fn beat(&self) -> BoxFuture<'_, Result<bool, RecordError>> {
        Box::pin(async {
            let beat = async |mut session: KeptSession<PostgresConnection>| {
                let is_first = session.beats == 0;
                let Some((last, next)) = session.next_beat() else { return Ok((session, false)) };
                // Waits for standbys that look at it now, each for one statement. What is not held is not freed: the
                // server would log that.
                let free = if is_first { String::new() } else { format!(", pg_advisory_unlock({})", key(last)) };
                let sql = format!("SELECT pg_advisory_lock({}){free}", key(next));
                session.connection.query(&sql).await.map_err(|error| self.advise(error))?;
                Ok((session, true))
            };
            self.connection.access(self.open(), beat).await
        })
    }
}

/// Looks whether `condition` is true, and which of `beats` are.
async fn look(
    connection: &mut PostgresConnection,
    condition: &str,
    beats: &[String],
) -> Result<Result<Looked, ServerError>, RecordError> {
    let columns: String = beats.iter().map(|beat| format!(", {beat}")).collect();
    let rows = match connection.query(&format!("SELECT {condition}, pg_backend_pid(){columns}")).await {
        Ok(rows) => rows,
        Err(QueryError::Server(error)) => return Ok(Err(error)),
        Err(QueryError::Source(error)) => return Err(reason(error)),
    };
    let column = |index: usize| rows.first()?.get(index)?.as_deref();
    let process_id: Option<i32> = column(1).and_then(|pid| pid.parse().ok());
    let is_own_session = process_id.is_some() && process_id == connection.process_id;
    let beat = bits((0..beats.len()).map(|index| column(2 + index) == Some("t")));
    Ok(Ok(Looked { is_true: column(0) == Some("t"), beat, is_own_session }))
}

/// The key of a lock, of which PostgreSQL takes 64 bits with a sign.
fn key(lock: SessionLock) -> String {
    format!("'{}'::bigint", lock.0.cast_signed())
}
