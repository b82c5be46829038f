//! Reads the rows that cached values are compared with. The account needs to read these tables and nothing else.

use super::{backoff::Backoff, comparison::Column, key_pattern::printable_key, queries::Query};
use anyhow::{Context, Error, Result, anyhow, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::{
    mysql::MysqlOptions,
    postgres::{PostgresConnection, PostgresOptions, Purpose, QueryError, quote_literal},
};
use mysql_async::{ClientIdentity, OptsBuilder, SslOpts, prelude::Queryable as _};
use rusqlite::{Connection, OpenFlags, types::ValueRef};
use serde_json::Value;
use std::{future::Future, time::Duration};
use tokio::time::{Instant, timeout};

/// How long connecting, and the query of a row, may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a list may take, which the database sorts by chance.
const LIST_TIMEOUT: Duration = Duration::from_secs(600);
/// How long the end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The rows of a list that PostgreSQL is asked for at a time.
const FETCHED_ROWS: usize = 5_000;
/// SQLSTATE class 57P: the server ends the session.
const SESSION_ENDED: &str = "57P";

/// A database: connected again when the connection has failed, with delays that grow until a query has an answer. A
/// query that the database refuses is no such failure, or each would cost a login.
pub struct AuditedDatabase {
    url: String,
    /// `None` after a failure.
    connection: Option<DatabaseConnection>,
    backoff: Backoff,
}

impl AuditedDatabase {
    /// Connects to the database at `url`. The error does not name the option that has the URL.
    pub async fn open(url: &str) -> Result<AuditedDatabase> {
        let connection = Some(DatabaseConnection::open(url).await?);
        Ok(AuditedDatabase { url: url.to_owned(), connection, backoff: Backoff::default() })
    }

    /// The row of a key of `query`, with these values of its placeholders; `None` if there is none. More than one row
    /// is an error. While the database cannot be reached this fails at once, so that a round of many keys ends.
    pub async fn read_row(&mut self, query: &Query, values: &[String]) -> Result<Option<Vec<Column>>> {
        let mut connection = self.connect().await?;
        let row = within(QUERY_TIMEOUT, connection.read_row(query, values)).await;
        self.keep_unless_broken(connection, row)
    }

    /// The values of the placeholders of keys of `query`, which its `list` selects: all, or `keys_max` of them by
    /// chance.
    pub async fn list(&mut self, query: &Query, keys_max: usize) -> Result<Vec<Vec<String>>> {
        let mut connection = self.connect().await?;
        let listed = within(LIST_TIMEOUT, connection.list(query, keys_max)).await;
        self.keep_unless_broken(connection, listed)
    }

    /// Ends the connection. MySQL's servers log and count a connection that is dropped without COM_QUIT.
    pub async fn close(self) {
        if let Some(DatabaseConnection::Mysql(connection)) = self.connection {
            let _ = timeout(CLOSE_TIMEOUT, connection.disconnect()).await;
        }
    }

    /// The connection, or after a failure another one.
    async fn connect(&mut self) -> Result<DatabaseConnection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        if self.backoff.is_waiting(Instant::now()) {
            bail!("the database could not be reached; waiting");
        }
        let opened = within(QUERY_TIMEOUT, async { Ok(DatabaseConnection::open(&self.url).await?) }).await;
        opened.map_err(|why| {
            self.backoff.fail(Instant::now());
            why.into()
        })
    }

    /// Keeps the connection for the next query, unless it has failed. That it could be opened is no success yet: the
    /// server may close each one at its first query.
    fn keep_unless_broken<T>(&mut self, connection: DatabaseConnection, result: Result<T, ReadError>) -> Result<T> {
        match result {
            Err(ReadError::Broken(why)) => {
                self.backoff.fail(Instant::now());
                Err(why)
            }
            answered => {
                self.backoff.reset();
                self.connection = Some(connection);
                Ok(answered?)
            }
        }
    }
}

/// Why a query has no result.
#[derive(Debug)]
enum ReadError {
    /// The connection is of no more use.
    Broken(Error),
    /// The database refuses the query, or the result is not what it should be. The connection can be used further.
    Refused(Error),
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        match error {
            ReadError::Broken(why) | ReadError::Refused(why) => why,
        }
    }
}

impl From<Error> for ReadError {
    fn from(why: Error) -> ReadError {
        ReadError::Refused(why)
    }
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> ReadError {
        use rusqlite::ErrorCode::{CannotOpen, DatabaseCorrupt, NotADatabase, SystemIoFailure};
        match error.sqlite_error_code() {
            Some(CannotOpen | DatabaseCorrupt | NotADatabase | SystemIoFailure) => ReadError::Broken(error.into()),
            _ => ReadError::Refused(error.into()),
        }
    }
}

