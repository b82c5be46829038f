//! A PostgreSQL database below a region: what the invalidator needs in it, and the replication slot of the region.
//!
//! The server keeps its log for a slot until the invalidator has read it. So a region with a temporary directory, which
//! never continues where it stopped, drops its slot at the end.

use anyhow::Result;
use lookaside_client::TcpNetwork;
use lookaside_invalidator::{
    SourceError,
    source::postgres::{PostgresConnection, PostgresOptions, Purpose, QueryError, quote_literal, setup_sql},
};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the server may take to notice that the invalidator has ended.
const SLOT_FREE_TIME_MAX: Duration = Duration::from_secs(5);
/// The SQLSTATE of a slot with a reader.
const OBJECT_IN_USE: &str = "55006";

/// Creates the function, the table and the publication of `lookaside invalidator setup`, unless they are there already.
pub async fn prepare(url: &str) -> Result<()> {
    let (mut connection, options) = connect(url).await?;
    let publication = quote_literal(&options.publication);
    let sql = format!("SELECT 1 FROM pg_publication WHERE pubname = {publication}");
    if connection.query_one(&sql).await.map_err(SourceError::from)?.is_none() {
        let sql = setup_sql(&options.publication, &options.outbox_table);
        connection.query(&sql).await.map_err(SourceError::from)?;
    }
    Ok(())
}

/// The slot of a region.
pub struct RegionSlot {
    url: String,
    /// Its name in the server, which all databases share.
    pub name: String,
    is_temporary: bool,
}

impl RegionSlot {
    /// The slot of a region whose first port is `port`. One that has positions in a directory of its own keeps its slot
    /// from run to run; one with a temporary directory begins without.
    pub async fn open(url: &str, port: u16, is_temporary: bool) -> Result<RegionSlot> {
        let name = if is_temporary { format!("lookaside_up_{port}") } else { "lookaside_up".to_owned() };
        let slot = RegionSlot { url: url.to_owned(), name, is_temporary };
        slot.close().await?;
        Ok(slot)
    }

    /// What an operator has to know of a slot that stays when the invalidator has ended; `None` if there is none.
    pub async fn remainder(&self) -> Result<Option<String>> {
        let name = quote_literal(&self.name);
        let (mut connection, _) = connect(&self.url).await?;
        let sql = format!("SELECT 1 FROM pg_replication_slots WHERE slot_name = {name}");
        let stays = connection.query_one(&sql).await.map_err(SourceError::from)?.is_some();
        Ok(stays.then(|| {
            format!(
                "the database keeps its log for the replication slot {}, until this region is up again and has read it; if \
                 it will not be: SELECT pg_drop_replication_slot({name})",
                self.name
            )
        }))
    }

    /// Drops a temporary slot, when the invalidator has ended.
    pub async fn close(&self) -> Result<()> {
        if !self.is_temporary {
            return Ok(());
        }
        let name = quote_literal(&self.name);
        let sql =
            format!("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = {name}");
        let (mut connection, _) = connect(&self.url).await?;
        let deadline = Instant::now() + SLOT_FREE_TIME_MAX;
        loop {
            match connection.query(&sql).await {
                Ok(_) => return Ok(()),
                Err(QueryError::Server(error)) if error.code == OBJECT_IN_USE && Instant::now() < deadline => {
                    sleep(Duration::from_millis(50)).await;
                }
                Err(error) => {
                    return Err(anyhow::Error::from(SourceError::from(error)).context(format!(
                        "dropping the replication slot {}, for which the server keeps its log",
                        self.name
                    )));
                }
            }
        }
    }
}

async fn connect(url: &str) -> Result<(PostgresConnection, PostgresOptions)> {
    let options = PostgresOptions::from_url(url)?;
    let connection = PostgresConnection::open(&TcpNetwork, &options, Purpose::Queries).await?;
    Ok((connection, options))
}
