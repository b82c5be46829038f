//! The gate: waits until readers that begin now see the transactions that were read from the log (ADR 001).
//!
//! PostgreSQL writes a commit to the log first and lets readers see it later: a little later, or, with a synchronous
//! standby, when that has confirmed it. Until then a reader that misses still reads the old row. A snapshot names the
//! transactions that it does not see:
//!
//! ```text
//! pg_current_snapshot()    xmin:xmax:in progress,in progress...
//! ```
//!
//! The log has the lower 32 bits of a transaction's number; the upper ones are the snapshot's, or one less if the
//! number would lie far behind its end.

use super::{
    connection::{PostgresConnection, QueryError, protocol_error},
    standby,
    transactions::{self, LOG_EVERY},
};
use crate::SourceError;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// The first and the longest pause between two snapshots; pauses double. Most commits are visible in the first.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// After this wait it is checked whether commits wait for this reader.
const STANDBY_CHECK_AFTER: Duration = Duration::from_secs(1);

/// Waits until a new snapshot sees all of `xids`.
pub(super) async fn wait_until_visible(
    connection: &mut PostgresConnection,
    xids: &BTreeSet<u32>,
    wait_max: Duration,
) -> Result<(), SourceError> {
    let deadline = Instant::now() + wait_max;
    let mut pause = PAUSE_MIN;
    let mut check_at = Instant::now() + STANDBY_CHECK_AFTER;
    loop {
        let snapshot = Snapshot::take(connection).await?;
        let Some(invisible) = xids.iter().find(|&&xid| !snapshot.sees(xid)) else { return Ok(()) };
        if Instant::now() >= check_at {
            standby::check_application_name(connection).await?;
            check_at = deadline;
        }
        if Instant::now() + pause > deadline {
            let why = format!(
                "readers do not see transaction {invisible} after {wait_max:?}: it waits for a synchronous standby"
            );
            return Err(SourceError::Unreachable { why });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Waits until the transactions that were unfinished when reading began have ended, and logs the oldest. Without a
/// limit: the next attempt would wait for others that are open then, and so never end while transactions overlap.
pub(super) async fn wait_until_ended(
    connection: &mut PostgresConnection,
    unfinished: &mut BTreeSet<u32>,
) -> Result<(), SourceError> {
    let mut log_at = Instant::now() + LOG_EVERY;
    let mut pause = PAUSE_MIN;
    loop {
        let snapshot = Snapshot::take(connection).await?;
        unfinished.retain(|&xid| !snapshot.sees(xid));
        if unfinished.is_empty() {
            return Ok(());
        }
        if Instant::now() >= log_at {
            standby::check_application_name(connection).await?;
            transactions::log_oldest(connection, "a start from the present").await?;
            log_at = Instant::now() + LOG_EVERY;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The transactions that have begun to write and that readers may not see yet. Some may be in the log already, others
/// are just open: the server does not tell them apart. A snapshot would not do: it does not name those that are newer
/// than the last one that ended.
///
/// Each holds a lock on its own number, from before its first record in the log until after it is visible.
pub(super) async fn unfinished_transactions(connection: &mut PostgresConnection) -> Result<BTreeSet<u32>, SourceError> {
    let sql = "SELECT transactionid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock'";
    let rows = connection.query(sql).await?;
    let xids = rows.iter().map(|row| row.first()?.as_deref()?.parse().ok()).collect::<Option<_>>();
    xids.ok_or_else(|| protocol_error("a malformed transaction number"))
}

#[derive(Debug, PartialEq, Eq)]
struct Snapshot {
    /// All transactions before this have ended.
    xmin: u64,
    /// No transaction from here on had begun to commit.
    xmax: u64,
    in_progress: BTreeSet<u64>,
}

impl Snapshot {
    async fn take(connection: &mut PostgresConnection) -> Result<Snapshot, SourceError> {
        // txid_current_snapshot() is the name that every version has.
        let text = connection.query_one("SELECT txid_current_snapshot()::text").await.map_err(|error| match error {
            QueryError::Server(error) => SourceError::Unreachable { why: format!("no snapshot: {error}") },
            QueryError::Source(error) => error,
        })?;
        text.as_deref().and_then(Snapshot::parse).ok_or_else(|| protocol_error("a malformed snapshot"))
    }

    fn parse(text: &str) -> Option<Snapshot> {
        let mut parts = text.splitn(3, ':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let in_progress = parts.next()?.split(',').filter(|xid| !xid.is_empty()).map(str::parse);
        Some(Snapshot { xmin, xmax, in_progress: in_progress.collect::<Result<_, _>>().ok()? })
    }

    fn sees(&self, xid: u32) -> bool {
        let xid = self.full(xid);
        xid < self.xmin || (xid < self.xmax && !self.in_progress.contains(&xid))
    }

    /// The number nearest to the snapshot's end that has these lower bits.
    fn full(&self, xid: u32) -> u64 {
        let distance = xid.wrapping_sub(self.xmax as u32) as i32;
        self.xmax.saturating_add_signed(distance.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_has_ended() {
        let snapshot = Snapshot::parse("10:20:10,15").expect("a snapshot");
        let seen: Vec<u32> = (5..25).filter(|&xid| snapshot.sees(xid)).collect();
        assert_eq!(seen, [5, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19]);
        assert!(Snapshot::parse("10:10:").expect("no transaction is in progress").sees(9));
        for text in ["", "1", "1:2", "1:x:", "1:2:3,x"] {
            assert_eq!(Snapshot::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn numbers_wrap_around_at_32_bits() {
        let snapshot = Snapshot::parse("4294967290:4294967300:4294967299").expect("a snapshot");
        assert!(snapshot.sees(u32::MAX) && snapshot.sees(0) && snapshot.sees(2));
        assert!(!snapshot.sees(3) && !snapshot.sees(4) && !snapshot.sees(5));
    }
}
