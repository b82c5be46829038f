//! Assembles events to commits: the keys of a transaction, and its end. Events go in, commits come out; no sockets.
//!
//! | event | keys |
//! |---|---|
//! | statements, inserted outbox rows, rows of tables with a rule | collected, each once per transaction |
//! | end of the transaction | emitted as a commit, at its position |
//! | XA PREPARE | held under the transaction's name |
//! | XA COMMIT | the held keys are emitted; if they were given up, or its XA PREPARE came before all that is read, deletes are lost |
//! | XA ROLLBACK | the held keys are dropped; if its name was reused, emitted |
//!
//! A transaction that was rolled back never reaches the log, nor does anything undone by ROLLBACK TO SAVEPOINT.
//!
//! If the log is irregular ([`Anomalies`]), keys that could be lost are emitted, counted and logged. A superfluous
//! delete is harmless.
//!
//! Invariants:
//! * While a transaction is prepared, the emitted position stays before its XA PREPARE, so a restart reads it again. A
//!   prepared transaction that is never resolved therefore holds back the position; commits after it are still emitted.
//! * A transaction whose keys are too many to be held does not stop reading. Only its commit does, as lost deletes.
//! * A transaction of over [`KEYS_OF_COMMIT_MAX`] keys is emitted in parts. All but the last carry the position before
//!   it, so a restart in between reads all of it again.

mod collect;
mod prepared;

