//! The demo application's table, in the embedded database, in MariaDB or MySQL, or in PostgreSQL.
//!
//! In SQLite a trigger writes the stale key to the journal; in MariaDB and MySQL a comment in the statement names it, in
//! PostgreSQL a message.

use super::postgres::PostgresTable;
use anyhow::{Context, Result};
use mysql_async::prelude::Queryable;
use rusqlite::{Connection, params};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Rows of the table.
pub const ROWS: u32 = 10_000;

/// Concurrent read connections.
const READERS: usize = 4;

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
    /// Connects, and creates and fills the table if it is missing.
    pub async fn open(url: &str) -> Result<DemoDatabase> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            return open_sqlite(path).with_context(|| format!("opening {path}"));
        }
        if url.starts_with("postgres") {
            return Ok(DemoDatabase::Postgres(PostgresTable::open(url).await?));
        }
        let url = url.replacen("mariadb://", "mysql://", 1);
        let pool = mysql_async::Pool::from_url(&url)?;
        let mut connection = pool.get_conn().await?;
        connection
            .query_drop("CREATE TABLE IF NOT EXISTS demo_users (id INT PRIMARY KEY, visits BIGINT NOT NULL)")
            .await
            .context(
                "creating the table demo_users (the URL must name a schema: mysql://user:password@host:port/schema)",
            )?;
        for first in (0..ROWS).step_by(1000) {
            let rows: Vec<String> = (first..first + 1000).map(|id| format!("({id},0)")).collect();
            connection.query_drop(format!("INSERT IGNORE INTO demo_users VALUES {}", rows.join(","))).await?;
        }
        drop(connection);
        Ok(DemoDatabase::Mysql(pool))
    }

    /// The row as the application caches it.
    pub async fn read(&self, id: u32) -> Result<String> {
        let visits: i64 = match self {
            DemoDatabase::Sqlite { readers, .. } => {
                let readers = readers.clone();
                let read = move || {
                    let connection = readers[id as usize % READERS].lock().expect("no reader panics");
                    connection.query_row("SELECT visits FROM demo_users WHERE id = ?", params![id], |row| row.get(0))
                };
                tokio::task::spawn_blocking(read).await??
            }
            DemoDatabase::Mysql(pool) => {
                let mut connection = pool.get_conn().await?;
                let row = connection.exec_first("SELECT visits FROM demo_users WHERE id = ?", (id,)).await?;
                row.context("the row of the demo is missing")?
            }
            DemoDatabase::Postgres(table) => table.read(id).await?,
        };
        Ok(format!("user {id} has visited {visits} times"))
    }

    /// Changes the row, and names the key that the change makes stale.
    pub async fn write(&self, id: u32) -> Result<()> {
        match self {
            DemoDatabase::Sqlite { writer, .. } => {
                let writer = writer.clone();
                let write = move || {
                    let connection = writer.lock().expect("no writer panics");
                    connection.execute("UPDATE demo_users SET visits = visits + 1 WHERE id = ?", params![id])
                };
                tokio::task::spawn_blocking(write).await??;
            }
            DemoDatabase::Mysql(pool) => {
                let mut connection = pool.get_conn().await?;
                let statement =
                    format!("UPDATE demo_users SET visits = visits + 1 WHERE id = ? /* lookaside: {} */", key(id));
                connection.exec_drop(statement, (id,)).await?;
            }
            DemoDatabase::Postgres(table) => table.write(id).await?,
        }
        Ok(())
    }
}

fn open_sqlite(path: &str) -> Result<DemoDatabase> {
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(connection)
    };
    let mut writer = open()?;
    writer.execute_batch(SQLITE_TABLE)?;
    let fill = writer.transaction()?;
    for id in 0..ROWS {
        fill.execute("INSERT OR IGNORE INTO demo_users VALUES (?, 0)", params![id])?;
    }
    fill.commit()?;
    let readers = (0..READERS).map(|_| open().map(Mutex::new)).collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(DemoDatabase::Sqlite { writer: Arc::new(Mutex::new(writer)), readers: Arc::new(readers) })
}
