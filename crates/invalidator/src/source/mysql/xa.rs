//! Prepared transactions (XA): the log shows their keys before it shows whether they are committed.
//!
//! Serves the delete path. Keys are held here under the transaction's name, from XA PREPARE to XA COMMIT or XA
//! ROLLBACK, together with the position to resume from. So an XA COMMIT of a transaction that is not here means that its
//! keys are not known: deletes are lost.
//!
//! | not here | because |
//! |---|---|
//! | prepared before reading began | a start from the present waits for such transactions, not for ever ([`wait_until_resolved`]) |
//! | given up | the bounds: an XA ROLLBACK needs no keys, so nothing is lost before the XA COMMIT |

use super::{
    connection::{MysqlConnection, Row, text},
    event::xid_text,
    gtid::GtidPosition,
};
use crate::{Position, SourceError};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// The most keys held for prepared transactions. A transaction beyond it is given up. Deletes before its commit would let
/// readers fill the cache with the old value again.
pub const KEYS_HELD_MAX: usize = 1_000_000;

/// The most prepared transactions held, with keys or without. Each has a copy of the position. Those beyond it are given
/// up.
pub const TRANSACTIONS_HELD_MAX: usize = 10_000;

/// How often [`wait_until_resolved`] lists the prepared transactions.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a list of prepared transactions may take.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a start waits for prepared transactions that it cannot list. Most are resolved within milliseconds.
const UNLISTED_WAIT: Duration = Duration::from_secs(1);

/// The most names in a warning.
const NAMES_LOGGED_MAX: usize = 10;

/// The transactions that are prepared and not resolved yet.
#[derive(Default)]
pub struct PreparedTransactions {
    /// Oldest first.
    transactions: Vec<PreparedTransaction>,
    /// The keys of all.
    keys: usize,
}

/// A prepared transaction.
pub struct PreparedTransaction {
    /// Its name, as [`xid_text`] formats it.
    pub xid: String,
    /// The keys that it named.
    pub keys: Vec<Vec<u8>>,
    position_before: GtidPosition,
}

impl PreparedTransactions {
    /// The position from which a restart reads all of them again; `None` if there are none. Those without keys count too:
    /// a restart must know that their commit loses nothing.
    pub fn resume_position(&self) -> Option<&GtidPosition> {
        self.transactions.first().map(|first| &first.position_before)
    }

    /// Whether `more` keys can be held.
    pub fn has_capacity(&self, more: usize) -> bool {
        self.keys + more <= KEYS_HELD_MAX
    }

    /// Adds `xid`; everything before its XA PREPARE is at `position_before`. Returns whether it is held.
    pub fn insert(&mut self, xid: String, keys: Vec<Vec<u8>>, position_before: GtidPosition) -> bool {
        if self.transactions.len() >= TRANSACTIONS_HELD_MAX {
            return false;
        }
        self.keys += keys.len();
        self.transactions.push(PreparedTransaction { xid, keys, position_before });
        true
    }

    /// Removes `xid`, which is resolved. Returns `None` if its keys are not known.
    pub fn remove(&mut self, xid: &str) -> Option<PreparedTransaction> {
        let at = self.transactions.iter().position(|transaction| transaction.xid == xid)?;
        let transaction = self.transactions.remove(at);
        self.keys -= transaction.keys.len();
        Some(transaction)
    }
}

/// Where a start from the present ended: nothing that was visible before it needs deletes. Reading begins a little earlier,
/// as transactions that were prepared meanwhile are committed later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The end of the log when all were resolved that had been prepared where reading begins, but for `unresolved`.
    pub end: Position,
    /// Those that were not resolved by then.
    pub unresolved: BTreeSet<String>,
}

/// Waits up to `wait_max` until all transactions that are prepared now are resolved. Logs those that are not, and returns
/// them. If the start position was queried before this call, a transaction that commits after the wait was prepared after
/// that position, unless it was returned.
pub async fn wait_until_resolved(
    connection: &mut MysqlConnection,
    wait_max: Duration,
) -> Result<BTreeSet<String>, SourceError> {
    let rows = match connection.try_query("XA RECOVER", QUERY_WAIT_MAX).await? {
        Ok(rows) => rows,
        Err(error) => {
            let why = error.message;
            tracing::warn!(
                why,
                "XA RECOVER failed: a transaction that is prepared now may count as lost deletes at its commit"
            );
            tokio::time::sleep(UNLISTED_WAIT.min(wait_max)).await;
            return Ok(BTreeSet::new());
        }
    };
    let first: Vec<String> = rows.iter().filter_map(xid_of_row).collect();
    if first.is_empty() {
        return Ok(BTreeSet::new());
    }
    tracing::info!(transactions = first.len(), "waiting for prepared transactions to commit or roll back");
    let deadline = Instant::now() + wait_max;
    loop {
        let listed = list_prepared(connection).await?;
        let unresolved: Vec<&String> = first.iter().filter(|xid| listed.contains(*xid)).collect();
        if unresolved.is_empty() {
            return Ok(BTreeSet::new());
        }
        if Instant::now() >= deadline {
            let shown = &unresolved[..unresolved.len().min(NAMES_LOGGED_MAX)];
            tracing::warn!(
                transactions = unresolved.len(),
                names = ?shown,
                "transactions were prepared before reading begins, so the keys that they named are not known: the \
                 commit of one of them will count as lost deletes (--on-position-lost). Resolve them (XA RECOVER)"
            );
            return Ok(unresolved.into_iter().cloned().collect());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the server lists none of these prepared transactions any more. A transaction leaves the list when its commit
/// is complete. If its name is prepared again at once, the gate waits for that transaction too.
pub async fn are_resolved(connection: &mut MysqlConnection, xids: &[String]) -> Result<bool, SourceError> {
    let listed = list_prepared(connection).await?;
    Ok(!xids.iter().any(|xid| listed.contains(xid)))
}

async fn list_prepared(connection: &mut MysqlConnection) -> Result<BTreeSet<String>, SourceError> {
    Ok(connection.query("XA RECOVER").await?.iter().filter_map(xid_of_row).collect())
}

/// `| format | bytes of the global part | bytes of the branch part | both parts |`
fn xid_of_row(row: &Row) -> Option<String> {
    let number = |at| text(row, at)?.parse::<usize>().ok();
    let (global, branch) = row.get(3)?.as_ref()?.split_at_checked(number(1)?)?;
    Some(xid_text(global, branch, u32::try_from(number(0)?).ok()?))
}