impl From<mysql_async::Error> for ReadError {
    fn from(error: mysql_async::Error) -> ReadError {
        use mysql_async::DriverError::{MixedParams, Params, StmtParamsMismatch, StmtParamsNumberExceedsLimit};
        match &error {
            mysql_async::Error::Server(error) => ReadError::Refused(anyhow!("the database refuses: {error}")),
            mysql_async::Error::Driver(
                MixedParams | Params(_) | StmtParamsMismatch { .. } | StmtParamsNumberExceedsLimit { .. },
            ) => ReadError::Refused(mysql_error(&error)),
            _ => ReadError::Broken(mysql_error(&error)),
        }
    }
}

/// The driver's words for an error have those of its source, which would be shown twice.
fn mysql_error(error: &mysql_async::Error) -> Error {
    anyhow!("{error}")
}

impl From<QueryError> for ReadError {
    fn from(error: QueryError) -> ReadError {
        match error {
            QueryError::Server(error) if error.code.starts_with(SESSION_ENDED) => {
                ReadError::Broken(anyhow!("the database refuses: {error}"))
            }
            QueryError::Server(error) => ReadError::Refused(anyhow!("the database refuses: {error}")),
            QueryError::Source(error) => ReadError::Broken(error.into()),
        }
    }
}

/// The result of a query, or that the connection has not answered in time.
async fn within<T>(limit: Duration, query: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    match timeout(limit, query).await {
        Ok(result) => result,
        Err(_) => Err(ReadError::Broken(anyhow!("the database has not answered within {limit:?}"))),
    }
}

/// A connection to a database.
enum DatabaseConnection {
    Sqlite(Connection),
    Mysql(mysql_async::Conn),
    Postgres(PostgresConnection),
}

impl DatabaseConnection {
    async fn open(url: &str) -> Result<DatabaseConnection> {
        if let Some(path) = url.strip_prefix("sqlite://").filter(|path| !path.is_empty()) {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY);
            return Ok(DatabaseConnection::Sqlite(connection.with_context(|| path.to_owned())?));
        }
        if url.starts_with("postgres") {
            let options = PostgresOptions::from_url(url)?;
            let connection = PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await?;
            return Ok(DatabaseConnection::Postgres(connection));
        }
        if !url.starts_with("mysql://") && !url.starts_with("mariadb://") {
            // Not the URL itself: it may hold a password.
            bail!("the URL must be sqlite:///PATH, or begin with mysql://, mariadb:// or postgres://");
        }
        let options = mysql_options(&MysqlOptions::from_url(url)?)?;
        let connection = mysql_async::Conn::new(options).await;
        let connection = connection.map_err(|error| mysql_error(&error).context("connecting to the database"))?;
        Ok(DatabaseConnection::Mysql(connection))
    }

    async fn read_row(&mut self, query: &Query, values: &[String]) -> Result<Option<Vec<Column>>, ReadError> {
        let rows = match self {
            DatabaseConnection::Sqlite(connection) => {
                let (sql, parameters) = query.sql.with_parameters(values, |number| format!("?{number}"));
                read_sqlite(connection, &sql, &parameters)?
            }
            DatabaseConnection::Mysql(connection) => {
                let (sql, parameters) = query.sql.with_parameters(values, |_| "?".to_owned());
                let parameters: Vec<mysql_async::Value> = parameters.into_iter().map(Into::into).collect();
                let rows: Vec<mysql_async::Row> = connection.exec(sql, parameters).await?;
                rows.into_iter().map(mysql_columns).collect::<Result<_>>()?
            }
            DatabaseConnection::Postgres(connection) => {
                let sql = query.sql.with_literals(values, quote_literal);
                read_postgres(connection, &sql).await?
            }
        };
        match rows.len() {
            0 | 1 => Ok(rows.into_iter().next()),
            count => {
                let key = printable_key(&query.pattern.fill(values));
                Err(anyhow!("the query of {} returned {count} rows for key {key}; expected at most one", query.pattern)
                    .into())
            }
        }
    }

    async fn list(&mut self, query: &Query, keys_max: usize) -> Result<Vec<Vec<String>>, ReadError> {
        let Some(sql) = &query.list else { return Ok(Vec::new()) };
        let random = if matches!(self, DatabaseConnection::Mysql(_)) { "RAND()" } else { "RANDOM()" };
        let sql = format!("SELECT * FROM ({sql}) AS listed ORDER BY {random} LIMIT {keys_max}");
        let rows = match self {
            DatabaseConnection::Sqlite(connection) => read_sqlite(connection, &sql, &[])?,
            DatabaseConnection::Mysql(connection) => {
                let rows: Vec<mysql_async::Row> = connection.query(sql).await?;
                rows.into_iter().map(mysql_columns).collect::<Result<_>>()?
            }
            DatabaseConnection::Postgres(connection) => list_postgres(connection, &sql).await?,
        };
        let placeholders = query.pattern.placeholders().count();
        let values = |row: Vec<Column>| {
            if row.len() != placeholders {
                bail!("the list of {} has {} columns, and {placeholders} placeholders", query.pattern, row.len());
            }
            // A NULL names no key.
            Ok(row.into_iter().map(|(_, text)| text).collect::<Option<Vec<String>>>())
        };
        let lists = rows.into_iter().map(values).collect::<Result<Vec<_>>>()?;
        Ok(lists.into_iter().flatten().collect())
    }
}

