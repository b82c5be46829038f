//! A change of a table that the catalogue has shown, until every cluster has acknowledged it ([`super::coverage`]).
//!
//! Sans-I/O.

use super::lsn::Lsn;
use crate::rules::{TableChange, TableName};
use std::collections::BTreeSet;

/// A change that some cluster may not have acknowledged.
#[derive(Debug)]
pub(super) struct FoundChange {
    pub table: TableName,
    pub change: TableChange,
    /// `None` until a source emits it, and again if it must be repeated.
    pub emitted_at: Option<Lsn>,
    /// It is repeated when these transactions have ended.
    pub writers: BTreeSet<String>,
    /// Whether it was repeated. If `writers` is not empty then, these are prepared transactions.
    is_repeated: bool,
}

impl FoundChange {
    /// A change that is to be emitted, and again when `writers` have ended.
    pub fn new(table: TableName, change: TableChange, writers: BTreeSet<String>) -> FoundChange {
        FoundChange { table, change, emitted_at: None, writers, is_repeated: false }
    }

    /// Whether all clusters have it, if each has saved `position`.
    pub fn is_acknowledged(&self, position: Lsn) -> bool {
        // One that was emitted at the position itself may come after it.
        self.writers.is_empty() && self.emitted_at.is_some_and(|emitted_at| emitted_at < position)
    }

    /// Finds it again if the transactions that it waits for are no more among those that are `open`. A prepared one has
    /// another virtual id after a restart of the server, and on some versions from then on that it is prepared. So those
    /// that are prepared now are waited for, too, once.
    pub fn await_writers(&mut self, open: Option<&BTreeSet<String>>) {
        self.writers.retain(|writer| open.is_some_and(|open| open.contains(writer)));
        if self.writers.is_empty() {
            self.emitted_at = None;
            if !self.is_repeated {
                self.is_repeated = true;
                let is_prepared = |writer: &&String| writer.starts_with("-1/");
                self.writers.extend(open.into_iter().flatten().filter(is_prepared).cloned());
            }
        }
    }
}
