//! Prepared transactions (XA): holds their keys until they are resolved, and finds those whose keys are not known. Part
//! of the [`assembler`](super).

use super::Assembler;
use crate::{
    Position, SourceError,
    source::{
        PreparedState,
        mysql::{
            open_transaction::{Gtid, OpenTransaction},
            unresolved::UnresolvedTransactions,
            xa::{NAMES_LOGGED_MAX, Resolved, TRANSACTIONS_HELD_MAX},
        },
    },
};
use std::time::SystemTime;

impl Assembler {
    /// The deletes of these transactions were not sent before reading began. The XA PREPARE of some may be read.
    pub fn set_unresolved(&mut self, unresolved: UnresolvedTransactions) {
        self.unresolved = unresolved;
    }

    /// What is known of prepared transactions, as long as nothing is read.
    pub fn prepared_state(&self) -> PreparedState {
        let (unresolved, read_until) = (self.unresolved.present().clone(), self.unresolved.read_until());
        PreparedState { unresolved, read_until }
    }

    /// A restart must know how far the log is read.
    pub fn record_read_until(&self) {
        self.unresolved.record_read_until(&self.read_position);
    }

    /// Holds the keys of the open transaction, which is prepared.
    pub(super) fn prepare_open(&mut self, xid: String) -> Result<(), SourceError> {
        let Some(gtid) = self.open.as_ref().map(|open| &open.gtid) else { return Ok(()) };
        if self.unresolved.is_prepared_again(&xid, &self.read_position, gtid) {
            self.report_lost(format!(
                "XA transaction {xid} was prepared before reading began and has ended, and the log does not show how: \
                 another one of this name is prepared. The keys that it named are not known"
            ))?;
        }
        let Some(open) = self.open.take() else { return Ok(()) };
        let before = self.read_position.clone();
        open.gtid.add_to(&mut self.read_position);
        self.transactions_read += 1;
        self.unresolved.resolve(&xid, &self.read_position);
        // A transaction of this name that was committed before is complete, or the server had refused the name. The gate
        // would wait for this one.
        self.visibility_target.xids.retain(|committed| *committed != xid);
        let keys = (!open.is_given_up).then_some(open.keys);
        if !self.prepared.insert(xid, keys, before) {
            tracing::warn!(
                "over {TRANSACTIONS_HELD_MAX} transactions are prepared, so the newest is given up: its commit will \
                 count as lost deletes (--on-position-lost)"
            );
        }
        Ok(())
    }

    /// Emits the keys of a prepared transaction, which is committed.
    pub(super) fn commit_prepared(
        &mut self,
        xid: &str,
        time_s: u32,
        received_at: SystemTime,
    ) -> Result<(), SourceError> {
        // Read before the keys leave `prepared`: until the last part of them the position stays before the XA PREPARE.
        let before = Position(self.resume_position().to_string());
        let gtid = self.open.as_ref().map_or(&Gtid::Missing, |open| &open.gtid);
        let keys = match self.prepared.remove(xid) {
            Resolved::Held(keys) => {
                if !matches!(self.open, Some(OpenTransaction { gtid: Gtid::Mysql { .. }, .. })) {
                    self.visibility_target.xids.push(xid.to_owned());
                }
                keys
            }
            Resolved::Unread if !self.unresolved.may_include(xid, &self.read_position, gtid) => {
                tracing::debug!(xid, "the deletes of this XA transaction were sent before reading began");
                Vec::new()
            }
            Resolved::Unread if self.unresolved.is_unknown() => {
                self.report_lost(format!(
                    "XA transaction {xid} is committed, its XA PREPARE was not read, and which transactions were prepared \
                     before reading began is not known: the server did not list them (XA RECOVER needs XA_RECOVER_ADMIN), \
                     or there were too many"
                ))?;
                Vec::new()
            }
            Resolved::GivenUp | Resolved::Unread => {
                self.report_unknown_keys(&format!("XA transaction {xid}"))?;
                Vec::new()
            }
        };
        let open = self.open.take().unwrap_or_else(|| OpenTransaction::new(Gtid::Missing, None));
        self.emit_from(before, open, keys, time_s, received_at);
        // A replay passes it nevertheless.
        self.unresolved.resolve(xid, &self.read_position);
        Ok(())
    }

    /// Transactions that were prepared before reading began must have an end in the log, or be prepared still.
    pub(super) fn check_unresolved(&mut self) -> Result<(), SourceError> {
        let gone = self.unresolved.check_list(&self.read_position);
        if gone.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = gone.iter().take(NAMES_LOGGED_MAX).map(String::as_str).collect();
        let (count, named) = (gone.len(), named.join(", "));
        self.report_lost(format!(
            "{count} XA transactions that were prepared before reading began have ended, and the log does not show how \
             ({named}): the keys that they named are not known"
        ))
    }
}