use super::{
    event::{BinlogEvent, EventData},
    gtid::GtidPosition,
    open_transaction::{Gtid, OpenTransaction},
    options::MysqlOptions,
    outbox::OutboxTables,
    payload::TransactionPayload,
    row_tables::RowTables,
    statement,
    statement_tokens::possible_modes,
    unresolved::UnresolvedTransactions,
    unsafe_setting::UnsafeSetting,
    visibility_target::{LogEnd, VisibilityTarget},
    xa::{KEYS_HELD_MAX, PreparedTransactions, TRANSACTIONS_HELD_MAX},
};
use crate::{Commit, Position, SourceError, keys::SqlMode, source::Anomalies};
use std::{
    collections::VecDeque,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The most keys of one [`Commit`]; a larger transaction is split.
pub const KEYS_OF_COMMIT_MAX: usize = 10_000;

/// Assembles events to commits.
pub struct Assembler {
    /// `None` if rows name no keys (`--comments-only`).
    outbox_tables: Option<OutboxTables>,
    /// Not with `--outbox-only`.
    has_comments: bool,
    /// Whether the log is read once more for a replay.
    is_replay: bool,
    row_tables: RowTables,
    has_checksum: bool,
    /// All complete transactions up to here have been read.
    read_position: GtidPosition,
    /// The end of the last event in the log.
    end: LogEnd,
    visibility_target: VisibilityTarget,
    transactions_read: u64,
    /// When the file that is read was begun; `None` before its first event.
    file_begun_at: Option<SystemTime>,
    /// The transaction whose end has not been read yet.
    open: Option<OpenTransaction>,
    /// The compressed transaction of which events have not been processed yet.
    compressed: Option<TransactionPayload>,
    prepared: PreparedTransactions,
    /// Transactions whose commit is a loss, if their XA PREPARE is not read.
    unresolved: UnresolvedTransactions,
    /// Complete commits, in order.
    ready: VecDeque<Commit>,
    rejected: u64,
    anomalies: Anomalies,
}

impl Assembler {
    /// Starts after `read_position`. `has_checksum` applies to the first event; format events change it.
    pub fn new(options: &MysqlOptions, read_position: GtidPosition, has_checksum: bool) -> Self {
        Assembler {
            outbox_tables: (!options.comments_only).then(|| OutboxTables::new(&options.outbox_table)),
            has_comments: !options.outbox_only,
            is_replay: options.is_replay,
            row_tables: RowTables::new(
                read_position.server_kind(),
                options.row_rules.clone(),
                options.accepted.contains(&UnsafeSetting::BinlogRowMetadata),
            ),
            has_checksum,
            read_position,
            end: LogEnd::default(),
            visibility_target: VisibilityTarget::default(),
            transactions_read: 0,
            file_begun_at: None,
            open: None,
            compressed: None,
            prepared: PreparedTransactions::default(),
            unresolved: UnresolvedTransactions::default(),
            ready: VecDeque::new(),
            rejected: 0,
            anomalies: Anomalies::default(),
        }
    }

    /// The position to resume from after a restart: everything before it was emitted or names no key. A replay ends at
    /// a position, so transactions that are still prepared there do not hold it back.
    pub fn resume_position(&self) -> &GtidPosition {
        let held_back = self.prepared.resume_position().filter(|_| !self.is_replay);
        held_back.unwrap_or(&self.read_position)
    }

    /// How many transactions were read completely. [`Assembler::resume_position`] changes only when this grows.
    pub fn transactions_read(&self) -> u64 {
        self.transactions_read
    }

    /// When the file of the log that is read was begun; `None` before its first event.
    pub fn file_begun_at(&self) -> Option<SystemTime> {
        self.file_begun_at
    }

    /// The end of the last event in the server's files.
    pub fn end(&self) -> &LogEnd {
        &self.end
    }

    /// Whether a transaction continues there.
    pub fn is_inside_transaction(&self) -> bool {
        self.open.is_some() || self.compressed.is_some()
    }

    /// Whether [`Assembler::resume_position`] is the position there, and all commits before it were taken.
    pub fn is_resume_position_at_end(&self) -> bool {
        let is_held_back = self.prepared.resume_position().is_some() && !self.is_replay;
        self.ready.is_empty() && !is_held_back && !self.is_inside_transaction()
    }

    /// The commits that readers must see before the keys emitted so far may be deleted. The caller takes it for the
    /// gate.
    pub fn visibility_target(&mut self) -> &mut VisibilityTarget {
        &mut self.visibility_target
    }

    /// The tables with a rule. The caller gives them the catalogue that they need before it feeds the next event.
    pub fn row_tables(&mut self) -> &mut RowTables {
        &mut self.row_tables
    }

    /// The outbox tables; `None` if rows name no keys. The caller gives them the catalogue that they need before it
    /// feeds the next event.
    pub fn outbox_tables(&mut self) -> Option<&mut OutboxTables> {
        self.outbox_tables.as_mut()
    }

    /// Whether the catalogue must be read before the next event.
    pub fn needs_catalogue(&mut self) -> bool {
        let for_outbox_tables = self.outbox_tables.as_ref().is_some_and(|tables| tables.needed_names().is_some());
        for_outbox_tables || self.row_tables.needed_catalogue().is_some()
    }

    /// The number of invalid keys.
    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    /// The irregularities of the log.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// The complete commits, in order.
    pub fn ready(&mut self) -> &mut VecDeque<Commit> {
        &mut self.ready
    }

    /// Processes one event, which was received at `received_at`. If it holds others, they wait for
    /// [`Assembler::feed_compressed`].
    pub fn feed(&mut self, bytes: &[u8], received_at: SystemTime) -> Result<(), SourceError> {
        let event = BinlogEvent::read(bytes, self.has_checksum)?;
        // The end of an event outside of transactions may refer to another file.
        if !event.is_artificial
            && !matches!(
                event.body,
                EventData::Other | EventData::Unknown(_) | EventData::Format { .. } | EventData::Rotate { .. }
            )
        {
            self.end.advance(event.end, event.bytes);
        }
        self.process_event(event, received_at)
    }

    fn process_event(&mut self, event: BinlogEvent<'_>, received_at: SystemTime) -> Result<(), SourceError> {
        let time_s = event.time_s;
        match event.body {
            EventData::MariadbGtid { domain, sequence, flags } => {
                let open = OpenTransaction::mariadb(domain, event.server_id, sequence, flags);
                self.begin_transaction(open, time_s, received_at)?;
            }
            EventData::MysqlGtid { origin, number, committed_us } => {
                let open = OpenTransaction::new(Gtid::Mysql { origin, number }, committed_us);
                self.begin_transaction(open, time_s, received_at)?;
            }
            EventData::Anonymous => {
                return Err(SourceError::Unusable {
                    why:
                        "the log has a transaction without a GTID: set gtid_mode=ON and start from a position after it"
                            .into(),
                });
            }
            // The log does not have the mode in which its session read it.
            EventData::Statement(sql) => self.process_statement(sql, &SqlMode::ALL, time_s, received_at),
            EventData::Query { schema, sql, sql_mode } => {
                self.process_query(schema, &sql, sql_mode, (time_s, received_at))?;
            }
            EventData::TableMap(body) => self.process_table_map(body, received_at)?,
            EventData::Rows { kind, body, has_extra, is_compressed } => {
                let ends_transaction =
                    self.process_rows(kind, body, has_extra, is_compressed, (time_s, received_at))?;
                if ends_transaction {
                    self.commit_open(time_s, received_at)?;
                }
            }
            EventData::Xid => self.commit_open(time_s, received_at)?,
            EventData::XaPrepare { is_committed: true, .. } => self.commit_open(time_s, received_at)?,
            EventData::XaPrepare { xid, is_committed: false } => self.prepare_open(xid)?,
            EventData::Rotate { file, offset } => {
                self.end_file(time_s, received_at)?;
                self.end = LogEnd {
                    file: String::from_utf8_lossy(file).trim_end_matches('\0').into(),
                    offset,
                    ..LogEnd::default()
                };
            }
            EventData::Format { has_checksum } => {
                self.end_file(time_s, received_at)?;
                self.has_checksum = has_checksum;
                self.file_begun_at = (time_s > 0).then(|| UNIX_EPOCH + Duration::from_secs(time_s.into()));
            }
            EventData::Transaction(payload) => self.compressed = Some(payload),
            EventData::Incident => {
                return Err(SourceError::PositionLost {
                    position: Position(self.resume_position().to_string()),
                    why: "the server reports that it lost a part of its log (an incident event)".into(),
                });
            }
            EventData::Unknown(kind) => {
                let why = format!(
                    "the log has an event of the unknown kind {kind} behind {} in {}, which may hold changes of rows: update \
                     lookaside-invalidator, or turn off what makes the server write such events, empty the clusters, and \
                     begin behind it (move the positions away; --from now)",
                    self.end.offset, self.end.file
                );
                return Err(SourceError::Unusable { why });
            }
            EventData::Other => {}
        }
        self.emit_without_gtid(time_s, received_at);
        self.check_unresolved()
    }

    /// Emits keys outside of any transaction at once: without a beginning there is no end.
    fn emit_without_gtid(&mut self, time_s: u32, received_at: SystemTime) {
        if let Some(open) = self.open.take_if(|open| open.has_no_gtid()) {
            self.report_without_gtid(&open);
            let outbox = open.outbox.clone();
            self.emit_unfinished(open, time_s, received_at);
            self.open = Some(OpenTransaction { outbox, ..OpenTransaction::new(Gtid::Missing, None) });
        }
    }

    fn report_without_gtid(&mut self, open: &OpenTransaction) {
        tracing::warn!(keys = open.keys.len(), "the log names keys outside of any transaction; deleting them");
        self.anomalies.without_gtid += 1;
    }

    fn begin_transaction(
        &mut self,
        open: OpenTransaction,
        time_s: u32,
        received_at: SystemTime,
    ) -> Result<(), SourceError> {
        if let Some(unfinished) = self.take_unfinished()? {
            tracing::warn!(
                keys = unfinished.keys.len(),
                "a transaction begins in the log before the end of another, which may be committed; deleting its keys"
            );
            self.anomalies.unfinished += 1;
            // MySQL: wait for the transaction that follows it in the log.
            open.gtid.add_to_target(&mut self.visibility_target.gtids);
            self.emit_unfinished(unfinished, time_s, received_at);
        }
        self.row_tables.begin_transaction();
        self.open = Some(open);
        Ok(())
    }

    /// The open transaction, if it named keys.
    fn take_unfinished(&mut self) -> Result<Option<OpenTransaction>, SourceError> {
        match self.open.take() {
            Some(unfinished) if unfinished.is_given_up => {
                self.report_unknown_keys("a transaction without an end")?;
                Ok(None)
            }
            unfinished => Ok(unfinished.filter(|unfinished| !unfinished.keys.is_empty())),
        }
    }

    /// A transaction is committed, and its keys are not known.
    fn report_unknown_keys(&self, transaction: &str) -> Result<(), SourceError> {
        self.report_lost(format!(
            "{transaction} is committed, and the keys that it named are not known: it was prepared before reading began, \
             or prepared transactions named over {KEYS_HELD_MAX} keys, or over {TRANSACTIONS_HELD_MAX} were prepared at \
             the same time"
        ))
    }

    /// Deletes are lost, unless the daemon has sent them.
    fn report_lost(&self, why: String) -> Result<(), SourceError> {
        if self.is_replay {
            tracing::warn!(why, "keys are not replayed");
            return Ok(());
        }
        Err(SourceError::PositionLost { position: Position(self.resume_position().to_string()), why })
    }

    /// Handles the end of a log file, over which no transaction extends. A server that was killed may leave one without
    /// an end, and rolls it back when it restarts; but non-transactional tables keep their changes.
    fn end_file(&mut self, time_s: u32, received_at: SystemTime) -> Result<(), SourceError> {
        if let Some(unfinished) = self.take_unfinished()? {
            tracing::info!(
                keys = unfinished.keys.len(),
                "a file of the log ends inside of a transaction; deleting its keys"
            );
            self.emit_unfinished(unfinished, time_s, received_at);
        }
        Ok(())
    }

    /// Emits the keys of a transaction that has no end. It does not count as read. Readers may never see it, so the
    /// gate waits for its place in the log.
    fn emit_unfinished(&mut self, unfinished: OpenTransaction, time_s: u32, received_at: SystemTime) {
        let committed_at = unfinished.committed_at(time_s, received_at);
        self.visibility_target.end = Some(LogEnd { is_inside: true, ..self.end.clone() });
        let position = Position(self.resume_position().to_string());
        for keys in unfinished.keys.chunks(KEYS_OF_COMMIT_MAX) {
            self.ready.push_back(Commit { position: position.clone(), keys: keys.to_vec(), committed_at });
        }
    }

    /// Whether events of a compressed transaction wait for [`Assembler::feed_compressed`]. They go before any other
    /// event.
    pub fn has_compressed(&self) -> bool {
        self.compressed.is_some()
    }

    /// Processes the next event of the compressed transaction, if there is one. Such events have no checksums and no
    /// positions.
    pub fn feed_compressed(&mut self, received_at: SystemTime) -> Result<(), SourceError> {
        let Some(mut payload) = self.compressed.take() else { return Ok(()) };
        if let Some(bytes) = payload.next_event()? {
            let event = BinlogEvent::read(bytes, false)?;
            // No server nests payloads, and nested ones could grow without bound.
            if !matches!(event.body, EventData::Transaction(_)) {
                self.process_event(event, received_at)?;
            }
            self.compressed = Some(payload);
        }
        Ok(())
    }

    fn process_query(
        &mut self,
        schema: &[u8],
        sql: &[u8],
        sql_mode: Option<SqlMode>,
        (time_s, received_at): (u32, SystemTime),
    ) -> Result<(), SourceError> {
        let text = sql.trim_ascii();
        let is = |word: &[u8]| text.eq_ignore_ascii_case(word);
        let after = |words: &[u8]| {
            let (head, rest) = text.split_at_checked(words.len())?;
            head.eq_ignore_ascii_case(words).then(|| String::from_utf8_lossy(rest).trim().to_ascii_lowercase())
        };
        if is(b"BEGIN") || after(b"XA START ").is_some() {
            if let Some(open) = &mut self.open {
                open.has_begin = true;
                open.is_xa |= !is(b"BEGIN");
            }
        } else if is(b"COMMIT") || is(b"ROLLBACK") {
            // A ROLLBACK in the log means that non-transactional tables were changed: their changes remain.
            self.commit_open(time_s, received_at)?;
        } else if let Some(xid) = after(b"XA COMMIT ") {
            self.commit_prepared(xid.trim_end_matches(" one phase"), time_s, received_at)?;
        } else if let Some(xid) = after(b"XA ROLLBACK ") {
            if self.prepared.may_be_committed(&xid) {
                return self.commit_prepared(&xid, time_s, received_at);
            }
            self.prepared.remove(&xid);
            self.commit_open(time_s, received_at)?;
            self.unresolved.resolve(&xid, &self.read_position);
        } else {
            let modes = possible_modes(sql, sql_mode);
            self.anomalies.without_rows += u64::from(statement::changes_rows(sql, &modes));
            self.process_statement(sql, &modes, time_s, received_at);
            let mut found = Vec::new();
            self.row_tables.add_statement(schema, sql, &modes, &mut found);
            if let Some(outbox_tables) = &mut self.outbox_tables {
                outbox_tables.note_statement(sql);
            }
            for key in found {
                self.add_key(key, time_s, received_at);
            }
            if self.open.as_ref().is_some_and(|open| open.is_standalone || !open.has_begin) {
                self.commit_open(time_s, received_at)?;
            }
        }
        Ok(())
    }

    /// Emits the keys of the open transaction, which is committed.
    fn commit_open(&mut self, time_s: u32, received_at: SystemTime) -> Result<(), SourceError> {
        if let Some(mut open) = self.open.take() {
            if open.is_given_up {
                self.report_unknown_keys("an XA transaction")?;
            }
            if open.has_no_gtid() {
                self.report_without_gtid(&open);
            }
            let keys = std::mem::take(&mut open.keys);
            self.emit(open, keys, time_s, received_at);
        }
        Ok(())
    }

    /// Emits `keys`, which `open` makes stale.
    fn emit(&mut self, open: OpenTransaction, keys: Vec<Vec<u8>>, time_s: u32, received_at: SystemTime) {
        let before = Position(self.resume_position().to_string());
        self.emit_from(before, open, keys, time_s, received_at);
    }

    /// As [`Self::emit`]; all parts but the last carry `before`.
    fn emit_from(
        &mut self,
        before: Position,
        open: OpenTransaction,
        keys: Vec<Vec<u8>>,
        time_s: u32,
        received_at: SystemTime,
    ) {
        let committed_at = open.committed_at(time_s, received_at);
        open.gtid.add_to(&mut self.read_position);
        self.transactions_read += 1;
        self.visibility_target.end = Some(self.end.clone());
        open.gtid.add_to_target(&mut self.visibility_target.gtids);
        let mut parts = keys.chunks(KEYS_OF_COMMIT_MAX).peekable();
        while let Some(part) = parts.next() {
            let position = match parts.peek() {
                Some(_) => before.clone(),
                None => Position(self.resume_position().to_string()),
            };
            self.ready.push_back(Commit { position, keys: part.to_vec(), committed_at });
        }
    }
}

#[cfg(test)]
mod tests;
