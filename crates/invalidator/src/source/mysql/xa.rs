//! Prepared transactions (XA): the log shows their keys before it shows whether they are committed.
//!
//! Serves the delete path. Keys are held here under the transaction's name, from XA PREPARE to XA COMMIT or XA
//! ROLLBACK, together with the position to resume from.
//!
//! | XA COMMIT of a transaction that is not held, because | deletes |
//! |---|---|
//! | it was given up: the bounds. An XA ROLLBACK needs no keys, so nothing is lost before the XA COMMIT | are lost |
//! | it was prepared before a start from the present, and its commit was not complete when reading began to count ([`counted_commits`](super::counted_commits)) | are lost |
//! | it was prepared before a position without such names (`--from`, a file of an earlier version), and still when reading began there ([`list_prepared`]) | are lost |
//! | it may be one of these, behind such a position: the server refused to list them, or there were too many to be named | are lost |
//! | its XA PREPARE is before the position that an earlier source had saved, which was held back by transactions that were prepared later, and that source had read the commit | were sent |
//!
//! One gap is left: behind a position without names a transaction that was resolved before the server was asked is taken
//! for one of the last row, since the server does not list it any more.

use super::{
    connection::{MysqlConnection, Row, text},
    event::xid_text,
    gtid::GtidPosition,
    unresolved::UnresolvedHistory,
};
use crate::{
    Position, SourceError,
    source::{
        UnresolvedPrepared,
        packed_position::{PackedPosition, PositionPacker},
    },
};
use lookaside_sync::Mutex;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// The most keys held for prepared transactions. A transaction beyond it is given up. Deletes before its commit would let
/// readers fill the cache with the old value again.
pub const KEYS_HELD_MAX: usize = 1_000_000;

/// The most prepared transactions held, with keys or without. Each has its position. Those beyond it are given up.
pub const TRANSACTIONS_HELD_MAX: usize = 10_000;

/// How often [`wait_until_resolved`] lists the prepared transactions.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a list of prepared transactions may take.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long a start waits for prepared transactions that it cannot list. Most are resolved within milliseconds.
const UNLISTED_WAIT: Duration = Duration::from_secs(1);

/// The most names in a message.
pub const NAMES_LOGGED_MAX: usize = 10;

/// The most names of transactions that are not held for their number. Beyond that number names are not kept.
const NAMES_GIVEN_UP_MAX: usize = 100_000;

/// The transactions that are prepared and not resolved yet.
#[derive(Default)]
pub struct PreparedTransactions {
    /// Oldest first.
    transactions: Vec<PreparedTransaction>,
    packer: PositionPacker,
    /// How many were prepared before the first of them, and the position before it.
    first: Option<(u64, GtidPosition)>,
    /// The keys of all.
    keys: usize,
    /// How many were prepared.
    prepared: u64,
    /// Those beyond [`TRANSACTIONS_HELD_MAX`].
    given_up: BTreeSet<String>,
    /// How many were prepared before the first of them, and the position before it.
    given_up_from: Option<(u64, GtidPosition)>,
    /// Whether some of them are not known by name.
    has_unnamed: bool,
    /// Names of two transactions each, of which the first may be committed.
    reused: BTreeSet<String>,
}

/// A prepared transaction.
struct PreparedTransaction {
    /// How many were prepared before it.
    number: u64,
    /// Its name, as [`xid_text`] formats it.
    xid: String,
    /// The keys that it named; `None` if they were too many to be held.
    keys: Option<Vec<Vec<u8>>>,
    position_before: PackedPosition,
}

/// What is known of a transaction that is resolved.
pub enum Resolved {
    /// The keys that it named.
    Held(Vec<Vec<u8>>),
    /// It was prepared, and its keys are not known any more.
    GivenUp,
    /// Its XA PREPARE was not read.
    Unread,
}

impl PreparedTransactions {
    /// The position from which a restart reads all of them again; `None` if there are none. Those without keys count too:
    /// a restart must know that their commit loses nothing.
    pub fn resume_position(&self) -> Option<&GtidPosition> {
        let positions = self.first.iter().chain(&self.given_up_from);
        positions.min_by_key(|(number, _)| *number).map(|(_, position)| position)
    }

    /// Whether `more` keys can be held.
    pub fn has_capacity(&self, more: usize) -> bool {
        self.keys + more <= KEYS_HELD_MAX
    }

