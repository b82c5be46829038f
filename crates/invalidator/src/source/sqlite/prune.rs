//! Keeps the journal short: rows that every cluster has applied, and that are older than the history to keep.
//!
//! The history is there for replay: a pipeline that is started from an older position finds its rows. Rows go from
//! the oldest on, a bounded number a transaction, so that writers are never kept waiting for long.

use super::{
    super::{Position, SourceError},
    blocking,
    journal::{connect, failed, seq_of},
};
use rusqlite::{Connection, params};
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

/// How often the daemon prunes.
pub const PRUNE_EVERY: Duration = Duration::from_secs(10);
/// So many rows go in one transaction.
const BATCH_ROWS_MAX: i64 = 1_000;

/// Takes away rows that are older than `history` and lie before every one of `positions`, the saved positions of all
/// clusters. A cluster that has none yet keeps everything: give no positions then. Returns how many rows went.
pub async fn prune(
    path: PathBuf,
    positions: Vec<Position>,
    history: Duration,
    now: SystemTime,
) -> Result<u64, SourceError> {
    let mut below = None;
    for position in &positions {
        let seq = seq_of(position)?;
        below = Some(below.map_or(seq, |below: i64| below.min(seq)));
    }
    let Some(below) = below else { return Ok(0) };
    let cutoff = now.checked_sub(history).and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let cutoff_ms = cutoff.map_or(0, |at| at.as_millis() as i64);
    let mut pruned = 0;
    loop {
        let path = path.clone();
        let rows = blocking(move || {
            let mut connection = connect(&path)?;
            prune_batch(&mut connection, below, cutoff_ms).map_err(|why| failed(&why))
        })
        .await?;
        pruned += rows;
        if rows < BATCH_ROWS_MAX as u64 {
            return Ok(pruned);
        }
    }
}

/// The row at the smallest position stays: it shows that nothing behind it has gone.
fn prune_batch(connection: &mut Connection, below: i64, cutoff_ms: i64) -> rusqlite::Result<u64> {
    let last = {
        let mut statement =
            connection.prepare("SELECT seq, at_ms FROM lookaside_journal WHERE seq < ?1 ORDER BY seq LIMIT ?2")?;
        let mut rows = statement.query(params![below, BATCH_ROWS_MAX])?;
        let mut last = None;
        while let Some(row) = rows.next()? {
            if row.get::<_, f64>(1)? >= cutoff_ms as f64 {
                break;
            }
            last = Some(row.get::<_, i64>(0)?);
        }
        last
    };
    match last {
        Some(last) => Ok(connection.execute("DELETE FROM lookaside_journal WHERE seq <= ?1", [last])? as u64),
        None => Ok(0),
    }
}
