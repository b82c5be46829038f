//! Prunes the journal: removes rows that every cluster has acknowledged and that are older than the history to keep.
//!
//! The history is for replay: a pipeline can be started from an older position in it. The oldest rows are removed
//! first, a bounded number per transaction, so that writers never wait for long.

use super::{
    super::{Position, SourceError},
    journal::{connect, seq_of, source_error},
    run_blocking,
};
use rusqlite::{Connection, params};
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

/// How often the daemon prunes.
pub const PRUNE_EVERY: Duration = Duration::from_secs(10);
/// The most rows removed in one transaction.
const BATCH_ROWS_MAX: i64 = 1_000;

/// Removes rows that are older than `history` and before all of `positions`, the saved positions of all clusters. If a
/// cluster has none yet, pass no positions: nothing is removed then. Returns the number of removed rows.
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
        let rows = run_blocking(move || {
            let mut connection = connect(&path)?;
            prune_batch(&mut connection, below, cutoff_ms).map_err(|why| source_error(&why))
        })
        .await?;
        pruned += rows;
        if rows < BATCH_ROWS_MAX as u64 {
            return Ok(pruned);
        }
    }
}

/// Removes one batch. The row at the smallest position stays: it shows that no later row was removed.
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