    /// Adds `xid` with its keys, if they can be held; everything before its XA PREPARE is at `position_before`. Returns
    /// whether its keys are held, unless there were too many.
    ///
    /// If another transaction of that name is held, its end is not in the log (`sql_log_bin=0`), so it may be
    /// committed: both end together ([`may_be_committed`](Self::may_be_committed)).
    pub fn insert(&mut self, xid: String, keys: Option<Vec<Vec<u8>>>, position_before: GtidPosition) -> bool {
        if self.given_up.contains(&xid) {
            self.reused.insert(xid);
            return false;
        }
        if let Some(former) = self.transactions.iter_mut().find(|former| former.xid == xid) {
            self.reused.insert(xid);
            self.keys -= former.keys.as_ref().map_or(0, Vec::len);
            former.keys = former.keys.take().zip(keys).map(|(mut all, more)| {
                all.extend(more);
                all
            });
            self.keys += former.keys.as_ref().map_or(0, Vec::len);
            return true;
        }
        let number = self.prepared;
        self.prepared += 1;
        if self.transactions.len() < TRANSACTIONS_HELD_MAX {
            self.keys += keys.as_ref().map_or(0, Vec::len);
            let packed = self.packer.pack(&Position(position_before.to_string()));
            self.first.get_or_insert((number, position_before));
            let position_before = packed;
            self.transactions.push(PreparedTransaction { number, xid, keys, position_before });
            return true;
        }
        self.given_up_from.get_or_insert((number, position_before));
        match self.given_up.len() < NAMES_GIVEN_UP_MAX {
            true => _ = self.given_up.insert(xid),
            false => self.has_unnamed = true,
        }
        false
    }

    /// Whether another transaction named `xid` was prepared before the one that is held, so that keys need deletes even
    /// if the latter is rolled back.
    pub fn may_be_committed(&self, xid: &str) -> bool {
        self.reused.contains(xid)
    }

    /// Removes `xid`, which is resolved.
    pub fn remove(&mut self, xid: &str) -> Resolved {
        self.reused.remove(xid);
        if let Some(at) = self.transactions.iter().position(|transaction| transaction.xid == xid) {
            let removed = self.transactions.remove(at);
            if at == 0 {
                self.first = self.first.take().and_then(|(_, former)| {
                    let first = self.transactions.first()?;
                    let position = former.parse_same_kind(&first.position_before.unpack().0);
                    Some((first.number, position.expect("it is the text of a position")))
                });
            }
            let Some(keys) = removed.keys else { return Resolved::GivenUp };
            self.keys -= keys.len();
            return Resolved::Held(keys);
        }
        let is_given_up = self.given_up.remove(xid) || self.has_unnamed;
        if self.given_up.is_empty() && !self.has_unnamed {
            self.given_up_from = None;
        }
        if is_given_up { Resolved::GivenUp } else { Resolved::Unread }
    }
}

