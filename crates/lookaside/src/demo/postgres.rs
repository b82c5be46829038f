//! The demo application's table in PostgreSQL.

use super::database::{ROWS, key};
use anyhow::{Context, Result};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{PostgresConnection, PostgresOptions, Purpose, Row};
use std::sync::Arc;
use tokio::sync::Mutex;

const CONNECTIONS: usize = 5;

/// Connections to the database of the table, selected by id.
#[derive(Clone)]
pub struct PostgresTable(Arc<Vec<ReopenedConnection>>);

struct ReopenedConnection {
    options: PostgresOptions,
    /// `None` before the first query, and after one that failed.
    connection: Mutex<Option<PostgresConnection>>,
}

impl PostgresTable {
    /// Connects, and creates and fills the table if it is missing.
    pub async fn open(url: &str) -> Result<PostgresTable> {
        let options = PostgresOptions { application_name: "lookaside-demo".into(), ..PostgresOptions::from_url(url)? };
        let reopened = || ReopenedConnection { options: options.clone(), connection: Mutex::new(None) };
        let table = PostgresTable(Arc::new((0..CONNECTIONS).map(|_| reopened()).collect()));
        let create = format!(
            "CREATE TABLE IF NOT EXISTS demo_users (id integer PRIMARY KEY, visits bigint NOT NULL);
             INSERT INTO demo_users SELECT id, 0 FROM generate_series(0, {ROWS} - 1) AS id ON CONFLICT DO NOTHING"
        );
        table.query(0, &create).await.context("creating the table demo_users")?;
        Ok(table)
    }

    /// The visits of a user.
    pub async fn read(&self, id: u32) -> Result<i64> {
        let rows = self.query(id, &format!("SELECT visits FROM demo_users WHERE id = {id}")).await?;
        let visits = rows.into_iter().flatten().next().flatten();
        Ok(visits.context("the row of the demo is missing")?.parse()?)
    }

    /// Counts a visit, and names the key that this makes stale. Both statements are one transaction.
    pub async fn write(&self, id: u32) -> Result<()> {
        let update = format!("UPDATE demo_users SET visits = visits + 1 WHERE id = {id}");
        self.query(id, &format!("{update}; SELECT lookaside_invalidate('{}')", key(id))).await.map(drop)
    }

    async fn query(&self, id: u32, sql: &str) -> Result<Vec<Row>> {
        let reopened = &self.0[id as usize % CONNECTIONS];
        let mut slot = reopened.connection.lock().await;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => PostgresConnection::open(&TcpNetwork, &reopened.options, Purpose::Queries).await?,
        };
        let rows = connection.query(sql).await.map_err(lookaside_invalidator::SourceError::from)?;
        *slot = Some(connection);
        Ok(rows)
    }
}
