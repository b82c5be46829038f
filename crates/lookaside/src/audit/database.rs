//! Reads the rows that cached values are compared with. The account needs to read these tables and nothing else.

use super::{backoff::Backoff, comparison::Column, queries::Query};
use anyhow::{Context, Result, anyhow, bail};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    source::{
        mysql::strip_acceptance,
        postgres::{PostgresConnection, PostgresOptions, Purpose, quote_literal},
    },
};
use mysql_async::prelude::Queryable as _;
use rusqlite::{Connection, OpenFlags, types::ValueRef};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

/// A database: connected again after a failed query, with delays that grow while connecting fails.
pub struct AuditedDatabase {
    url: String,
    /// `None` after a failure.
    connection: Option<DatabaseConnection>,
    backoff: Backoff,
}

impl AuditedDatabase {
    /// Connects to the database at `url`.
    pub async fn open(url: &str) -> Result<AuditedDatabase> {
        let connection = Some(DatabaseConnection::open(url).await?);
        Ok(AuditedDatabase { url: url.to_owned(), connection, backoff: Backoff::default() })
    }

    /// The row of a key of `query`, with these values of its placeholders; `None` if there is none. More than one row is
    /// an error. While the database cannot be reached this fails at once, so that a round of many keys ends.
    pub async fn read_row(&mut self, query: &Query, values: &[String]) -> Result<Option<Vec<Column>>> {
        if self.backoff.is_waiting(Instant::now()) {
            bail!("the database could not be reached; waiting");
        }
        let mut connection = self.connect().await?;
        let row = connection.read_row(query, values).await;
        self.keep(connection, row)
    }

    /// The values of the placeholders of keys of `query`, which its `list` selects: all, or `keys_max` of them by chance.
    pub async fn list(&mut self, query: &Query, keys_max: usize) -> Result<Vec<Vec<String>>> {
        let mut connection = self.connect().await?;
        let listed = connection.list(query, keys_max).await;
        self.keep(connection, listed)
    }

    /// The connection, or after a failure another one.
    async fn connect(&mut self) -> Result<DatabaseConnection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        if let Some(retry_at) = self.backoff.retry_at() {
            sleep_until(retry_at).await;
        }
        match DatabaseConnection::open(&self.url).await {
            Ok(connection) => {
                self.backoff.reset();
                Ok(connection)
            }
            Err(why) => {
                self.backoff.fail(Instant::now());
                Err(why)
            }
        }
    }

    /// Keeps a connection for the next query, unless this one has failed.
    fn keep<T>(&mut self, connection: DatabaseConnection, result: Result<T>) -> Result<T> {
        if result.is_ok() {
            self.connection = Some(connection);
        }
        result
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
            bail!("--database must be sqlite:///PATH, or mysql://, mariadb:// or postgres://");
        }
        let url = strip_acceptance(url).replacen("mariadb://", "mysql://", 1);
        // The error of a URL would show it.
        let options = mysql_async::Opts::from_url(&url).map_err(|_| {
            anyhow!("--database must be mysql://USER:PASSWORD@HOST:PORT/SCHEMA; TLS is not supported here")
        })?;
        let connection = mysql_async::Conn::new(options).await.context("connecting to the database")?;
        Ok(DatabaseConnection::Mysql(connection))
    }

    async fn read_row(&mut self, query: &Query, values: &[String]) -> Result<Option<Vec<Column>>> {
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
            count => bail!("the query of {} has {count} rows for one key, and one value", query.pattern),
        }
    }

    async fn list(&mut self, query: &Query, keys_max: usize) -> Result<Vec<Vec<String>>> {
        let Some(sql) = &query.list else { return Ok(Vec::new()) };
        let random = if matches!(self, DatabaseConnection::Mysql(_)) { "RAND()" } else { "RANDOM()" };
        let sql = format!("SELECT * FROM ({sql}) AS listed ORDER BY {random} LIMIT {keys_max}");
        let rows = match self {
            DatabaseConnection::Sqlite(connection) => read_sqlite(connection, &sql, &[])?,
            DatabaseConnection::Mysql(connection) => {
                let rows: Vec<mysql_async::Row> = connection.query(sql).await?;
                rows.into_iter().map(mysql_columns).collect::<Result<_>>()?
            }
            DatabaseConnection::Postgres(connection) => {
                let rows = connection.query(&sql).await.map_err(SourceError::from)?;
                rows.into_iter().map(|row| row.into_iter().map(|text| (String::new(), text)).collect()).collect()
            }
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

fn read_sqlite(connection: &Connection, sql: &str, parameters: &[&str]) -> Result<Vec<Vec<Column>>> {
    let mut statement = connection.prepare_cached(sql)?;
    let names: Vec<String> = statement.column_names().map(ToOwned::to_owned).collect();
    let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut read = Vec::new();
    while let Some(row) = rows.next()? {
        let column = |(index, name): (usize, &String)| -> Result<Column> {
            let text = match row.get_ref(index)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(text_of(bytes.to_vec(), name)?),
            };
            Ok((name.clone(), text))
        };
        read.push(names.iter().enumerate().map(column).collect::<Result<Vec<Column>>>()?);
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
async fn read_postgres(connection: &mut PostgresConnection, sql: &str) -> Result<Vec<Vec<Column>>> {
    let sql = format!("SELECT row_to_json(audited)::text FROM ({sql}) AS audited");
    let rows = connection.query(&sql).await.map_err(SourceError::from)?;
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
    rows.into_iter().map(row).collect()
}

fn text_of(bytes: Vec<u8>, column: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| anyhow!("the column {column} is not UTF-8"))
}