/// The URL is read as the invalidator reads it, so that one URL serves both.
fn mysql_options(url: &MysqlOptions) -> Result<OptsBuilder> {
    let options = OptsBuilder::default()
        .ip_or_hostname(&*url.host)
        .tcp_port(url.port)
        .user(Some(&*url.user))
        .pass(Some(url.password.as_str()).filter(|password| !password.is_empty()))
        .db_name(url.schema.as_deref());
    let Some(tls) = &url.tls else { return Ok(options) };
    if !tls.verifies_name {
        // The driver recognises this error of a certificate by words that rustls does not use.
        bail!(
            "ssl-mode=VERIFY_CA (verify-ca) is not supported here: use VERIFY_IDENTITY (verify-full), with a host that \
             the certificate names"
        );
    }
    let identity = tls
        .client
        .as_ref()
        .map(|files| ClientIdentity::new(files.certificate.clone().into(), files.key.clone().into()));
    let tls = SslOpts::default()
        .with_root_certs(vec![tls.authorities.clone().into()])
        .with_disable_built_in_roots(true)
        .with_client_identity(identity);
    // A Unix socket, to which the driver changes where there is one, is not encrypted.
    Ok(options.ssl_opts(Some(tls)).prefer_socket(Some(false)))
}

fn read_sqlite(connection: &Connection, sql: &str, parameters: &[&str]) -> Result<Vec<Vec<Column>>, ReadError> {
    let mut statement = connection.prepare_cached(sql)?;
    let names: Vec<String> = statement.column_names().map(ToOwned::to_owned).collect();
    let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut read = Vec::new();
    while let Some(row) = rows.next()? {
        let column = |(index, name): (usize, &String)| -> Result<Column, ReadError> {
            let text = match row.get_ref(index)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(text_of(bytes.to_vec(), name)?),
            };
            Ok((name.clone(), text))
        };
        read.push(names.iter().enumerate().map(column).collect::<Result<Vec<Column>, ReadError>>()?);
    }
    Ok(read)
}

fn mysql_columns(row: mysql_async::Row) -> Result<Vec<Column>> {
    let names: Vec<String> = row.columns_ref().iter().map(|column| column.name_str().into_owned()).collect();
    let column = |(name, value): (String, mysql_async::Value)| -> Result<Column> {
        let text = match value {
            mysql_async::Value::NULL => None,
            mysql_async::Value::Bytes(bytes) => Some(text_of(bytes, &name)?),
            mysql_async::Value::Int(number) => Some(number.to_string()),
            mysql_async::Value::UInt(number) => Some(number.to_string()),
            mysql_async::Value::Float(number) => Some(number.to_string()),
            mysql_async::Value::Double(number) => Some(number.to_string()),
            date_or_time => Some(date_or_time.as_sql(true).trim_matches('\'').to_owned()),
        };
        Ok((name, text))
    };
    names.into_iter().zip(row.unwrap()).map(column).collect()
}

/// The server writes each row as JSON, which has the names of the columns.
async fn read_postgres(connection: &mut PostgresConnection, sql: &str) -> Result<Vec<Vec<Column>>, ReadError> {
    let sql = format!("SELECT row_to_json(audited)::text FROM ({sql}) AS audited");
    let rows = connection.query(&sql).await?;
    let row = |row: Vec<Option<String>>| -> Result<Vec<Column>> {
        let text = row.into_iter().next().flatten().unwrap_or_default();
        let Value::Object(fields) = serde_json::from_str(&text)? else { bail!("the row {text} is no object") };
        let column = |(name, value)| match value {
            Value::Null => (name, None),
            Value::String(text) => (name, Some(text)),
            other => (name, Some(other.to_string())),
        };
        Ok(fields.into_iter().map(column).collect())
    };
    Ok(rows.into_iter().map(row).collect::<Result<_>>()?)
}

