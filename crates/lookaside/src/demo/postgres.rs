//! The demo application's table in PostgreSQL.

use super::database::{CREATE_TABLE, ROWS, key};
use anyhow::{Context, Result};
use lookaside_client::TcpNetwork;
use lookaside_invalidator::source::postgres::{PostgresConnection, PostgresOptions, Purpose, Row, quote_literal};
use std::sync::Arc;
use tokio::sync::Mutex;

const CONNECTIONS: usize = 5;

/// The table.
#[derive(Clone)]
pub struct PostgresTable {
    /// Selected by id.
    connections: Arc<Vec<ReopenedConnection>>,
    /// Whether replicas follow by logical replication, which brings them rows, and no messages.
    is_replicated: bool,
}

struct ReopenedConnection {
    options: PostgresOptions,
    /// `None` before the first query, and after one that failed.
    connection: Mutex<Option<PostgresConnection>>,
}

impl PostgresTable {
    /// Connects at the first query.
    pub fn connect(url: &str, is_replicated: bool) -> Result<PostgresTable> {
        let options = PostgresOptions { application_name: "lookaside-demo".into(), ..PostgresOptions::from_url(url)? };
        let reopened = || ReopenedConnection { options: options.clone(), connection: Mutex::new(None) };
        let connections = Arc::new((0..CONNECTIONS).map(|_| reopened()).collect());
        Ok(PostgresTable { connections, is_replicated })
    }

    /// Creates and fills the table if it is missing.
    pub async fn create(&self) -> Result<()> {
        let fill = format!(
            "INSERT INTO demo_users SELECT id, 0 FROM generate_series(0, {ROWS} - 1) AS id ON CONFLICT DO NOTHING"
        );
        self.query(0, &format!("{CREATE_TABLE}; {fill}")).await.map(drop)
    }

    /// The visits of a user.
    pub async fn read(&self, id: u32) -> Result<u64> {
        visits_in(self.query(id, &format!("SELECT visits FROM demo_users WHERE id = {id}")).await?)
    }

    /// Counts a visit, and names the key that this makes stale, and remote markers. All statements are one transaction.
    /// Returns the visits then.
    pub async fn write(&self, id: u32, markers: &[String]) -> Result<u64> {
        let update = format!("UPDATE demo_users SET visits = visits + 1 WHERE id = {id} RETURNING visits");
        let keys = [&[key(id)], markers].concat();
        let keys = keys.iter().map(|key| quote_literal(key)).collect::<Vec<_>>().join(", ");
        let name_keys = match self.is_replicated {
            // The log has the rows, whatever becomes of them.
            true => {
                format!("INSERT INTO lookaside_outbox (key) SELECT unnest(ARRAY[{keys}]); DELETE FROM lookaside_outbox")
            }
            false => format!("SELECT lookaside_invalidate({keys})"),
        };
        visits_in(self.query(id, &format!("{update}; {name_keys}")).await?)
    }

    async fn query(&self, id: u32, sql: &str) -> Result<Vec<Row>> {
        let reopened = &self.connections[id as usize % CONNECTIONS];
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

fn visits_in(rows: Vec<Row>) -> Result<u64> {
    let visits = rows.into_iter().flatten().next().flatten();
    Ok(visits.context("the row of the demo is missing")?.parse()?)
}
