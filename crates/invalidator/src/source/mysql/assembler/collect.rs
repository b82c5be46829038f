//! Collects the keys that events name, in the open transaction: those in comments of statements, in inserted rows of
//! outbox tables, and of rows of tables with a rule. Part of the [`assembler`](super).
//!
//! Not here: which events begin and end a transaction, and when its keys are emitted.

use super::{Assembler, KEYS_OF_COMMIT_MAX, OpenTransaction};
use crate::{
    Commit, Position, SourceError,
    keys::{self, SqlMode},
    source::mysql::{
        event::{self, RowsKind},
        open_transaction::Gtid,
        rows::{self, PresentColumns, TableMap},
        visibility_target::LogEnd,
        xa::KEYS_HELD_MAX,
    },
};
use std::time::SystemTime;

/// The most outbox tables of one transaction. The log describes a table again in each statement.
const TABLES_MAX: usize = 1_000;

impl Assembler {
    /// Collects the keys in the comments of a statement that was read in one of `modes`.
    pub(super) fn process_statement(&mut self, sql: &[u8], modes: &[SqlMode], time_s: u32, received_at: SystemTime) {
        let mut found = Vec::new();
        if self.has_comments {
            keys::extract_keys(sql, modes, &mut found, &mut self.rejected);
        }
        for key in found {
            self.add_key(key, time_s, received_at);
        }
    }

    pub(super) fn process_table_map(&mut self, body: &[u8], received_at: SystemTime) -> Result<(), SourceError> {
        let table = TableMap::read(body)?;
        let Some(outbox_tables) = self.outbox_tables.as_mut().filter(|tables| tables.has_name(table.name)) else {
            if let Some(open) = &mut self.open {
                open.outbox.remove(&table.table_id);
            }
            return Ok(self.row_tables.describe(table, received_at)?);
        };
        let table_id = table.table_id;
        let outbox = outbox_tables.describe(table, received_at)?;
        let open = self.open.get_or_insert_with(|| OpenTransaction::new(Gtid::Missing, None));
        if open.outbox.len() < TABLES_MAX || open.outbox.contains_key(&table_id) {
            open.outbox.insert(table_id, outbox);
            return Ok(());
        }
        Err(SourceError::Unusable { why: format!("one transaction inserts into over {TABLES_MAX} outbox tables") })
    }

    /// Collects the keys of rows. Returns whether the event ends its transaction.
    pub(super) fn process_rows(
        &mut self,
        kind: RowsKind,
        body: &[u8],
        has_extra: bool,
        is_compressed: bool,
        (time_s, received_at): (u32, SystemTime),
    ) -> Result<bool, SourceError> {
        let (header, mut cursor) = rows::read_rows_header(body)?;
        let outbox = self.open.as_ref().and_then(|open| open.outbox.get(&header.table_id));
        let outbox = outbox.filter(|_| kind == RowsKind::Insert);
        let mut found = Vec::new();
        if outbox.is_some() || self.row_tables.has(header.table_id) {
            let present = PresentColumns::read(&mut cursor, has_extra)?;
            let new_present = match kind {
                RowsKind::Update | RowsKind::PartialUpdate => present.read_new(&mut cursor)?,
                RowsKind::Insert | RowsKind::Delete => present,
            };
            let inflated = if is_compressed { event::inflate(cursor.rest())? } else { Vec::new() };
            let rows = if is_compressed { &inflated } else { cursor.rest() };
            if let (Some(outbox), Some(tables)) = (outbox, &mut self.outbox_tables) {
                outbox.columns.for_each_first(&present, rows, |bytes| {
                    tables.push_keys(outbox, bytes.unwrap_or_default(), &mut found, &mut self.rejected);
                })?;
            } else {
                self.row_tables.add_rows(header.table_id, kind, (&present, &new_present), rows, &mut found)?;
            }
        }
        let is_standalone = self.open.as_ref().is_some_and(|open| open.is_standalone);
        for key in found {
            self.add_key(key, time_s, received_at);
        }
        Ok(is_standalone && header.flags & rows::STATEMENT_END != 0)
    }

    pub(super) fn add_key(&mut self, key: Vec<u8>, time_s: u32, received_at: SystemTime) {
        let open = self.open.get_or_insert_with(|| OpenTransaction::new(Gtid::Missing, None));
        if open.is_given_up {
            return;
        }
        if open.seen.insert(key.clone()) {
            open.keys.push(key);
        }
        if open.is_xa {
            if !self.prepared.has_capacity(open.keys.len()) {
                tracing::warn!(
                    keys = open.keys.len(),
                    "prepared transactions name over {KEYS_HELD_MAX} keys, so the newest is given up: its commit will \
                     count as lost deletes (--on-position-lost)"
                );
                open.give_up();
            }
        } else if open.keys.len() == KEYS_OF_COMMIT_MAX {
            let part = std::mem::take(&mut open.keys);
            open.seen.clear();
            let committed_at = open.committed_at(time_s, received_at);
            self.visibility_target.end = Some(LogEnd { is_inside: true, ..self.end.clone() });
            open.gtid.add_to_target(&mut self.visibility_target.gtids);
            let position = Position(self.resume_position().to_string());
            self.ready.push_back(Commit { position, keys: part, committed_at });
        }
    }
}
