//! Prepared transactions (XA): what they named is known before anybody knows whether they will be committed.
//!
//! Serves the delete path. Their keys are held here under the transaction's name, from XA PREPARE to XA COMMIT or XA
//! ROLLBACK, and with the first of them the position to go on from. A transaction that was prepared before reading
//! began named its keys where nobody looks: [`wait_for_none`] keeps a start from the present clear of those.

use super::{
    connection::{Connection, Row, text},
    event::xid_text,
    gtid::Progress,
};
use crate::SourceError;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// The most keys held for prepared transactions. Over it the source stops and says so: dropping keys would lose
/// deletes, and handing them out before the commit would let readers fill the cache with the old value again.
pub const KEYS_HELD_MAX: usize = 1_000_000;

/// The most prepared transactions held: each keeps a copy of the position.
const TRANSACTIONS_HELD_MAX: usize = 10_000;

/// How often we look whether the transactions that were prepared before us are ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long the list of prepared transactions may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// So many names are shown in a warning.
const NAMES_SHOWN_MAX: usize = 10;

/// The transactions that the log shows prepared and not ended.
#[derive(Default)]
pub struct Prepared {
    held: Vec<Held>,
    /// Those that named nothing: known, so that their commit alarms nobody. They hold nothing back.
    keyless: BTreeSet<String>,
}

/// One that named keys.
pub struct Held {
    /// Its name, as [`xid_text`] has it.
    pub xid: String,
    /// What it named.
    pub keys: Vec<Vec<u8>>,
    before: Progress,
}

impl Prepared {
    /// Where a restart has to go on from to read them again; `None` when nothing is held.
    pub fn resume(&self) -> Option<&Progress> {
        self.held.first().map(|held| &held.before)
    }

    /// Fails when `more` keys besides those held are too many.
    pub fn check_room(&self, more: usize) -> Result<(), SourceError> {
        match self.held.iter().map(|held| held.keys.len()).sum::<usize>() + more > KEYS_HELD_MAX {
            true => Err(too_many()),
            false => Ok(()),
        }
    }

    /// `xid` is prepared; all before its XA PREPARE is `before`.
    pub fn hold(&mut self, xid: String, keys: Vec<Vec<u8>>, before: Progress) -> Result<(), SourceError> {
        if !keys.is_empty() {
            self.held.push(Held { xid, keys, before });
        } else if self.keyless.len() < TRANSACTIONS_HELD_MAX {
            self.keyless.insert(xid);
        }
        match self.held.len() > TRANSACTIONS_HELD_MAX {
            true => Err(too_many()),
            false => Ok(()),
        }
    }

    /// `xid` is committed: what it named. `Ok(None)`: nothing. `Err`: the log never showed us its XA PREPARE.
    pub fn commit(&mut self, xid: &str) -> Result<Option<Held>, Unknown> {
        match self.held.iter().position(|held| held.xid == xid) {
            Some(at) => Ok(Some(self.held.remove(at))),
            None if self.keyless.remove(xid) => Ok(None),
            None => Err(Unknown),
        }
    }

    /// `xid` is rolled back.
    pub fn roll_back(&mut self, xid: &str) {
        self.held.retain(|held| held.xid != xid);
        self.keyless.remove(xid);
    }
}

/// A transaction of which nothing is known.
#[derive(Debug)]
pub struct Unknown;

fn too_many() -> SourceError {
    SourceError::Unusable {
        why: format!(
            "prepared transactions hold over {KEYS_HELD_MAX} keys, or too many wait: commit or roll back what XA RECOVER \
             lists, then start again"
        ),
    }
}

/// Waits until all transactions are ended that are prepared now, at most `wait_max`; says which are left. With a
/// position that was asked for before, "now" is the end of this wait: what was committed until then may go unseen, and
/// all that is committed later was prepared behind the position.
pub async fn wait_for_none(connection: &mut Connection, wait_max: Duration) -> Result<(), SourceError> {
    let rows = match connection.try_query("XA RECOVER", ANSWER_WAIT_MAX).await? {
        Ok(rows) => rows,
        Err(error) => {
            let why = error.message;
            tracing::warn!(why, "no telling which transactions are prepared: what they name may go undeleted");
            return Ok(());
        }
    };
    let first: Vec<String> = rows.iter().filter_map(listed_xid).collect();
    if first.is_empty() {
        return Ok(());
    }
    tracing::info!(transactions = first.len(), "waiting for the end of transactions that are prepared already");
    let deadline = Instant::now() + wait_max;
    loop {
        let listed = listed(connection).await?;
        let left: Vec<&String> = first.iter().filter(|xid| listed.contains(*xid)).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let shown = &left[..left.len().min(NAMES_SHOWN_MAX)];
            tracing::warn!(
                transactions = left.len(),
                names = ?shown,
                "prepared before reading begins, and not ended: the keys that they named WILL NOT BE DELETED at their \
                 commit. End them (XA RECOVER) and start again with --from now, or empty the clusters after their end"
            );
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Says whether none of these prepared transactions is in the server's list any more. It leaves the list when its
/// commit is through. A name that is prepared again at once holds the gate until that one is ended too.
pub async fn are_ended(connection: &mut Connection, xids: &[String]) -> Result<bool, SourceError> {
    let listed = listed(connection).await?;
    Ok(!xids.iter().any(|xid| listed.contains(xid)))
}

async fn listed(connection: &mut Connection) -> Result<BTreeSet<String>, SourceError> {
    Ok(connection.query("XA RECOVER").await?.iter().filter_map(listed_xid).collect())
}

/// `| format | bytes of the global part | bytes of the branch part | both parts |`
fn listed_xid(row: &Row) -> Option<String> {
    let number = |at| text(row, at)?.parse::<usize>().ok();
    let (global, branch) = row.get(3)?.as_ref()?.split_at_checked(number(1)?)?;
    Some(xid_text(global, branch, u32::try_from(number(0)?).ok()?))
}