/// Waits up to `wait_max` until all transactions that are prepared now are resolved. Logs those that are not, and returns
/// them. One that was being prepared may not be among them ([`counted_commits`](super::counted_commits)).
pub async fn wait_until_resolved(
    connection: &mut MysqlConnection,
    wait_max: Duration,
    history: &Mutex<UnresolvedHistory>,
) -> Result<UnresolvedPrepared, SourceError> {
    let Some(first) = list_prepared(connection, history, false).await? else {
        tokio::time::sleep(UNLISTED_WAIT.min(wait_max)).await;
        return Ok(UnresolvedPrepared::Unknown);
    };
    if first.is_empty() {
        return Ok(UnresolvedPrepared::none());
    }
    tracing::info!(transactions = first.len(), "waiting for prepared transactions to commit or roll back");
    let deadline = Instant::now() + wait_max;
    loop {
        let listed = query_prepared(connection).await?;
        let unresolved: Vec<&String> = first.iter().filter(|xid| listed.contains(*xid)).collect();
        if unresolved.is_empty() {
            return Ok(UnresolvedPrepared::none());
        }
        if Instant::now() >= deadline {
            let shown = &unresolved[..unresolved.len().min(NAMES_LOGGED_MAX)];
            tracing::warn!(
                transactions = unresolved.len(),
                names = ?shown,
                "transactions were prepared before reading begins, so the keys that they named are not known: the \
                 commit of one of them will count as lost deletes (--on-position-lost). Resolve them (XA RECOVER)"
            );
            return Ok(UnresolvedPrepared::from_names(unresolved.into_iter().cloned().collect()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The transactions that are prepared now; `None` if the server refuses to list them, which is logged once for each reason.
/// The commit of one whose XA PREPARE is not read from here on was never seen: a position is saved only when what is
/// resolved before it has left the list. `has_names` if those that were prepared before reading began are known by name.
pub async fn list_prepared(
    connection: &mut MysqlConnection,
    history: &Mutex<UnresolvedHistory>,
    has_names: bool,
) -> Result<Option<BTreeSet<String>>, SourceError> {
    let listed = connection.try_query("XA RECOVER", QUERY_WAIT_MAX).await?;
    let refusal = listed.as_ref().err().map(|error| error.message.as_str());
    let is_new = history.lock().note_refusal(refusal);
    match (refusal.filter(|_| is_new), has_names) {
        (None, _) => {}
        (Some(why), true) => tracing::warn!(
            why,
            "XA RECOVER failed: whether a transaction that was prepared before reading began has ended outside of the log \
             is not known, and its deletes are lost then. Grant XA_RECOVER_ADMIN"
        ),
        (Some(why), false) => tracing::warn!(
            why,
            "XA RECOVER failed: it is not known which transactions were prepared before reading began, so the commit of \
             each whose XA PREPARE is not read will count as lost deletes (--on-position-lost). Grant XA_RECOVER_ADMIN"
        ),
    }
    Ok(listed.ok().map(|rows| rows.iter().filter_map(xid_of_row).collect()))
}

/// Whether the server lists none of these prepared transactions any more. A transaction leaves the list when its commit
/// is complete. If its name is prepared again, and that is not read yet, the gate waits for that transaction too.
pub async fn are_resolved(connection: &mut MysqlConnection, xids: &[String]) -> Result<bool, SourceError> {
    let listed = query_prepared(connection).await?;
    Ok(!xids.iter().any(|xid| listed.contains(xid)))
}

async fn query_prepared(connection: &mut MysqlConnection) -> Result<BTreeSet<String>, SourceError> {
    Ok(connection.query("XA RECOVER").await?.iter().filter_map(xid_of_row).collect())
}

/// `| format | bytes of the global part | bytes of the branch part | both parts |`
fn xid_of_row(row: &Row) -> Option<String> {
    let number = |at| text(row, at)?.parse::<usize>().ok();
    let (global, branch) = row.get(3)?.as_ref()?.split_at_checked(number(1)?)?;
    Some(xid_text(global, branch, u32::try_from(number(0)?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::{
        super::gtid::{GtidList, GtidSet},
        *,
    };

    #[test]
    fn a_restart_begins_before_the_first_that_is_held() {
        let server = |server: u32| format!("3e11fa47-71ca-11e1-9e33-{server:012x}");
        let mut prepared = PreparedTransactions::default();
        let position = |number: u64| {
            let servers: Vec<_> =
                (0..20).map(|at| format!("{}:1-{}", server(at), if at == 9 { number } else { 5 })).collect();
            GtidPosition::Mysql(GtidSet::parse(&servers.join(",")).expect("a position"))
        };
        for number in 1..=4 {
            assert!(prepared.insert(format!("x{number}"), Some(Vec::new()), position(number)));
        }
        for (resolved, first) in [("x2", Some(1)), ("x1", Some(3)), ("x3", Some(4)), ("x4", None)] {
            assert!(matches!(prepared.remove(resolved), Resolved::Held(_)), "{resolved}");
            assert_eq!(prepared.resume_position(), first.map(position).as_ref(), "{resolved}");
        }
        prepared.insert("x5".into(), None, position(5));
        assert_eq!(prepared.resume_position(), Some(&position(5)));
    }

    fn keys(keys: &[&str]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    /// The end of the first is not in the log. The second was held for ever, with the position, and its commit deleted
    /// the keys of the first.
    #[test]
    fn transactions_of_one_name_end_together() {
        let position =
            |sequence| GtidPosition::Mariadb(GtidList::parse(&format!("0-1-{sequence}")).expect("a position"));
        let mut prepared = PreparedTransactions::default();
        for (sequence, key) in [(1, "first"), (2, "second")] {
            assert!(prepared.insert("x".into(), Some(keys(&[key])), position(sequence)));
        }
        assert_eq!(prepared.resume_position(), Some(&position(1)), "the first may be committed");
        assert!(prepared.may_be_committed("x"));
        assert!(matches!(prepared.remove("x"), Resolved::Held(held) if held == keys(&["first", "second"])));
        assert_eq!((prepared.resume_position(), prepared.keys), (None, 0));
        assert!(matches!(prepared.remove("x"), Resolved::Unread) && !prepared.may_be_committed("x"));
    }

    #[test]
    fn one_name_of_two_transactions_is_given_up_with_either() {
        let none = || GtidPosition::Mariadb(GtidList::default());
        for (first, second) in [(None, Some(keys(&["second"]))), (Some(keys(&["first"])), None)] {
            let mut prepared = PreparedTransactions::default();
            assert!(prepared.insert("x".into(), first, none()) && prepared.insert("x".into(), second, none()));
            assert!(matches!(prepared.remove("x"), Resolved::GivenUp));
            assert_eq!((prepared.resume_position(), prepared.keys), (None, 0));
        }
        let mut prepared = PreparedTransactions::default();
        for number in 0..TRANSACTIONS_HELD_MAX {
            assert!(prepared.insert(format!("x{number}"), None, none()));
        }
        assert!(!prepared.insert("x".into(), Some(keys(&["first"])), none()), "there is no room");
        assert!(matches!(prepared.remove("x0"), Resolved::GivenUp));
        assert!(!prepared.insert("x".into(), Some(keys(&["second"])), none()), "the keys of the first are not known");
        assert!(prepared.may_be_committed("x"));
        assert!(matches!(prepared.remove("x"), Resolved::GivenUp));
        assert!(matches!(prepared.remove("x"), Resolved::Unread));
    }
}