/// All rows, part by part: the result of one query is bounded.
async fn list_postgres(connection: &mut PostgresConnection, sql: &str) -> Result<Vec<Vec<Column>>, ReadError> {
    let listed = fetch_postgres(connection, sql).await;
    if matches!(listed, Err(ReadError::Refused(_))) {
        // The transaction that a refused query was in would refuse all that follow.
        connection.query("ROLLBACK").await?;
    }
    listed
}

async fn fetch_postgres(connection: &mut PostgresConnection, sql: &str) -> Result<Vec<Vec<Column>>, ReadError> {
    connection.query("BEGIN READ ONLY").await?;
    connection.query(&format!("DECLARE audited NO SCROLL CURSOR FOR {sql}")).await?;
    let mut rows = Vec::new();
    loop {
        let fetched = connection.query_unlimited(&format!("FETCH {FETCHED_ROWS} FROM audited")).await?;
        let is_end = fetched.len() < FETCHED_ROWS;
        rows.extend(fetched.into_iter().map(|row| row.into_iter().map(|text| (String::new(), text)).collect()));
        if is_end {
            connection.query("COMMIT").await?;
            return Ok(rows);
        }
    }
}

fn text_of(bytes: Vec<u8>, column: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| anyhow!("the column {column} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::queries::Queries;
    use std::fs;

    const FILE: &str = "[[query]]\nkey = 'a:{id}'\nsql = 'SELECT name FROM users WHERE id = {id}'\n\
                        [[query]]\nkey = 'b:{id}'\nsql = 'SELECT name FROM missing WHERE id = {id}'\n\
                        list = 'SELECT id FROM missing'";

    /// Each of them cost a login: one wrong query in an audit without end cost as many as it made comparisons.
    #[tokio::test]
    async fn a_query_that_is_refused_does_not_cost_the_connection() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("app.db");
        let connection = Connection::open(&path).expect("a database");
        connection
            .execute_batch("CREATE TABLE users (id, name); INSERT INTO users VALUES ('1', x'ff')")
            .expect("valid");
        let mut database = AuditedDatabase::open(&format!("sqlite://{}", path.display())).await.expect("it opens");
        let queries = Queries::parse(FILE).expect("valid");
        let [found, missing] = queries.iter().collect::<Vec<_>>()[..] else { panic!("it has two") };
        let value = ["1".to_owned()];
        let why = database.read_row(missing, &value).await.expect_err("there is no such table");
        assert!(why.to_string().contains("no such table"), "{why}");
        assert!(database.connection.is_some());
        database.list(missing, 10).await.expect_err("there is no such table");
        assert!(database.connection.is_some());
        let why = database.read_row(found, &value).await.expect_err("a value that is no text");
        assert!(why.to_string().contains("UTF-8"), "{why}");
        assert!(database.connection.is_some() && database.backoff.retry_at().is_none());
    }

    /// That a connection could be opened ended the delays, and the next query lost it again.
    #[tokio::test]
    async fn a_connection_that_fails_at_each_query_is_opened_less_and_less_often() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("app.db");
        fs::write(&path, "this is no database, but it can be opened".repeat(100)).expect("written");
        let mut database = AuditedDatabase::open(&format!("sqlite://{}", path.display())).await.expect("it opens");
        let queries = Queries::parse(FILE).expect("valid");
        let query = queries.iter().next().expect("it has one");
        database.read_row(query, &["1".to_owned()]).await.expect_err("it is no database");
        let first = database.backoff.retry_at().expect("it waits");
        let why = database.read_row(query, &["1".to_owned()]).await.expect_err("it waits");
        assert!(why.to_string().contains("waiting"), "{why}");
        while database.backoff.is_waiting(Instant::now()) {
            tokio::time::sleep_until(first).await;
        }
        database.read_row(query, &["1".to_owned()]).await.expect_err("it is no database");
        let second = database.backoff.retry_at().expect("it waits") - Instant::now();
        assert!(second > Duration::from_millis(150), "{second:?}: twice as long as at first");
        fs::remove_file(&path).expect("removed");
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("CREATE TABLE users (id, name)").expect("valid");
        tokio::time::sleep_until(database.backoff.retry_at().expect("it waits")).await;
        assert_eq!(database.read_row(query, &["1".to_owned()]).await.expect("it is read"), None);
        assert!(database.backoff.retry_at().is_none());
    }
}
