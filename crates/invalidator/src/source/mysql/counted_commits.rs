//! The commits that came before reading began to count: those of a start from the present whose keys need no delete.
//!
//! Serves the start of the delete path. A start from the present begins at the end of the log. An XA COMMIT that is
//! behind its position while the XA PREPARE is not is a loss, unless it was complete before the cluster is filled, or
//! flushed. So the rule asks only whether it was complete at the end of the start, and not whether the transaction was
//! ever listed:
//!
//! ```text
//! XA PREPARE   log ---- fsync, replicas ---- [ listed: prepared .......................... ]
//! XA COMMIT                                                  log ---- fsync, replicas ---- complete
//!
//! the start    position -> (MariaDB: gate) -> pause -> list, wait for those in it -> end -> (MariaDB: list again)
//!
//! | position is               | XA COMMIT is                            | it is           |
//! |---------------------------|-----------------------------------------|-----------------|
//! | before the XA PREPARE     | anywhere                                | read, with keys |
//! | between                   | complete at the end                     | no loss         |
//! | between                   | in the log at the end, and incomplete   | a loss          |
//! | between                   | in the log later                        | a loss          |
//! | behind both               | incomplete (MariaDB)                    | waited for      |
//! ```
//!
//! Each commit in MySQL's `gtid_executed` is complete. MariaDB's `gtid_binlog_pos` has all that are in the log: an XA
//! PREPARE that is not listed yet, and an XA COMMIT that is not complete, whose transaction the second list has still.
//!
//! The gate and the pause are no part of the rule: what is being prepared at the position is listed behind them, and
//! then waited for. Without them its commit would be a loss, and one flush would follow the other under a load of XA
//! transactions.

use super::{gtid::GtidPosition, open_transaction::Gtid};
use std::collections::BTreeSet;

/// Commits that came before reading counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedCommits {
    /// Those up to here,
    pub end: GtidPosition,
    /// but for the commits of these transactions, which were not complete.
    pub incomplete: BTreeSet<String>,
}

impl CountedCommits {
    /// Whether the commit `gtid` of `xid` is one of them; the log is `read` up to there.
    pub fn include(&self, xid: &str, read: &GtidPosition, gtid: &Gtid) -> bool {
        gtid.is_between(read, &self.end) && !self.incomplete.contains(xid)
    }
}
