//! Prepared transactions (XA): the log shows their keys before it shows whether they are committed.
//!
//! Serves the delete path. Keys are held here under the transaction's name, from XA PREPARE to XA COMMIT or XA
//! ROLLBACK, together with the position to resume from. The keys of a transaction that was prepared before reading
//! began are never read: a start from the present waits for such transactions ([`wait_until_resolved`]).

use super::{
    connection::{MysqlConnection, Row, text},
    event::xid_text,
    gtid::GtidPosition,
};
use crate::SourceError;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// The most keys held for prepared transactions. Beyond it the source fails: dropping keys would lose deletes, and
/// deletes before the commit would let readers fill the cache with the old value again.
pub const KEYS_HELD_MAX: usize = 1_000_000;

/// The most prepared transactions held. Each has a copy of the position.
const TRANSACTIONS_HELD_MAX: usize = 10_000;

/// How often [`wait_until_resolved`] lists the prepared transactions.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a list of prepared transactions may take.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(10);

/// The most names in a warning.
const NAMES_LOGGED_MAX: usize = 10;

/// The transactions that are prepared and not resolved yet.
#[derive(Default)]
pub struct PreparedTransactions {
    /// Those that named keys, oldest first.
    with_keys: Vec<PreparedTransaction>,
    /// Those that named no key. They are recorded so that their commit is not reported as unknown; they do not hold
    /// back the position.
    keyless: BTreeSet<String>,
}

/// A prepared transaction that named keys.
pub struct PreparedTransaction {
    /// Its name, as [`xid_text`] formats it.
    pub xid: String,
    /// The keys that it named.
    pub keys: Vec<Vec<u8>>,
    position_before: GtidPosition,
}

impl PreparedTransactions {
    /// The position from which a restart reads all of them again; `None` if none named keys.
    pub fn resume_position(&self) -> Option<&GtidPosition> {
        self.with_keys.first().map(|first| &first.position_before)
    }

    /// Fails if `more` keys exceed the capacity.
    pub fn check_capacity(&self, more: usize) -> Result<(), SourceError> {
        match self.with_keys.iter().map(|transaction| transaction.keys.len()).sum::<usize>() + more > KEYS_HELD_MAX {
            true => Err(too_many()),
            false => Ok(()),
        }
    }

    /// Adds `xid`; everything before its XA PREPARE is at `position_before`.
    pub fn insert(
        &mut self,
        xid: String,
        keys: Vec<Vec<u8>>,
        position_before: GtidPosition,
    ) -> Result<(), SourceError> {
        if !keys.is_empty() {
            self.with_keys.push(PreparedTransaction { xid, keys, position_before });
        } else if self.keyless.len() < TRANSACTIONS_HELD_MAX {
            self.keyless.insert(xid);
        }
        match self.with_keys.len() > TRANSACTIONS_HELD_MAX {
            true => Err(too_many()),
            false => Ok(()),
        }
    }

    /// Removes `xid`, which is committed. Returns `None` if it named no key.
    pub fn commit(&mut self, xid: &str) -> Result<Option<PreparedTransaction>, UnknownXid> {
        match self.with_keys.iter().position(|transaction| transaction.xid == xid) {
            Some(at) => Ok(Some(self.with_keys.remove(at))),
            None if self.keyless.remove(xid) => Ok(None),
            None => Err(UnknownXid),
        }
    }

    /// Removes `xid`, which is rolled back.
    pub fn roll_back(&mut self, xid: &str) {
        self.with_keys.retain(|transaction| transaction.xid != xid);
        self.keyless.remove(xid);
    }
}

/// The XA PREPARE of this transaction was not read.
#[derive(Debug)]
pub struct UnknownXid;

fn too_many() -> SourceError {
    SourceError::Unusable {
        why: format!(
            "prepared transactions name over {KEYS_HELD_MAX} keys, or are too many: commit or roll back the ones that \
             XA RECOVER lists, then start again"
        ),
    }
}

/// Waits up to `wait_max` until all transactions that are prepared now are resolved, and logs those that are not. If
/// the start position was queried before this call, a transaction that commits after the wait was prepared after that
/// position, unless it was logged.
pub async fn wait_until_resolved(connection: &mut MysqlConnection, wait_max: Duration) -> Result<(), SourceError> {
    let rows = match connection.try_query("XA RECOVER", QUERY_WAIT_MAX).await? {
        Ok(rows) => rows,
        Err(error) => {
            let why = error.message;
            tracing::warn!(why, "XA RECOVER failed: keys of transactions that are prepared now may not be deleted");
            return Ok(());
        }
    };
    let first: Vec<String> = rows.iter().filter_map(xid_of_row).collect();
    if first.is_empty() {
        return Ok(());
    }
    tracing::info!(transactions = first.len(), "waiting for prepared transactions to commit or roll back");
    let deadline = Instant::now() + wait_max;
    loop {
        let listed = list_prepared(connection).await?;
        let unresolved: Vec<&String> = first.iter().filter(|xid| listed.contains(*xid)).collect();
        if unresolved.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let shown = &unresolved[..unresolved.len().min(NAMES_LOGGED_MAX)];
            tracing::warn!(
                transactions = unresolved.len(),
                names = ?shown,
                "transactions were prepared before reading begins: the keys that they named WILL NOT BE DELETED at \
                 their commit. Resolve them (XA RECOVER) and start again with --from now, or flush the clusters after that"
            );
            return Ok(());
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
