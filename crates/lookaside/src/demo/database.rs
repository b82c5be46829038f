//! The demo application's table, in the embedded database, in MariaDB or MySQL, or in PostgreSQL.
//!
//! In SQLite a trigger writes the stale key to the journal; in MariaDB and MySQL a comment in the statement names it,
//! in PostgreSQL a message.

use super::postgres::PostgresTable;
use anyhow::{Context, Result};
use lookaside_invalidator::source::mysql::strip_acceptance;
use mysql_async::prelude::Queryable;
use rusqlite::{Connection, TransactionBehavior, params};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Rows of the table.
pub const ROWS: u32 = 10_000;

/// Concurrent read connections.
const READERS: usize = 4;

/// How long a replica may take to receive the table.
const REPLICA_TIME_MAX: Duration = Duration::from_secs(60);

/// The table in MariaDB, MySQL and PostgreSQL.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS demo_users (id integer PRIMARY KEY, visits bigint NOT NULL)";

const SQLITE_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS demo_users (id INTEGER PRIMARY KEY, visits INTEGER NOT NULL);
    CREATE TRIGGER IF NOT EXISTS demo_users_changed AFTER UPDATE ON demo_users BEGIN
        INSERT INTO lookaside_journal (key) VALUES ('demo:user:' || old.id);
    END;";

/// The application's connections to its database.
#[derive(Clone)]
pub enum DemoDatabase {
    /// A writer and some readers. SQLite calls block, so they run on blocking threads.
    Sqlite {
        /// The one writer that SQLite allows.
        writer: Arc<Mutex<Connection>>,
        /// Selected by id.
        readers: Arc<Vec<Mutex<Connection>>>,
    },
    Mysql(mysql_async::Pool),
    Postgres(PostgresTable),
}

/// The key under which a row is cached.
pub fn key(id: u32) -> String {
    format!("demo:user:{id}")
}

impl DemoDatabase {
    /// Creates and fills the table if it is missing.
    pub async fn create_table(&self) -> Result<()> {
        match self {
            DemoDatabase::Sqlite { writer, .. } => {
                let writer = writer.clone();
                let create = move || create_sqlite_table(&mut writer.lock().expect("no writer panics"));
                tokio::task::spawn_blocking(create).await?.context("creating the table demo_users")
            }
            DemoDatabase::Mysql(pool) => create_mysql_table(pool).await,
            DemoDatabase::Postgres(table) => table.create().await.context("creating the table demo_users"),
        }
    }

    /// Connects. `is_replicated` if the database has replicas in other regions.
    pub fn connect(url: &str, is_replicated: bool) -> Result<DemoDatabase> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            return open_sqlite(path).with_context(|| format!("opening {path}"));
        }
        if url.starts_with("postgres") {
            return Ok(DemoDatabase::Postgres(PostgresTable::connect(url, is_replicated)?));
        }
        let url = strip_acceptance(url).replacen("mariadb://", "mysql://", 1);
        Ok(DemoDatabase::Mysql(mysql_async::Pool::from_url(url)?))
    }

    /// Waits until the database, which may be a replica, has every row of the table.
    pub async fn wait_until_filled(&self) -> Result<()> {
        let deadline = Instant::now() + REPLICA_TIME_MAX;
        // Rows arrive in the order of their ids, or all at once.
        while let Err(error) = self.read(ROWS - 1).await {
            if Instant::now() > deadline {
                return Err(error.context("the table demo_users has not arrived"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The visits of a user.
    pub async fn read(&self, id: u32) -> Result<u64> {
        match self {
            DemoDatabase::Sqlite { readers, .. } => {
                let readers = readers.clone();
                let read = move || {
                    let connection = readers[id as usize % READERS].lock().expect("no reader panics");
                    let select = "SELECT visits FROM demo_users WHERE id = ?";
                    connection.query_row(select, params![id], visits_in)
                };
                Ok(tokio::task::spawn_blocking(read).await??)
            }
            DemoDatabase::Mysql(pool) => {
                let mut connection = pool.get_conn().await?;
                let row = connection.exec_first("SELECT visits FROM demo_users WHERE id = ?", (id,)).await?;
                row.context("the row of the demo is missing")
            }
            DemoDatabase::Postgres(table) => table.read(id).await,
        }
    }

    /// Counts a visit, and names the key that the change makes stale, and remote markers. Returns the visits then.
    pub async fn write(&self, id: u32, markers: &[String]) -> Result<u64> {
        match self {
            DemoDatabase::Sqlite { writer, .. } => {
                let (writer, markers) = (writer.clone(), markers.to_vec());
                let write = move || {
                    let mut connection = writer.lock().expect("no writer panics");
                    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    let update = "UPDATE demo_users SET visits = visits + 1 WHERE id = ? RETURNING visits";
                    // The trigger names the key.
                    let visits = transaction.query_row(update, params![id], visits_in)?;
                    for marker in markers {
                        transaction
                            .execute("INSERT INTO lookaside_journal (key) VALUES (?)", params![marker.as_bytes()])?;
                    }
                    transaction.commit()?;
                    Ok::<_, rusqlite::Error>(visits)
                };
                Ok(tokio::task::spawn_blocking(write).await??)
            }
            DemoDatabase::Mysql(pool) => {
                let mut connection = pool.get_conn().await?;
                let named = [&[key(id)], markers].concat().join(" ");
                // LAST_INSERT_ID(x) is returned with the result. Not a prepared statement: each is executed once.
                let update = format!("UPDATE demo_users SET visits = LAST_INSERT_ID(visits + 1) WHERE id = {id}");
                connection.query_drop(format!("{update} /* lookaside: {named} */")).await?;
                connection.last_insert_id().context("the row of the demo is missing")
            }
            DemoDatabase::Postgres(table) => table.write(id, markers).await,
        }
    }
}

fn visits_in(row: &rusqlite::Row<'_>) -> rusqlite::Result<u64> {
    row.get(0).map(i64::unsigned_abs)
}

async fn create_mysql_table(pool: &mysql_async::Pool) -> Result<()> {
    let mut connection = pool.get_conn().await?;
    let created = connection.query_drop(CREATE_TABLE).await;
    created.context(
        "creating the table demo_users (the URL must name a schema: mysql://user:password@host:port/schema)",
    )?;
    for first in (0..ROWS).step_by(1000) {
        let rows: Vec<String> = (first..first + 1000).map(|id| format!("({id},0)")).collect();
        connection.query_drop(format!("INSERT IGNORE INTO demo_users VALUES {}", rows.join(","))).await?;
    }
    Ok(())
}

fn create_sqlite_table(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SQLITE_TABLE)?;
    let fill = connection.transaction()?;
    for id in 0..ROWS {
        fill.execute("INSERT OR IGNORE INTO demo_users VALUES (?, 0)", params![id])?;
    }
    fill.commit()
}

fn open_sqlite(path: &str) -> Result<DemoDatabase> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(connection)
    };
    let writer = open()?;
    let readers = (0..READERS).map(|_| open().map(Mutex::new)).collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(DemoDatabase::Sqlite { writer: Arc::new(Mutex::new(writer)), readers: Arc::new(readers) })
}
